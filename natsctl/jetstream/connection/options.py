"""How to reach a NATS server, and as whom."""

import re
from collections.abc import Iterator

import msgspec

from natsctl.errors import UsageError

DEFAULT_SERVER = "nats://127.0.0.1:4222"

_TOGETHER = (
    ("creds", "nkey", "user", "password", "token"),
    ("tls_cert", "tls_key"),
    ("domain", "api_prefix"),
)
_SECRETS = ("password", "token")
_USERINFO = re.compile(r"(^|//)((?!//).)*@")  # no URL begins inside
_COMMA = re.compile(r",(?=\w+://|[^@,]*(?:,|$))")  # none that may be part of a password


class NatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the servers are, who we are, and how long we wait. Its repr shows no secret.

    Attributes:
        servers: URLs, all tried; none means the context's, or else `nats://127.0.0.1:4222`.
        context: the name of a NATS CLI context that fills in what is not given here.
        creds: the path of a credentials file (JWT and seed); read anew at every connect.
        nkey: the path of a file with a user's nkey seed.
        user: a user name, with `password`.
        password: the user's password.
        token: an authentication token.
        tls_ca: the path of the certificates (PEM) that vouch for the servers.
        tls_cert: the path of our own certificate (PEM), with `tls_key`.
        tls_key: the path of our certificate's key (PEM).
        tls_first: do the TLS handshake before the server says anything.
        domain: the JetStream domain to speak to.
        api_prefix: the JetStream API's subject prefix, where an account imports it elsewhere.
        inbox_prefix: the first tokens of the subjects on which we are answered.
        name: what the server calls this connection in its monitoring.
        connect_timeout_s: seconds in which a first connection is had, or failed.
        request_timeout_s: seconds that a request waits for its answer.
        silence_s: seconds without a sign of life after which a server is given up.
        marker_ttl_s: seconds after which the server forgets that a key was deleted, where it can:
            longer than any time in which no daemon runs; 0 never.
    """

    servers: tuple[str, ...] = ()
    context: str | None = None
    creds: str | None = None
    nkey: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_first: bool = False
    domain: str | None = None
    api_prefix: str | None = None
    inbox_prefix: str = "_INBOX"
    name: str = "natsctl"
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 5.0
    silence_s: float = 3.0
    marker_ttl_s: float = 30 * 24 * 3600.0

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"NatsOptions({shown})"

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:  # type: ignore[override]
        for name, value in self._given():
            if name in _SECRETS:
                yield name, "***"
            elif name == "servers":
                yield name, tuple(redacted(url) for url in self.servers)
            else:
                yield name, value

    def _given(self) -> Iterator[tuple[str, object]]:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                yield field.name, value

    def over(self, base: "NatsOptions") -> "NatsOptions":
        """Return these options, with *base*'s where these say nothing.

        What belongs together comes from one place: who gives any credential here uses none of
        *base*'s, and so for our certificate and its key, and for domain and prefix.
        """
        given = dict(self._given())
        for names in _TOGETHER:
            if any(name in given for name in names):
                base = msgspec.structs.replace(base, **dict.fromkeys(names))
        return msgspec.structs.replace(base, **given)

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers' URLs, at least one; each may be a comma-separated list of them."""
        urls = [url.strip() for listed in self.servers for url in _COMMA.split(listed)]
        return tuple(url for url in urls if url) or (DEFAULT_SERVER,)

    @property
    def prefix(self) -> str:
        """The JetStream API's subject prefix, without a dot at its end."""
        if self.api_prefix:
            return self.api_prefix.rstrip(".")
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def identity(self) -> str | None:
        """Who these options say we are, for people; no secret in it. A URL may say more."""
        if self.creds:
            return f"the credentials in {self.creds}"
        if self.nkey:
            return f"the nkey in {self.nkey}"
        if self.user:
            return f"user {self.user!r} and its password"
        return "the token" if self.token else None

    def check(self) -> None:
        """Raise `UsageError` where two options contradict each other, or one lacks another."""
        chosen = [name for name in ("creds", "nkey", "user") if getattr(self, name)]
        if len(chosen) > 1:
            raise UsageError(f"NATS options {' and '.join(chosen)} exclude each other: give one")
        if self.user and self.password is None:
            raise UsageError(f"NATS user {self.user!r} is given without a password")
        if self.password is not None and not self.user:
            raise UsageError("a NATS password is given without a user")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UsageError("NATS options tls_cert and tls_key belong together: give both")
        if self.domain and self.api_prefix:
            raise UsageError("NATS options domain and api_prefix exclude each other: give one")


def redacted(url: str) -> str:
    """Return the URL (or a comma-separated list of them) with its user information hidden."""
    return _USERINFO.sub(r"\1***@", url)
