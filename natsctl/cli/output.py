"""Formats results: tables, JSON, YAML, names, chosen fields, differences."""

import ast
import difflib
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
import yaml
from msgspec import UNSET

from natsctl.cli.terminal import coloured, write_line, write_text, writing
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Message
from natsctl.model import exact_json
from natsctl.model.exact_json import ExactNumber
from natsctl.model.plans import Action, Difference
from natsctl.model.schemas.field_paths import Columns, FieldPath, parse_columns
from natsctl.model.times import time_in
from natsctl.operate.entries import (
    NO_COLUMNS,
    NONE,
    cells_of,
    described,
    headings_of,
    short_time,
)
from natsctl.telemetry.escaping import escaped, is_unsafe, json_escaped, yaml_escaped
from natsctl.telemetry.hiding import abbreviated

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _ExactDumper(_Dumper):  # type: ignore[misc]  # PyYAML may be built without libyaml
    """Writes exact numbers, and unsafe characters as escapes in double quotes."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return the node of a text."""
        style = '"' if is_unsafe(text) else None
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node

    def represent_exact(self, exact: ExactNumber) -> yaml.ScalarNode:
        """Return the node of a number that a double cannot hold."""
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:float", exact.text)
        return node


_ExactDumper.add_representer(str, _ExactDumper.represent_text)
_ExactDumper.add_representer(ExactNumber, _ExactDumper.represent_exact)


def json_text(value: object, *, indent: int = 2) -> str:
    """Return the JSON of a value; a negative indent gives one line."""
    encoded = exact_json.encode(value)
    return json_escaped((encoded if indent < 0 else _formatted(encoded, indent)).decode())


def yaml_text(value: object) -> str:
    """Return the YAML of lists, dicts and scalars.

    A value that is nested too deeply for the YAML library is written as JSON, which is valid YAML.
    """
    try:
        dumped = yaml.dump(value, Dumper=_ExactDumper, sort_keys=False, allow_unicode=True)
    except RecursionError:
        return json_text(value, indent=-1)
    return yaml_escaped(dumped.rstrip("\n"))


def _formatted(encoded: bytes, indent: int) -> bytes:
    """Return JSON with line breaks; JSON that is nested too deeply stays on one line."""
    try:
        return msgspec.json.format(encoded, indent=indent)
    except RecursionError:
        return encoded


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


def in_colour(line: str) -> str:
    """Return the line of a table with the words of states that are bad in their colour."""
    return _BAD.sub(lambda word: coloured(word[0], typer.colors.RED, sys.stdout), line)


def duration(seconds: float) -> str:
    """Return a duration such as 12ms, 1.5s, 45s or 2m6s: the same in every command."""
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    if seconds < 10:  # noqa: PLR2004 - two digits are enough
        return f"{seconds:.2g}s"
    return short_time(seconds)


def local_time(text: str) -> str:
    """Return a time (RFC 3339) in the zone of this machine, to the second."""
    time = time_in(text)
    return NONE if time is None else time.astimezone().isoformat(timespec="seconds")


# ---- formats

CUSTOM_COLUMNS, JSONPATH = "custom-columns=", "jsonpath="
TABLE, WIDE, JSON, YAML, NAME, VALUE = "table", "wide", "json", "yaml", "name", "value"
PLAIN = (TABLE, WIDE, JSON, YAML, NAME)
"""The formats that every command with `-o` has, beside columns and paths."""

BEFORE = {"text": TABLE, "tree": TABLE}
"""The formats of version 0.2 by their name then."""

_BAD = re.compile(r"\b(down|no answer|blocked)\b")
_EXPRESSION = re.compile(r"\{([^{}]*)\}|([^{]+)")


class CustomColumns(msgspec.Struct, frozen=True):
    """A table with these columns only; `columns` has the path of each by its heading."""

    columns: Columns


class JsonPath(msgspec.Struct, frozen=True):
    r"""A template of texts and paths, such as `{.metadata.name}{"\t"}{.spec.text}`."""

    parts: tuple[str | FieldPath, ...]

    def text_in(self, document: object) -> str:
        """Return the template with the values of a document; a missing field is empty."""
        return "".join(
            part if isinstance(part, str) else part.text_in(document, missing="").replace(",", " ")
            for part in self.parts
        )

    @property
    def of_all(self) -> bool:
        """Whether it begins at the list of all items, as kubectl's paths of a list do."""
        return any(isinstance(part, FieldPath) and part.parts[0] == "items" for part in self.parts)


Format = str | CustomColumns | JsonPath


def parse_format(text: str) -> Format:
    """Return the format that a user names; raises `UsageError` for a wrong path."""
    if text.startswith(JSONPATH):
        return JsonPath(tuple(_template(text.removeprefix(JSONPATH))))
    if text.startswith("field="):  # until version 0.2
        return JsonPath((FieldPath.parse(text.removeprefix("field=")),))
    if text.startswith(CUSTOM_COLUMNS):
        columns: dict[str, str] = {}
        for pair in text.removeprefix(CUSTOM_COLUMNS).split(","):
            heading, colon, path = pair.partition(":")
            if not colon:
                raise UsageError(f"{pair!r} is not a column HEADING:PATH, such as IMAGE:spec.image")
            columns[heading] = path
        return CustomColumns(parse_columns(columns))
    return text


def _template(text: str) -> Iterator[str | FieldPath]:
    """Yield the texts and paths of a template; a text without braces is one path."""
    if "{" not in text:
        yield FieldPath.parse(text)
        return
    for found in _EXPRESSION.finditer(text):
        expression, literal = found.groups()
        if expression is None:
            yield literal
        elif expression[:1] in {'"', "'"}:
            yield str(ast.literal_eval(expression))
        elif expression.split(" ")[0] in {"range", "end"}:
            raise UsageError("jsonpath has no range here: it is applied to each object by itself")
        else:
            yield FieldPath.parse(expression)


def output_option(*more: str, without: Collection[str] = ()) -> Any:
    """Return the option `--output`, with *more* formats than those of every command."""
    plain = [name for name in (*PLAIN, *more) if name not in without]

    def checked(text: str) -> str:
        text = BEFORE.get(text, text)
        if text not in plain and not isinstance(parse_format(text), CustomColumns | JsonPath):
            raise UsageError(
                f"--output {text!r} must be {', '.join(plain)}, {CUSTOM_COLUMNS}… or {JSONPATH}…"
            )
        return text

    def completed(incomplete: str) -> list[str]:
        names = [*plain, CUSTOM_COLUMNS, JSONPATH]
        return [name for name in names if name.startswith(incomplete)]

    return typer.Option(
        *("--output", "-o"),
        metavar="FORMAT",
        callback=checked,
        autocompletion=completed,
        show_default=False,
        help=f"{', '.join(plain)}, jsonpath={{PATH}}, …",
    )


OutputOption = Annotated[str, output_option()]


def write_result(
    result: object, output: str, *, names: Iterable[str], table: Callable[[], None] = lambda: None
) -> None:
    """Write a result in a format: with *table*, as *names*, or the fields of it or of its items."""
    match parse_format(output):
        case "json":
            write_json(result)
        case "yaml":
            write_yaml([msgspec.to_builtins(result)])
        case "name":
            for name in names:
                write_line(name)
        case CustomColumns() | JsonPath() as chosen:
            plain = msgspec.to_builtins(result)
            write_fields(plain if isinstance(plain, list) else [plain], chosen)
        case _:
            table()


def write_fields(documents: Sequence[object], chosen: CustomColumns | JsonPath) -> None:
    """Write the chosen fields of each document."""
    if isinstance(chosen, CustomColumns):
        rows = [[path.text_in(one) for path in chosen.columns.values()] for one in documents]
        write_table(list(chosen.columns), rows)
        return
    whole: Sequence[object] = [{"items": documents}] if chosen.of_all else documents
    for one in whole:
        for line in chosen.text_in(one).removesuffix("\n").split("\n"):
            write_line(line)


def write_entries(
    bucket: str,
    messages: Sequence[Message],
    output: str,
    *,
    table: Callable[[], None] | None = None,
    event: Callable[[Message], str] = lambda _: "",
    name: Callable[[Message], str] | None = None,
    columns: Columns = NO_COLUMNS,
) -> None:
    """Write entries of a bucket.

    *table* writes them as a table; by default, the table has the headings of `headings_of` and the
    declared *columns*. *event* returns the field `event` of an entry in JSON and YAML, and *name*
    its line in the format `name`.
    """
    match parse_format(output):
        case "table" | "wide" if table is not None:
            table()
        case "table" | "wide":
            _write_messages(messages, columns, wide=output == WIDE)
        case "json":
            write_json([described(bucket, message, event(message)) for message in messages])
        case "yaml":
            write_yaml([described(bucket, message, event(message)) for message in messages])
        case "name":
            for message in messages:
                write_line(name(message) if name else f"{bucket}/{message.key}")
        case "value":
            for message in messages:
                write_value(message.value)
        case CustomColumns() | JsonPath() as chosen:
            write_fields([described(bucket, one, event(one)) for one in messages], chosen)
        case _:
            pass


def _write_messages(messages: Sequence[Message], columns: Columns, *, wide: bool) -> None:
    now = datetime.now(UTC)
    headings = headings_of(messages, wide=wide, declared=columns)
    rows = [cells_of(message, headings, now, declared=columns) for message in messages]
    if sys.stdout.isatty() and not wide:
        rows = fitted(headings, rows, columns, width=shutil.get_terminal_size().columns)
    write_table(headings, rows)


# ---- differences

SIGNS = {"create": "+", "update": "~", "delete": "-"}
"""The sign of an action by its effect."""

FIELDS_MAX = 3
"""Fields that the line of a group names."""

COLOURS = {
    "+": typer.colors.GREEN,
    "-": typer.colors.RED,
    "~": typer.colors.YELLOW,
    "!": typer.colors.RED,
    "@": typer.colors.CYAN,
}
"""The colour of a line that begins with a sign."""


def write_signed(text: str, *, indent: str = "") -> None:
    """Write a line that begins with a sign, in the colour of the sign."""
    line = f"{indent}{escaped(text)}"
    colour = COLOURS.get(text[:1])
    write_text(line if colour is None else coloured(line, colour, sys.stdout))


def write_differences(differences: Iterable[Difference], *, indent: str = "") -> None:
    """Write one line for each field: its path, and its value or both values."""
    for difference in differences:
        write_text(f"{indent}{escaped(difference.path) or 'value'}: {_values(difference)}")


def write_unified(name: str, before: object, after: object) -> None:
    """Write a unified diff of two values as YAML; None does not exist."""
    old, new = _lines(before), _lines(after)
    for number, line in enumerate(
        difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm="")
    ):
        header = number < 2  # noqa: PLR2004 - the first two lines name the files
        colour = None if header else COLOURS.get(line[:1])
        write_text(line if colour is None else coloured(line, colour, sys.stdout))


def _values(difference: Difference) -> str:
    before, after = _text(difference.before), _text(difference.after)
    if difference.before is None:
        return after
    return f"{before} -> {'(removed)' if difference.after is None else after}"


def _text(value: object) -> str:
    return json_text(value, indent=-1)


def _lines(value: object) -> list[str]:
    return [] if value is None else yaml_text(value).splitlines()


def actions_line(actions: Sequence[Action]) -> str:
    """Return actions of one shape as one line, with their number and the fields that change."""
    first = actions[0]
    line = f"{SIGNS[first.effect]} {len(actions):,} × {first.kind}"  # noqa: RUF001 - "times"
    match first.action:
        case "external":
            adopted = ", which existed before, is adopted" if first.call == "adopt" else ""
            return f"{line} (external resource{adopted})"
        case "update" | "status":
            paths = [difference.path or "value" for difference in first.diff]
            more = [f"{len(paths) - FIELDS_MAX} more fields"] if len(paths) > FIELDS_MAX else []
            fields = ", ".join((*paths[:FIELDS_MAX], *more))
            status = " (status)" if first.action == "status" else ""
            return f"{line}{status}: {fields} {'changes' if len(paths) == 1 else 'change'}"
        case _:
            return line if first.reason is UNSET else f"{line}: {first.reason}"


def action_line(action: Action) -> str:
    """Return an action of a plan as one line: its sign, its object, and more about it."""
    name = f"{SIGNS[action.effect]} {action.kind}/{action.key}"
    match action.action:
        case "status":
            return f"{name} (status)"
        case "external":
            adopted = ", which existed before, is adopted" if action.call == "adopt" else ""
            differs = f": {action.differs}" if action.differs else ""
            return f"{name} (external resource{adopted}){differs}"
        case _:
            return name if action.reason is UNSET else f"{name}: {action.reason}"
