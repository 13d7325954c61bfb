"""How a command is handed what is set: by its flags, the environment, a file."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from natsctl.daemon.settings.catalogue import SETTINGS, Setting
from natsctl.daemon.settings.load import FILE_NAME, VARIABLE, Effective, load_settings
from natsctl.daemon.settings.values import SWITCH

T = TypeVar("T")

PANELS = {"nats": "Connection", "kube": "Kubernetes"}
"""Where the flags of a section stand in help; those of others are among a command's own."""

_STACKED = "_natsctl_handed"
_CONFIG_FLAG = "--config"
_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        str | None,
        typer.Option(
            _CONFIG_FLAG,
            metavar="FILE",
            help=f"what is set [env: {VARIABLE}; default: {FILE_NAME}, where there is one]",
        ),
    ],
)


class _Wanted(NamedTuple):
    """What a command is handed: by which name, set by which flags, made of what is set."""

    name: str
    flags: tuple[str, ...]
    of: Callable[[Effective], object]


def handed(
    name: str, *flags: str, of: Callable[[Effective], object]
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command flags, and hand it what they and the other sources come to.

    Args:
        name: the parameter by which it is handed that.
        flags: whose flags: sections, `nats`, or settings, `controllers.workers`.
        of: what it is handed, of all that is set.

    May be stacked. The command raises `UsageError` as `load_settings` does.
    """

    def decorate(work: Callable[..., T]) -> Callable[..., T]:
        inner, before = getattr(work, _STACKED, (work, ()))
        return _command(inner, (_Wanted(name, flags, of), *before))

    return decorate


def words(effective: Effective) -> list[str]:
    """Return the flags that were typed, for a process that has the same environment."""
    typed = [] if effective.file is None else [_CONFIG_FLAG, str(effective.file)]
    for name, source in effective.sources.items():
        if source.startswith("--"):
            value = effective.value(name)
            typed += [source] if isinstance(value, bool) else [source, _text(value)]
    return typed


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _command(work: Callable[..., T], wants: tuple[_Wanted, ...]) -> Callable[..., T]:
    names = {want.name for want in wants}
    settings = _settings({each for want in wants for each in want.flags})

    @functools.wraps(work)
    def command(**given: Any) -> T:
        typed = {setting.parameter: given.pop(setting.parameter) for setting in settings}
        effective = load_settings(typed, os.environ, config=given.pop(_CONFIG.name))
        return work(**given, **{want.name: want.of(effective) for want in wants})

    own = [each for each in inspect.signature(work).parameters.values() if each.name not in names]
    described = inspect.Signature([*own, *map(_parameter, settings), _CONFIG])
    command.__signature__ = described  # type: ignore[attr-defined]  # what typer reads
    setattr(command, _STACKED, (work, wants))
    return command


def _settings(wanted: set[str]) -> list[Setting]:
    return [
        setting
        for setting in SETTINGS
        if setting.flags and {setting.section, setting.name} & wanted
    ]


def _parameter(setting: Setting) -> inspect.Parameter:
    """Return the option, as typer reads it off a signature."""
    switch = setting.shape is SWITCH
    option: Any = typer.Option(
        *setting.flags,
        metavar=None if switch else setting.shape.metavar,
        help=f"{setting.meaning} [{'; '.join(_said(setting))}]",
        rich_help_panel=PANELS.get(setting.section),
    )
    kind = Annotated[bool, option] if switch else Annotated[str | None, option]
    default = False if switch else None
    return inspect.Parameter(
        setting.parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
    )


def _said(setting: Setting) -> Iterator[str]:
    """Return what help says of a setting besides what it is."""
    value = f"={setting.typed()}" if setting.shape is SWITCH else ""
    yield f"env: {', '.join(f'{name}{value}' for name in setting.variables)}"
    if setting.section not in PANELS and setting.default not in ("none", "false"):
        yield f"default: {setting.default}"
