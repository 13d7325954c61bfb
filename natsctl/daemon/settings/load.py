"""Loads the settings from flags, the environment and a file."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.daemon.settings.settings import (
    BY_NAME,
    FIELDS,
    FILE,
    SECTIONS,
    SETTINGS,
    Setting,
    Settings,
    default_of,
)
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions, load_context, selected_context

FILE_NAME = "natsctl.toml"
VARIABLE = "NATSCTL_CONFIG"
SIZE_MAX_BYTES = 64 * 1024

SELECTED = "nats context select"
"""The source of the context that the `nats` command uses too."""

LOGIN = ("nats.creds", "nats.nkey", "nats.user", "nats.password", "nats.token")
"""The fields that are credentials."""

_SERVICE_VARIABLE = (
    r"NATSCTL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_NOT_IN_CONTEXT = ("name", "connect_timeout_s", "request_timeout_s", "silence_s", "marker_ttl_s")
_CLUSTER = ("server", "token", "tls_ca", "tls_insecure", "namespace", "enabled")
_OVERRIDES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LOGIN, LOGIN),
    # the user may be in one source, and the password in another
    **dict.fromkeys(("nats.user", "nats.password"), ("nats.creds", "nats.nkey", "nats.token")),
    **dict.fromkeys(("nats.tls_cert", "nats.tls_key"), ("nats.tls_cert", "nats.tls_key")),
    **dict.fromkeys(("nats.domain", "nats.api_prefix"), ("nats.domain", "nats.api_prefix")),
    "nats.context": tuple(
        field
        for field in FIELDS
        if field.startswith("nats.") and field.removeprefix("nats.") not in _NOT_IN_CONTEXT
    ),
    "kube.context": tuple(f"kube.{name}" for name in _CLUSTER),
    "kube.kubeconfig": tuple(f"kube.{name}" for name in ("context", *_CLUSTER)),
}
"""The fields that a field overrides in all weaker sources."""

Layer = dict[str, tuple[Any, str]]
"""The values that a source sets, each with the source, by the dotted name of the field."""


class Effective(msgspec.Struct, frozen=True):
    """The settings in effect, the source of each, and the file that was read.

    A source is `--server`, `NATSCTL_SERVER` or `natsctl.toml`, by dotted name. A field without a
    source has its default.
    """

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None = None

    @classmethod
    def of(cls, layers: Iterable[Layer], file: Path | None) -> "Effective":
        """Return the settings in effect, from layers in descending precedence.

        A layer with any credential overrides all credentials of weaker layers. The same holds for
        a certificate and its key, and for a domain and a prefix. A layer that names a context
        overrides everything in weaker layers that a context can set, and so does a kubeconfig.
        """
        chosen: Layer = {}
        overridden: set[str] = set()
        for layer in layers:
            added = {name: layer[name] for name in layer if name not in {*chosen, *overridden}}
            chosen |= added
            overridden.update(field for name in added for field in _OVERRIDES.get(name, ()))
        sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for name, (value, _) in chosen.items():
            section, _, field = name.partition(".")
            sections[section][field] = value
        types = {field.name: field.type for field in msgspec.structs.fields(Settings)}
        settings = Settings(**{name: types[name](**values) for name, values in sections.items()})
        return cls(settings, {name: source for name, (_, source) in chosen.items()}, file)

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
        name = self.settings.nats.context
        if name is None:
            return self
        given = {field: (self.value(field), source) for field, source in self.sources.items()}
        excluded = () if given.keys().isdisjoint(LOGIN) else LOGIN
        try:
            options = load_context(name)
        except UsageError:
            if self.source("nats.context") == SELECTED and excluded and "nats.servers" in given:
                return self.without_selection()
            raise
        context = {
            field: (value, f"context {name}")
            for field in FIELDS
            if field.startswith("nats.") and field not in excluded
            if (value := getattr(options, field.removeprefix("nats."))) != default_of(field)
        }
        chosen = {"nats.context": given.pop("nats.context")}
        return Effective.of([given, context, chosen], self.file)

    def without_selection(self) -> "Effective":
        """Return these settings without the context that `nats context select` selected."""
        given = {
            field: (self.value(field), source)
            for field, source in self.sources.items()
            if source != SELECTED
        }
        return Effective.of([given], self.file)

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
    an unknown variable or setting; and for a file that is named but does not exist.
    """
    _check_variables(environ)
    typed, own, shared = Layer(), Layer(), Layer()
    for setting in SETTINGS:
        value = flags.get(setting.parameter) if setting.flag else None
        if value:
            text = str(not setting.flag.startswith("--no-")) if value is True else value
            typed |= _read(setting, text, setting.flag, f"{setting.flag} {setting.typed()}")
        for layer, name in zip((own, shared), setting.variables, strict=False):
            if environ.get(name):
                layer.update(_read(setting, environ[name], name, f"{name}={setting.typed()}"))
    named = [typed[name][1] for name in ("kube.kubeconfig", "kube.context") if name in typed]
    if named and "kube.enabled" in typed:
        raise UsageError(f"{typed['kube.enabled'][1]} excludes {' and '.join(named)}")
    if "nats.user" in shared and "nats.password" not in {**typed, **own, **shared}:
        # the nats command takes a user without a password as a token
        shared.setdefault("nats.token", shared.pop("nats.user"))
    chosen = config or environ.get(VARIABLE) or (FILE_NAME if Path(FILE_NAME).is_file() else None)
    file = Path(chosen).expanduser() if chosen else None
    selected = selected_context()
    selection: Layer = {"nats.context": (selected, SELECTED)} if selected else {}
    return Effective.of(
        [typed, own, shared, {} if file is None else _from_file(file), selection], file
    )


def _check_variables(environ: Mapping[str, str]) -> None:
    """Raise `UsageError` for a variable that begins with `NATSCTL_` and is not a setting.

    Empty variables are ignored. So are the variables that Kubernetes and Docker set in each
    container for services, if the name of a service begins with `natsctl`.
    """
    variables = [VARIABLE, *(name for setting in SETTINGS for name in setting.variables)]
    for name, value in sorted(environ.items()):
        if name.startswith("NATSCTL_") and name not in variables and value:
            link = name.endswith("_PORT") and "://" in value
            if not (link or re.fullmatch(_SERVICE_VARIABLE, name)):
                names = [known.removeprefix("NATSCTL_") for known in variables]
                nearest = did_you_mean(name.removeprefix("NATSCTL_"), names, prefix="NATSCTL_")
                raise UsageError(f"there is no variable {name}{nearest}")


def _from_file(file: Path) -> Layer:
    content, layer = _read_toml(file), Layer()
    for section, fields in content.items():
        if not isinstance(fields, dict):
            raise UsageError(f"{file}: {section} is not in a section{_in_section(section)}")
        if section not in SECTIONS:
            nearest = did_you_mean(section, SECTIONS)
            raise UsageError(f"{file}: there is no section [{section}]{nearest}")
        for field in fields:
            if f"{section}.{field}" not in BY_NAME:
                known = [setting.field for setting in SETTINGS if setting.section == section]
                nearest = did_you_mean(field, known, prefix=f"{section}.") or _in_section(field)
                raise UsageError(f"{file}: there is no setting {section}.{field}{nearest}")
    for setting in SETTINGS:
        if setting.field in content.get(setting.section, ()):
            value = content[setting.section][setting.field]
            layer |= _read(setting, value, str(file), setting.line(), typed=False)
            if setting.form is FILE:
                paths = (Path(path).expanduser() for path in value.split(os.pathsep))
                relative = os.pathsep.join(str(file.parent / path) for path in paths)
                layer[setting.name] = (relative, str(file))
    return layer


def _in_section(field: str) -> str:
    """Return the sections that have the field, or all sections if none has it."""
    found = [f"{field} in [{setting.section}]" for setting in SETTINGS if setting.field == field]
    if found:
        return f"; did you mean {' or '.join(found)}?"
    return f": the sections are {', '.join(f'[{section}]' for section in SECTIONS)}"


def _read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a file of at most 64 KiB; errors quote nothing of it but its line."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(SIZE_MAX_BYTES + 1)
        if len(raw) > SIZE_MAX_BYTES:
            raise UsageError(f"the settings in {file} are longer than {SIZE_MAX_BYTES} bytes")
        return tomllib.loads(raw.decode())
    except OSError as error:
        raise UsageError(f"cannot read the settings in {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not valid TOML: it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f'{file} is not valid TOML: {error}; write lines such as name = "value"'
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"cannot read a value in {file}: a number is too long, or a list is nested too deeply"
        ) from None


def _read(
    setting: Setting, value: object, source: str, example: str, *, typed: bool = True
) -> Layer:
    """Return the fields that a value sets; a *typed* number is text."""
    try:
        valid = setting.form.read(value, text=typed)
    except ValueError:
        scalar = isinstance(value, str | int | float | bool)
        quoted = repr(value) if scalar else f"a {type(value).__name__}"
        # the cause may quote a secret
        raise UsageError(
            f"{setting.name} in {source}: {'the value' if setting.hides else quoted} must be "
            f"{setting.form.description}; write {example}"
        ) from None
    return dict.fromkeys(setting.fills, (valid, source))
