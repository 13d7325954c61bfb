"""Checks the keys of a bucket, and matches them with NATS subject patterns.

Source: the KV keys of ADR-8 in nats-architecture-and-design.
"""

import itertools
import re
from collections.abc import Iterable
from typing import Final

from natsctl.errors import InvalidKeyError, UsageError
from natsctl.telemetry.hiding import quoted

is_key = re.compile(rb"(?!_kv)[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*+\Z").match
"""Returns a true value for the bytes of a legal key, see `legal`."""

KEY_RULE: Final = (
    "a key has only letters, digits and -/_=. "
    "with no '.' at its ends or twice in a row, and does not begin with '_kv'"
)


def legal(key: str | bytes) -> bool:
    """Return whether *key* is a valid key of one object.

    Keys with wildcards, with empty tokens, or with the reserved prefix `_kv` are invalid.
    """
    raw = key if isinstance(key, bytes) else key.encode(errors="replace")
    return is_key(raw) is not None


def check_key(key: str) -> str:
    """Return *key*; raises `InvalidKeyError` if it isn't legal."""
    if not isinstance(key, str):
        raise InvalidKeyError(f"key {key!r}: a key is a str, not {type(key).__name__}")
    if not legal(key):
        raise InvalidKeyError(f"key {quoted(key)}: {KEY_RULE}")
    return key


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys, each once; raises as `check_key` does."""
    return [check_key(key) for key in dict.fromkeys(keys)]


def printable(raw: bytes) -> str:
    r"""Return a name in printable characters, such as `a\x0bb`; different names stay different."""
    text = raw.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def key_patterns(keys: str | Iterable[str]) -> str:
    """Return one text of the patterns, separated by spaces, as `matches` takes it.

    Raises `UsageError` if there are none, or if a key could match two of them: a server refuses
    that.
    """
    patterns = keys.split() if isinstance(keys, str) else list(keys)
    if not patterns or any(not pattern or pattern.split() != [pattern] for pattern in patterns):
        raise UsageError(f"keys={keys!r}: give one or several patterns, such as 'eu.>'")
    for first, second in itertools.combinations(patterns, 2):
        if overlap(first, second):
            raise UsageError(f"keys={keys!r}: a key can match both {first} and {second}")
    return " ".join(patterns)


def overlap(first: str, second: str) -> bool:
    """Return whether a key, or a subject, can match both patterns."""
    for mine, other in itertools.zip_longest(first.split("."), second.split(".")):
        if mine is None or other is None:
            return False
        if ">" in {mine, other}:
            return True
        if "*" not in {mine, other} and mine != other:
            return False
    return True


def matches(patterns: str, key: str) -> bool:
    """Return whether *key* matches one of the subject patterns, which are separated by spaces.

    `*` is one token, `>` is the rest.
    """
    if patterns == ">":
        return True
    if " " in patterns:
        return any(matches(pattern, key) for pattern in patterns.split())
    pattern = patterns
    regex = re.escape(pattern).replace(r"\*", r"[^.]+")
    regex = regex[:-1] + ".+" if regex.endswith(">") else regex
    return re.fullmatch(regex, key) is not None
