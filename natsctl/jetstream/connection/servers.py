"""Which NATS servers there are, and in which order they are tried."""

import ipaddress
import random
from collections.abc import Iterable, Iterator
from urllib.parse import ParseResult, SplitResult, unquote, urlsplit

import msgspec

from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions, redacted

_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}


class Server(msgspec.Struct, frozen=True):
    """One server's address, and what its URL says about us. Only the address is ever shown."""

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
        """Whether the URL itself asks for TLS."""
        return self.address.startswith(("tls://", "wss://"))


def parse(url: str) -> Server:
    """Return the server that a URL names; `UsageError` where it is none.

    User information is percent-decoded; a name without a password is a token.
    """
    parts = _split(url)
    address = f"{parts.scheme}://{_host(parts.hostname or '')}:{_port(parts)}{parts.path}"
    user = unquote(parts.username) if parts.username else None
    if parts.password is None:
        return Server(address, token=user)
    return Server(address, user=user, password=unquote(parts.password))


def secrets(options: NatsOptions) -> Iterator[str]:
    """Return the secrets in these options, those in URLs too; raises as `parse` does."""
    servers = [parse(url) for url in options.urls]
    in_urls = [secret for server in servers for secret in (server.password, server.token)]
    yield from filter(None, (options.password, options.token, *in_urls))


class Servers:
    """The servers that the options name, in random order, and those that they told us of."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._named = [parse(url) for url in urls]
        self._told: list[Server] = []
        random.shuffle(self._named)

    def __str__(self) -> str:
        return ", ".join(server.address for server in self._named)

    def round(self) -> tuple[Server, ...]:
        """Return every server once, in the order in which they are to be tried."""
        return (*self._named, *self._told)

    def failed(self, server: Server) -> None:
        """Try *server* last from now on."""
        for listed in (self._named, self._told):
            if server in listed:
                listed.remove(server)
                listed.append(server)

    def told(self, urls: Iterable[ParseResult], by: Server) -> None:
        """Take in the other servers of a cluster, as one of them told us."""
        addresses = {server.address for server in self._named}
        told = [_peer(url, by) for url in urls]
        self._told = [server for server in told if server.address not in addresses]
        random.shuffle(self._told)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        usable = parts.scheme in _PORTS and parts.hostname and _port(parts)
    except ValueError:
        usable = None
    if not usable:
        raise UsageError(
            f"{redacted(url)!r} is no URL of a NATS server: write nats://host:port or tls://host:port"
        ) from None
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _peer(url: ParseResult, by: Server) -> Server:
    """Return the server at *url*, where we say who we are as we did to *by*."""
    address = f"{urlsplit(by.address).scheme}://{url.netloc}"
    named = by.tls_name or urlsplit(by.address).hostname
    return msgspec.structs.replace(
        by, address=address, tls_name=named if _numeric(url.hostname or "") else None
    )


def _numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
