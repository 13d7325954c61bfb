"""Writing entries to standard output: as a table, as JSON or YAML, as keys, as they are."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated

import msgspec
import typer

from natsctl.cli.output.encoding import json_text, yaml_text
from natsctl.cli.output.entries import columns, described, described_raw, object_in, row
from natsctl.cli.output.terminal import coloured, emit, writing
from natsctl.jetstream.bucket.bucket import Message
from natsctl.telemetry.escaping import escaped

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
            write_json([described_raw(bucket, message) for message in messages])
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
        write_json(described_raw(bucket, message))
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


def line(text: str) -> None:
    """Write one line for people."""
    emit(escaped(text))


def write_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows under their headings, each column as wide as it needs."""
    widths = column_widths(headings, rows)
    for cells in (headings, *rows):
        write_row(cells, widths)


def column_widths(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    """Return how wide each column is, with its cells as `write_row` writes them."""
    columns = zip(headings, *rows, strict=True)
    return [max(len(escaped(cell)) for cell in column) for column in columns]


def write_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Write one row of a table."""
    last = len(cells) - 1
    padded = (
        escaped(cell) if number == last else escaped(cell).ljust(width + GAP)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    emit("".join(_in_colour(cell) for cell in padded).rstrip())


def write_json(found: object, *, indent: int = 2) -> None:
    """Write JSON; an indent below 0 keeps it on one line."""
    emit(json_text(found, indent=indent))


def write_yaml(found: Sequence[object]) -> None:
    """Write YAML documents."""
    for number, document in enumerate(found):
        emit(f"---\n{yaml_text(document)}" if number else yaml_text(document))


def write_value(value: bytes) -> None:
    """Write a stored value: exactly, or on a terminal as lines without what controls it."""
    if sys.stdout.isatty():
        text = value.decode(errors="backslashreplace")
        emit(escaped(text.removesuffix("\n"), keep="\n\t"))
        return
    with writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()


def _in_colour(cell: str) -> str:
    colour = _COLOURS.get(cell.rstrip())
    return cell if colour is None else coloured(cell, colour, sys.stdout)
