"""What is told of an error, and the status that a command exits with."""

import sys
import traceback
from collections.abc import Iterator

import typer

from natsctl.cli.terminal import coloured
from natsctl.daemon.hiding import Hider
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NatsctlError,
    NotFoundError,
    StoreMissingError,
    UsageError,
)

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

    Our own errors are a line each; others come with their traceback, for whoever wrote the code.
    """
    found = list(_leaves(error))
    for leaf in found:
        if isinstance(leaf, NatsctlError):
            say_error(str(leaf))
        else:
            sys.stderr.write(_hide("".join(traceback.format_exception(leaf))))
    return status(found[0])


def say_error(message: str) -> None:
    """Write one error to standard error."""
    label = coloured("error:", typer.colors.RED, sys.stderr)
    print(f"natsctl: {label} {_hide(message)}", file=sys.stderr)  # noqa: T201 - a command's output


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
