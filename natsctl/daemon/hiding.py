"""What is never shown, whatever text it is in."""

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from urllib.parse import quote

from natsctl.kube.options import KubeOptions
from natsctl.kv.options import NatsOptions
from natsctl.kv.servers import parse

MASK = "***"

_SHORT = 8  # a secret shorter than this is looked for as a word only: it may be part of others
_PATTERNS = re.compile(
    r"""
      (?<=://) (?:(?!://)[^\s"'<>])* (?=@)              # who we are, in a URL; no other one begins
    | \b S[ACNOUX][A-Z2-7]{56} \b                       # an nkey seed
    | \b eyJ[\w-]{8,} \. [\w-]+ (?: \. [\w-]* )?        # a JWT
    | (?<=-----BEGIN\ ) ([A-Z ]*PRIVATE\ KEY)----- .*? (?: -----END\ \1----- | \Z )
    | (?i: (?<=\bbearer\ ) | (?<=\bbasic\ ) ) [\w.~+/=-]{6,}
    """,
    re.VERBOSE | re.DOTALL,
)


class Hider:
    """Hides secrets in texts: those that are known, and whatever looks like one.

    That is: the user information of a URL, an nkey seed, a JWT, a private key (PEM), the
    credential of an `Authorization` header.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if secret.strip()}
        self._known = _any_of({form for secret in known for form in _forms(secret)})

    def __call__(self, text: str) -> str:
        """Return the text with `***` in the place of each."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return _PATTERNS.sub(MASK, text)


class HidingFormatter(logging.Formatter):
    """Formats as its base, and hides what looks like a secret."""

    def __init__(self, fmt: str) -> None:
        super().__init__(fmt)
        self._hide = Hider()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and its traceback if it has one."""
        return self._hide(super().format(record))


def secrets_of(nats: NatsOptions, cluster: KubeOptions | None = None) -> Iterator[str]:
    """Return the secrets in these options; raises `UsageError` where a URL is none."""
    servers = [parse(url) for url in nats.urls]
    in_urls = [secret for server in servers for secret in (server.password, server.token)]
    for secret in (nats.password, nats.token, cluster and cluster.token, *in_urls):
        if secret:
            yield secret


def _forms(secret: str) -> Iterator[str]:
    """Return how a secret may stand in a text: as it is, in a repr, in a URL."""
    yield from (secret, repr(secret)[1:-1], quote(secret, safe=""))


def _any_of(secrets: Collection[str]) -> re.Pattern[str] | None:
    longest_first = sorted(secrets, key=len, reverse=True)
    found = [
        re.escape(each) if len(each) >= _SHORT else rf"(?<!\w){re.escape(each)}(?!\w)"
        for each in longest_first
    ]
    return re.compile("|".join(found)) if found else None
