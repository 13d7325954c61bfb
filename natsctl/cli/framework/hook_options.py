"""Defines the options of commands that run a hook in place of a controller class."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from natsctl.cli.framework.controller_options import ControllersOption
from natsctl.errors import UsageError

_PANEL = "Hook: a handler in any language"
_KIND = "BUCKET, or kube:v1/ConfigMap"
_OPTIONS: dict[str, tuple[Any, object]] = {
    "hook": (
        Annotated[
            str | None,
            typer.Option(
                metavar="SUBJECT",
                rich_help_panel=_PANEL,
                help="NATS subject of the service that decides, in place of a controller class",
            ),
        ],
        None,
    ),
    "primary": (
        Annotated[
            str | None,
            typer.Option(metavar="BUCKET", rich_help_panel=_PANEL, help="Bucket of its primaries"),
        ],
        None,
    ),
    "secondary": (
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="KIND", rich_help_panel=_PANEL, help=f"Its children: {_KIND}; repeatable"
            ),
        ],
        None,
    ),
    "reads": (
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="KIND",
                rich_help_panel=_PANEL,
                help=f"What it may read: {_KIND}; repeatable",
            ),
        ],
        None,
    ),
    "schema": (
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="BUCKET=FILE",
                rich_help_panel=_PANEL,
                help="JSON Schema of the objects in a bucket, to publish; repeatable",
            ),
        ],
        None,
    ),
    "hook_finalize": (
        Annotated[
            bool,
            typer.Option(
                "--hook-finalize", rich_help_panel=_PANEL, help="Ask it before an object goes away"
            ),
        ],
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
    for name, (annotation, default) in _OPTIONS.items():
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
