"""Writes results to standard output as a table, JSON, YAML, names or values."""

import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import typer

from natsctl.cli.output.encoding import json_text, yaml_text
from natsctl.cli.output.terminal import coloured, write_line, write_text, writing
from natsctl.jetstream.bucket import Message
from natsctl.model.schemas.field_paths import Columns
from natsctl.operate.entries import (
    NO_COLUMNS,
    cells_of,
    described,
    described_raw,
    headings_of,
)
from natsctl.telemetry.escaping import escaped
from natsctl.telemetry.hiding import abbreviated

GAP = 3
"""Spaces between two columns of a table."""

CELL_MIN = 12
"""Characters that a column keeps on a narrow terminal."""

_COLOURS = {
    "True": typer.colors.GREEN,
    "False": typer.colors.RED,
    "Pending": typer.colors.YELLOW,
    "Deleting": typer.colors.YELLOW,
    "ADDED": typer.colors.GREEN,
    "UPDATED": typer.colors.YELLOW,
    "DELETED": typer.colors.RED,
    "down": typer.colors.RED,
    "no answer": typer.colors.RED,
    "blocked": typer.colors.RED,
}

OUTPUT_OPTION: Any = typer.Option("--output", "-o", help="Output format")


class Output(Enum):
    """An output format."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    VALUE = "value"


TextOutput = Literal["text", "json"]
"""An output format of a result that is a text."""

OutputOption = Annotated[Output, OUTPUT_OPTION]


def write_entries(
    bucket: str,
    messages: Sequence[Message],
    output: Output,
    *,
    table: Callable[[], None] | None = None,
    event: Callable[[Message], str] = lambda _: "",
    name: Callable[[Message], str] = lambda message: message.key,
    columns: Columns = NO_COLUMNS,
) -> None:
    """Write entries of a bucket.

    *table* writes them as a table; by default, the table has the headings of `headings_of` and the
    declared *columns*. *event* returns the field `event` of an entry in JSON and YAML, and *name*
    its line in the format `name`.
    """
    match output:
        case Output.TABLE | Output.WIDE if table is not None:
            table()
        case Output.TABLE | Output.WIDE:
            now, wide = datetime.now(UTC), output is Output.WIDE
            headings = headings_of(messages, wide=wide, declared=columns)
            rows = [cells_of(message, headings, now, declared=columns) for message in messages]
            if sys.stdout.isatty() and not wide:
                rows = fitted(headings, rows, columns, width=shutil.get_terminal_size().columns)
            write_table(headings, rows)
        case Output.JSON:
            write_json([described_raw(bucket, message, event(message)) for message in messages])
        case Output.YAML:
            write_yaml([described(bucket, message, event(message)) for message in messages])
        case Output.NAME:
            for message in messages:
                write_line(name(message))
        case Output.VALUE:
            for message in messages:
                write_value(message.value)


def write_result(
    result: object, output: Output, *, names: Iterable[str], table: Callable[[], None]
) -> None:
    """Write a result: as JSON or YAML, as *names*, or with *table*."""
    match output:
        case Output.JSON:
            write_json(result)
        case Output.YAML:
            write_yaml([msgspec.to_builtins(result)])
        case Output.NAME | Output.VALUE:
            for name in names:
                write_line(name)
        case _:
            table()


def write_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows under their headings, with columns as wide as their widest cell."""
    widths = column_widths(headings, rows)
    for cells in (headings, *rows):
        write_row(cells, widths)


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table without colours, escaped."""
    widths = column_widths(headings, rows)
    return ["".join(_padded(cells, widths)).rstrip() for cells in (headings, *rows)]


def column_widths(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    """Return the width of each column, in characters as `write_row` writes them."""
    return [max(map(len, map(escaped, cells))) for cells in zip(headings, *rows, strict=True)]


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], cut: Collection[str], *, width: int
) -> list[list[str]]:
    """Return the rows with the cells under the headings *cut* shortened, if they are too wide.

    The widest columns are shortened first. A column keeps `CELL_MIN` characters.
    """
    widths = column_widths(headings, rows)
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    numbers = [number for number, heading in enumerate(headings) if heading in cut]
    for number in sorted(numbers, key=lambda number: widths[number], reverse=True):
        least = max(CELL_MIN, len(headings[number]))
        shorter = max(least, widths[number] - max(0, excess))
        excess -= max(0, widths[number] - shorter)
        widths[number] = min(widths[number], shorter)
    return [
        [
            abbreviated(cell, size) if number in numbers else cell
            for number, (cell, size) in enumerate(zip(cells, widths, strict=True))
        ]
        for cells in rows
    ]


def write_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Write one row of a table."""
    write_text("".join(map(_in_colour, _padded(cells, widths))).rstrip())


def _padded(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the escaped cells, each as wide as its column and the gap after it."""
    last = len(cells) - 1
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        yield escaped(cell) if number == last else escaped(cell).ljust(width + GAP)


def write_json(value: object, *, indent: int = 2) -> None:
    """Write JSON; a negative indent writes it on one line."""
    write_text(json_text(value, indent=indent))


def write_yaml(values: Sequence[object]) -> None:
    """Write YAML documents."""
    for number, value in enumerate(values):
        write_text(f"---\n{yaml_text(value)}" if number else yaml_text(value))


def write_value(value: bytes) -> None:
    """Write a stored value: its exact bytes, or escaped text if standard output is a terminal."""
    if sys.stdout.isatty():
        text = value.decode(errors="backslashreplace")
        write_text(escaped(text.removesuffix("\n"), keep="\n\t"))
        return
    with writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()


def _in_colour(cell: str) -> str:
    colour = _COLOURS.get(cell.rstrip())
    return cell if colour is None else coloured(cell, colour, sys.stdout)
