"""The arguments and options that several commands share, and what they stand for."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from natsctl.core.task_group import WORKERS_MAX
from natsctl.errors import UsageError
from natsctl.model.kinds import KvKind

if TYPE_CHECKING:
    from natsctl.controller.controller import Controller
    from natsctl.daemon.operator import Guest

Kinds = list[KvKind[object]]

CLASS_HELP = "Controller class as package.module:Name"


def controller_option(text: str, *, hidden: bool = False) -> Any:
    """Return the option `--controller`, whose value is a class, with this help."""
    return typer.Option("--controller", "-c", metavar="M:C", help=text, hidden=hidden)


def port_option(text: str, *, default: int) -> Any:
    """Return an option for a port to listen on, which falls back to any port."""
    shown = f"{text}; 0 for any [default: {default}]"
    return typer.Option(min=0, max=65535, metavar="PORT", help=shown)


ONE = "The object: BUCKET/KEY, or BUCKET KEY"
SOME = "The objects: BUCKET/KEY each, or BUCKET and its KEYs"
NameArgument = Annotated[list[str], typer.Argument(help=ONE, metavar="BUCKET/KEY")]
NamesArgument = Annotated[list[str], typer.Argument(help=SOME, metavar="BUCKET/KEY")]
SomeNamesArgument = Annotated[list[str] | None, typer.Argument(help=SOME, metavar="BUCKET/KEY")]
SelectorOption = Annotated[
    str,
    typer.Option(
        "--selector",
        "-l",
        help="Only objects whose labels match, such as a=b,c!=d,e",
        metavar="LABELS",
        show_default=False,
    ),
]
KeysOption = Annotated[
    str,
    typer.Option(
        "--keys",
        help="Only keys that match; * matches one token, > the remaining tokens",
        metavar="PATTERN",
        show_default=False,
    ),
]
CreateOption = Annotated[
    bool, typer.Option("--create-bucket", help="Create the bucket if it does not exist")
]
FilesOption = Annotated[
    list[str],
    typer.Option(
        "--file",
        "-f",
        help="YAML or JSON file, folder, or - for standard input; repeatable",
        metavar="FILE",
    ),
]
ControllerOption = Annotated[str, controller_option(CLASS_HELP)]
ControllersOption = Annotated[list[str], controller_option(f"{CLASS_HELP}; repeatable")]
KindsOption = Annotated[
    str | None,
    controller_option("Controller class; the object must match its types for the bucket"),
]
NamedOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        "-c",
        help="Controller's name, or its class as package.module:Name",
        metavar="NAME",
    ),
]
PortOption = Annotated[int | None, port_option("Port of that server", default=4222)]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=WORKERS_MAX,
        help="Number of keys that are synced concurrently",
        metavar="NUMBER",
    ),
]


# ---- controllers; what they need takes half a second to import, so only who loads one pays for it


def load_controller(path: str) -> "Controller":
    """Return a controller of the class at *path*; raises as `load` and `make` do."""
    from natsctl.daemon.loader import load, make  # noqa: PLC0415 - see above

    _search_current_folder()
    return make(load(path), path)


def load_kinds(path: str | None, bucket: str) -> Kinds:
    """Return the kinds that the controller at *path* declares for the bucket, none without a path.

    Raises `UsageError` if the controller has no kind for the bucket, and as `load_controller` does.
    """
    if path is None:
        return []
    from natsctl.controller.slots import slots  # noqa: PLC0415 - see above

    declared = (slot.kind for slot in slots(type(load_controller(path))))
    kinds = [kind for kind in declared if isinstance(kind, KvKind) and kind.bucket == bucket]
    if not kinds:
        raise UsageError(f"{path} has no kind in bucket {bucket}")
    return kinds


def load_runnable_controller(path: str) -> "Controller | Guest":
    """Return what `natsctl run` runs from *path*; raises as `load_runnable` and `make` do."""
    from natsctl.daemon.loader import load_runnable, make  # noqa: PLC0415 - see above

    _search_current_folder()
    return make(load_runnable(path), path)


def controller_name(named: str | None) -> str | None:
    """Return the name of a controller that is given by its name or its class, if it is given."""
    return load_runnable_controller(named).name if named is not None and ":" in named else named


def _search_current_folder() -> None:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)


# ---- hooks

HOOK_PANEL = "Hook: a handler in any language"
_KIND = "BUCKET, or kube:v1/ConfigMap"


def _hook_option(text: str, metavar: str | None = None, *names: str, hidden: bool = True) -> Any:
    return typer.Option(
        *names, metavar=metavar, rich_help_panel=HOOK_PANEL, help=text, hidden=hidden
    )


HOOK_OPTIONS: dict[str, tuple[Any, object]] = {
    "hook": (
        Annotated[
            str | None,
            _hook_option(
                "Subject of a service in place of a class",
                "SUBJECT",
                hidden=False,
            ),
        ],
        None,
    ),
    "primary": (Annotated[str | None, _hook_option("Bucket of its primaries", "BUCKET")], None),
    "secondary": (
        Annotated[list[str] | None, _hook_option(f"Its children: {_KIND}; repeatable", "KIND")],
        None,
    ),
    "reads": (
        Annotated[list[str] | None, _hook_option(f"What it may read: {_KIND}; repeatable", "KIND")],
        None,
    ),
    "schema": (
        Annotated[
            list[str] | None,
            _hook_option("JSON Schema of a bucket's objects, to publish", "BUCKET=FILE"),
        ],
        None,
    ),
    "hook_finalize": (
        Annotated[bool, _hook_option("Ask it before an object goes away", None, "--hook-finalize")],
        False,
    ),
}


def with_hook(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command with --controller the options of a hook, which stand in for a class.

    The command gets the path that `natsctl.controller.hook.hook_class` knows as its controller.
    """
    signature = inspect.signature(command)
    plain = signature.parameters["controller"]
    many = plain.annotation == ControllersOption
    kind: Any = list[str] | None if many else str | None
    optional = Annotated[(kind, *plain.annotation.__metadata__)]

    @functools.wraps(command)
    def with_path(
        *,
        controller: list[str] | str | None,
        hook: str | None,
        primary: str | None,
        secondary: list[str] | None,
        reads: list[str] | None,
        schema: list[str] | None,
        hook_finalize: bool,
        **arguments: Any,
    ) -> None:
        others = primary or secondary or reads or schema or hook_finalize
        if hook is None:
            if others:
                raise UsageError(
                    "--primary, --secondary, --reads, --schema and --hook-finalize describe a "
                    "hook: add --hook SUBJECT"
                )
            if not controller:
                raise UsageError("what should run? give --controller M:C, or --hook SUBJECT")
            command(controller=controller, **arguments)
            return
        if controller and not many:
            raise UsageError("--hook stands in for --controller: give one of them")
        options = {
            "primary": primary,
            "secondary": secondary,
            "reads": reads,
            "schema": [_with_text(pair) for pair in schema or ()],
            "finalize": "yes" if hook_finalize else None,
        }
        given = {name: value for name, value in options.items() if value}
        path = f"hook:{hook}?{urlencode(given, doseq=True)}"
        command(controller=[*(controller or ()), path] if many else path, **arguments)

    parameters = dict(signature.parameters)
    parameters["controller"] = plain.replace(annotation=optional, default=None)
    for name, (annotation, default) in HOOK_OPTIONS.items():
        parameters[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
    with_path.__signature__ = signature.replace(  # type: ignore[attr-defined]  # typer reads it
        parameters=list(parameters.values())
    )
    return with_path


def _with_text(pair: str) -> str:
    """Return `BUCKET=FILE` with the text of the file in place of its name."""
    bucket, separator, file = pair.partition("=")
    if not separator:
        raise UsageError(f"--schema {pair!r}: write BUCKET=FILE")
    try:
        return f"{bucket}={Path(file).read_text('utf-8')}"
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--schema {pair}: cannot read the file: {error}") from error
