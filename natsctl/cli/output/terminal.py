"""The door to standard output and standard error, and what only a terminal gets.

Text for people goes through `printing.line`, `say` and `confirm`, which escape it. `emit` writes
text that is escaped already: a coloured row, a JSON or YAML document.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

import typer

from natsctl.errors import NatsctlError, UsageError
from natsctl.telemetry.escaping import escaped

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class OutputError(NatsctlError):
    """Standard output cannot be written."""


@contextmanager
def writing() -> Iterator[None]:
    """Translate a failure to write standard output into `OutputError`.

    A reader that closed its end of a pipe is no failure of that kind: `BrokenPipeError` passes.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


def emit(text: str) -> None:
    """Write a line, or several, to standard output as they are."""
    with writing():
        print(text)  # noqa: T201 - a command's output


def flush() -> None:
    """Write what standard output still holds back; raises `OutputError`."""
    with writing():
        sys.stdout.flush()


def abandon_output() -> None:
    """Discard what standard output still holds back, so that the interpreter's exit is silent."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """Return the text in that colour where the stream shows colours."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else typer.style(text, fg=colour)


def say(message: str) -> None:
    """Write a line, which is no output of the command, to standard error."""
    emit_error(escaped(message))


def emit_error(text: str) -> None:
    """Write a line, or several, to standard error as they are; nobody can be told of a failure."""
    with suppress(OSError):
        print(text, file=sys.stderr)  # noqa: T201 - a command's output


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if a person wants to: *yes* was said already, or is answered now.

    Raises `UsageError` where nobody can be asked.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} Say --yes: there is no terminal to ask on")
    if not typer.confirm(escaped(question), err=True):
        say("nothing was done")
        raise typer.Exit(1)


class Progress:
    """A bar on standard error while something long is done; a context. Silent elsewhere.

    Lines that are written meanwhile appear above the bar.
    """

    def __init__(self, doing: str, total: int) -> None:
        self.done = 0
        self._doing = doing
        self._total = total
        self._held = ExitStack()
        self._show: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            bar = self._held.enter_context(_bar())
            task = bar.add_task(self._doing, total=self._total)
            self._show = lambda: bar.update(task, completed=self.done)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held.close()

    def step(self) -> None:
        """Count one more."""
        self.done += 1
        self._show()


def _bar() -> "Bar":
    from rich import progress  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415 - likewise

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=Console(stderr=True), transient=True)
