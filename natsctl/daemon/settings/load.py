"""Where settings come from: flags, the environment, a file."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from natsctl.daemon.settings.catalogue import (
    BY_NAME,
    FIELDS,
    SECTIONS,
    SETTINGS,
    Setting,
    default_of,
)
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.daemon.settings.precedence import LOGIN, Given, Layer, settled
from natsctl.daemon.settings.settings import Settings
from natsctl.daemon.settings.toml_file import Lines, read_toml
from natsctl.daemon.settings.values import FILE
from natsctl.errors import UsageError
from natsctl.jetstream.connection.nats_contexts import load_context
from natsctl.jetstream.connection.options import NatsOptions

FILE_NAME = "natsctl.toml"
VARIABLE = "NATSCTL_CONFIG"

_OURS = "NATSCTL_"
_SERVICE = (
    r"NATSCTL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


class Effective(msgspec.Struct, frozen=True):
    """The settings that hold.

    Attributes:
        settings: what holds.
        sources: what said so, by dotted name: `--server`, `NATSCTL_SERVER`, `natsctl.toml:3`;
            whatever is not in it is a default.
        file: the file that was read, if there is one.
    """

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None = None

    def source(self, field: str) -> str:
        """Return what said so of the field, for people."""
        return self.sources.get(field, "default")

    def value(self, field: str) -> object:
        """Return what holds for the field."""
        section, _, name = field.partition(".")
        return getattr(getattr(self.settings, section), name)

    def with_context(self) -> "Effective":
        """Return the same, with what the NATS context that is named says filled in.

        Who is given any credential elsewhere uses none of the context's. Raises `UsageError` as
        `load_context` does.
        """
        name = self.settings.nats.context
        if name is None:
            return self
        beneath, source = load_context(name), f"context {name}"
        told = {each: getattr(beneath, each[5:]) for each in FIELDS if each.startswith("nats.")}
        context = {
            each: Given(value, source) for each, value in told.items() if value != default_of(each)
        }
        given = self._given()
        if not given.keys().isdisjoint(LOGIN):
            context = {each: told for each, told in context.items() if each not in LOGIN}
        chosen = {"nats.context": given.pop("nats.context")}
        return _effective(settled([given, context, chosen]), self.file)

    @property
    def nats(self) -> NatsOptions:
        """How to connect: what holds, with what the context says filled in.

        A context that cannot be read is still named in it: whoever connects is told why.
        """
        try:
            filled = self.with_context()
        except UsageError:
            return self.settings.nats
        return msgspec.structs.replace(filled.settings.nats, context=None)

    def _given(self) -> Layer:
        return {name: Given(self.value(name), source) for name, source in self.sources.items()}


def load_settings(
    flags: Mapping[str, str | bool | None],
    environ: Mapping[str, str],
    *,
    config: str | None = None,
) -> Effective:
    """Return the settings that hold.

    Args:
        flags: what was typed, by the parameter's name; None and False say nothing.
        environ: the environment; an empty variable says nothing.
        config: the file to read; by default that in `NATSCTL_CONFIG`, or else `natsctl.toml` in
            the current folder, where there is one. Its relative paths begin in its folder.

    Raises `UsageError` for a wrong value, with the setting, its source and a good example; for a
    variable or a line of the file that is no setting; and for a named file that is missing.
    """
    check_variables(environ)
    typed, file = _from_flags(flags), _file(config, environ)
    read = {} if file is None else _from_file(file)
    return _effective(settled([typed, _from_environment(environ), read]), file)


def check_variables(environ: Mapping[str, str]) -> None:
    """Raise `UsageError` for a variable that begins as ours do and is none.

    An empty variable is ignored. So are the variables that Kubernetes sets in each container about
    the services of its namespace, if the name of a service begins with `natsctl`.
    """
    known = [VARIABLE, *(name for setting in SETTINGS for name in setting.variables)]
    for name, value in sorted(environ.items()):
        unknown = name.startswith(_OURS) and name not in known
        if unknown and value and not _of_a_service(name, value):
            names = [other.removeprefix(_OURS) for other in known]
            near = did_you_mean(name.removeprefix(_OURS), names, prefix=_OURS)
            raise UsageError(f"there is no variable {name}{near}")


def _of_a_service(name: str, value: str) -> bool:
    """Say whether Kubernetes, or Docker, may have set the variable about a service."""
    return re.fullmatch(_SERVICE, name) is not None or (name.endswith("_PORT") and "://" in value)


def _effective(held: Layer, file: Path | None) -> Effective:
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, given in held.items():
        section, _, field = name.partition(".")
        sections[section][field] = given.value
    types = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    settings = Settings(**{name: types[name](**told) for name, told in sections.items()})
    return Effective(settings, {name: given.source for name, given in held.items()}, file)


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
        _add(layer, setting, value, flag, good=f"{flag} {setting.typed()}", text=True)
    named = [layer[name].source for name in ("kube.kubeconfig", "kube.context") if name in layer]
    if named and "kube.enabled" in layer:
        raise UsageError(f"{layer['kube.enabled'].source} excludes {' and '.join(named)}")
    return layer


# ---- the environment


def _from_environment(environ: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for setting in SETTINGS:
        name = next((name for name in setting.variables if environ.get(name)), None)
        if name is not None:
            good = f"{name}={setting.typed()}"
            _add(layer, setting, environ[name], name, good=good, text=True)
    return layer


# ---- a file


def _file(config: str | None, environ: Mapping[str, str]) -> Path | None:
    named = config or environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    usual = Path(FILE_NAME)
    return usual if usual.is_file() else None


def _from_file(file: Path) -> Layer:
    said, lines = read_toml(file)
    layer: Layer = {}
    for setting, value in _told(file, said, lines):
        source = _line(file, lines, setting.section, setting.field)
        _add(layer, setting, value, source, good=setting.line(), text=False)
        if setting.shape is FILE:
            for name in setting.fills:
                layer[name] = Given(_beside(file, layer[name].value), source)
    return layer


def _told(file: Path, said: Mapping[str, Any], lines: Lines) -> Iterator[tuple[Setting, object]]:
    """Return the settings in a file, in our order; raises `UsageError` for what is none."""
    for section, inside in said.items():
        at = _line(file, lines, section)
        if not isinstance(inside, dict):
            raise UsageError(f"{at}: {section} is in no section{_placed(section)}")
        if section not in SECTIONS:
            raise UsageError(
                f"{at}: there is no section [{section}]{did_you_mean(section, SECTIONS)}"
            )
        for field in inside:
            if f"{section}.{field}" not in BY_NAME:
                at = _line(file, lines, section, field)
                raise UsageError(
                    f"{at}: there is no setting {section}.{field}{_near(section, field)}"
                )
    for setting in SETTINGS:
        if setting.field in said.get(setting.section, ()):
            yield setting, said[setting.section][setting.field]


def _line(file: Path, lines: Lines, *path: str) -> str:
    """Return where the file says that: the file and, where it is known, the line."""
    return f"{file}:{lines[path]}" if path in lines else str(file)


def _near(section: str, field: str) -> str:
    within = [setting.field for setting in SETTINGS if setting.section == section]
    return did_you_mean(field, within, prefix=f"{section}.") or _placed(field)


def _placed(field: str) -> str:
    found = [setting for setting in SETTINGS if setting.field == field]
    if not found:
        return f": the sections are {', '.join(f'[{section}]' for section in SECTIONS)}"
    return f"; did you mean {' or '.join(f'{each.field} in [{each.section}]' for each in found)}?"


def _beside(file: Path, named: str) -> str:
    """Return paths, as they stand in the file, as they are meant from here."""
    paths = (Path(path).expanduser() for path in named.split(os.pathsep))
    return os.pathsep.join(str(file.parent / path) for path in paths)


# ---- values


def _add(
    layer: Layer, setting: Setting, value: object, source: str, *, good: str, text: bool
) -> None:
    try:
        found = setting.shape.read(value, text=text)
    except ValueError:
        what = "what is given" if setting.hides else _shown(value)
        # the cause is left out: it may quote the value
        raise UsageError(
            f"{setting.name} in {source}: {what} must be {setting.shape.says}; write {good}"
        ) from None
    layer |= dict.fromkeys(setting.fills, Given(found, source))


def _shown(value: object) -> str:
    return (
        repr(value) if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"
    )
