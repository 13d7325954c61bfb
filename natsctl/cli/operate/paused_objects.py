"""Finds the objects that `natsctl pause` and `natsctl resume` are about, and shows the results."""

from collections.abc import Sequence
from typing import Annotated

import typer

from natsctl.cli.framework.exit_codes import exit_status, exit_with, report_error
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.errors import UsageError
from natsctl.operate.fleet import Acted
from natsctl.operate.names import Name, parse_names

AllOption = Annotated[
    bool, typer.Option("--all", help="The whole controller of --controller, with all its keys")
]


def selected_names(words: Sequence[str] | None, command: str, *, whole: bool) -> list[Name]:
    """Return the objects that are named, none with *whole*; raises `UsageError` for any other."""
    all_keys = f"; natsctl {command} --all -c CONTROLLER is for a whole controller"
    if not whole:
        return parse_names(words or (), otherwise=all_keys)
    if words:
        raise UsageError("--all is for the whole controller: name no object, or leave --all out")
    return []


def show(acted: Acted) -> None:
    """Write what an action did, and its errors; exit with the status of the first one."""
    for line in acted.done:
        write_line(line)
    for error in acted.failed:
        report_error(str(error))
    for note in acted.notes:
        write_notice(note)
    exit_with(map(exit_status, acted.failed))
