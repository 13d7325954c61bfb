"""Commands: how they're registered, get their settings, run, report errors and end."""

import asyncio
import copy
import functools
import inspect
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import msgspec
import typer
from typer.core import TyperCommand, TyperOption
from typer.main import get_command

from natsctl.cli.terminal import coloured, discard_output, flush, write_stderr
from natsctl.controller.owners import OwnerNames
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.daemon.settings.load import FILE_NAME, VARIABLE, Effective, load_settings
from natsctl.daemon.settings.settings import SETTINGS, SWITCH, Setting
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NatsctlError,
    NotFoundError,
    StoreMissingError,
    UsageError,
)
from natsctl.jetstream.options import NatsOptions
from natsctl.kubernetes.options import KubeOptions
from natsctl.telemetry.escaping import escaped_lines
from natsctl.telemetry.hiding import TRACEBACK_MAX, hidden

P = ParamSpec("P")
OptionsT = TypeVar("OptionsT")
F = TypeVar("F", bound=Callable[..., object])

FAILED, USAGE, NOT_FOUND, CONFLICT = 1, 2, 3, 4
EXIT_PIPE = 141  # as shells report SIGPIPE: the reader of the output closed the pipe
INTERRUPTED = 128 + signal.SIGINT

Work = Callable[Concatenate[OptionsT, P], Coroutine[Any, Any, None]]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
PANELS = {
    "nats": "Connection",
    "kube": "Kubernetes",
    "controllers": "Controllers",
    "logs": "Logs",
    "http": "Probes and metrics",
    "traces": "Traces",
}
GLOBAL = ("nats", "kube", "controllers.owner_domain")
"""The sections of settings whose options every command takes, before or after its name."""

CONFIG = "config"
LINE = 74  # characters of a help that stays on one line
EXPANDED = ContextVar("EXPANDED", default=False)
"""Whether a help shows the options that `natsctl options` has for all commands."""

_REQUIRED = re.compile(r"\{(.*)\}")
_TYPE = re.compile(r" <[^>]*>$")
_UNNEEDED = re.compile(r"  \[(\d+<=)?x[<>]=\d+\]|; (\d+<=)?x[<>]=\d+(?=\])|  \[required\]")

_settings: ContextVar[Effective] = ContextVar("settings")


# ---- settings


def settings() -> Effective:
    """Return the settings of the command that runs; raises `UsageError` as `load_settings` does."""
    return _settings.get()


class StoreOptions(msgspec.Struct, frozen=True):
    """The options of the stores of a controller.

    Attributes:
        cluster: the Kubernetes cluster; None if the settings disable it.
        owner_names: the labels that link secondaries to primaries.
    """

    nats: NatsOptions
    cluster: KubeOptions | None
    owner_names: OwnerNames

    @classmethod
    def of(cls, effective: Effective) -> "StoreOptions":
        """Return the options of the stores in these settings."""
        configured = effective.settings
        return cls(effective.nats, configured.cluster, configured.controllers.owner_names)


def typed_options(effective: Effective) -> list[str]:
    """Return the options that were typed, for a process with the same environment."""
    words = [] if effective.file is None else [f"--{CONFIG}", str(effective.file)]
    for name, source in effective.sources.items():
        if source.startswith("--"):
            value = effective.value(name)
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words += [source] if isinstance(value, bool) else [source, text]
    return words


def _in(setting: Setting, names: Iterable[str]) -> bool:
    return bool(setting.flags) and not {setting.section, setting.name}.isdisjoint(names)


@functools.cache
def _options(names: tuple[str, ...]) -> list[TyperOption]:
    """Return the options of the settings in these sections, or with these names."""

    def parameter(setting: Setting) -> inspect.Parameter:
        switch = setting.form is SWITCH
        default = setting.default
        shown = f" [default: {default}]" if default not in ("none", "false") else ""
        shown = shown if len(setting.meaning + shown) < LINE else ""
        option: Any = typer.Option(
            *setting.flags,
            metavar=None if switch else setting.form.metavar,
            help=f"{setting.meaning}{shown}",
            rich_help_panel=PANELS[setting.section],
            show_default=False,
            hidden=setting.section in GLOBAL or not setting.common,
        )
        kind: Any = bool if switch else str | None
        return inspect.Parameter(
            setting.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if switch else None,
            annotation=Annotated[kind, option],
        )

    config: Any = typer.Option(
        f"--{CONFIG}",
        metavar="FILE",
        help=f"Settings file [env: {VARIABLE}; default: {FILE_NAME}, if it exists]",
        rich_help_panel=PANELS["nats"],
        hidden=True,
    )
    parameters = [parameter(setting) for setting in SETTINGS if _in(setting, names)]
    parameters.append(
        inspect.Parameter(
            CONFIG,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, config],
        )
    )

    def declare() -> None:
        """Have the options as parameters."""

    declare.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    holder = typer.Typer(add_completion=False)
    holder.command()(declare)
    options: list[TyperOption] = [*get_command(holder).params]  # type: ignore[list-item]  # no arguments
    return options


def global_flags() -> dict[str, bool]:
    """Return the options that every command takes, each with whether it takes a value."""
    return {flag: not option.is_flag for option in _options(GLOBAL) for flag in option.opts}


# ---- commands


class Command(TyperCommand):
    """A command with the options of settings, which `settings` returns while it runs."""

    sections: tuple[str, ...] = GLOBAL
    quiet: bool = False

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage line, with required arguments without brackets."""
        shown = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        pieces = (piece for param in shown for piece in param.get_usage_pieces(ctx))
        words = [self.options_metavar or "", *(_REQUIRED.sub(r"\1", piece) for piece in pieces)]
        formatter.write_usage(ctx.command_path, " ".join(words))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by panel, without those of every command."""
        arguments: list[tuple[str, str]] = []
        sections: dict[str, list[tuple[str, str]]] = {}
        left_out = _options(self.sections) if self.quiet else []
        for param in self.get_params(ctx)[:-1]:  # --help is how one came here
            record = param.get_help_record(ctx)
            if record is not None and param not in left_out:
                name, text = record
                row = (_TYPE.sub("", name), _UNNEEDED.sub("", text))
                if param.param_type_name == "argument":
                    arguments.append((param.display_name_raw, row[1]))
                else:
                    panel = getattr(param, "rich_help_panel", None) if EXPANDED.get() else None
                    sections.setdefault(panel or "Options", []).append(row)
        if arguments:
            sections["Options"] = [*arguments, *sections.pop("Options", [])]
        for title, rows in sections.items():
            with formatter.section(f"Arguments and {title.lower()}" if arguments else title):
                formatter.write_dl(rows, col_max=26)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's parameters, and those of its settings."""
        *own, help_ = super().get_params(ctx)
        taken = {flag for param in own for flag in param.opts}
        options = [one for one in _options(self.sections) if taken.isdisjoint(one.opts)]
        if EXPANDED.get():
            own, options = [], [_shown(one) for one in (*own, *options) if "-c" not in one.opts]
        return [*own, *options, help_]

    def invoke(self, ctx: Any) -> Any:
        """Run the command within its settings."""
        names = [option.name for option in _options(self.sections)]
        typed = {name: ctx.params.pop(name, None) for name in names}
        config = typed.pop(CONFIG)
        token = _settings.set(load_settings(typed, os.environ, config=config))
        try:
            return super().invoke(ctx)
        finally:
            _settings.reset(token)


def _shown(option: Any) -> Any:
    """Return an option as `natsctl options` shows it, with its variables; it is only shown."""
    option = copy.copy(option)
    option.hidden = False
    setting = next((one for one in SETTINGS if one.parameter == option.name), None)
    if setting is not None:
        option.envvar, option.show_envvar = list(setting.variables), True
    return option


class App(typer.Typer):
    """The commands of one module."""

    def __init__(self, *, completion: bool = False, help: str | None = None) -> None:  # noqa: A002 - typer's word
        super().__init__(
            help=help,
            rich_markup_mode=None,
            add_completion=completion,
            context_settings=CONTEXT_SETTINGS,
            suggest_commands=False,
        )

    def add(
        self,
        *examples: str,
        name: str | None = None,
        settings: Sequence[str] = (),
        quiet: bool = False,
    ) -> Callable[[F], F]:
        """Register a function as a command, with examples at the end of its help.

        *settings* are the sections or names of settings whose options it has beside the global
        ones; with *quiet*, its help leaves them out.
        """
        lines = ["\b", "Examples:", *(f"  {example}" for example in examples)]
        kind = type("Command", (Command,), {"sections": (*GLOBAL, *settings), "quiet": quiet})
        return self.command(
            name, cls=kind, epilog="\n".join(lines), context_settings=CONTEXT_SETTINGS
        )


def connected(
    work: Work[NatsOptions, P], *, loop_factory: LoopFactory | None = None
) -> Callable[..., None]:
    """Make a command of a coroutine function whose first argument is the `NatsOptions`."""
    return _completed(work, lambda: settings().nats, loop_factory)


def connected_to_stores(work: Work[StoreOptions, P]) -> Callable[..., None]:
    """Do the same for a coroutine function whose first argument is the `StoreOptions`."""
    return _completed(work, lambda: StoreOptions.of(settings()))


def _completed(
    work: Callable[..., Coroutine[Any, Any, None]],
    first: Callable[[], object],
    loop_factory: LoopFactory | None = None,
) -> Callable[..., None]:
    @functools.wraps(work)
    def command(**arguments: Any) -> None:
        complete(work(first(), **arguments), loop_factory)

    signature = inspect.signature(work)
    parameters = list(signature.parameters.values())[1:]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
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


# ---- errors

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


# ---- wrong usage


def explain_usage(error: typer.TyperException) -> str:
    """Return one line about the error that also names the help of the command."""
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f" (see {context.command_path} --help)"
    return f"{_explanation(error, context)}{hint}"


def _explanation(error: typer.TyperException, context: Any) -> str:
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        params = [] if context is None else context.command.get_params(context)
        names = [name for param in params for name in param.opts if name.startswith("--")]
        return f"there is no option {option}{did_you_mean(option, names)}"
    command = re.fullmatch(r"(?s)No such command '(.*)'\.", error.format_message())
    if command is not None:
        names = [] if context is None else list(context.command.list_commands(context))
        return f"there is no command {command[1]}{did_you_mean(command[1], names)}"
    text = error.format_message().replace("Value error, ", "").rstrip(".")
    return re.sub(r"(^|: )([A-Z])(?=[a-z])", lambda found: found[0].lower(), text)
