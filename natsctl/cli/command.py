"""A command from its declaration to its exit status.

A function is a command by `App.add`. Its options are phrases such as `-n COUNT>=1 | How many`,
which `option` reads, and those of the settings, which every command takes. When it runs, the
options become settings; a first parameter for `NatsOptions` or `StoreOptions` says what the command
connects to. `complete` runs what waits, and `report` turns an error into a message and a status.
"""

import asyncio
import functools
import inspect
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args
from urllib.parse import urlencode

import msgspec
import typer
from typer.core import TyperCommand

from natsctl.cli.terminal import coloured, flush, write_stderr
from natsctl.controller.owners import OwnerNames
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.daemon.settings.settings import (
    FILE_NAME,
    SETTINGS,
    SWITCH,
    VARIABLE,
    Effective,
    load_settings,
)
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

if TYPE_CHECKING:  # what loads a controller takes half a second to import
    from natsctl.controller.controller import Controller
    from natsctl.daemon.operator import Guest

F = TypeVar("F", bound=Callable[..., object])
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

FAILED, USAGE, NOT_FOUND, CONFLICT = 1, 2, 3, 4
INTERRUPTED = 128 + signal.SIGINT

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
PANELS = {
    "nats": "Connection",
    "kube": "Kubernetes",
    "controllers": "Controllers",
    "logs": "Logs",
    "http": "Probes and metrics",
    "traces": "Traces",
    "hook": "Hook: a handler in any language",
}
GLOBAL = ("nats", "kube", "controllers.owner_domain")
"""The sections of settings whose options every command takes, before or after its name."""

CONFIG = "config"
LINE = 74  # characters of a help that stays on one line

_REQUIRED = re.compile(r"\{(.*)\}")
_TYPE = re.compile(r" <[^>]*>$")
_UNNEEDED = re.compile(r"  \[(\d+<=)?x[<>]=\d+\]|; (\d+<=)?x[<>]=\d+(?=\])|  \[required\]")


# ---- options that commands declare


def option(text: str, *flags: str, default: object = "") -> Any:
    """Return the option that a text such as `-n COUNT>=1 | How many there are` declares.

    Before the bar are flags, of which a long one replaces *flags*, and what stands for the value,
    with its limits, such as `>=1<=9`. `@` marks an argument. An option without a meaning is hidden.
    """
    head, _, meaning = text.rpartition(" | ")
    words = head.split()
    own = [word for word in words if word[0] == "-"]
    metavar, _, limits = " ".join(words[len(own) :]).partition(">=")
    least, _, most = limits.partition("<=")
    given: dict[str, Any] = {
        "help": meaning,
        "hidden": not meaning,
        "metavar": metavar.lstrip("@") or None,
        "min": int(least) if least else None,
        "max": int(most) if most else None,
        "show_default": default != "" and not isinstance(default, bool),
    }
    if metavar.startswith("@"):
        return typer.Argument(**given)
    return typer.Option(*(() if "--" in head else flags), *own, **given)


ONE = "@BUCKET/KEY | The object: BUCKET/KEY, or BUCKET KEY"
SOME = "@BUCKET/KEY | The objects: BUCKET/KEY each, or BUCKET and its KEYs"
_CLASS = "--controller -c M:C | Controller class as package.module:Name"
_NAMED = "--controller -c NAME | Controller's name, or its class as package.module:Name"
_FILES = "--file -f FILE | YAML or JSON file, folder, or - for standard input; repeatable"
_LABELS = "--selector -l LABELS | Only objects whose labels match, such as a=b,c!=d,e"

OneObject = Annotated[list[str], option(ONE)]
Objects = Annotated[list[str], option(SOME)]
SomeObjects = Annotated[list[str] | None, option(SOME)]
ControllerClass = Annotated[str, option(_CLASS)]
ControllerClasses = Annotated[list[str], option(f"{_CLASS}; repeatable")]
NamedController = Annotated[str | None, option(_NAMED)]
"""The name of a controller, which a command may give by its class."""
Files = Annotated[list[str], option(_FILES)]
Labels = Annotated[str, option(_LABELS)]
Yes = Annotated[bool, option("--yes -y | Do not ask for confirmation")]
CreateBucket = Annotated[bool, option("--create-bucket | Create the bucket if it does not exist")]


def _parameter(name: str, annotation: Any, default: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


# ---- controllers that options name; only who loads one pays for the imports

_PLACE = "BUCKET, or kube:v1/ConfigMap"
_HOOK: dict[str, tuple[Any, str]] = {
    "hook": (str | None, "SUBJECT | Subject of a service in place of a class"),
    "primary": (str | None, "BUCKET | Bucket of its primaries"),
    "secondary": (list[str] | None, f"KIND | Its children: {_PLACE}; repeatable"),
    "reads": (list[str] | None, f"KIND | What it may read: {_PLACE}; repeatable"),
    "schema": (list[str] | None, "BUCKET=FILE | JSON Schema of a bucket's objects, to publish"),
    "hook_finalize": (bool, "--hook-finalize | Ask it before an object goes away"),
}


def _hook_parameters(*, expanded: bool) -> Iterator[inspect.Parameter]:
    for name, (kind, text) in _HOOK.items():
        declared = option(text, f"--{name}", default=False)
        declared.hidden = name != "hook" and not expanded
        declared.rich_help_panel = PANELS["hook"] if expanded else None
        yield _parameter(name, Annotated[kind, declared], False if kind is bool else None)


def _of_hook(arguments: dict[str, Any]) -> None:
    """Let the options of a hook be the path of a controller that `hook_class` knows."""
    given = {name: arguments.pop(name) for name in _HOOK}
    hook, controller = given.pop("hook"), arguments["controller"]
    if hook is None:
        if any(given.values()):
            raise UsageError(
                "--primary, --secondary, --reads, --schema and --hook-finalize describe a "
                "hook: add --hook SUBJECT"
            )
        if not controller:
            raise UsageError("what should run? give --controller M:C, or --hook SUBJECT")
        return
    schemas, given["schema"] = given["schema"] or (), []
    for pair in schemas:
        bucket, separator, file = pair.partition("=")
        if not separator:
            raise UsageError(f"--schema {pair!r}: write BUCKET=FILE")
        try:
            given["schema"].append(f"{bucket}={Path(file).read_text('utf-8')}")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--schema {pair}: cannot read the file: {error}") from error
    given["finalize"] = "yes" if given.pop("hook_finalize") else None
    query = urlencode({name: value for name, value in given.items() if value}, doseq=True)
    path = f"hook:{hook}?{query}"
    if isinstance(controller, str) and controller:
        raise UsageError("--hook stands in for --controller: give one of them")
    arguments["controller"] = path if isinstance(controller, str) else [*controller, path]


def load_controller(path: str) -> "Controller":
    """Return a controller at *path*; raises `UsageError` also for another class that runs."""
    from natsctl.controller.controller import Controller  # noqa: PLC0415 - see above

    controller = load_runnable_controller(path)
    if not isinstance(controller, Controller):
        raise UsageError(f"{path} is not a subclass of natsctl.Controller but another class")
    return controller


def load_runnable_controller(path: str) -> "Controller | Guest":
    """Return what `natsctl run` runs from *path*; raises as `load` and `make` do."""
    from natsctl.daemon.loader import load, make  # noqa: PLC0415 - see above

    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return make(load(path), path)


def controller_name(named: str | None) -> str | None:
    """Return the name of a controller that is given by its name or its class, if it is given."""
    return load_runnable_controller(named).name if named is not None and ":" in named else named


# ---- settings

_settings: ContextVar[Effective] = ContextVar("settings")


def settings() -> Effective:
    """Return the settings of the command that runs."""
    return _settings.get()


class StoreOptions(msgspec.Struct, frozen=True):
    """The options of a controller's stores; `cluster` is None if the settings disable it."""

    nats: NatsOptions
    cluster: KubeOptions | None
    owner_names: OwnerNames

    @classmethod
    def of(cls, effective: Effective) -> "StoreOptions":
        settings = effective.settings
        return cls(effective.nats, settings.cluster, settings.controllers.owner_names)


_CONNECTED: dict[object, Callable[[Effective], object]] = {
    NatsOptions: lambda effective: effective.nats,
    StoreOptions: StoreOptions.of,
}
"""What the first parameter of a command gets of the settings."""

GLOBAL_FLAGS = {
    flag: setting.form is not SWITCH
    for setting in SETTINGS
    if {setting.section, setting.name} & {*GLOBAL}
    for flag in setting.flags
} | {f"--{CONFIG}": True}
"""The options that every command takes, each with whether it takes a value."""


def _setting_parameters(
    names: tuple[str, ...], *, quiet: bool, expanded: bool
) -> Iterator[inspect.Parameter]:
    for setting in SETTINGS:
        if not setting.flags or {setting.section, setting.name}.isdisjoint(names):
            continue
        switch, default = setting.form is SWITCH, setting.default
        shown = f" [default: {default}]" if default not in ("none", "false") else ""
        info: Any = typer.Option(
            *setting.flags,
            metavar=None if switch else setting.form.metavar,
            help=setting.meaning + (shown if len(setting.meaning + shown) < LINE else ""),
            rich_help_panel=PANELS[setting.section] if expanded else None,
            show_default=False,
            hidden=(quiet or setting.section in GLOBAL or not setting.common) and not expanded,
            envvar=[*setting.variables] if expanded else None,
            show_envvar=expanded,
        )
        kind: Any = bool if switch else str | None
        yield _parameter(setting.parameter, Annotated[kind, info], False if switch else None)
    config: Any = typer.Option(
        f"--{CONFIG}",
        metavar="FILE",
        help=f"Settings file [env: {VARIABLE}; default: {FILE_NAME}, if it exists]",
        rich_help_panel=PANELS["nats"] if expanded else None,
        hidden=not expanded,
    )
    yield _parameter(CONFIG, Annotated[str | None, config], None)


def _flags(parameter: inspect.Parameter) -> list[str]:
    """Return the flags of an option, of which typer keeps the first as its default at first."""
    infos = [info for info in get_args(parameter.annotation)[1:] if hasattr(info, "param_decls")]
    flags = (flag for info in infos for flag in (info.default, *(info.param_decls or ())))
    return [flag for flag in flags if isinstance(flag, str)]


# ---- commands


class Command(TyperCommand):
    """A command whose help fits on one screen."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage line, with required arguments without brackets."""
        shown = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        pieces = (piece for param in shown for piece in param.get_usage_pieces(ctx))
        words = [self.options_metavar or "", *(_REQUIRED.sub(r"\1", piece) for piece in pieces)]
        formatter.write_usage(ctx.command_path, " ".join(words))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[tuple[str, str]] = []
        sections: dict[str, list[tuple[str, str]]] = {}
        *params, _help = cast("list[Any]", self.get_params(ctx))
        for param in params:
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, text = _TYPE.sub("", record[0]), _UNNEEDED.sub("", record[1])
            if param.param_type_name == "argument":
                arguments.append((param.display_name_raw, text))
            else:
                panel = getattr(param, "rich_help_panel", None) or "Options"
                sections.setdefault(panel, []).append((name, text))
        if arguments:
            sections["Options"] = [*arguments, *sections.pop("Options", [])]
        for title, rows in sections.items():
            with formatter.section(f"Arguments and {title.lower()}" if arguments else title):
                formatter.write_dl(rows, col_max=26)


class App(typer.Typer):
    """The commands of one module."""

    def __init__(self, *, help: str | None = None) -> None:  # noqa: A002 - typer's word
        super().__init__(
            help=help,
            rich_markup_mode=None,
            add_completion=False,
            context_settings=CONTEXT_SETTINGS,
            suggest_commands=False,
        )

    def add(
        self,
        *examples: str,
        called: str | None = None,
        sections: tuple[str, ...] = (),
        quiet: bool = False,
        expanded: bool = False,
        hooks: bool = False,
        **options: str,
    ) -> Callable[[F], F]:
        """Register a function as a command, with examples at the end of its help.

        A first parameter for `NatsOptions` or `StoreOptions` gets those of the settings. *options*
        declare the others by name, see `option`. *sections* are the sections or names of settings
        whose options it has beside the global ones. With *quiet*, its help leaves them out; if it's
        *expanded*, it shows all, by panel. With *hooks*, those of a hook stand in for a class.
        """

        def register(work: F) -> F:
            parameters = dict(inspect.signature(work).parameters)
            first = next(iter(parameters), "")
            opened = parameters[first].annotation if parameters else None
            if opened in _CONNECTED:
                del parameters[first]
            for name, text in options.items():
                one = parameters[name]
                flag = f"--{name.strip('_').replace('_', '-')}"
                kind: Any = one.annotation
                optional: Any = Annotated[kind, option(text, flag, default=one.default)]
                parameters[name] = one.replace(annotation=optional)
            controller = parameters.get("controller")
            by_name = controller is not None and controller.annotation is NamedController
            if hooks:
                one = parameters["controller"]
                several = get_args(one.annotation)[0] == list[str]
                parameters["controller"] = one.replace(default=[] if several else "")
                extra = _hook_parameters(expanded=expanded)
                parameters |= {parameter.name: parameter for parameter in extra}
            taken = {flag for one in parameters.values() for flag in _flags(one)}
            of_settings = [
                one
                for one in _setting_parameters((*GLOBAL, *sections), quiet=quiet, expanded=expanded)
                if taken.isdisjoint(_flags(one))
            ]

            @functools.wraps(work)
            def command(**arguments: Any) -> None:
                typed = {one.name: arguments.pop(one.name) for one in of_settings}
                config = typed.pop(CONFIG)
                effective = load_settings(typed, os.environ, config=config)
                _settings.set(effective)
                if hooks:
                    _of_hook(arguments)
                if by_name:
                    arguments["controller"] = controller_name(arguments["controller"])
                filled = [_CONNECTED[opened](effective)] if opened in _CONNECTED else []
                result = work(*filled, **arguments)
                if inspect.iscoroutine(result):
                    complete(result)

            signature = inspect.Signature([*parameters.values(), *of_settings])
            command.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
            epilog = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
            name = called or work.__name__.replace("_", "-")
            given: dict[str, Any] = {"cls": Command, "context_settings": CONTEXT_SETTINGS}
            self.command(name, epilog=epilog, **given)(command)
            return work

        return register


def complete(work: Coroutine[Any, Any, None], loop_factory: LoopFactory | None = None) -> None:
    """Run *work* to its end; SIGINT cancels it."""
    with interruptible(), asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(work)
    flush()


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


# ---- errors, and the exit status of a command that ends with them


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command that ends with *error*."""
    match error:
        case UsageError() | InvalidKeyError() | typer.TyperException():
            return USAGE
        case NotFoundError() | StoreMissingError():
            return NOT_FOUND
        case ConflictError():
            return CONFLICT
        case _:
            return FAILED


def exit_with(statuses: Iterable[int]) -> None:
    """Exit with the first status that is not 0; return if all statuses are 0."""
    failure = next(filter(None, statuses), 0)
    if failure:
        raise typer.Exit(failure)


def report(error: BaseException) -> int:
    """Write the error to standard error, without secrets, and return the exit status.

    Errors of natsctl and of the operating system are one line. Other errors are written with their
    traceback, for the author of the code. Every member of an exception group is written.
    """
    if isinstance(error, BaseExceptionGroup):
        statuses = [report(inner) for inner in error.exceptions]
        return statuses[0]
    match error:
        case typer.TyperException():
            report_error(_usage(error))
        case NatsctlError():
            report_error(str(error))
        case OSError(strerror=str(reason)):
            report_error(f"{error.filename}: {reason}" if error.filename else reason)
        case RecursionError():
            report_error("a value is nested too deeply to be read or written")
        case _:
            text = "".join(traceback.format_exception(error)).rstrip("\n")
            write_stderr(escaped_lines(hidden(text, limit=TRACEBACK_MAX)))
    return exit_status(error)


def report_error(message: str) -> None:
    """Write an error message to standard error, without secrets; further lines are indented."""
    label = coloured("error:", typer.colors.RED, sys.stderr)
    write_stderr(f"natsctl: {label} {escaped_lines(hidden(message))}")


def _usage(error: typer.TyperException) -> str:
    context: Any = getattr(error, "ctx", None)
    hint = "" if context is None else f" (see {context.command_path} --help)"
    message, flag = error.format_message(), getattr(error, "option_name", None)
    if flag is not None and hasattr(error, "possibilities"):
        params = [] if context is None else context.command.get_params(context)
        names = [name for param in params for name in param.opts if name.startswith("--")]
        return f"there is no option {flag}{did_you_mean(flag, names)}{hint}"
    if command := re.fullmatch(r"(?s)No such command '(.*)'\.", message):
        names = [] if context is None else list(context.command.list_commands(context))
        return f"there is no command {command[1]}{did_you_mean(command[1], names)}{hint}"
    text = message.replace("Value error, ", "").rstrip(".")
    return re.sub(r"(^|: )([A-Z])(?=[a-z])", lambda found: found[0].lower(), text) + hint
