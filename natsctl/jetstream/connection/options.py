"""The options of a connection to NATS: servers, credentials and timeouts."""

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
_USERINFO = re.compile(r"(^|//)((?!//).)*@")  # the user information of each URL
_COMMA = re.compile(r",(?=\w+://|[^@,]*(?:,|$))")  # between URLs, not in a password


class NatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Servers, credentials and timeouts of a connection. The repr shows no secret.

    Attributes:
        servers: URLs to try; by default those of the context, or `nats://127.0.0.1:4222`.
        context: the name of a NATS CLI context that provides options that are not set here.
        creds: the path of a credentials file (JWT and seed); read again at every connect.
        nkey: the path of a file with a user's nkey seed.
        user: a user name, with `password`.
        password: the user's password.
        token: an authentication token.
        tls_ca: the path of the CA certificates (PEM) that verify the servers.
        tls_cert: the path of the client certificate (PEM), with `tls_key`.
        tls_key: the path of the client certificate's key (PEM).
        tls_first: do the TLS handshake before the server sends its INFO.
        domain: the JetStream domain.
        api_prefix: the subject prefix of the JetStream API, if the account imports it elsewhere.
        inbox_prefix: the first tokens of the subjects that receive answers.
        name: the name of this connection in the server's monitoring.
        connect_timeout_s: seconds until the first attempt to connect fails.
        request_timeout_s: seconds that a request waits for its answer.
        silence_s: seconds without data from the server until the connection counts as lost.
        marker_ttl_s: seconds until the server removes a delete marker, if it can. Choose more than
            the longest time in which no daemon runs; 0 keeps markers.
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
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"NatsOptions({fields})"

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:  # type: ignore[override]
        for name, value in self._given_fields():
            if name in _SECRETS:
                yield name, "***"
            elif name == "servers":
                yield name, tuple(redacted(url) for url in self.servers)
            else:
                yield name, value

    def _given_fields(self) -> Iterator[tuple[str, object]]:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                yield field.name, value

    def over(self, base: "NatsOptions") -> "NatsOptions":
        """Return these options, with unset ones taken from *base*.

        Related options come from one place: if any credential is set here, none is taken from
        *base*. The same holds for certificate and key, and for domain and prefix.
        """
        given = dict(self._given_fields())
        for names in _TOGETHER:
            if any(name in given for name in names):
                base = msgspec.structs.replace(base, **dict.fromkeys(names))
        return msgspec.structs.replace(base, **given)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the servers, at least one; splits comma-separated items of `servers`."""
        urls = [url.strip() for listed in self.servers for url in _COMMA.split(listed)]
        return tuple(url for url in urls if url) or (DEFAULT_SERVER,)

    @property
    def prefix(self) -> str:
        """The subject prefix of the JetStream API, without a trailing dot."""
        if self.api_prefix:
            return self.api_prefix.rstrip(".")
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def identity(self) -> str | None:
        """A description of the credentials, without secrets; None if at most URLs have some."""
        if self.creds:
            return f"the credentials in {self.creds}"
        if self.nkey:
            return f"the nkey in {self.nkey}"
        if self.user:
            return f"user {self.user!r} and its password"
        return "the token" if self.token else None

    def check(self) -> None:
        """Raise `UsageError` if options contradict each other, or one needs another."""
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
