"""The options of a connection to NATS: servers, credentials and timeouts."""

import difflib
import ipaddress
import os
import random
import re
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import ParseResult, SplitResult, unquote, urlsplit

import msgspec
from nats.aio.client import RawCredentials

from natsctl.errors import DECODE_ERRORS, UsageError

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


_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")
_JWT = re.compile(r"-BEGIN NATS USER JWT-+\s+([\w.-]+?)\s+-+END NATS USER JWT-")


def arguments(options: NatsOptions, server: Server) -> dict[str, Any]:
    """Return the credential arguments of `Client.connect` for *server*; reads the files.

    Raises `UsageError` that names a file that is missing or malformed, without its content.
    """
    credentials: dict[str, Any] = {"token": options.token or server.token}
    if options.creds:
        credentials["user_credentials"] = _creds(options.creds)
    elif options.nkey:
        credentials["nkeys_seed_str"] = _seed(options.nkey, "nkey")
    elif options.user:
        credentials |= {"user": options.user, "password": options.password}
    elif server.user:
        credentials |= {"user": server.user, "password": server.password}
    if options.tls_ca or options.tls_cert or options.tls_first or server.secure:
        credentials["tls"] = _tls(options)
        credentials["tls_handshake_first"] = options.tls_first
        credentials["tls_hostname"] = server.tls_name
    return credentials


def _creds(file: str) -> RawCredentials:
    """Return the file's text; checks it first, because nats-py never returns without a JWT."""
    text = _read(file, "creds")
    jwt = _JWT.search(text)
    if jwt is None:
        raise UsageError(f"NATS creds file {file} has no user JWT")
    seed = _seed(file, "creds")
    return RawCredentials(
        f"-----BEGIN NATS USER JWT-----\n{jwt[1]}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _seed(file: str, option: str) -> str:
    seed = _SEED.search(_read(file, option))
    if seed is None:
        raise UsageError(f"NATS {option} file {file} has no nkey seed of a user (SU…)")
    return seed[0]


def _read(file: str, option: str) -> str:
    try:
        return Path(file).expanduser().read_text("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"NATS {option} file {file}: {error.strerror}") from error


def _tls(options: NatsOptions) -> ssl.SSLContext:
    for option in ("tls_ca", "tls_cert", "tls_key"):
        file = getattr(options, option)
        if file:
            _read(file, option)
    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
    except ssl.SSLError as error:
        raise UsageError(f"NATS tls_ca file {options.tls_ca} has no PEM certificate") from error
    if options.tls_cert:
        try:
            context.load_cert_chain(options.tls_cert, options.tls_key)
        except ssl.SSLError as error:
            raise UsageError(
                f"NATS tls_cert {options.tls_cert} and tls_key {options.tls_key} "
                f"are not a certificate and its key: {error.reason or error}"
            ) from error
    return context


_UNSUPPORTED = ("nsc", "user_jwt", "socks_proxy")  # fields that natsctl does not support


class _Context(msgspec.Struct, frozen=True):
    """A context file of `nats context save`; an empty field is not set."""

    url: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    cert: str = ""
    key: str = ""
    ca: str = ""
    tls_first: bool = False
    jetstream_domain: str = ""
    jetstream_api_prefix: str = ""
    inbox_prefix: str = ""
    nsc: str = ""
    user_jwt: str = ""
    socks_proxy: str = ""


def with_context(options: NatsOptions) -> NatsOptions:
    """Return the options, with unset ones taken from the context that they name.

    Raises the errors of `load_context`.
    """
    if options.context is None:
        return options
    return options.over(load_context(options.context))


def load_context(name: str | None = None) -> NatsOptions:
    """Return the options of the named context, or of the selected context if *name* is None.

    Raises `UsageError` that names the file if the context does not exist, is malformed, or needs a
    feature that natsctl lacks. For an unknown name, the error lists similar names first.
    """
    if name is None:
        name = selected_context()
        if not name:
            raise UsageError(
                f"no NATS context is selected in {_selection()}: name one, or run "
                "`nats context select`"
            )
    file = _folder() / "context" / f"{name}.json"
    try:
        context = msgspec.json.decode(file.read_bytes(), type=_Context)
    except FileNotFoundError as error:
        raise UsageError(f"NATS context {name!r} is unknown: {_advice(name, file)}") from error
    except OSError as error:
        raise UsageError(f"NATS context {file} cannot be read: {error.strerror}") from error
    except DECODE_ERRORS:
        # without the cause, which may quote the file
        raise UsageError(f"NATS context {file} is not a valid context in JSON") from None
    return _options(context, file)


def _options(context: _Context, file: Path) -> NatsOptions:
    for field in _UNSUPPORTED:
        if getattr(context, field):
            raise UsageError(
                f"NATS context {file} uses {field}, which natsctl does not support: "
                "give it creds, nkey, user and password, or token"
            )
    return NatsOptions(
        servers=(context.url,) if context.url else (),
        user=context.user or None,
        password=context.password if context.user else None,
        token=context.token or None,
        creds=_path(context.creds),
        nkey=_path(context.nkey),
        tls_cert=_path(context.cert),
        tls_key=_path(context.key),
        tls_ca=_path(context.ca),
        tls_first=context.tls_first,
        domain=None if context.jetstream_api_prefix else context.jetstream_domain or None,
        api_prefix=context.jetstream_api_prefix or None,
        inbox_prefix=context.inbox_prefix or "_INBOX",
    )


def _path(text: str) -> str | None:
    return str(Path(os.path.expandvars(text)).expanduser()) if text else None


def _folder() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "nats"


def selected_context() -> str:
    """Return the name of the context that `nats context select` selected; empty without one."""
    try:
        return _selection().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _selection() -> Path:
    return _folder() / "context.txt"


def _advice(name: str, file: Path) -> str:
    names = [path.stem for path in file.parent.glob("*.json")]
    if not names:
        return f"there is no {file}, and no other context in that folder"
    names.sort(
        key=lambda candidate: (-difflib.SequenceMatcher(None, name, candidate).ratio(), candidate)
    )
    return f"there is no {file}; the contexts are {', '.join(names)}"
