"""Gives commands the options of settings, and passes them the effective settings."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import typer

from natsctl.controller.slots.owners import OwnerNames
from natsctl.daemon.settings.catalogue import SETTINGS
from natsctl.daemon.settings.load import FILE_NAME, VARIABLE, Effective, load_settings
from natsctl.daemon.settings.setting import Setting
from natsctl.daemon.settings.values import SWITCH
from natsctl.jetstream.options import NatsOptions
from natsctl.kubernetes.options import KubeOptions

T = TypeVar("T")

PANELS = {"nats": "Connection", "kube": "Kubernetes"}
"""The help section of each group of settings; other settings are among the command's options."""

_REQUESTS = "_natsctl_requests"
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
            help=f"Settings file [env: {VARIABLE}; default: {FILE_NAME}, if it exists]",
        ),
    ],
)


class _Request(NamedTuple):
    """A parameter of a command, the settings whose options it needs, and how to compute it."""

    parameter: str
    settings: tuple[str, ...]
    value: Callable[[Effective], object]


def with_options(
    parameter: str, *settings: str, value: Callable[[Effective], object]
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the options of *settings*, and pass it *value* of the effective settings.

    The decorator can be applied several times. The command raises `UsageError` as `load_settings`
    does.

    Args:
        parameter: the parameter that receives the value.
        settings: sections such as `nats`, or single settings such as `controllers.workers`.
        value: computes the argument from the effective settings.
    """

    def decorate(work: Callable[..., T]) -> Callable[..., T]:
        wrapped, requests = getattr(work, _REQUESTS, (work, ()))
        return _command(wrapped, (_Request(parameter, settings, value), *requests))

    return decorate


with_cluster = with_options("cluster", "kube", value=lambda effective: effective.settings.cluster)
"""Pass a command the Kubernetes cluster as `cluster`; None if the settings disable it."""


class StoreOptions(msgspec.Struct, frozen=True):
    """The options of the stores of a controller.

    Attributes:
        cluster: the Kubernetes cluster; None if the settings disable it.
        owner_names: the labels that link secondaries to primaries.
    """

    nats: NatsOptions
    cluster: KubeOptions | None
    owner_names: OwnerNames


with_stores = with_options(
    "stores",
    *("nats", "kube", "controllers.owner_domain"),
    value=lambda effective: StoreOptions(
        effective.nats, effective.settings.cluster, effective.settings.controllers.owner_names
    ),
)
"""Pass a command the `StoreOptions` as `stores`."""


def typed_options(effective: Effective) -> list[str]:
    """Return the options that were typed, for a process with the same environment."""
    words = [] if effective.file is None else [_CONFIG_FLAG, str(effective.file)]
    for name, source in effective.sources.items():
        if source.startswith("--"):
            value = effective.value(name)
            words += [source] if isinstance(value, bool) else [source, _text(value)]
    return words


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _command(work: Callable[..., T], requests: tuple[_Request, ...]) -> Callable[..., T]:
    computed = {request.parameter for request in requests}
    settings = _settings({name for request in requests for name in request.settings})

    @functools.wraps(work)
    def command(**arguments: Any) -> T:
        typed = {setting.parameter: arguments.pop(setting.parameter) for setting in settings}
        effective = load_settings(typed, os.environ, config=arguments.pop(_CONFIG.name))
        values = {request.parameter: request.value(effective) for request in requests}
        return work(**arguments, **values)

    passed_on = [
        parameter
        for parameter in inspect.signature(work).parameters.values()
        if parameter.name not in computed
    ]
    signature = inspect.Signature([*passed_on, *map(_parameter, settings), _CONFIG])
    command.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
    setattr(command, _REQUESTS, (work, requests))
    return command


def _settings(names: set[str]) -> list[Setting]:
    return [
        setting for setting in SETTINGS if setting.flags and {setting.section, setting.name} & names
    ]


def _parameter(setting: Setting) -> inspect.Parameter:
    """Return the setting's option as a parameter that typer reads from a signature."""
    switch = setting.shape is SWITCH
    option: Any = typer.Option(
        *setting.flags,
        metavar=None if switch else setting.shape.metavar,
        help=f"{setting.meaning} [{'; '.join(_sources(setting))}]",
        rich_help_panel=PANELS.get(setting.section),
    )
    annotation = Annotated[bool, option] if switch else Annotated[str | None, option]
    default = False if switch else None
    return inspect.Parameter(
        setting.parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _sources(setting: Setting) -> Iterator[str]:
    """Yield the setting's environment variables and its default, for the help."""
    value = f"={setting.typed()}" if setting.shape is SWITCH else ""
    yield f"env: {', '.join(f'{name}{value}' for name in setting.variables)}"
    if setting.section not in PANELS and setting.default not in ("none", "false"):
        yield f"default: {setting.default}"
