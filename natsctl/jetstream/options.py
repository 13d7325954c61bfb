"""The options of a connection to NATS: servers, credentials and timeouts."""

import difflib
import ipaddress
import os
import re
import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import ParseResult, unquote, urlsplit

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
        marker_ttl_s: seconds until the server removes a delete marker, if it can; 0 keeps markers.
            Choose more than the longest time in which no daemon runs. A server that crashes after
            a marker has expired may bring back what was deleted, see docs/buckets.md.
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
    marker_ttl_s: float = 0.0

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
    def publish_prefix(self) -> str:
        """The prefix of `$KV.…` subjects: empty, or the API prefix of a domain or import."""
        return "" if self.prefix == "$JS.API" else f"{self.prefix}."

    @property
    def stream_prefix(self) -> str:
        """The prefix of the subjects of other streams.

        A domain has a prefix for its API and for `$KV.…` only. Other subjects reach its streams as
        they are.
        """
        return "" if self.domain else self.publish_prefix

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


def parse(url: str) -> Server:
    """Return the server of a URL; raises `UsageError` if the URL is malformed.

    User information is percent-decoded; a name without a password is a token.
    """
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        host, port = "", None
    if not (host and port and parts.scheme in _PORTS):
        raise UsageError(
            f"{redacted(url)!r} is not the URL of a NATS server: write nats://host:port or tls://host:port"
        )
    host = f"[{host}]" if ":" in host else host
    address = f"{parts.scheme}://{host}:{port}{parts.path}"
    user = unquote(parts.username) if parts.username else None
    if parts.password is None:
        return Server(address, token=user)
    return Server(address, user=user, password=unquote(parts.password))


def peer(url: ParseResult, announcer: Server) -> Server:
    """Return the cluster member at *url*, with the credentials of the *announcer*."""
    parts = urlsplit(announcer.address)
    address, tls_name = f"{parts.scheme}://{url.netloc}", None
    with suppress(ValueError):
        ipaddress.ip_address(url.hostname or "")  # an address isn't in a certificate
        tls_name = announcer.tls_name or parts.hostname
    return msgspec.structs.replace(announcer, address=address, tls_name=tls_name)


def secrets(options: NatsOptions) -> Iterator[str]:
    """Yield the secrets in these options and their URLs; raises the errors of `parse`."""
    servers = [parse(url) for url in options.urls]
    in_urls = [secret for server in servers for secret in (server.password, server.token)]
    yield from filter(None, (options.password, options.token, *in_urls))


_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")
_JWT = re.compile(r"-BEGIN NATS USER JWT-+\s+([\w.-]+?)\s+-+END NATS USER JWT-")


def arguments(options: NatsOptions, server: Server) -> dict[str, Any]:
    """Return the credential arguments of `Client.connect` for *server*; reads the files.

    Raises `UsageError` that names a file that is missing or malformed, without its content.
    """
    credentials: dict[str, Any] = {"token": options.token or server.token}
    if options.creds:
        jwt = _JWT.search(_read(options.creds, "creds"))
        if jwt is None:  # nats-py would never return
            raise UsageError(f"NATS creds file {options.creds} has no user JWT")
        credentials["user_credentials"] = RawCredentials(
            f"-----BEGIN NATS USER JWT-----\n{jwt[1]}\n------END NATS USER JWT------\n"
            f"-----BEGIN USER NKEY SEED-----\n{_seed(options.creds, 'creds')}\n"
            "------END USER NKEY SEED------\n"
        )
    elif options.nkey:
        credentials["nkeys_seed_str"] = _seed(options.nkey, "nkey")
    elif options.user:
        credentials |= {"user": options.user, "password": options.password}
    elif server.user:
        credentials |= {"user": server.user, "password": server.password}
    secure = server.address.startswith(("tls://", "wss://"))
    if options.tls_ca or options.tls_cert or options.tls_first or secure:
        credentials["tls"] = _tls(options)
        credentials["tls_handshake_first"] = options.tls_first
        credentials["tls_hostname"] = server.tls_name
    return credentials


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
        if file := getattr(options, option):
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
_PATHS = ("creds", "nkey", "tls_cert", "tls_key", "tls_ca")
_FIELDS = {
    "tls_cert": "cert",
    "tls_key": "key",
    "tls_ca": "ca",
    "domain": "jetstream_domain",
    "api_prefix": "jetstream_api_prefix",
}


class _Context(msgspec.Struct, frozen=True, rename=_FIELDS):
    """A context file of `nats context save`; an empty field is not set."""

    url: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_first: bool = False
    domain: str = ""
    api_prefix: str = ""
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
                f"no NATS context is selected in {_folder() / 'context.txt'}: name one, or run "
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
    given = {name: value for name, value in msgspec.structs.asdict(context).items() if value}
    for field in _UNSUPPORTED:
        if field in given:
            raise UsageError(
                f"NATS context {file} uses {field}, which natsctl does not support: "
                "give it creds, nkey, user and password, or token"
            )
    for field in _PATHS:
        if field in given:
            given[field] = str(Path(os.path.expandvars(given[field])).expanduser())
    if url := given.pop("url", None):
        given["servers"] = (url,)
    given.pop("password", None)
    if context.user:
        given["password"] = context.password
    if context.api_prefix:
        given.pop("domain", None)
    return NatsOptions(**given)


def _folder() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "nats"


def selected_context() -> str:
    """Return the name of the context that `nats context select` selected; empty without one."""
    try:
        return (_folder() / "context.txt").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _advice(name: str, file: Path) -> str:
    names = [path.stem for path in file.parent.glob("*.json")]
    if not names:
        return f"there is no {file}, and no other context in that folder"
    names.sort(
        key=lambda candidate: (-difflib.SequenceMatcher(None, name, candidate).ratio(), candidate)
    )
    return f"there is no {file}; the contexts are {', '.join(names)}"
