"""A connection to NATS that reconnects forever and reports every loss.

A request without an answer fails as soon as the connection is lost, and is never sent later. Every
reconnect makes a new nats-py client, so subscriptions end with the connection that carried them;
`Connection.on_lost` reports when to subscribe again.
"""

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoServersError, SecureConnWantedError, StaleConnectionError, UnexpectedEOF

from natsctl.errors import ConnectError, StoreError, UsageError
from natsctl.jetstream.options import (
    NatsOptions,
    Server,
    arguments,
    parse,
    peer,
    secrets,
    with_context,
)
from natsctl.jetstream.reader import OneTimeClient
from natsctl.jetstream.requests import NextAnswer, Requests, api_span, result_of
from natsctl.telemetry.hiding import Secrets
from natsctl.telemetry.logger import Repeats, get_logger
from natsctl.time_limit import happens

log = get_logger(__name__)

PINGS = 2  # how many pings the server may leave unanswered
CHECKS = 12  # checks for received data within `silence_s`
CHECK_MAX_S = 0.25  # between two checks
END_S = 2.0  # the deadline of nats-py's close
FLUSH_S = 2.0  # how long `close` waits until the server has received published messages
ATTEMPT_MIN_S = 1.0  # the least time for an attempt to connect to one of several servers
PAUSE_MIN_S = 0.1  # between two rounds over all servers; doubles up to `PAUSE_MAX_S`
PAUSE_MAX_S = 1.0
PAUSE_SOON_S = 0.3  # instead, within `SOON_S`: a server that restarts is back soon
SOON_S = 30.0
PAYLOAD_MAX = 1024 * 1024

_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")
_CLOSED = (UnexpectedEOF, ConnectionResetError, BrokenPipeError)

Report = Callable[[Exception], None]
OnLost = Callable[[StoreError], None]


class _Failure(NamedTuple):
    """A failed attempt to connect; a retry cannot succeed if `final` is true."""

    text: str
    final: bool
    error: Exception


def _failure(error: Exception, server: Server, options: NatsOptions) -> _Failure:
    """Return why an attempt to connect to *server* failed, and what to do."""
    final = True
    match error:
        case UsageError():
            reason = str(error)
        case NatsError() if any(refusal in str(error).lower() for refusal in _REFUSALS):
            reason = f"the server refuses {_identity(server, options)}"
        case SecureConnWantedError():
            reason = "the server offers no TLS, but the options require it"
        case ssl.SSLCertVerificationError():
            reason = (
                f"{options.tls_ca or 'this machine'} does not verify the server's certificate "
                f"({error.verify_message}); set tls_ca to the CA that does"
            )
        case ssl.SSLError() if "CERTIFICATE_REQUIRED" in str(error):
            reason = "the server requires a client certificate; set tls_cert and tls_key"
        case _:
            reason, final = _temporary_reason(error, options), False
    return _Failure(f"{server.address}: {reason}", final, error)


def _temporary_reason(error: Exception, options: NatsOptions) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused; is a NATS server running there?"
        case socket.gaierror():
            return "the host name is unknown"
        case TimeoutError():
            return "no answer in time"
        case UnexpectedEOF() | ConnectionResetError() | BrokenPipeError():
            hint = "" if options.tls_cert else "; does it require a client certificate?"
            return f"the server closed the connection at once{hint}"
        case ssl.SSLError():
            return f"TLS fails: {error.reason or error}"
        case _:
            return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _identity(server: Server, options: NatsOptions) -> str:
    for given, text in (
        (options.creds, f"the credentials in {options.creds}"),
        (options.nkey, f"the nkey in {options.nkey}"),
        (options.user, f"user {options.user!r} and its password"),
        (options.token, "the token"),
        (server.user, f"user {server.user!r} and the password in its URL"),
        (server.token, "the token in its URL"),
    ):
        if given:
            return text
    return "a connection without credentials; give it creds, an nkey, user and password, or a token"


class _Link:
    """A connection to one server. A link never reconnects; a new link replaces it.

    *report* gets every background error of nats-py, except the one that ends the connection; it
    must not raise.
    """

    def __init__(self, server: Server, options: NatsOptions, report: Report) -> None:
        self.server = server
        self.client = OneTimeClient()
        self.requests = Requests(self.client)
        self._options = options
        self._report = report
        self._error: Exception | None = None
        self._lost = asyncio.Event()
        self._closed = asyncio.Event()
        self._established = False

    @property
    def alive(self) -> bool:
        return self.client.is_connected and not self._lost.is_set()

    @property
    def reason(self) -> str:
        error = self._error or self.client.last_error
        if isinstance(error, _CLOSED):
            return "the server closed the connection"
        if isinstance(error, StaleConnectionError):
            return "the server no longer answers"
        return "the connection was closed" if error is None else str(error)

    async def establish(self, limit_s: float) -> None:
        """Connect and subscribe to the inbox; raises any error of nats-py unchanged."""
        settings = arguments(self._options, self.server)
        if "tls" in settings:
            for secret in ("password", "token"):
                if settings.get(secret) is not None:
                    settings[secret] = self._over_tls(settings[secret])
        ping_s = self._options.silence_s / (PINGS + 1)
        try:
            await self.client.connect(
                servers=[self.server.address],
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                name=self._options.name,
                inbox_prefix=self._options.inbox_prefix,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=limit_s,  # type: ignore[arg-type]  # takes any number
                ping_interval=ping_s,  # type: ignore[arg-type]  # takes any number
                max_outstanding_pings=PINGS,
                pending_size=0,
                **settings,
            )
        except NoServersError as error:
            raise self._error or error from error
        if "tls" in settings:
            self._over_tls("")()
        if not self.client.is_connected:
            # nats-py raises nothing if the server closes the connection instead of answering
            raise self._error or UnexpectedEOF()
        await self.requests.start()
        self._established, self._error = True, None

    async def ended(self) -> None:
        check_s = min(CHECK_MAX_S, self._options.silence_s / CHECKS)
        while self.alive:
            self.client.count_traffic_as_pong()
            await happens(self._lost, within_s=check_s)

    async def end(self) -> None:
        """Abort the connection; no task of it runs after this returns."""
        self.client.abort()
        with suppress(TimeoutError, NatsError, OSError):
            async with asyncio.timeout(END_S):
                if not self.client.is_closed:
                    await self.client.close()
                elif self._established:
                    await self._closed.wait()  # the client is closing

    def _over_tls(self, secret: str) -> Callable[[], str]:
        """Return a callable that gives nats-py the secret, but only over TLS.

        If the server offers no TLS, nats-py would send the secret in clear text.
        """

        def encrypted_only() -> str:
            if not self.client.encrypted:
                raise SecureConnWantedError
            return secret

        return encrypted_only

    async def _on_error(self, error: Exception) -> None:
        """Handle a background error; raises nothing, because nats-py would stop reading."""
        if isinstance(error, UnexpectedEOF):
            reported = self.client.last_error  # before the server closed the connection
            self._error = error if "permissions violation" in str(reported) else reported or error
            self._lost.set()
            return
        if not self._established:
            self._error = error
        if (unexpected := self.requests.denied(error)) is not None:
            self._report(unexpected)

    async def _on_closed(self) -> None:
        self._lost.set()
        self._closed.set()


class _Dial:
    """Tries the configured servers, and the cluster members that they announced, in turn.

    Links pass their background errors to *report*. *progress* gets a text after every failed
    round. The constructor raises `UsageError` if a URL or a file is malformed.
    """

    def __init__(
        self, options: NatsOptions, report: Report, progress: Callable[[str], None]
    ) -> None:
        self._options = options
        self._report = report
        self._progress = progress
        self._configured = [parse(url) for url in options.urls]
        self._announced: list[Server] = []
        self._last: _Link | None = None
        random.shuffle(self._configured)
        for server in self._configured:
            arguments(options, server)

    def __str__(self) -> str:
        return ", ".join(server.address for server in self._configured)

    async def once(self) -> _Link:
        """Try every server once; raises `ConnectError` after `connect_timeout_s` at most."""
        limit_s = self._options.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                outcome = await self._try_servers()
        except TimeoutError:
            raise ConnectError(
                f"cannot connect to NATS: none of {self} answers within {limit_s:g} s"
            ) from None
        return _link(outcome)

    async def patiently(self, *, refusals_final: bool = False) -> _Link:
        """Try round after round until a server answers.

        Raises `ConnectError` if *refusals_final* and a server rejects this client.
        """
        pause_s, clock = PAUSE_MIN_S, asyncio.get_running_loop().time
        soon = clock() + SOON_S
        while True:
            outcome = await self._try_servers()
            if isinstance(outcome, _Link) or (
                refusals_final and any(failure.final for failure in outcome)
            ):
                return _link(outcome)
            self._progress(_texts(outcome))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only
            pause_s = min(2 * pause_s, PAUSE_SOON_S if clock() < soon else PAUSE_MAX_S)

    async def _try_servers(self) -> _Link | list[_Failure]:
        if self._last is not None:  # the members that the last server announced
            known = {server.address for server in self._configured}
            members = [peer(url, self._last.server) for url in self._last.client.discovered_servers]
            self._announced = [server for server in members if server.address not in known]
            random.shuffle(self._announced)
        servers = (*self._configured, *self._announced)
        limit_s = max(ATTEMPT_MIN_S, self._options.connect_timeout_s / len(servers))
        failures: list[_Failure] = []
        for server in servers:
            link = _Link(server, self._options, self._report)
            try:
                async with asyncio.timeout(limit_s):
                    await link.establish(limit_s)
                self._last = link
            except Exception as error:  # noqa: BLE001 - nats-py raises errors of several libraries
                await link.end()
                failures.append(_failure(error, server, self._options))
                for group in (self._configured, self._announced):
                    if server in group:  # is tried last from now on
                        group.remove(server)
                        group.append(server)
            except BaseException:
                await link.end()
                raise
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # Python 3.11's `asyncio.wait_for`, which nats-py uses to connect, loses a
                # cancellation that arrives in the moment in which an attempt ends
                await link.end()
                raise asyncio.CancelledError
            if link is self._last:
                return link
        return failures


def _link(outcome: _Link | list[_Failure]) -> _Link:
    if isinstance(outcome, _Link):
        return outcome
    raise ConnectError(f"cannot connect to NATS: {_texts(outcome)}") from outcome[-1].error


def _texts(failures: list[_Failure]) -> str:
    return "; ".join(failure.text for failure in failures)


class ConnectionState(msgspec.Struct, frozen=True):
    """The state of a connection, for health checks and people; contains no secret.

    Attributes:
        connected: whether the connection is up.
        server: the address of the server, or of the last one if the connection is down.
        losses: the number of times that the connection was lost.
        since_s: seconds since the connection went up or down.
        errors: the number of background errors.
        last_error: the newest background error, or the reason of the last loss; None if neither.
    """

    connected: bool
    server: str
    losses: int
    since_s: float
    errors: int
    last_error: str | None


@asynccontextmanager
async def connect(
    options: NatsOptions | str | None = None, *, wait: bool = False
) -> AsyncIterator["Connection"]:
    """Connect to the first server that answers, for the duration of the context.

    Within the context, logs and errors mask the secrets in the options.

    Args:
        options: options, or a URL (or several, comma-separated); None is the default server.
        wait: if no server is reachable, log that and retry until one is.

    Raises:
        UsageError: an option, a context or a file is malformed.
        ConnectError: no server answered within `connect_timeout_s`, or a server rejected the
            credentials. The message names each server and what to do.
    """
    if isinstance(options, str):
        options = NatsOptions(servers=(options,))
    options = with_context(options or NatsOptions())
    options.check()
    with Secrets(secrets(options)):
        connection = Connection(options)
        await connection.open(wait=wait)
        try:
            yield connection
        finally:
            await connection.close()


class Connection:
    """A connection to NATS; made by `connect`.

    *Guarantees.* Without a connection, a request fails at once with `StoreError` and is never sent.
    If the connection is lost, pending requests fail at once with `StoreTimeoutError`. The
    connection counts as lost as soon as it is closed, or after `silence_s` without data from the
    server. The connection then reconnects at once, and retries until it succeeds.

    *Assumes* that all calls are made in the event loop that opened the connection.

    Attributes:
        options: the options, with those of their context.
        losses: the number of times that the connection was lost.
    """

    def __init__(self, options: NatsOptions, dial: _Dial | None = None) -> None:
        self.options = options
        self.losses = 0
        self._clock = asyncio.get_running_loop().time
        self._dial = dial or _Dial(options, self._report, self._report_progress)
        self._carries_requests = dial is None
        self._watches: Connection | None = None
        self._repeats = Repeats(self._clock)
        self._link: _Link | None = None
        self._up = asyncio.Event()
        self._closed = False
        self._reconnecting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._listeners: list[OnLost] = []
        self._server = str(self._dial)
        self._since = self._clock()
        self._errors = 0
        self._last_error: str | None = None

    async def open(self, *, wait: bool) -> None:
        link = await (self._dial.patiently(refusals_final=True) if wait else self._dial.once())
        self._use_link(link)
        self._reconnecting = asyncio.create_task(self._reconnect(link), name="natsctl-connection")

    async def close(self) -> None:
        """Flush and close the connection, within 4 s.

        Pending requests fail, `on_lost` callbacks are called, and no task stays.
        """
        if self._watches is not None:
            await self._watches.close()
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait({self._reconnecting})
        link = self._link
        if link is not None:
            if link.alive:
                with suppress(TimeoutError, NatsError):
                    async with asyncio.timeout(FLUSH_S):
                        await link.client.flush()
            self._report_loss(link, "it was closed")
        self._up.set()
        if self._closing:
            await asyncio.wait(self._closing)

    @property
    def client(self) -> OneTimeClient:
        """The present nats-py client; raises `StoreError` if the connection is down.

        Every reconnect makes a new client without subscriptions, so read this property again after
        every call of an `on_lost` callback.
        """
        return self._current().client

    @property
    def watches(self) -> "Connection":
        """The separate connection of watches; its first `wait_connected` opens it.

        The server sends all data of a connection in order. It may be 32 MiB ahead of a watch, which
        takes this process seconds to read, and every answer would wait behind these messages. A
        loss of this connection is logged by the watches that it breaks.
        """
        if self._watches is None and not self._closed:
            self._watches = self.apart()
        return self._watches or self

    def apart(self) -> "Connection":
        """Return another connection to these servers, which the caller closes.

        Its first `wait_connected` opens it. Its losses are not logged.
        """
        return Connection(self.options, _Dial(self.options, self._report, self._report_progress))

    @property
    def payload_max(self) -> int:
        """The maximum size of a message in bytes; the default of servers if not connected."""
        return PAYLOAD_MAX if self._link is None else self._link.client.max_payload

    @property
    def connected(self) -> bool:
        """True if the connection is up, as far as the client knows."""
        return self._link is not None and self._link.alive

    @property
    def reconnects(self) -> bool:
        """True until `close`; False also if a task that reconnects has failed."""
        has_ended = self._reconnecting is not None and self._reconnecting.done()
        return not has_ended and (self._watches is None or self._watches.reconnects)

    def state(self) -> ConnectionState:
        since_s = self._clock() - self._since
        return ConnectionState(
            self.connected, self._server, self.losses, since_s, self._errors, self._last_error
        )

    async def wait_connected(self, *, forever: bool = True) -> None:
        """Wait until the connection is up; raises `StoreError` after `close`.

        Unless *forever*, raises `StoreError` after `connect_timeout_s`.
        """
        self._notice_loss()
        if self._reconnecting is None and not self._closed:
            self._reconnecting = asyncio.create_task(self._reconnect(), name="natsctl-watches")
        try:
            async with asyncio.timeout(None if forever else self.options.connect_timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise self._not_connected() from None
        if self._closed:
            raise StoreError("the NATS connection was closed")

    @contextmanager
    def on_lost(self, callback: OnLost) -> Iterator[None]:
        """Call *callback* at every loss and every reconnect while the context lasts.

        The callback gets the reason, runs in the event loop and must not block. It is also called
        at a reconnect, because subscriptions of the previous connection are gone.
        """
        self._listeners.append(callback)
        try:
            yield
        finally:
            self._listeners.remove(callback)

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Msg:
        """Send a request and return its answer; *timeout_s* is `request_timeout_s` by default.

        Raises:
            StoreTimeoutError: no answer arrived in time, or the connection was lost; the request
                may have taken effect.
            PermissionDeniedError: the server denies the request or its answer.
            TooLargeError: the payload is larger than the server's `max_payload`.
            StoreError: the connection is down and the request was not sent, or the subject has no
                subscriber (the cause is nats-py's `NoRespondersError`).
        """
        if timeout_s is None:
            timeout_s = self.options.request_timeout_s
        return await self._current().requests.ask(subject, payload, headers, timeout_s)

    @asynccontextmanager
    async def request_many(self, subject: str, payload: bytes) -> AsyncIterator[NextAnswer]:
        """Send a request to all subscribers, and yield a function that waits for the next answer.

        The function has no deadline; the caller sets one. It raises the errors of `request`,
        except the timeout.
        """
        async with self._current().requests.request_many(subject, payload) as next_answer:
            yield next_answer

    async def may_subscribe(self, subject: str) -> bool:
        """Return whether this user may subscribe to *subject*, by a short subscription.

        Other subscribers miss no message. Raises `StoreTimeoutError` if the server does not answer
        within `request_timeout_s`, and `StoreError` if the connection is down.
        """
        requests = self._current().requests
        return await requests.may_subscribe(subject, self.options.request_timeout_s)

    async def api(
        self,
        endpoint: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Call the JetStream API, for example `STREAM.INFO.x`, and return its JSON answer.

        Raises the errors of `request` and of `natsctl.jetstream.requests.result_of`.
        """
        payload = b"" if body is None else msgspec.json.encode(body)
        with api_span(endpoint):
            subject = f"{self.options.prefix}.{endpoint}"
            reply = await self.request(subject, payload, timeout_s=timeout_s)
            return result_of(reply.data, endpoint)

    def _current(self) -> _Link:
        self._notice_loss()
        if self._closed:
            raise StoreError("the NATS connection was closed")
        if self._link is None:
            raise self._not_connected()
        return self._link

    def _not_connected(self) -> StoreError:
        reason = self._last_error or "no answer in time"
        return StoreError(f"not connected to NATS at {self._dial}: {reason}")

    def _notice_loss(self) -> None:
        """Report a loss that nats-py hasn't reported yet."""
        link = self._link
        if link is not None and not link.alive:
            self._report_loss(link, link.reason)

    def _use_link(self, link: _Link) -> None:
        self._link = link
        self._since, self._server = self._clock(), link.server.address
        self._up.set()
        if self._carries_requests:
            log.info("connected to NATS", server=self._server)
        if self.losses:
            self._notify(StoreError(f"reconnected to NATS at {self._server}"))
        else:
            self._last_error = None

    def _report_loss(self, link: _Link, reason: str) -> None:
        if self._link is not link:
            return
        self._link = None
        self._up.clear()
        link.requests.lost(reason)
        ending = asyncio.create_task(link.end())
        self._closing.add(ending)
        ending.add_done_callback(self._closing.discard)
        self._notify(StoreError(f"the NATS connection to {self._server} is lost: {reason}"))
        if not self._closed:
            self._since, self._last_error = self._clock(), reason
            self.losses += 1
            if self._carries_requests:
                log.warning("lost the connection to NATS", server=self._server, error=reason)

    def _notify(self, error: StoreError) -> None:
        for callback in list(self._listeners):
            try:
                callback(error)
            except Exception:
                log.exception("an on_lost callback failed")

    def _report(self, error: Exception) -> None:
        if self._link is None:
            return  # part of an attempt to connect, which is reported as a whole
        self._errors += 1
        self._last_error = message = str(error) or type(error).__name__
        if self._repeats.due(message):
            log.warning("error of the NATS connection", error=message)

    def _report_progress(self, message: str) -> None:
        self._last_error = message
        if self._repeats.due(message):
            log.warning("no connection to NATS yet", error=message)

    async def _reconnect(self, link: _Link | None = None) -> None:
        """Replace the link whenever it ends; without a link, make the first one."""
        while True:
            if link is not None:
                await link.ended()
                self._report_loss(link, link.reason)
            link = await self._dial.patiently()
            self._use_link(link)
