"""Reports an error to a person, and says with which status the command exits."""

import sys
import traceback
from collections.abc import Iterator

import typer

from natsctl.cli.output.terminal import coloured, emit_error
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NatsctlError,
    NotFoundError,
    StoreMissingError,
    UsageError,
)
from natsctl.telemetry.escaping import escaped_lines
from natsctl.telemetry.hiding import TRACEBACK_MAX, Hider

_hide = Hider()

FAILED, USAGE, NOT_FOUND, CONFLICT = 1, 2, 3, 4

_STATUS: tuple[tuple[type[NatsctlError], int], ...] = (
    (UsageError, USAGE),
    (InvalidKeyError, USAGE),
    (NotFoundError, NOT_FOUND),
    (StoreMissingError, NOT_FOUND),
    (ConflictError, CONFLICT),
)


def status(error: BaseException) -> int:
    """Return the exit status of a command that ends with *error*."""
    return next((code for kind, code in _STATUS if isinstance(error, kind)), FAILED)


def tell(error: BaseException) -> int:
    """Write what happened to standard error and return the exit status.

    An error of natsctl, and one of the operating system, is a line. Any other error comes with its
    traceback, for the author of the code.
    """
    found = list(_leaves(error))
    for leaf in found:
        text = _line_of(leaf)
        if text is None:
            traced = "".join(traceback.format_exception(leaf)).rstrip("\n")
            emit_error(escaped_lines(_hide(traced, limit=TRACEBACK_MAX)))
        else:
            say_error(text)
    return status(found[0])


def say_error(message: str) -> None:
    """Write one error to standard error; further lines of it are indented."""
    label = coloured("error:", typer.colors.RED, sys.stderr)
    emit_error(f"natsctl: {label} {escaped_lines(_hide(message))}")


def _line_of(error: BaseException) -> str | None:
    """Return the error as one line, None if it needs its traceback."""
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
