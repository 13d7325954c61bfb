"""Escapes characters that control a terminal or are invisible.

Nobody vouches for the content of a bucket: no key, field or error message may move your cursor,
change the title of your terminal, reorder a line or hide a part of it. Every command and every text
log passes its text through `escaped`. `json_escaped` and `yaml_escaped` use the escapes of JSON and
YAML, so that a parser reads the same values.
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
    r"""Return the text with each unsafe character as a visible escape: `\x1b`, `\u202e`, `\n`.

    The characters in *keep* stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return _unsafe().sub(lambda match: match[0] if match[0] in keep else _visible(match[0]), text)


def escaped_lines(text: str) -> str:
    """Return a text of several lines, escaped, with all lines but the first indented.

    The indentation keeps the text from looking like another log line.
    """
    return escaped(text, keep="\n\t").replace("\n", "\n  ")


def is_unsafe(text: str) -> bool:
    """Return whether `escaped` changes the text, apart from line breaks."""
    return any(match[0] != "\n" for match in _unsafe().finditer(text))


def json_escaped(document: str) -> str:
    r"""Return a JSON document with the unsafe characters in its strings as `\uXXXX`."""
    return _unsafe().sub(_utf16, document)


def yaml_escaped(document: str) -> str:
    r"""Return a YAML document with unsafe characters as `\uXXXX` or `\UXXXXXXXX`.

    *Assumes* that the document has these characters only in double quotes.
    """
    return _unsafe().sub(lambda match: match[0] if match[0] == "\n" else _code(match[0]), document)


@cache
def _unsafe() -> re.Pattern[str]:
    """Return the pattern, compiled on first use because compiling is slow."""
    return re.compile(f"[{_CONTROL}{_BREAKS}{_BIDI}{_INVISIBLE}]")


def _visible(character: str) -> str:
    return _NAMED.get(character) or _code(character)


def _code(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - two digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - four digits


def _utf16(match: re.Match[str]) -> str:
    if match[0] == "\n":  # strings in JSON have no line breaks, so this one is layout
        return "\n"
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
