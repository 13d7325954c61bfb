"""Label selectors, in the syntax of `kubectl -l`."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, Self

import msgspec

from natsctl.errors import UsageError

_DOMAIN_LENGTH_MAX = 253
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_NAME_RULE = "at most 63 letters, digits, - _ or ., with a letter or digit at both ends"
_PART = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_KEY = re.compile(rf"(?:(?P<domain>{_PART}(?:\.{_PART})*)/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")
_TOKEN = re.compile(r"\s*(?:(?P<sign>!=|==|[=!(),<>])|(?P<word>[^\s=!(),<>]+)|$)")


class Requirement(msgspec.Struct, frozen=True):
    """What a selector asks of one label; a label that doesn't exist is `notin` any values.

    Raises `UsageError` for a key or a value that a Kubernetes label can't have.
    """

    key: str
    operator: Literal["in", "notin", "exists", "absent"]
    values: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if rule := _broken_key_rule(self.key):
            raise UsageError(f"{self.key!r} is not a label key: {rule}")
        if not self.values and self.operator in {"in", "notin"}:
            raise UsageError(f"the label {self.key} has no value to compare with")
        for value in self.values:
            if rule := _broken_value_rule(value):
                raise UsageError(f"{value!r} is not a label value: {rule}")

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

        Raises `UsageError` that marks the error in the text.
        """
        return cls(tuple(_Parser(text).selector()))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def unmet(self, labels: Mapping[str, str]) -> Self:
        unmet = (part for part in self.requirements if not part.matches(labels))
        return type(self)(tuple(unmet))


class _Token(NamedTuple):
    text: str  # empty at the end
    position: int
    is_word: bool


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._tokens = text, _tokens(text)
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
            return Requirement(self._word("a label's key", _broken_key_rule), "absent")
        key = self._word("a label's key", _broken_key_rule)
        if sign := self._accept("=", "==", "!="):
            values = frozenset([self._value()])
            return Requirement(key, "notin" if sign == "!=" else "in", values)
        if self._accept("in"):
            return Requirement(key, "in", self._values())
        if self._accept("notin"):
            return Requirement(key, "notin", self._values())
        if self._next.text not in {"", ","}:
            raise self._error("=, !=, in, notin or a comma")
        return Requirement(key, "exists")

    def _values(self) -> frozenset[str]:
        self._expect("(", or_else="( and values")
        if self._next.text == ")":
            raise self._error("a value")
        values = [self._value()]
        while not self._accept(")"):
            self._expect(",", or_else="a comma or )")
            values.append(self._value())
        return frozenset(values)

    def _value(self) -> str:
        """Take a value; it's empty before a comma, a closing bracket, or the end."""
        if self._next.text in {"", ",", ")"}:
            return ""
        return self._word("a label's value", _broken_value_rule)

    def _word(self, what: str, broken: Callable[[str], str]) -> str:
        if not self._next.is_word or broken(self._next.text):
            raise self._error(what, broken(self._next.text))
        return self._accept(self._next.text)

    def _accept(self, *texts: str) -> str:
        """Take the next token and return its text if it's one of these, else return ""."""
        token = self._next
        if token.text not in texts:
            return ""
        self._next = next(self._tokens)
        return token.text

    def _expect(self, sign: str, *, or_else: str) -> None:
        if not self._accept(sign):
            raise self._error(or_else)

    def _error(self, expected: str, rule: str = "") -> UsageError:
        token = f"{self._next.text!r}" if self._next.text else "the end"
        reason = f": {rule}" if self._next.is_word and rule else ""
        shown = re.sub(r"\s", " ", self._text)
        return UsageError(
            f"invalid label selector: expected {expected}, found {token}{reason}\n"
            f"  {shown}\n"
            f"  {' ' * self._next.position}^"
        )


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        group = match.lastgroup
        if group is not None:
            yield _Token(match[group], match.start(group), group == "word")
    yield _Token("", len(text), is_word=False)


def _broken_key_rule(key: str) -> str:
    match = _KEY.fullmatch(key)
    if match is not None and len(match["domain"] or "") <= _DOMAIN_LENGTH_MAX:
        return ""
    return f"{_NAME_RULE}; it may have a prefix that is a DNS name and /"


def _broken_value_rule(value: str) -> str:
    return "" if _VALUE.fullmatch(value) else f"{_NAME_RULE}; it may be empty"
