"""Registers commands with their help, and runs their coroutines until the end or an interrupt."""

import asyncio
import functools
import inspect
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand

from natsctl.cli.framework.options import PANELS, StoreOptions, with_options, with_stores
from natsctl.cli.output.terminal import discard_output, flush
from natsctl.jetstream.options import NatsOptions

P = ParamSpec("P")
OptionsT = TypeVar("OptionsT")
F = TypeVar("F", bound=Callable[..., object])

EXIT_PIPE = 141
"""The exit status of a command whose reader closed the pipe, as shells report SIGPIPE."""

INTERRUPTED = 128 + signal.SIGINT
"""The exit status of a command that SIGINT cancelled, as shells report SIGINT."""

Work = Callable[Concatenate[OptionsT, P], Coroutine[Any, Any, None]]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

_REQUIRED = re.compile(r"\{(.*)\}")
_TYPE = re.compile(r" <.*>$")


class Command(TyperCommand):
    """A command whose help shows its options in sections."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage line, with required arguments without brackets."""
        shown = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        pieces = (piece for param in shown for piece in param.get_usage_pieces(ctx))
        words = [self.options_metavar or "", *(_REQUIRED.sub(r"\1", piece) for piece in pieces)]
        formatter.write_usage(ctx.command_path, " ".join(words))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options, and the connection options last."""
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                section, (name, text) = "Options", record
                if param.param_type_name == "argument":
                    section, name = "Arguments", _TYPE.sub("", name)
                sections[getattr(param, "rich_help_panel", None) or section].append((name, text))
        last = PANELS["nats"]
        for title in sorted(sections, key=lambda title: title == last):
            with formatter.section(title):
                formatter.write_dl(sections[title])


class App(typer.Typer):
    """The commands of one module."""

    def __init__(self, *, completion: bool = False) -> None:
        super().__init__(
            rich_markup_mode=None,
            add_completion=completion,
            context_settings={"help_option_names": ["-h", "--help"]},
            suggest_commands=False,
        )

    def add(self, *examples: str, name: str | None = None, notes: str = "") -> Callable[[F], F]:
        """Register a function as a command. Its help ends with the examples and the notes."""
        lines = ["\b", "Examples:", *(f"  {example}" for example in examples)]
        if notes:
            lines += ["", "\b", notes]
        return self.command(name, cls=Command, epilog="\n".join(lines))


def connected(
    work: Work[NatsOptions, P], *, loop_factory: LoopFactory | None = None
) -> Callable[..., None]:
    """Make a command of a coroutine function whose first argument is the `NatsOptions`.

    The command has the connection options in addition to the options of *work*. It runs on an event
    loop of *loop_factory*.
    """
    nats = with_options("options", "nats", value=lambda effective: effective.nats)
    return _completed(nats(work), loop_factory)


def connected_to_stores(work: Work[StoreOptions, P]) -> Callable[..., None]:
    """Do the same for a coroutine function whose first argument is the `StoreOptions`."""
    return _completed(with_stores(work))


def _completed(
    start: Callable[..., Coroutine[Any, Any, None]], loop_factory: LoopFactory | None = None
) -> Callable[..., None]:
    @functools.wraps(start)
    def command(**arguments: Any) -> None:
        complete(start(**arguments), loop_factory)

    command.__signature__ = inspect.signature(start)  # type: ignore[attr-defined]  # typer reads it
    return command


def complete(work: Coroutine[Any, Any, None], loop_factory: LoopFactory | None = None) -> None:
    """Run *work* to its end.

    SIGINT cancels *work*. If the reader of the output closed the pipe, the command exits with
    `EXIT_PIPE` and writes no error.
    """
    try:
        with interruptible(), asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(work)
        flush()
    except BrokenPipeError:
        discard_output()
        raise typer.Exit(EXIT_PIPE) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt` within the context.

    Outside of it, `natsctl_main` lets SIGINT end the process, because nothing needs to be cleaned
    up. A process that ignores SIGINT continues to ignore it.
    """
    default = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if default:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
