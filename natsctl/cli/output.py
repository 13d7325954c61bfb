"""Formats results: tables, JSON, YAML, names, chosen fields, differences."""

import ast
import difflib
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from itertools import repeat
from typing import Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from natsctl.cli.terminal import coloured, write_line, write_text, writing
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Message
from natsctl.model import exact_json
from natsctl.model.exact_json import ExactNumber
from natsctl.model.plans import Action, Difference
from natsctl.model.schemas.field_paths import Columns, FieldPath, parse_columns
from natsctl.operate.objects import NO_COLUMNS, cells_of, described, headings_of, short_time
from natsctl.telemetry.escaping import escaped, is_unsafe, json_escaped, yaml_escaped
from natsctl.telemetry.hiding import abbreviated


@cache
def _dumper() -> Any:
    """Return the writer of YAML, with exact numbers, and escapes of unsafe characters."""
    import yaml  # noqa: PLC0415 - most commands write no YAML

    def text_node(dumper: Any, text: str) -> Any:
        style = '"' if is_unsafe(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def exact_node(dumper: Any, exact: ExactNumber) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:float", exact.text)

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # PyYAML may lack libyaml
    dumper: Any = type("ExactDumper", (base,), {})
    dumper.add_representer(str, text_node)
    dumper.add_representer(ExactNumber, exact_node)
    return partial(yaml.dump, Dumper=dumper, sort_keys=False, allow_unicode=True)


def json_text(value: object, *, indent: int = 2) -> str:
    """Return JSON; on one line with a negative indent, or if it's nested too deeply to format."""
    encoded = exact_json.encode(value)
    try:
        formatted = encoded if indent < 0 else msgspec.json.format(encoded, indent=indent)
    except RecursionError:
        formatted = encoded
    return json_escaped(formatted.decode())


def yaml_text(value: object) -> str:
    """Return the YAML of lists, dicts and scalars.

    A value that is nested too deeply for the YAML library is written as JSON, which is valid YAML.
    """
    try:
        dumped: str = _dumper()(value)
    except RecursionError:
        return json_text(value, indent=-1)
    return yaml_escaped(dumped.rstrip("\n"))


def write_json(value: object, *, indent: int = 2) -> None:
    """Write JSON, as `json_text` returns it."""
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


def duration(seconds: float) -> str:
    """Return a duration such as 12ms, 1.5s, 45s or 2m6s: the same in every command."""
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    return f"{seconds:.2g}s" if seconds < 10 else short_time(seconds)  # noqa: PLR2004 - two digits are enough


# ---- tables

GAP = 3  # spaces between two columns
CELL_MIN = 12  # characters that a column keeps on a narrow terminal

_CELL_COLOURS = {
    **dict.fromkeys(("True", "ADDED"), typer.colors.GREEN),
    **dict.fromkeys(("Pending", "Deleting", "UPDATED"), typer.colors.YELLOW),
    **dict.fromkeys(("False", "DELETED", "down", "no answer", "blocked"), typer.colors.RED),
}
_CELL = re.compile(rf"((?<=   )|^)({'|'.join(_CELL_COLOURS)})(?=   |$)")


def write_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows under their headings, with columns as wide as their widest cell."""
    for line in table_lines(headings, rows):
        write_coloured(line)


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table without colours, escaped."""
    widths = column_widths(headings, rows)
    return [row_line(cells, widths) for cells in (headings, *rows)]


def column_widths(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    """Return the width of each column, in characters as they are written."""
    return [max(map(len, map(escaped, cells))) for cells in zip(headings, *rows, strict=True)]


def row_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return the line of one row, escaped."""
    padded = (escaped(cell).ljust(width + GAP) for cell, width in zip(cells, widths, strict=True))
    return "".join(padded).rstrip(" ")


def write_coloured(line: str) -> None:
    """Write the escaped line of a table, with the cells that are states in their colour."""
    write_text(_CELL.sub(lambda cell: coloured(cell[2], _CELL_COLOURS[cell[2]], sys.stdout), line))


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
        shorter = min(widths[number], max(least, widths[number] - max(0, excess)))
        excess -= widths[number] - shorter
        widths[number] = shorter
    return [
        [
            abbreviated(cell, widths[number]) if number in numbers else cell
            for number, cell in enumerate(cells)
        ]
        for cells in rows
    ]


# ---- formats

CUSTOM_COLUMNS, JSONPATH = "custom-columns=", "jsonpath="
TABLE, WIDE, JSON, YAML, NAME, VALUE = "table", "wide", "json", "yaml", "name", "value"
TABLES = (TABLE, WIDE)
BEFORE = {"text": TABLE, "tree": TABLE}
"""The formats of version 0.2 by their name then."""

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


def parse_format(text: str) -> str | CustomColumns | JsonPath:
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
    plain = [name for name in (*TABLES, JSON, YAML, NAME, *more) if name not in without]

    def checked(text: str) -> str:
        text = BEFORE.get(text, text)
        if text not in plain and isinstance(parse_format(text), str):
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
    if output in TABLES:
        table()
    elif output == JSON:
        write_json(result)
    else:
        plain = msgspec.to_builtins(result)
        _write(plain if isinstance(plain, list) else [plain], output, names, whole=plain)


def _write(
    items: Sequence[object], output: str, names: Iterable[str], *, whole: object = UNSET
) -> None:
    match parse_format(output):
        case "yaml":
            write_yaml(items if whole is UNSET else [whole])
        case "name":
            for name in names:
                write_line(name)
        case CustomColumns(columns):
            rows = [[path.text_in(one) for path in columns.values()] for one in items]
            write_table(list(columns), rows)
        case JsonPath(parts) as template:
            paths = [part for part in parts if isinstance(part, FieldPath)]
            of_all = any(path.parts[0] == "items" for path in paths)  # as of kubectl's lists
            for one in [{"items": items}] if of_all else items:
                for line in template.text_in(one).removesuffix("\n").split("\n"):
                    write_line(line)
        case _:
            pass


def write_entries(
    bucket: str,
    messages: Sequence[Message],
    output: str,
    *,
    table: Callable[[], None] | None = None,
    events: Sequence[str] = (),
    names: Iterable[str] | None = None,
    columns: Columns = NO_COLUMNS,
) -> None:
    """Write entries of a bucket.

    *table* writes them as a table; by default, the table has the headings of `headings_of` and the
    declared *columns*. *events* are the fields `event` of the entries in JSON and YAML.
    """
    if output in TABLES:
        table() if table else Rows(output, columns).write([("", one) for one in messages])
    elif output == VALUE:
        for message in messages:
            write_value(message.value)
    else:
        pairs = zip(messages, events or repeat(""), strict=False)
        entries = [described(bucket, message, event) for message, event in pairs]
        if output == JSON:
            write_json(entries)
        else:
            keys = (f"{bucket}/{message.key}" for message in messages)
            _write(entries, output, keys if names is None else names)


class Rows:
    """Writes the rows of a table of entries in parts, with the columns that the first part needs.

    With *events*, each row begins with its event. A later part keeps the widths of the first.
    """

    def __init__(self, output: str, columns: Columns, *, events: tuple[str, ...] = ()) -> None:
        self._wide, self._columns, self._events = output == WIDE, columns, events
        self._headings: list[str] = []
        self._widths: list[int] = []

    def write(self, entries: Sequence[tuple[str, Message]]) -> None:
        """Write entries, each with its event."""
        if not entries:
            return
        first = not self._headings
        if first:
            messages = [message for _, message in entries]
            self._headings = headings_of(messages, wide=self._wide, declared=self._columns)
        now = datetime.now(UTC)
        head = [*(["EVENT"] if self._events else []), *self._headings]
        rows = [
            [
                *([event.upper()] if self._events else []),
                *cells_of(message, self._headings, now, declared=self._columns),
            ]
            for event, message in entries
        ]
        if sys.stdout.isatty() and not self._wide:
            rows = fitted(head, rows, self._columns, width=shutil.get_terminal_size().columns)
        if first:
            longest = [*self._events[:1], *self._headings]
            self._widths = column_widths(longest, rows)
        for cells in (head, *rows) if first else rows:
            write_coloured(row_line(cells, self._widths))


# ---- differences

SIGNS = {"create": "+", "update": "~", "delete": "-"}
"""The sign of an action by its effect."""

FIELDS_MAX = 3  # that the line of a group names

_SIGN_COLOURS = {
    "+": typer.colors.GREEN,
    "~": typer.colors.YELLOW,
    "@": typer.colors.CYAN,
    "-": typer.colors.RED,
    "!": typer.colors.RED,
}


def write_signed(text: str, *, indent: str = "") -> None:
    """Write a line that begins with a sign, in the colour of the sign."""
    line, colour = f"{indent}{escaped(text)}", _SIGN_COLOURS.get(text[:1])
    write_text(line if colour is None else coloured(line, colour, sys.stdout))


def write_differences(differences: Iterable[Difference], *, indent: str = "") -> None:
    """Write one line for each field: its path, and its value or both values."""
    for difference in differences:
        before, after = (
            json_text(value, indent=-1) for value in (difference.before, difference.after)
        )
        new = "(removed)" if difference.after is None else after
        values = after if difference.before is None else f"{before} -> {new}"
        write_text(f"{indent}{escaped(difference.path) or 'value'}: {values}")


def write_unified(name: str, before: object, after: object) -> None:
    """Write a unified diff of two values as YAML; None does not exist."""
    old, new = ([] if value is None else yaml_text(value).splitlines() for value in (before, after))
    for number, line in enumerate(
        difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm="")
    ):
        colour = _SIGN_COLOURS.get(line[:1]) if number > 1 else None  # not of the files' names
        write_text(line if colour is None else coloured(line, colour, sys.stdout))


def action_line(action: Action, more: Sequence[Action] = ()) -> str:
    """Return an action as one line: its sign, its object, and more about it.

    With *more* actions of the same shape, the line has their number and the fields that change.
    """
    sign = SIGNS[action.effect]
    name = f"{sign} {action.kind}/{action.key}"
    if more:
        name = f"{sign} {1 + len(more):,} × {action.kind}"  # noqa: RUF001 - "times"
    match action.action:
        case "external":
            adopted = ", which existed before, is adopted" if action.call == "adopt" else ""
            differs = f": {action.differs}" if action.differs and not more else ""
            return f"{name} (external resource{adopted}){differs}"
        case "update" | "status" if more:
            paths = [difference.path or "value" for difference in action.diff]
            rest = [f"{len(paths) - FIELDS_MAX} more fields"] if len(paths) > FIELDS_MAX else []
            fields = ", ".join((*paths[:FIELDS_MAX], *rest))
            status = " (status)" if action.action == "status" else ""
            return f"{name}{status}: {fields} {'changes' if len(paths) == 1 else 'change'}"
        case "status":
            return f"{name} (status)"
        case _:
            return name if action.reason is UNSET else f"{name}: {action.reason}"
