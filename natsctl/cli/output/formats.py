"""Formats with which a user chooses the fields of objects: custom columns, and single fields."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from natsctl.cli.output.printing import Output, write_entries, write_json, write_table, write_value
from natsctl.cli.output.terminal import write_line
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Message
from natsctl.model.schemas.field_paths import Columns, FieldPath, parse_columns
from natsctl.operate.entries import described, described_raw, object_in

CUSTOM_COLUMNS = "custom-columns="
FIELD = "field="


class CustomColumns(msgspec.Struct, frozen=True):
    """A table with these columns only; `columns` has the path of each by its heading."""

    columns: Columns


class FieldOutput(msgspec.Struct, frozen=True):
    """The value of one field of each object, one per line."""

    path: FieldPath


Format = Output | CustomColumns | FieldOutput


def parse_format(text: str) -> Format:
    """Return the format that a user names; raises `UsageError` for an unknown one."""
    if text.startswith(FIELD):
        return FieldOutput(FieldPath.parse(text.removeprefix(FIELD)))
    if text.startswith(CUSTOM_COLUMNS):
        return CustomColumns(_columns(text.removeprefix(CUSTOM_COLUMNS)))
    try:
        return Output(text)
    except ValueError:
        *names, last = _names()
        raise UsageError(f"--output {text!r} must be {', '.join(names)} or {last}") from None


def _columns(text: str) -> Columns:
    columns: dict[str, str] = {}
    for pair in text.split(","):
        heading, colon, path = pair.partition(":")
        if not colon:
            raise UsageError(f"{pair!r} is not a column HEADING:PATH, such as IMAGE:spec.image")
        columns[heading] = path
    return parse_columns(columns)


def _names() -> list[str]:
    parameters = (f"{CUSTOM_COLUMNS}HEADING:PATH,…", f"{FIELD}PATH")
    return [*(output.value for output in Output), *parameters]


def _completed(incomplete: str) -> list[str]:
    """Return the formats that a shell completes."""
    names = [*(output.value for output in Output), CUSTOM_COLUMNS, FIELD]
    return [name for name in names if name.startswith(incomplete)]


FormatOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        autocompletion=_completed,
        help=f"Output format: {', '.join(_names())}",
    ),
]


def write_formatted(
    bucket: str, messages: Sequence[Message], output: Format, *, columns: Columns
) -> None:
    """Write entries of a bucket in a format; *columns* are those of the bucket's kinds.

    A path is that of a field of the entry as `-o json` shows it, such as `key` or `spec.image`.
    """
    match output:
        case CustomColumns(chosen):
            rows = [_cells(chosen, bucket, message) for message in messages]
            write_table(list(chosen), rows)
        case FieldOutput(path):
            for message in messages:
                write_line(path.text_in(described(bucket, message), missing=""))
        case _:
            write_entries(bucket, messages, output, columns=columns)


def ordered(bucket: str, messages: Sequence[Message], path: FieldPath) -> list[Message]:
    """Return the entries in the order of a field; entries without the field are last."""
    return sorted(messages, key=lambda message: path.sort_key(described(bucket, message)))


def _cells(columns: Columns, bucket: str, message: Message) -> list[str]:
    document = described(bucket, message)
    return [path.text_in(document) for path in columns.values()]


def write_one(bucket: str, message: Message, output: Format, *, columns: Columns) -> None:
    """Write one entry; instead of a table, a value that is not an object is written as it is."""
    if output is Output.JSON:
        write_json(described_raw(bucket, message))
    elif output is Output.TABLE and object_in(message.value) is None:
        write_value(message.value)
    else:
        write_formatted(bucket, [message], output, columns=columns)
