"""The NATS servers to try, and their order."""

import ipaddress
import random
from collections.abc import Iterable, Iterator
from urllib.parse import ParseResult, SplitResult, unquote, urlsplit

import msgspec

from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions, redacted

_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}


class Server(msgspec.Struct, frozen=True):
    """A server's address and the credentials of its URL. The repr shows only the address."""

    address: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_name: str | None = None

    def __repr__(self) -> str:
        return self.address

    def __rich_repr__(self) -> Iterable[str]:  # type: ignore[override]
        yield self.address

    @property
    def secure(self) -> bool:
        """True if the scheme of the URL requires TLS."""
        return self.address.startswith(("tls://", "wss://"))


def parse(url: str) -> Server:
    """Return the server of a URL; raises `UsageError` if the URL is malformed.

    User information is percent-decoded; a name without a password is a token.
    """
    parts = _split(url)
    address = f"{parts.scheme}://{_host(parts.hostname or '')}:{_port(parts)}{parts.path}"
    user = unquote(parts.username) if parts.username else None
    if parts.password is None:
        return Server(address, token=user)
    return Server(address, user=user, password=unquote(parts.password))


def secrets(options: NatsOptions) -> Iterator[str]:
    """Yield the secrets in these options and their URLs; raises the errors of `parse`."""
    servers = [parse(url) for url in options.urls]
    in_urls = [secret for server in servers for secret in (server.password, server.token)]
    yield from filter(None, (options.password, options.token, *in_urls))


class Servers:
    """The configured servers, in random order, and the cluster members that they announced."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._configured = [parse(url) for url in urls]
        self._announced: list[Server] = []
        random.shuffle(self._configured)

    def __str__(self) -> str:
        return ", ".join(server.address for server in self._configured)

    def round(self) -> tuple[Server, ...]:
        """Return every server once, in the order of attempts."""
        return (*self._configured, *self._announced)

    def failed(self, server: Server) -> None:
        """Try *server* last from now on."""
        for servers in (self._configured, self._announced):
            if server in servers:
                servers.remove(server)
                servers.append(server)

    def announce(self, urls: Iterable[ParseResult], announcer: Server) -> None:
        """Replace the announced members by those in the INFO of *announcer*."""
        configured = {server.address for server in self._configured}
        peers = [_peer(url, announcer) for url in urls]
        self._announced = [server for server in peers if server.address not in configured]
        random.shuffle(self._announced)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        usable = parts.scheme in _PORTS and parts.hostname and _port(parts)
    except ValueError:
        usable = None
    if not usable:
        raise UsageError(
            f"{redacted(url)!r} is not the URL of a NATS server: write nats://host:port or tls://host:port"
        ) from None
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _peer(url: ParseResult, announcer: Server) -> Server:
    """Return the server at *url*, with the credentials of *announcer*."""
    address = f"{urlsplit(announcer.address).scheme}://{url.netloc}"
    tls_name = announcer.tls_name or urlsplit(announcer.address).hostname
    return msgspec.structs.replace(
        announcer, address=address, tls_name=tls_name if _numeric(url.hostname or "") else None
    )


def _numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
