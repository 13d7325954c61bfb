"""Reports an error to the user, and chooses the exit status of the command."""

import sys
import traceback
from collections.abc import Iterable, Iterator

import typer

from natsctl.cli.output.terminal import coloured, write_stderr
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NatsctlError,
    NotFoundError,
    StoreMissingError,
    UsageError,
)
from natsctl.telemetry.escaping import escaped_lines
from natsctl.telemetry.hiding import TRACEBACK_MAX, hidden

FAILED, USAGE, NOT_FOUND, CONFLICT = 1, 2, 3, 4

_LABEL = "natsctl: error: "
_STATUS: tuple[tuple[type[NatsctlError], int], ...] = (
    (UsageError, USAGE),
    (InvalidKeyError, USAGE),
    (NotFoundError, NOT_FOUND),
    (StoreMissingError, NOT_FOUND),
    (ConflictError, CONFLICT),
)


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command that ends with *error*."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), FAILED)


def exit_with(statuses: Iterable[int]) -> None:
    """Exit with the first status that is not 0; return if all statuses are 0."""
    failure = next((status for status in statuses if status), 0)
    if failure:
        raise typer.Exit(failure)


def report(error: BaseException) -> int:
    """Write the error to standard error, without secrets, and return the exit status.

    Errors of natsctl and of the operating system are one line. Other errors are written with their
    traceback, for the author of the code. Every member of an exception group is written.
    """
    for text in error_texts(error):
        write_error(text)
    return exit_status(next(_leaves(error)))


def error_texts(error: BaseException) -> Iterator[str]:
    """Yield the text of each member of the error as `report` writes it, without a colour."""
    for leaf in _leaves(error):
        message = _message(leaf)
        if message is None:
            text = "".join(traceback.format_exception(leaf)).rstrip("\n")
            yield escaped_lines(hidden(text, limit=TRACEBACK_MAX))
        else:
            yield f"{_LABEL}{escaped_lines(hidden(message))}"


def report_error(message: str) -> None:
    """Write an error message to standard error, without secrets; further lines are indented."""
    write_error(f"{_LABEL}{escaped_lines(hidden(message))}")


def write_error(text: str) -> None:
    """Write a text of `error_texts` to standard error, with a colour on a terminal."""
    label = f"natsctl: {coloured('error:', typer.colors.RED, sys.stderr)} "
    write_stderr(f"{label}{text.removeprefix(_LABEL)}" if text.startswith(_LABEL) else text)


def _message(error: BaseException) -> str | None:
    """Return the message of an error; None if its traceback is needed."""
    if isinstance(error, NatsctlError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, RecursionError):
        return "a value is nested too deeply to be read or written"
    return None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
