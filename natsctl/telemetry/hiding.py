"""Hides secrets in texts for people, and cuts long texts.

Texts may come from untrusted writers, so matching takes linear time: no two repeats in a pattern
overlap, and no position is scanned from many starts.
"""

import re
import reprlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import ClassVar, Self

MASK = "***"
TEXT_MAX = 4_000  # characters of a text
ERROR_MAX = 2_000  # characters of an error
TRACEBACK_MAX = 32_000  # characters of a traceback
MEMBERS_MAX = 3  # errors of an exception group
VALUE_MAX = 100  # characters of a value that a message quotes
SHOWN_MAX = 100  # characters of a value that user code returned
OVERLAP = 1_000  # characters after a cut that are searched for the rest of a secret

_ELLIPSIS = " … "
_SHORT = 8  # a shorter secret is hidden only as a whole word
_HELD_MAX = 64  # secrets of one holder
# A part of a secret may be masked already. `{end}` matches the end of a text that was cut.
_JWT = r"""
    (?P<before> (?<![\w*-]) (?= [\w*-]*+ (?: \.[\w*-] | \.?{end} ) ) [\w*-]*? )
    \b eyJ (?: [\w*-]{{8,}}+ \. [\w*-]++ (?: \. [\w*-]*+ )? | [\w*-]*+ \.? {end} )
"""
_OTHERS = r"""
    (?: (?<=://) (?:(?!://)[^\s"'<>])* (?: (?=@) | {end} )  # the user information of a URL
      | \b S[ACNOUX][A-Z2-7]{{56}} \b                       # an nkey seed
      | (?<=-----BEGIN\ ) ([A-Z ]{{0,40}}PRIVATE\ KEY)----- .*? (?: -----END\ \1----- | \Z )
      | (?i: (?<=\bbearer\ ) | (?<=\bbasic\ ) ) [\w.~+/=*-]{{6,}} )
"""
_KEYS = ("api", "private", "access", "auth")
SECRET_NAME = "|".join(
    ("passw", "secret", "token", "credential", *(f"{word}[_-]?key" for word in _KEYS))
)
"""A pattern of the names of fields that hold secrets."""
_SIGNS = ("passw", "secret", "token", "credential", "key", "authorization")
_NAMED = rf"""
    (?P<before> (?i: (?: {SECRET_NAME} ) [\w-]{{{{0,30}}}}+
        (?<!name) (?<!ref) (?<!tokens) (?<!secrets) (?<!count)
        (?: (?: \\?["'] )? = (?: \\?["'] )?               # token=…, as in a URL
          | (?: \\?["'] \s? : | [ ]=) \s? \\?["'] )          # "token": "…"
      | (?i: \b x- [\w-]{{{{0,30}}}} key | -token ) : \s?       # a header
      | (?i: \b authorization (?: = | \\?["'] \s? : \s? \\?["']
          | : \s? (?= (?: token | key | apikey | digest | negotiate | aws4-hmac-sha256 ) [ ] ) )
        (?: [\w-]{{{{0,20}}}}+ [ ] )? ) ) )
    (?! \*\*\* ) [^\s"'<>&,;(){{{{}}}}\[\]\\]{{{{4,}}}}+
"""
_END, _NO_END = r"\Z", r"(?!)"
_NKEY_LENGTH = 58


_Known = tuple[re.Pattern[str] | None, int]
"""A pattern of known secrets, and the length of the longest written form."""


def _known(secrets: Iterable[str]) -> _Known:
    """Return the pattern of the secrets as they are, in a repr, and in a URL."""
    texts = [secret for secret in secrets if secret.strip()]
    if not texts:
        return None, 0
    from urllib.parse import quote  # noqa: PLC0415 - not needed without secrets

    forms = {form for it in texts for form in (it, repr(it)[1:-1], quote(it, safe=""))}
    longest_first = sorted(forms, key=len, reverse=True)
    patterns = [
        re.escape(secret) if len(secret) >= _SHORT else rf"(?<!\w){re.escape(secret)}(?!\w)"
        for secret in longest_first
    ]
    return re.compile("|".join(patterns)), len(longest_first[0])


class Hider:
    """Hides secrets in texts: known secrets, registered secrets, and texts that look like one.

    These are the user information of a URL, an nkey seed, a JWT, a private key (PEM), and the
    credential of an `Authorization` header. `Secrets` registers secrets for the process.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known = _known(secrets)

    def __call__(self, text: str, *, limit: int = TEXT_MAX) -> str:
        """Return the text with `***` in place of each secret.

        A text longer than *limit* is cut, and the number of missing characters is added. A secret
        at the cut is hidden completely. A surrogate that UTF-8 can't encode becomes U+FFFD.
        """
        cut, known = len(text) > limit, (self._known, Secrets.known)
        patterns = [pattern for pattern, _ in known if pattern is not None]
        if not cut and not _may_look_like_a_secret(text):
            patterns = [pattern for pattern in patterns if pattern.search(text)]
            if not patterns:
                return text
        window = text[: limit + max(OVERLAP, *(longest for _, longest in known))]
        end = min(limit, len(text))
        for pattern in patterns:
            window, end = _masked(pattern, window, end)
        if cut or _may_look_like_a_secret(window):
            for pattern in _patterns(cut=cut):
                window, end = _masked(pattern, window, end)
        if not window.isascii():  # names of files have surrogates for bytes that aren't UTF-8
            window = "".join("\ufffd" if "\ud800" <= it <= "\udfff" else it for it in window)
        return f"{window[:end]}… ({len(text) - limit} more characters)" if cut else window


class Secrets:
    """Secrets that are hidden in every text of the process until the `with` ends.

    The newest 64 secrets are kept, because credentials are renewed and old ones expire.
    """

    known: ClassVar[_Known] = (None, 0)  # of all that are registered
    _registered: ClassVar[list["Secrets"]] = []

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.texts = deque[str](maxlen=_HELD_MAX)
        self.keep(*secrets)

    def __enter__(self) -> Self:
        self._registered.append(self)
        self._update()
        return self

    def __exit__(self, *_error: object) -> None:
        self._registered.remove(self)
        self._update()

    def keep(self, *secrets: str) -> None:
        """Add secrets; empty texts are ignored."""
        new = [secret for secret in secrets if secret and secret not in self.texts]
        if new:
            self.texts.extend(new)
            self._update()

    @classmethod
    def _update(cls) -> None:
        cls.known = _known(text for holder in cls._registered for text in holder.texts)


def shown(value: object) -> str:
    """Return a value for an error message: shortened, and without secrets."""
    try:
        text = hidden(_REPR.repr(value))
    except Exception:  # noqa: BLE001 - a user's `__repr__` may raise anything
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 2000  # secrets are hidden before the text is shortened


hidden = Hider()
"""Returns a text without secrets, cut to *limit* characters."""


def quoted(value: str) -> str:
    """Return a value in quotes for a message: one line without secrets, cut to `VALUE_MAX`."""
    return repr(hidden(value, limit=VALUE_MAX))


def error_text(error: BaseException) -> str:
    """Return the type and the message of an error, cut and without secrets.

    The text of an exception group ends with its first `MEMBERS_MAX` errors. Hidden are also the
    secrets in what the sync read that the error ends; see `secrets_of`.
    """
    text = _typed_message(error)
    if isinstance(error, BaseExceptionGroup):
        members = list(islice(_members(error), MEMBERS_MAX))
        text = f"{text}: {'; '.join(map(_typed_message, members))}"
    return hidden_with(error, text, limit=ERROR_MAX)


def hidden_with(error: BaseException, text: str, *, limit: int = TEXT_MAX) -> str:
    """Return a text about an error without secrets, cut to *limit* characters."""
    secrets = secrets_of(error)
    return Hider(secrets)(text, limit=limit) if secrets else hidden(text, limit=limit)


def secrets_of(error: BaseException) -> Collection[str]:
    """Return the secrets in what the sync has read that raised the error.

    They are known at the first call, within the sync, and remembered with the error.
    """
    known: Collection[str] | None = getattr(error, _SECRETS, None)
    if known is None:
        known = _read_here()
        if known:
            with suppress(AttributeError):
                setattr(error, _SECRETS, known)
    return known


def learn_from(read_here: Callable[[], Collection[str]]) -> None:
    """Set the function that returns the secrets that the sync of this task has read."""
    global _read_here  # noqa: PLW0603 - telemetry doesn't know syncs
    _read_here = read_here


_SECRETS = "_natsctl_secrets"
_read_here: Callable[[], Collection[str]] = tuple


def _typed_message(error: BaseException) -> str:
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's `__str__` may raise anything
        return f"{name}, whose message cannot be read"
    return f"{name}: {message}" if message else name


def _members(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _members(error)
        else:
            yield error


def shortened(text: str, limit: int) -> str:
    """Return *text* in at most *limit* characters: its beginning and its end.

    The end of an error often states the reason.
    """
    if len(text) <= limit:
        return text
    kept = limit - len(_ELLIPSIS)
    end = kept // 2
    return f"{text[: kept - end]}{_ELLIPSIS}{text[-end:]}"


def abbreviated(text: str, length: int) -> str:
    """Return a text in at most *length* characters: its beginning and an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def first_line(text: str) -> str:
    """Return the first line of a text; empty if the text has none."""
    return (text.splitlines() or [""])[0]


def enumerated(texts: Sequence[str], limit: int) -> str:
    """Return the first *limit* texts, separated by commas, and the number of the others."""
    omitted = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + omitted


def _may_look_like_a_secret(text: str) -> bool:
    """Return False only if no pattern of texts that look like a secret matches.

    Each match is an nkey seed or has one of the signs below. This check takes a twentieth of the
    time of the patterns, and most texts are short and harmless.
    """
    if len(text) >= _NKEY_LENGTH or not text.isascii():
        return True
    if "eyJ" in text or "://" in text or "-----BEGIN " in text:
        return True
    lower = text.lower()
    if "bearer " in lower or "basic " in lower:
        return True
    return ("=" in text or ":" in text) and any(sign in lower for sign in _SIGNS)


def _masked(pattern: re.Pattern[str], text: str, end: int) -> tuple[str, int]:
    """Return the text with each match masked, and the new position of *end*.

    If *end* is inside a match, the new position is after the mask.
    """
    if pattern.search(text) is None:
        return text, end
    parts, position, shift = list[str](), 0, 0
    for match in pattern.finditer(text):
        start = match.end("before") if "before" in pattern.groupindex else match.start()
        parts += (text[position:start], MASK)
        position = match.end()
        if start < end:
            shift += len(MASK) - (min(position, end) - start)
    return "".join((*parts, text[position:])), end + shift


@cache
def _patterns(*, cut: bool) -> tuple[re.Pattern[str], ...]:
    end = _END if cut else _NO_END
    flags = re.VERBOSE | re.DOTALL
    return tuple(re.compile(pattern.format(end=end), flags) for pattern in (_JWT, _OTHERS, _NAMED))
