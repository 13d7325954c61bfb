"""Describes one setting: its names, its values and its default."""

import json
from typing import Any

import msgspec

from natsctl.daemon.settings.settings import Settings
from natsctl.daemon.settings.values import COLLECTOR, URLS, Shape

SECTIONS = tuple(field.name for field in msgspec.structs.fields(Settings))

FIELDS = tuple(
    f"{section.name}.{field.name}"
    for section in msgspec.structs.fields(Settings)
    for field in msgspec.structs.fields(section.type)
)
"""The dotted names of all fields of `Settings`."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    Attributes:
        name: the dotted name: the section, and the name in that section of a file.
        shape: the form of its value.
        example: a valid value.
        meaning: a phrase for help texts and docs.
        variables: the environment variables; the first that is set applies.
        flags: the command-line flags, if there are any.
        unset: a phrase for the default if the default is not a value of this setting.
        fills: the fields of `Settings` that it sets.
        secret: True if its value is never shown.
        common: True if the help of a command shows its flag; `natsctl options` shows all.
    """

    name: str
    shape: Shape
    example: Any
    meaning: str
    variables: tuple[str, ...]
    flags: tuple[str, ...]
    unset: str
    fills: tuple[str, ...]
    secret: bool
    common: bool

    @property
    def section(self) -> str:
        """The section of the file and of `Settings`."""
        return self.name.partition(".")[0]

    @property
    def field(self) -> str:
        """The name within the section."""
        return self.name.partition(".")[2]

    @property
    def parameter(self) -> str:
        """The parameter of a command for the flag; empty if there is no flag."""
        return self.flags[0].lstrip("-").replace("-", "_") if self.flags else ""

    @property
    def hides(self) -> bool:
        """True if errors do not quote an invalid value: it is, or may contain, a secret."""
        return self.secret or self.shape in (URLS, COLLECTOR)

    @property
    def default(self) -> str:
        """The default as text, for help texts and docs."""
        value = default_of(self.fills[0])
        return self.unset if value in (None, ()) else text_of_value(value)

    def line(self) -> str:
        """Return a valid line of a file."""
        return f"{self.field} = {json.dumps(self.example, ensure_ascii=False)}"

    def typed(self) -> str:
        """Return a valid value as it is typed on a command line."""
        if isinstance(self.example, list):
            return ",".join(self.example)
        return self.example if isinstance(self.example, str) else json.dumps(self.example)


def default_of(field: str) -> object:
    """Return the default of a field of `Settings`."""
    section, _, name = field.partition(".")
    return getattr(getattr(Settings(), section), name)


def text_of_value(value: object) -> str:
    """Return the value of a setting as people write it."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case tuple() | list():
            return ",".join(map(str, value))
        case _:
            return str(value)


def new_setting(
    name: str,
    shape: Shape,
    example: object,
    meaning: str,
    *flags: str,
    variables: tuple[str, ...] = (),
    unset: str = "none",
    fills: tuple[str, ...] = (),
    secret: bool = False,
    common: bool = False,
) -> Setting:
    """Return a setting; its variable is named after the flag, or after the field.

    The variable of a field without a flag begins with `NATSCTL_KUBE_` in the section `kube`.
    """
    section, _, field = name.partition(".")
    stem = flags[0].lstrip("-") if flags else f"kube_{field}" if section == "kube" else field
    return Setting(
        name=name,
        shape=shape,
        example=example,
        meaning=meaning,
        variables=variables or (f"NATSCTL_{stem.replace('-', '_').upper()}",),
        flags=flags,
        unset=unset,
        fills=fills or (name,),
        secret=secret,
        common=common,
    )
