"""Writes the differences between documents: field by field, or as a unified diff of YAML."""

import difflib
import sys
from collections.abc import Iterable, Sequence

import typer
from msgspec import UNSET

from natsctl.cli.output.encoding import json_text, yaml_text
from natsctl.cli.output.terminal import coloured, write_text
from natsctl.model.plans.differences import Difference
from natsctl.model.plans.plan import Action
from natsctl.telemetry.escaping import escaped

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


def described_many(actions: Sequence[Action]) -> str:
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


def described(action: Action) -> str:
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
