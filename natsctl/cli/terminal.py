"""Writes text to standard output and standard error, asks questions, and shows progress.

`write_line`, `write_notice` and `confirm` escape their text. `write_text` and `write_stderr` write
text that is escaped already: a coloured table row, a JSON or YAML document.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TextIO

import typer

from natsctl.errors import NatsctlError, UsageError
from natsctl.telemetry.escaping import escaped


class OutputError(NatsctlError):
    """Standard output cannot be written."""


@contextmanager
def writing() -> Iterator[None]:
    """Translate a failure to write standard output into `OutputError`.

    `BrokenPipeError` passes: a reader that closes a pipe early is not a failure.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


def write_text(text: str) -> None:
    """Write escaped text and a newline to standard output."""
    with writing():
        print(text)  # noqa: T201 - a command's output


def write_line(text: str) -> None:
    """Escape a text and write it to standard output as one line."""
    write_text(escaped(text))


def flush() -> None:
    """Write buffered output; raises `OutputError`."""
    with writing():
        sys.stdout.flush()


def discard_output() -> None:
    """Discard buffered output, so that the interpreter does not report it at its exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """Return the text in a colour if the stream is a terminal that shows colours."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else typer.style(text, fg=colour)


def write_notice(message: str) -> None:
    """Escape a text and write it to standard error, apart from the command's output."""
    write_stderr(escaped(message))


def write_stderr(text: str) -> None:
    """Write escaped text and a newline to standard error; ignore a failure to write it."""
    with suppress(OSError):
        print(text, file=sys.stderr)  # noqa: T201 - a command's output


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user whether to continue, unless *yes* is set."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal to ask on: give --yes to confirm")
    if not typer.confirm(escaped(question), err=True):
        write_notice("nothing was done")
        raise typer.Exit(1)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a progress bar while the context is open, if standard error is a terminal.

    Yields a function that changes it, as `rich.progress.Progress.update` does: *advance* counts
    steps, *completed* sets their number, and *description* the label. Lines that are written in
    the context appear above the bar.
    """
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich import progress  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415 - likewise

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(label, total=total))
