"""Loads the settings from flags, the environment and a file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from natsctl.daemon.settings.catalogue import BY_NAME, SETTINGS
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.daemon.settings.precedence import LOGIN, Given, Layer, merged
from natsctl.daemon.settings.setting import FIELDS, SECTIONS, Setting, default_of
from natsctl.daemon.settings.settings import Settings
from natsctl.daemon.settings.toml_file import Lines, read_toml
from natsctl.daemon.settings.values import FILE
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions, load_context, selected_context

FILE_NAME = "natsctl.toml"
VARIABLE = "NATSCTL_CONFIG"

SELECTED = "nats context select"
"""The source of the context that the `nats` command uses too."""

_PREFIX = "NATSCTL_"
_SERVICE_VARIABLE = (
    r"NATSCTL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


class Effective(msgspec.Struct, frozen=True):
    """The settings in effect, and the source of each.

    Attributes:
        settings: the settings in effect.
        sources: the source by dotted name: `--server`, `NATSCTL_SERVER`, `natsctl.toml:3`. A field
            without a source has its default.
        file: the file that was read, if there is one.
    """

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None = None

    def source(self, field: str) -> str:
        """Return the source of the field, `default` if no source sets it."""
        return self.sources.get(field, "default")

    def value(self, field: str) -> object:
        """Return the value of the field."""
        section, _, name = field.partition(".")
        return getattr(getattr(self.settings, section), name)

    def with_context(self) -> "Effective":
        """Return these settings with unset options taken from their NATS context.

        If any credential is set, no credential of the context is used. Raises `UsageError` if the
        context cannot be read, as `load_context` does; a context that is only selected may be
        broken if the server and the credentials are set.
        """
        name, source = self.settings.nats.context, f"context {self.settings.nats.context}"
        if name is None:
            return self
        given = {field: Given(self.value(field), source) for field, source in self.sources.items()}
        excluded = () if given.keys().isdisjoint(LOGIN) else LOGIN
        try:
            options = load_context(name)
        except UsageError:
            if self.source("nats.context") == SELECTED and excluded and "nats.servers" in given:
                return self.without_selection()
            raise
        context = {
            field: Given(value, source)
            for field in FIELDS
            if field.startswith("nats.") and field not in excluded
            if (value := getattr(options, field.removeprefix("nats."))) != default_of(field)
        }
        chosen = {"nats.context": given.pop("nats.context")}
        return _effective(merged([given, context, chosen]), self.file)

    def without_selection(self) -> "Effective":
        """Return these settings without the context that `nats context select` selected."""
        if self.source("nats.context") != SELECTED:
            return self
        nats = msgspec.structs.replace(self.settings.nats, context=None)
        return Effective(
            msgspec.structs.replace(self.settings, nats=nats),
            {field: source for field, source in self.sources.items() if field != "nats.context"},
            self.file,
        )

    @property
    def nats(self) -> NatsOptions:
        """The options of the connection to NATS, with those of the context.

        A context that cannot be read is still named, so that connecting raises the error.
        """
        try:
            complete = self.with_context()
        except UsageError:
            return self.settings.nats
        return msgspec.structs.replace(complete.settings.nats, context=None)


def load_settings(
    flags: Mapping[str, str | bool | None], environ: Mapping[str, str], *, config: str | None = None
) -> Effective:
    """Return the settings in effect.

    A flag overrides a variable of natsctl, which overrides a variable of the `nats` command, which
    overrides the file. The context that `nats context select` selected is the weakest.

    Args:
        flags: the values of flags by parameter; None and False mean that the flag is not given.
        environ: the environment; empty variables are ignored.
        config: the file to read; by default the file in `NATSCTL_CONFIG`, or else `natsctl.toml` in
            the current folder if it exists. Relative paths in a file are relative to its folder.

    Raises `UsageError` for an invalid value, with the setting, its source and a valid example; for
    an unknown variable or line; and for a file that is named but does not exist.
    """
    check_variables(environ)
    typed, file = _from_flags(flags), _file(config, environ)
    read = {} if file is None else _from_file(file)
    own, shared = (_from_environment(environ, own=is_own) for is_own in (True, False))
    if "nats.user" in shared and "nats.password" not in {**typed, **own, **shared}:
        # the nats command takes a user without a password as a token
        shared.setdefault("nats.token", shared.pop("nats.user"))
    selected = selected_context()
    selection = {"nats.context": Given(selected, SELECTED)} if selected else {}
    return _effective(merged([typed, own, shared, read, selection]), file)


def check_variables(environ: Mapping[str, str]) -> None:
    """Raise `UsageError` for a variable that begins with `NATSCTL_` and is not a setting.

    Empty variables are ignored. So are the variables that Kubernetes sets in each container for
    services of the namespace, if the name of a service begins with `natsctl`.
    """
    variables = [VARIABLE, *(name for setting in SETTINGS for name in setting.variables)]
    for name, value in sorted(environ.items()):
        unknown = name.startswith(_PREFIX) and name not in variables
        if unknown and value and not _describes_service(name, value):
            names = [variable_name.removeprefix(_PREFIX) for variable_name in variables]
            nearest = did_you_mean(name.removeprefix(_PREFIX), names, prefix=_PREFIX)
            raise UsageError(f"there is no variable {name}{nearest}")


def _describes_service(name: str, value: str) -> bool:
    """Return whether Kubernetes or Docker may have set the variable for a service."""
    if re.fullmatch(_SERVICE_VARIABLE, name):
        return True
    return name.endswith("_PORT") and "://" in value


def _effective(layer: Layer, file: Path | None) -> Effective:
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, given in layer.items():
        section, _, field = name.partition(".")
        sections[section][field] = given.value
    types = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    settings = Settings(**{name: types[name](**values) for name, values in sections.items()})
    return Effective(settings, {name: given.source for name, given in layer.items()}, file)


# ---- flags


def _from_flags(flags: Mapping[str, str | bool | None]) -> Layer:
    layer: Layer = {}
    for setting in SETTINGS:
        value = flags.get(setting.parameter) if setting.flags else None
        if value is None or value is False or value == "":
            continue
        flag = setting.flags[0]
        if value is True:
            value = str(not flag.startswith("--no-"))
        _add(layer, setting, value, flag, example=f"{flag} {setting.typed()}", text=True)
    named = [layer[name].source for name in ("kube.kubeconfig", "kube.context") if name in layer]
    if named and "kube.enabled" in layer:
        raise UsageError(f"{layer['kube.enabled'].source} excludes {' and '.join(named)}")
    return layer


# ---- the environment


def _from_environment(environ: Mapping[str, str], *, own: bool) -> Layer:
    """Return the values of natsctl's *own* variables, or of those that the nats command reads."""
    layer: Layer = {}
    for setting in SETTINGS:
        variables = [name for name in setting.variables if name.startswith(_PREFIX) is own]
        name = next((name for name in variables if environ.get(name)), None)
        if name is not None:
            example = f"{name}={setting.typed()}"
            _add(layer, setting, environ[name], name, example=example, text=True)
    return layer


# ---- a file


def _file(config: str | None, environ: Mapping[str, str]) -> Path | None:
    named = config or environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    default = Path(FILE_NAME)
    return default if default.is_file() else None


def _from_file(file: Path) -> Layer:
    content, lines = read_toml(file)
    _check_names(file, content, lines)
    layer: Layer = {}
    for setting in SETTINGS:
        if setting.field not in content.get(setting.section, ()):
            continue
        value = content[setting.section][setting.field]
        source = _position(file, lines, setting.section, setting.field)
        _add(layer, setting, value, source, example=setting.line(), text=False)
        if setting.shape is FILE:
            for name in setting.fills:
                layer[name] = Given(_relative_to(file, layer[name].value), source)
    return layer


def _check_names(file: Path, content: Mapping[str, Any], lines: Lines) -> None:
    """Raise `UsageError` for a section or a setting that does not exist."""
    for section, fields in content.items():
        position = _position(file, lines, section)
        if not isinstance(fields, dict):
            raise UsageError(f"{position}: {section} is not in a section{_in_section(section)}")
        if section not in SECTIONS:
            nearest = did_you_mean(section, SECTIONS)
            raise UsageError(f"{position}: there is no section [{section}]{nearest}")
        for field in fields:
            if f"{section}.{field}" not in BY_NAME:
                position = _position(file, lines, section, field)
                nearest = _nearest(section, field)
                raise UsageError(f"{position}: there is no setting {section}.{field}{nearest}")


def _position(file: Path, lines: Lines, *path: str) -> str:
    """Return the file, with the line of the section or the field if the line is known."""
    return f"{file}:{lines[path]}" if path in lines else str(file)


def _nearest(section: str, field: str) -> str:
    fields = [setting.field for setting in SETTINGS if setting.section == section]
    return did_you_mean(field, fields, prefix=f"{section}.") or _in_section(field)


def _in_section(field: str) -> str:
    """Return the sections that have the field, or all sections if none has it."""
    sections = [setting.section for setting in SETTINGS if setting.field == field]
    if not sections:
        return f": the sections are {', '.join(f'[{section}]' for section in SECTIONS)}"
    return f"; did you mean {' or '.join(f'{field} in [{section}]' for section in sections)}?"


def _relative_to(file: Path, paths: str) -> str:
    """Return the paths in a file, separated by colons, relative to the folder of the file."""
    expanded = (Path(path).expanduser() for path in paths.split(os.pathsep))
    return os.pathsep.join(str(file.parent / path) for path in expanded)


# ---- values


def _add(
    layer: Layer, setting: Setting, value: object, source: str, *, example: str, text: bool
) -> None:
    try:
        valid = setting.shape.read(value, text=text)
    except ValueError:
        quoted = "the value" if setting.hides else _quoted(value)
        # the cause may quote a secret
        raise UsageError(
            f"{setting.name} in {source}: {quoted} must be {setting.shape.description}; "
            f"write {example}"
        ) from None
    layer |= dict.fromkeys(setting.fills, Given(valid, source))


def _quoted(value: object) -> str:
    scalar = isinstance(value, str | int | float | bool)
    return repr(value) if scalar else f"a {type(value).__name__}"
