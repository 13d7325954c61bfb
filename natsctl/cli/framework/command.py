"""What every command is made of: its help in sections, connection options, a running loop."""

import asyncio
import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec

import typer
from typer.core import TyperCommand

from natsctl.cli.framework.interrupts import interruptible
from natsctl.cli.framework.options import PANELS, handed
from natsctl.cli.output.terminal import abandon_output, flush
from natsctl.jetstream.connection.options import NatsOptions

P = ParamSpec("P")

EXIT_PIPE = 141  # what a shell says of a program that nobody listens to any more

Work = Callable[Concatenate[NatsOptions, P], Coroutine[Any, Any, None]]

LoopMaker = Callable[[], asyncio.AbstractEventLoop]


_REQUIRED = re.compile(r"\{(.*)\}")
_TYPE = re.compile(r" <.*>$")


class Command(TyperCommand):
    """A command whose help shows its options in the sections that they name."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage as manuals do: what is not in brackets has to be there."""
        pieces = (_REQUIRED.sub(r"\1", piece) for piece in self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, " ".join(pieces))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options, then the other sections."""
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                usual, (name, text) = "Options", record
                if param.param_type_name == "argument":
                    usual, name = "Arguments", _TYPE.sub("", name)  # its name says enough
                sections[getattr(param, "rich_help_panel", None) or usual].append((name, text))
        last = PANELS["nats"]
        for title in sorted(sections, key=lambda title: title == last):
            with formatter.section(title):
                formatter.write_dl(sections[title])


def commands(*, completion: bool = False) -> typer.Typer:
    """Return what commands are registered with; *completion* adds the options of shells."""
    return typer.Typer(
        rich_markup_mode=None,
        add_completion=completion,
        context_settings={"help_option_names": ["-h", "--help"]},
        suggest_commands=False,
    )


def examples(*lines: str) -> str:
    """Return the end of a help text: commands as a person would type them."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def connected(work: Work[P]) -> Callable[..., None]:
    """Make a command of a coroutine function that is handed how to connect.

    The command takes the connection options besides those of *work*.
    """
    return connected_on(None)(work)


def connected_on(loop: LoopMaker | None) -> Callable[[Work[P]], Callable[..., None]]:
    """Return `connected`, with commands that run on event loops that *loop* makes."""

    def decorate(work: Work[P]) -> Callable[..., None]:
        started = handed("options", "nats", of=lambda effective: effective.nats)(work)

        @functools.wraps(started)
        def command(**given: Any) -> None:
            complete(started(**given), loop)

        command.__signature__ = inspect.signature(started)  # type: ignore[attr-defined]  # what typer reads
        return command

    return decorate


def complete(work: Coroutine[Any, Any, None], loop: LoopMaker | None = None) -> None:
    """Run *work* to its end. A reader that closed the pipe of its output ends it quietly.

    An interrupt cancels *work*, which then cleans up. Before and after, it ends the process.
    """
    try:
        with interruptible(), asyncio.Runner(loop_factory=loop) as runner:
            runner.run(work)
        flush()
    except BrokenPipeError:
        abandon_output()
        raise typer.Exit(EXIT_PIPE) from None
