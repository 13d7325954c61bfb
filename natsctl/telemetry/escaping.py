"""Escapes characters in text that control a terminal or that nobody can see.

Stored objects belong to strangers. Their keys, fields and error messages must not move the cursor,
change the title, reorder a line or hide a part of it. Every command and every text log passes its
text through `escaped`. JSON and YAML keep their meaning: `json_escaped` and `yaml_escaped`
write the escapes that those formats read back.
"""

import re
from functools import cache

_CONTROL = r"\x00-\x1f\x7f-\x9f\ud800-\udfff"
_BREAKS = r"\u2028\u2029"
_BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = (
    r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_NAMED = {"\n": r"\n", "\t": r"\t"}


def escaped(text: str, *, keep: str = "") -> str:
    r"""Return the text with every unsafe character as a visible escape: `\x1b`, `\u202e`, `\n`.

    The characters in *keep* stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return _unsafe().sub(lambda found: found[0] if found[0] in keep else _visible(found[0]), text)


def escaped_lines(text: str) -> str:
    """Return a text of several lines, escaped, with every line but the first indented.

    So no part of the text looks like a line of ours.
    """
    return escaped(text, keep="\n\t").replace("\n", "\n  ")


def is_unsafe(text: str) -> bool:
    """Say whether the text has a character, other than a line break, that `escaped` escapes."""
    return any(found[0] != "\n" for found in _unsafe().finditer(text))


def json_escaped(document: str) -> str:
    r"""Return a JSON document with the unsafe characters in its strings as `\uXXXX`."""
    return _unsafe().sub(_utf16, document)


def yaml_escaped(document: str) -> str:
    r"""Return a YAML document with unsafe characters as `\uXXXX` or `\UXXXXXXXX`.

    Assumes that the document has these characters in double quotes only.
    """
    return _unsafe().sub(lambda found: found[0] if found[0] == "\n" else _code(found[0]), document)


@cache
def _unsafe() -> re.Pattern[str]:
    return re.compile(f"[{_CONTROL}{_BREAKS}{_BIDI}{_INVISIBLE}]")  # takes a while at every start


def _visible(character: str) -> str:
    return _NAMED.get(character) or _code(character)


def _code(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - two digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - four digits


def _utf16(found: re.Match[str]) -> str:
    if found[0] == "\n":  # it can only be a part of the layout
        return "\n"
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
