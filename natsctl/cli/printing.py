"""Writing entries to standard output: as a table, as JSON or YAML, as keys, as they are."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated

import msgspec
import typer
import yaml

from natsctl.cli.entries import columns, described, object_in, row
from natsctl.cli.terminal import coloured
from natsctl.kv.bucket import Message

GAP = 3

_COLOURS = {
    "True": typer.colors.GREEN,
    "False": typer.colors.RED,
    "Pending": typer.colors.YELLOW,
    "Deleting": typer.colors.YELLOW,
    "ADDED": typer.colors.GREEN,
    "UPDATED": typer.colors.YELLOW,
    "DELETED": typer.colors.RED,
}


class Output(Enum):
    """How things are written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    VALUE = "value"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="how it is written")]


def write_entries(bucket: str, messages: Sequence[Message], output: Output) -> None:
    """Write a listing."""
    match output:
        case Output.TABLE | Output.WIDE:
            headings = columns(messages, wide=output is Output.WIDE)
            now = datetime.now(UTC)
            write_table(headings, [row(message, headings, now) for message in messages])
        case Output.JSON:
            write_json([described(bucket, message) for message in messages])
        case Output.YAML:
            write_yaml([described(bucket, message) for message in messages])
        case Output.NAME:
            for message in messages:
                line(message.key)
        case Output.VALUE:
            for message in messages:
                write_value(message.value)


def write_entry(bucket: str, message: Message, output: Output) -> None:
    """Write one entry; without an object in it, a table is no more than its value."""
    if output is Output.JSON:
        write_json(described(bucket, message))
    elif output is Output.TABLE and object_in(message.value) is None:
        write_value(message.value)
    else:
        write_entries(bucket, [message], output)


def write_found(
    found: object, output: Output, *, names: Iterable[str], table: Callable[[], None]
) -> None:
    """Write what a command has found: for programs, as *names*, or with *table* for people."""
    match output:
        case Output.JSON:
            write_json(found)
        case Output.YAML:
            write_yaml([msgspec.to_builtins(found)])
        case Output.NAME | Output.VALUE:
            for name in names:
                line(name)
        case _:
            table()


def write_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows under their headings, each column as wide as it needs."""
    widths = column_widths(headings, rows)
    for cells in (headings, *rows):
        write_row(cells, widths)


def column_widths(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    """Return how wide each column is."""
    return [max(map(len, column)) for column in zip(headings, *rows, strict=True)]


def write_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Write one row of a table."""
    last = len(cells) - 1
    padded = (
        cell if at == last else cell.ljust(width + GAP)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    line("".join(_in_colour(cell) for cell in padded).rstrip())


def write_json(found: object, *, indent: int = 2) -> None:
    """Write JSON; an indent below 0 keeps it on one line."""
    text = msgspec.json.encode(found)
    line((text if indent < 0 else msgspec.json.format(text, indent=indent)).decode())


def write_yaml(found: Sequence[object]) -> None:
    """Write YAML documents."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    for number, document in enumerate(found):
        if number:
            line("---")
        line(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True).rstrip())


def write_value(value: bytes) -> None:
    """Write a stored value as it is; on a terminal, with a line of its own."""
    sys.stdout.flush()
    sys.stdout.buffer.write(value)
    if sys.stdout.isatty() and not value.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def line(text: str) -> None:
    """Write a line."""
    print(text)  # noqa: T201 - a command's output


def _in_colour(cell: str) -> str:
    colour = _COLOURS.get(cell.rstrip())
    return cell if colour is None else coloured(cell, colour, sys.stdout)
