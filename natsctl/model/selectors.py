"""Which objects a label selector means: the language of `kubectl -l`."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self, TypeAlias

import msgspec

from natsctl.errors import UsageError

_DOMAIN_LENGTH_MAX = 253
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_NAME_RULE = "at most 63 letters, digits, - _ or ., with a letter or digit at both ends"
_PART = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_KEY = re.compile(rf"(?:(?P<domain>{_PART}(?:\.{_PART})*)/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")
_TOKEN = re.compile(r"\s*(?:(?P<sign>!=|==|[=!(),<>])|(?P<word>[^\s=!(),<>]+)|$)")


class _AboutKey(msgspec.Struct, frozen=True):
    key: str

    def __post_init__(self) -> None:
        if fault := _fault_of_key(self.key):
            raise UsageError(f"{self.key!r} is no label key: {fault}")


class _AboutValues(_AboutKey, frozen=True):
    values: frozenset[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values:
            raise UsageError(f"no value is given for the label {self.key}")
        for value in self.values:
            if fault := _fault_of_value(value):
                raise UsageError(f"{value!r} is no label value: {fault}")

    def _written(self, *, one: str, many: str) -> str:
        first, *others = sorted(self.values)
        if others:
            return f"{self.key} {many} ({','.join([first, *others])})"
        return f"{self.key}{one}{first}"


class In(_AboutValues, frozen=True):
    """The label exists and has one of these values, at least one."""

    def __str__(self) -> str:
        return self._written(one="=", many="in")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether *labels* fulfil this."""
        return labels.get(self.key) in self.values


class NotIn(_AboutValues, frozen=True):
    """The label has none of these values, at least one, or does not exist."""

    def __str__(self) -> str:
        return self._written(one="!=", many="notin")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether *labels* fulfil this."""
        return labels.get(self.key) not in self.values


class Exists(_AboutKey, frozen=True):
    """The label exists, whatever its value."""

    def __str__(self) -> str:
        return self.key

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether *labels* fulfil this."""
        return self.key in labels


class Absent(_AboutKey, frozen=True):
    """The label does not exist."""

    def __str__(self) -> str:
        return f"!{self.key}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether *labels* fulfil this."""
        return self.key not in labels


Requirement: TypeAlias = In | NotIn | Exists | Absent


class Selector(msgspec.Struct, frozen=True):
    """Means the objects whose labels fulfil every requirement; with none, all objects.

    Its text is canonical: requirements and values are sorted and given once, so selectors are
    equal exactly when their texts are, and `Selector.parse(str(selector)) == selector`.

    Raises `UsageError` for a key or a value that Kubernetes would not take in a label.
    """

    requirements: tuple[Requirement, ...] = ()

    def __post_init__(self) -> None:
        canonical = tuple(sorted(set(self.requirements), key=lambda one: (one.key, str(one))))
        msgspec.structs.force_setattr(self, "requirements", canonical)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Self:
        """Return the selector of objects that have all of these labels."""
        return cls(tuple(In(key, frozenset([value])) for key, value in labels.items()))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the selector that *text* says, such as `a=b,c!=d,e in (x,y),f notin (z),g,!h`.

        Raises `UsageError` that shows where the text is wrong.
        """
        return cls(tuple(_Parser(text).selector()))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether an object with these labels is meant."""
        return all(requirement.matches(labels) for requirement in self.requirements)


class _Token(NamedTuple):
    text: str  # empty at the end
    at: int
    is_word: bool


class _Parser:
    """Reads a selector from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def selector(self) -> Iterator[Requirement]:
        if not self._next.text:
            return
        yield self._requirement()
        while self._next.text:
            self._expect(",", or_else="a comma")
            yield self._requirement()

    def _requirement(self) -> Requirement:
        if self._accept("!"):
            return Absent(self._key())
        key = self._key()
        if self._accept("=", "=="):
            return In(key, frozenset([self._value()]))
        if self._accept("!="):
            return NotIn(key, frozenset([self._value()]))
        if self._accept("in"):
            return In(key, self._values())
        if self._accept("notin"):
            return NotIn(key, self._values())
        if self._next.text not in {"", ","}:
            raise self._wrong("=, !=, in, notin or a comma")
        return Exists(key)

    def _values(self) -> frozenset[str]:
        self._expect("(", or_else="( and values")
        if self._next.text == ")":
            raise self._wrong("a value")
        values = [self._value()]
        while not self._accept(")"):
            self._expect(",", or_else="a comma or )")
            values.append(self._value())
        return frozenset(values)

    def _key(self) -> str:
        if not self._next.is_word or _fault_of_key(self._next.text):
            raise self._wrong("a label's key", _fault_of_key(self._next.text))
        return self._take()

    def _value(self) -> str:
        """Take a value; where a comma, a bracket or the end is next, it is empty."""
        if self._next.text in {"", ",", ")"}:
            return ""
        if not self._next.is_word or _fault_of_value(self._next.text):
            raise self._wrong("a label's value", _fault_of_value(self._next.text))
        return self._take()

    def _accept(self, *texts: str) -> bool:
        if self._next.text not in texts:
            return False
        self._take()
        return True

    def _expect(self, sign: str, *, or_else: str) -> None:
        if not self._accept(sign):
            raise self._wrong(or_else)

    def _take(self) -> str:
        taken, self._next = self._next, next(self._tokens)
        return taken.text

    def _wrong(self, expected: str, fault: str = "") -> UsageError:
        found = f"{self._next.text!r}" if self._next.text else "the end"
        reason = f": {fault}" if self._next.is_word and fault else ""
        shown = re.sub(r"\s", " ", self._text)
        return UsageError(
            f"no label selector: expected {expected}, found {found}{reason}\n"
            f"  {shown}\n"
            f"  {' ' * self._next.at}^"
        )


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        if kind is not None:
            yield _Token(found[kind], found.start(kind), kind == "word")
    yield _Token("", len(text), is_word=False)


def _fault_of_key(key: str) -> str:
    found = _KEY.fullmatch(key)
    if found is not None and len(found["domain"] or "") <= _DOMAIN_LENGTH_MAX:
        return ""
    return f"{_NAME_RULE}; a DNS name and / may stand before it"


def _fault_of_value(value: str) -> str:
    return "" if _VALUE.fullmatch(value) else f"{_NAME_RULE}; or nothing"
