"""Checks the keys of a bucket, and matches them with NATS subject patterns.

Source: the KV keys of ADR-8 in nats-architecture-and-design.
"""

import re
from collections.abc import Iterable
from typing import Final

from natsctl.errors import InvalidKeyError
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
    """Return *key*; raises `InvalidKeyError` if it is not legal."""
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


def matches(pattern: str, key: str) -> bool:
    """Return whether *key* matches the subject *pattern*: `*` is one token, `>` is the rest."""
    if pattern == ">":
        return True
    regex = re.escape(pattern).replace(r"\*", r"[^.]+")
    regex = regex[:-1] + ".+" if regex.endswith(">") else regex
    return re.fullmatch(regex, key) is not None
