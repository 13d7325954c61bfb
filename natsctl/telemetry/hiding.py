"""Hides secrets in every text that people read, and cuts what is too long to be read.

Texts hold what strangers wrote, so every pattern takes time in proportion to the text: no two
repeats overlap, and no position is scanned from many starts.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from types import TracebackType
from typing import Self

import msgspec

MASK = "***"
TEXT_MAX = 4_000  # characters of a text
ERROR_MAX = 2_000  # characters of an error
TRACEBACK_MAX = 32_000  # characters of a traceback
VALUE_MAX = 100  # characters of a value that a message quotes
OVERLAP = 1_000  # characters behind a cut that are searched too: a secret may begin before it

_ELLIPSIS = " … "
_SHORT = 8  # a secret shorter than this is looked for as a word only: it may be part of others
_HELD_MAX = 64  # that one holder keeps: the newest
# A part of each may be masked already. `{end}` matches where the text was cut, else nowhere.
_JWT = r"""
    (?P<before> (?<![\w*-]) (?= [\w*-]*+ (?: \.[\w*-] | \.?{end} ) ) [\w*-]*? )  # a run of its own
    \b eyJ (?: [\w*-]{{8,}}+ \. [\w*-]++ (?: \. [\w*-]*+ )? | [\w*-]*+ \.? {end} )
"""
_OTHERS = r"""
    (?: (?<=://) (?:(?!://)[^\s"'<>])* (?: (?=@) | {end} )  # the user of a URL, up to the next URL
      | \b S[ACNOUX][A-Z2-7]{{56}} \b                       # an nkey seed
      | (?<=-----BEGIN\ ) ([A-Z ]{{0,40}}PRIVATE\ KEY)----- .*? (?: -----END\ \1----- | \Z )
      | (?i: (?<=\bbearer\ ) | (?<=\bbasic\ ) ) [\w.~+/=*-]{{6,}} )
"""
_END, _NO_END = r"\Z", r"(?!)"


class Hider:
    """Hides secrets in texts: those that are known or held, and whatever looks like one.

    That is: the user information of a URL, an nkey seed, a JWT, a private key (PEM), the
    credential of an `Authorization` header. Who holds one says so with `Secrets`.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known = _Known.of(secrets)

    def __call__(self, text: str, *, limit: int = TEXT_MAX) -> str:
        """Return the text with `***` in the place of each secret.

        Of a text longer than *limit* this is the beginning, and how much was left out. A secret
        that the cut goes through is hidden as a whole.
        """
        cut = len(text) > limit
        window = text[: limit + max(OVERLAP, self._known.longest, _held.known.longest)]
        end = min(limit, len(text))
        for pattern in (*self._known.patterns, *_held.known.patterns, *_looks(cut=cut)):
            window, end = _masked(pattern, window, end)
        return f"{window[:end]}… ({len(text) - limit} more characters)" if cut else window


class Secrets:
    """Secrets that somebody holds: no text shows them until the `with` ends.

    Of one holder the newest 64 are kept: credentials are renewed, and old ones expire.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.texts = deque[str](maxlen=_HELD_MAX)
        self.keep(*secrets)

    def __enter__(self) -> Self:
        _held.by.append(self)
        _held.look()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _held.by.remove(self)
        _held.look()

    def keep(self, *secrets: str) -> None:
        """Hold these too; what is empty is no secret."""
        new = [secret for secret in secrets if secret and secret not in self.texts]
        if new:
            self.texts.extend(new)
            _held.look()


class _Known(msgspec.Struct, frozen=True):
    """Finds secrets that are known, in every form; `longest` is the length of the longest form."""

    patterns: tuple[re.Pattern[str], ...] = ()
    longest: int = 0

    @classmethod
    def of(cls, secrets: Iterable[str]) -> Self:
        forms = {form for secret in secrets if secret.strip() for form in _forms(secret)}
        pattern = _pattern(forms)
        return cls(() if pattern is None else (pattern,), max(map(len, forms), default=0))


class _Held:
    """What all holders hold together."""

    def __init__(self) -> None:
        self.by: list[Secrets] = []
        self.known = _Known()

    def look(self) -> None:
        self.known = _Known.of(secret for holder in self.by for secret in holder.texts)


_held = _Held()  # one for the process: a text does not know whose secrets are in it


def hidden(text: str, *, limit: int = TEXT_MAX) -> str:
    """Return the text as it may be shown: without secrets, and cut to *limit* characters."""
    return _anything(text, limit=limit)


def quoted(value: str) -> str:
    """Return a value that somebody wrote as a message quotes it: its beginning, as one line."""
    return repr(hidden(value, limit=VALUE_MAX))


def error_text(error: BaseException) -> str:
    """Return an error as people read it, `ValueError: no luck`, cut and without secrets."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own `__str__` is at fault, and it is somebody's code
        text = f"{type(error).__name__}, whose text cannot be shown"
    return hidden(text, limit=ERROR_MAX)


def shortened(text: str, limit: int) -> str:
    """Return *text* in at most *limit* characters: its beginning and its end.

    The end of an error often states the reason.
    """
    if len(text) <= limit:
        return text
    kept = limit - len(_ELLIPSIS)
    end = kept // 2
    return f"{text[: kept - end]}{_ELLIPSIS}{text[-end:]}"


def _masked(pattern: re.Pattern[str], text: str, end: int) -> tuple[str, int]:
    """Return the text with every match masked, and the position in it of *end*.

    A mask that *end* would go through is before it.
    """
    parts, position, shift = list[str](), 0, 0
    for found in pattern.finditer(text):
        start = found.end("before") if "before" in pattern.groupindex else found.start()
        parts += (text[position:start], MASK)
        position = found.end()
        if start < end:
            shift += len(MASK) - (min(position, end) - start)
    return "".join((*parts, text[position:])), end + shift


@cache
def _looks(*, cut: bool) -> tuple[re.Pattern[str], ...]:
    """Return what finds things that look like a secret; compiling takes a while at a start."""
    end = _END if cut else _NO_END
    flags = re.VERBOSE | re.DOTALL
    return tuple(re.compile(each.format(end=end), flags) for each in (_JWT, _OTHERS))


def _forms(secret: str) -> Iterator[str]:
    """Return how a secret may stand in a text: as it is, in a repr, in a URL."""
    from urllib.parse import quote  # noqa: PLC0415 - who has no secrets need not wait for it

    yield from (secret, repr(secret)[1:-1], quote(secret, safe=""))


def _pattern(secrets: Collection[str]) -> re.Pattern[str] | None:
    longest_first = sorted(secrets, key=len, reverse=True)
    found = [
        re.escape(each) if len(each) >= _SHORT else rf"(?<!\w){re.escape(each)}(?!\w)"
        for each in longest_first
    ]
    return re.compile("|".join(found)) if found else None


_anything = Hider()
