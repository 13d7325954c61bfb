"""Decides which names are keys of a bucket.

Source: the KV keys of ADR-8 in nats-architecture-and-design.
"""

import re
from typing import Final

from natsctl.errors import InvalidKeyError
from natsctl.telemetry.hiding import quoted

_KEY = re.compile(rb"(?!_kv)[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*+\Z")
KEY_RULE: Final = (
    "a key has letters, digits and -/_=. only, "
    "no '.' at its ends or twice in a row, and does not begin with '_kv'"
)


def legal(key: str | bytes) -> bool:
    """Return whether *key* can name one object.

    Wildcards, empty tokens and the reserved prefix `_kv` are no keys.
    """
    raw = key if isinstance(key, bytes) else key.encode(errors="replace")
    return _KEY.match(raw) is not None


def check_key(key: str) -> str:
    """Return *key*; raises `InvalidKeyError` if it is not legal."""
    if not legal(key):
        raise InvalidKeyError(f"key {quoted(key)}: {KEY_RULE}")
    return key


def printable(raw: bytes) -> str:
    r"""Return a name in printable characters: `a\x0bb`. No two names look the same."""
    text = raw.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def matches(pattern: str, key: str) -> bool:
    """Return whether *key* matches the subject *pattern*: `*` is one token, `>` the rest."""
    if pattern == ">":
        return True
    regex = re.escape(pattern).replace(r"\*", r"[^.]+")
    regex = regex[:-1] + ".+" if regex.endswith(">") else regex
    return re.fullmatch(regex, key) is not None
