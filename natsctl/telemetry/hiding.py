"""What is never shown, whatever text it is in."""

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from types import TracebackType
from typing import Self

MASK = "***"
TOLD_MAX = 2_000  # characters of an error

_SHORT = 8  # a secret shorter than this is looked for as a word only: it may be part of others
_HELD_MAX = 64  # that one holder keeps: the newest
# a part of each may be masked already
_LOOKS = r"""
      (?<=://) (?:(?!://)[^\s"'<>])* (?=@)              # who we are, in a URL; no other one begins
    | \b S[ACNOUX][A-Z2-7]{56} \b                       # an nkey seed
    | \b eyJ[\w*-]{8,} \. [\w*-]+ (?: \. [\w*-]* )?     # a JWT
    | (?<=-----BEGIN\ ) ([A-Z ]*PRIVATE\ KEY)----- .*? (?: -----END\ \1----- | \Z )
    | (?i: (?<=\bbearer\ ) | (?<=\bbasic\ ) ) [\w.~+/=*-]{6,}
"""


class Hider:
    """Hides secrets in texts: those that are known or held, and whatever looks like one.

    That is: the user information of a URL, an nkey seed, a JWT, a private key (PEM), the
    credential of an `Authorization` header. Who holds one says so with `Secrets`.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known = _any_of(secrets)

    def __call__(self, text: str) -> str:
        """Return the text with `***` in the place of each."""
        for pattern in (self._known, _held.pattern):
            if pattern is not None:
                text = pattern.sub(MASK, text)
        return _looks_like_one().sub(MASK, text)


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


class _Held:
    """What all holders hold together."""

    def __init__(self) -> None:
        self.by: list[Secrets] = []
        self.pattern: re.Pattern[str] | None = None

    def look(self) -> None:
        self.pattern = _any_of(secret for holder in self.by for secret in holder.texts)


_held = _Held()  # one for the process: a text does not know whose secrets are in it


def hidden(text: str) -> str:
    """Return the text as it may be shown."""
    return _anything(text)


def told(error: BaseException) -> str:
    """Return what people are told of an error, `ValueError: no luck`, without secrets.

    Of a very long one that is the beginning.
    """
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own `__str__` is at fault, and it is somebody's code
        text = f"{type(error).__name__}, whose text cannot be shown"
    text = hidden(text)
    return text if len(text) <= TOLD_MAX else f"{text[:TOLD_MAX]}…"


@cache
def _looks_like_one() -> re.Pattern[str]:
    return re.compile(_LOOKS, re.VERBOSE | re.DOTALL)  # which takes a while at every start


def _any_of(secrets: Iterable[str]) -> re.Pattern[str] | None:
    known = {secret for secret in secrets if secret.strip()}
    return _pattern({form for secret in known for form in _forms(secret)})


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
