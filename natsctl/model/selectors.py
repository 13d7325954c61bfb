"""Label selectors, in the syntax of `kubectl -l`."""

import re
from collections.abc import Mapping
from typing import Literal, Self

import msgspec

from natsctl.errors import UsageError

_DOMAIN_LENGTH_MAX = 253
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_NAME_RULE = "at most 63 letters, digits, - _ or ., with a letter or digit at both ends"
_PART = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_KEY = re.compile(rf"(?:(?P<domain>{_PART}(?:\.{_PART})*)/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")
_WORD = r"[^\s=!(),<>]"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?={_WORD}+\s*(?:,|$)))?(?P<key>{_WORD}+)"
    rf"(?:\s*(?P<sign>==?|!=)\s*(?P<value>{_WORD}*)"
    r"|\s+(?P<operator>in|notin)\s*\((?P<values>[^()=!<>]*)\))?\s*(?P<end>,|$)"
)
_FORMS = "a, !a, a=b, a!=b, a in (b,c) or a notin (b,c)"


class Requirement(msgspec.Struct, frozen=True):
    """What a selector asks of one label; a label that doesn't exist is `notin` any values.

    Raises `UsageError` for a key or a value that a Kubernetes label can't have.
    """

    key: str
    operator: Literal["in", "notin", "exists", "absent"]
    values: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        key = _KEY.fullmatch(self.key)
        if key is None or len(key["domain"] or "") > _DOMAIN_LENGTH_MAX:
            raise UsageError(
                f"{self.key!r} is not a label key: {_NAME_RULE}; it may have a prefix that is a "
                "DNS name and /"
            )
        if not self.values and self.operator in {"in", "notin"}:
            raise UsageError(f"the label {self.key} has no value to compare with")
        for value in self.values:
            if not _VALUE.fullmatch(value):
                raise UsageError(f"{value!r} is not a label value: {_NAME_RULE}; it may be empty")

    def __str__(self) -> str:
        if not self.values:
            return self.key if self.operator == "exists" else f"!{self.key}"
        first, *others = sorted(self.values)
        if others:
            return f"{self.key} {self.operator} ({','.join([first, *others])})"
        return f"{self.key}{'=' if self.operator == 'in' else '!='}{first}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.values:
            return (labels.get(self.key) in self.values) == (self.operator == "in")
        return (self.key in labels) == (self.operator == "exists")


class Selector(msgspec.Struct, frozen=True):
    """Selects the objects whose labels meet every requirement; without requirements, all objects.

    The text is canonical: requirements and values are sorted and unique. Two selectors are equal
    exactly if their texts are, and `Selector.parse(str(selector)) == selector`.
    """

    requirements: tuple[Requirement, ...] = ()

    def __post_init__(self) -> None:
        canonical = tuple(sorted(set(self.requirements), key=lambda one: (one.key, str(one))))
        msgspec.structs.force_setattr(self, "requirements", canonical)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Self:
        return cls(
            tuple(Requirement(key, "in", frozenset([value])) for key, value in labels.items())
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a selector such as `a=b,c!=d,e in (x,y),f notin (z),g,!h`.

        Raises `UsageError` that marks the invalid requirement in the text.
        """
        requirements: list[Requirement] = []
        position, more = 0, bool(text.strip())
        while more:
            match = _REQUIREMENT.match(text, position)
            if match is None:
                raise _invalid(text, position, f"expected {_FORMS}")
            try:
                requirements.append(_requirement(match))
            except UsageError as error:
                raise _invalid(text, position, str(error)) from None
            position, more = match.end(), match["end"] == ","
        return cls(tuple(requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def unmet(self, labels: Mapping[str, str]) -> Self:
        unmet = (part for part in self.requirements if not part.matches(labels))
        return type(self)(tuple(unmet))


def _requirement(match: re.Match[str]) -> Requirement:
    key, sign, operator = match["key"], match["sign"], match["operator"]
    if sign:
        return Requirement(key, "notin" if sign == "!=" else "in", frozenset([match["value"]]))
    if operator:
        values = match["values"].split(",") if match["values"].strip() else ()
        stripped = frozenset(value.strip() for value in values)
        return Requirement(key, "in" if operator == "in" else "notin", stripped)
    return Requirement(key, "absent" if match["absent"] else "exists")


def _invalid(text: str, position: int, reason: str) -> UsageError:
    shown, start = re.sub(r"\s", " ", text), len(text) - len(text[position:].lstrip())
    return UsageError(f"invalid label selector: {reason}\n  {shown}\n  {' ' * start}^")
