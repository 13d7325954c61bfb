"""Formats results: tables, JSON, YAML, names, chosen fields, differences."""

import ast
import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from itertools import repeat
from typing import Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from natsctl.cli.terminal import coloured, write_line, write_notice, write_text, writing
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Message
from natsctl.model import exact_json
from natsctl.model.exact_json import ExactNumber
from natsctl.model.plans import Action, Difference
from natsctl.model.schemas.field_paths import Columns, FieldPath, parse_columns
from natsctl.operate.objects import NO_COLUMNS, NONE, cells_of, described, headings_of, short_time
from natsctl.telemetry.escaping import escaped, is_unsafe, json_escaped, yaml_escaped


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
    write_text("\n---\n".join(map(yaml_text, values)))


def duration(seconds: float) -> str:
    """Return a duration such as 12ms, 1.5s, 45s or 2m6s: the same in every command."""
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    return f"{seconds:.2g}s" if seconds < 10 else short_time(seconds)  # noqa: PLR2004 - two digits are enough


# ---- tables

GAP = 3  # spaces between two columns

_CELL_COLOURS = {
    **dict.fromkeys(("True", "ADDED"), typer.colors.GREEN),
    **dict.fromkeys(("Pending", "Deleting", "UPDATED"), typer.colors.YELLOW),
    **dict.fromkeys(("False", "DELETED", "down", "no answer", "blocked"), typer.colors.RED),
}
_CELL = re.compile(rf"((?<=   )|^)({'|'.join(_CELL_COLOURS)})(?=   |$)")


def write_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows under their headings, with columns as wide as their widest cell.

    A cell that is None or empty is written as a dash.
    """
    for line in table_lines(headings, rows):
        write_coloured(line)


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table without colours, escaped."""
    texts = [[NONE if cell in (None, "") else str(cell) for cell in cells] for cells in rows]
    widths = column_widths(headings, texts)
    return [row_line(cells, widths) for cells in (headings, *texts)]


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


# ---- formats

CUSTOM_COLUMNS, JSONPATH = "custom-columns=", "jsonpath="
TABLE, WIDE, JSON, YAML, NAME, VALUE = "table", "wide", "json", "yaml", "name", "value"
TABLES = (TABLE, WIDE)

Template = tuple[str | FieldPath, ...]
r"""The texts and paths of a template, such as `{.metadata.name}{"\t"}{.spec.text}`."""

_EXPRESSION = re.compile(r"\{([^{}]*)\}|([^{]+)")


def parse_format(text: str) -> str | Columns | Template:
    """Return the format that a user names: a word, the columns of a table, or a template.

    Raises `UsageError` for a wrong path.
    """
    if text.startswith(JSONPATH):
        return tuple(_template(text.removeprefix(JSONPATH)))
    if text.startswith(CUSTOM_COLUMNS):
        columns: dict[str, str] = {}
        for pair in text.removeprefix(CUSTOM_COLUMNS).split(","):
            heading, colon, columns[heading] = pair.partition(":")
            if not colon:
                raise UsageError(f"{pair!r} is not a column HEADING:PATH, such as IMAGE:spec.image")
        return parse_columns(columns)
    return text


def _template(text: str) -> Iterator[str | FieldPath]:
    """Yield the texts and paths of a template; a text without braces is one path."""
    for found in _EXPRESSION.finditer(text if "{" in text else f"{{{text}}}"):
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


def write_rows(
    results: Sequence[object],
    output: str,
    *,
    names: Iterable[str],
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    nothing: str = "",
) -> None:
    """Write results in a format: as a table with a row for each, or else as `write_result` does.

    *nothing* is said in place of a table without rows.
    """

    def table() -> None:
        if results or not nothing:
            write_table(headings, rows)
        else:
            write_notice(nothing)

    write_result(results, output, names=names, table=table)


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
        if output == YAML:
            write_yaml([plain])
        else:
            write_items(plain if isinstance(plain, list) else [plain], output, names)


def write_items(items: Sequence[object], output: str, names: Iterable[str]) -> None:
    """Write *names*, or the fields of items that a template or columns choose."""
    chosen = parse_format(output)
    if isinstance(chosen, tuple):
        paths = [part for part in chosen if isinstance(part, FieldPath)]
        of_all = any(path.parts[0] == "items" for path in paths)  # as of kubectl's lists
        for one in [{"items": items}] if of_all else items:
            text = "".join(
                part if isinstance(part, str) else part.text_in(one, missing="").replace(",", " ")
                for part in chosen
            )
            for line in text.removesuffix("\n").split("\n"):
                write_line(line)
    elif not isinstance(chosen, str):
        rows = [[path.text_in(one) for path in chosen.values()] for one in items]
        write_table(list(chosen), rows)
    else:
        for name in names if chosen == NAME else ():
            write_line(name)


# ---- entries of buckets

UPDATED = "updated"  # the longest event


class Entries:
    """Writes entries of a bucket in a format, in parts as they come.

    A table has the headings that the first part needs, with the declared *columns*, and keeps the
    widths of the first part. If the bucket is *watched*, each entry comes with its event.
    """

    def __init__(
        self, bucket: str, output: str, columns: Columns = NO_COLUMNS, *, watched: bool = False
    ) -> None:
        self.output = output
        self._bucket, self._columns, self._watched = bucket, columns, watched
        self._begun, self._last = False, ""
        self._headings: list[str] = []
        self._widths: list[int] = []

    def write(
        self, messages: Sequence[Message], events: Sequence[str] = (), names: Sequence[str] = ()
    ) -> None:
        """Write a part: entries, with their *events*, and by *names* if the format names them."""
        if self.output in TABLES:
            if messages:
                self._write_table(messages, events)
            return
        if self.output == VALUE:
            for message in messages:
                write_value(message.value)
            return
        pairs = zip(messages, events or repeat(""), strict=False)
        entries = [described(self._bucket, *pair) for pair in pairs]
        if self.output not in (JSON, YAML):
            chosen = parse_format(self.output)
            if isinstance(chosen, str | tuple):
                keys = [f"{self._bucket}/{message.key}" for message in messages]
                write_items(entries, self.output, names or keys)
            else:
                rows = [[path.text_in(entry) for path in chosen.values()] for entry in entries]
                self._write_rows([*chosen], rows)
            return
        for entry in entries:
            if self.output == YAML:
                write_text(f"---\n{yaml_text(entry)}" if self._begun else yaml_text(entry))
            elif self._watched:
                write_json(entry, indent=-1)
            else:
                write_text(f"{self._last}," if self._begun else "[")
                self._last = textwrap.indent(json_text(entry), "  ")
            self._begun = True

    def end(self) -> None:
        if self.output == JSON and not self._watched:
            write_text(f"{self._last}\n]" if self._begun else "[]")

    def _write_table(self, messages: Sequence[Message], events: Sequence[str]) -> None:
        now, wide, declared = datetime.now(UTC), self.output == WIDE, self._columns
        self._headings = self._headings or headings_of(messages, wide=wide, declared=declared)
        rows = [cells_of(one, self._headings, now, declared=declared) for one in messages]
        if not self._watched:
            self._write_rows(self._headings, rows)
            return
        rows = [[event.upper(), *cells] for event, cells in zip(events, rows, strict=True)]
        self._write_rows(["EVENT", *self._headings], rows)

    def _write_rows(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if not self._widths:
            longest = [UPDATED if one == "EVENT" else one for one in head]
            self._widths, rows = column_widths(longest, rows), [head, *rows]
        for cells in rows:
            write_coloured(row_line(cells, self._widths))


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
