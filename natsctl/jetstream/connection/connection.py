"""A connection to NATS that reconnects forever and reports every loss.

A request without an answer fails as soon as the connection is lost, and is never sent later. Every
reconnect makes a new nats-py client, so subscriptions end with the connection that carried them;
`Connection.on_lost` reports when to subscribe again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
from nats.aio.msg import Msg

from natsctl.errors import StoreError
from natsctl.jetstream.connection import api_errors as answers
from natsctl.jetstream.connection.client import OneTimeClient
from natsctl.jetstream.connection.dial import Dial
from natsctl.jetstream.connection.link import ServerLink
from natsctl.jetstream.connection.nats_contexts import with_context
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.requests import NextAnswer
from natsctl.jetstream.connection.servers import secrets
from natsctl.jetstream.connection.spans import api_span
from natsctl.telemetry.hiding import Secrets
from natsctl.telemetry.logger import get_logger
from natsctl.telemetry.repeats import Repeats

log = get_logger(__name__)

PAYLOAD_MAX = 1024 * 1024
FLUSH_S = 2.0  # how long `close` waits until the server has received published messages

OnLost = Callable[[StoreError], None]


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
    """Connect to NATS for the duration of the context; see `Connection.open`.

    Within the context, logs and errors mask the secrets in the options.
    """
    options = _checked(options)
    with Secrets(secrets(options)):
        connection = await Connection.open(options, wait=wait)
        try:
            yield connection
        finally:
            await connection.close()


class Connection:
    """A connection to NATS; made by `connect`, or by `open` and ended by `close`.

    *Guarantees.* Without a connection, a request fails at once with `StoreError` and is never sent.
    If the connection is lost, pending requests fail at once with `StoreTimeoutError`. The
    connection counts as lost as soon as it is closed, or after `silence_s` without data from the
    server. The connection then reconnects at once, and retries until it succeeds.

    *Assumes* that all calls are made in the event loop that opened the connection.
    """

    def __init__(self, options: NatsOptions, *, dial: Dial | None = None) -> None:
        self._options = options
        self._clock = asyncio.get_running_loop().time
        self._dial = dial or Dial(options, report=self._report, progress=self._report_progress)
        self._carries_requests = dial is None
        self._watches: Connection | None = None
        self._repeats = Repeats(self._clock)
        self._link: ServerLink | None = None
        self._up = asyncio.Event()
        self._closed = False
        self._reconnecting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._listeners: dict[object, OnLost] = {}
        self._since = self._clock()
        self._state = ConnectionState(
            connected=False,
            server=str(self._dial),
            losses=0,
            since_s=0,
            errors=0,
            last_error=None,
        )

    @classmethod
    async def open(
        cls, options: NatsOptions | str | None = None, *, wait: bool = False
    ) -> "Connection":
        """Connect to the first server that answers.

        Args:
            options: options, or a URL (or several, comma-separated); None is the default server.
            wait: if no server is reachable, log that and retry until one is.

        Raises:
            UsageError: an option, a context or a file is malformed.
            ConnectError: no server answered within `connect_timeout_s`, or a server rejected the
                credentials. The message names each server and what to do.
        """
        connection = cls(_checked(options))
        dial = connection._dial
        link = await (dial.patiently(refusals_final=True) if wait else dial.once())
        connection._use_link(link)
        connection._reconnecting = asyncio.create_task(
            connection._reconnect(link), name="natsctl-connection"
        )
        return connection

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
            await link.flush(FLUSH_S)
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
            dial = Dial(self._options, report=self._report, progress=self._report_progress)
            self._watches = Connection(self._options, dial=dial)
        return self._watches or self

    @property
    def inbox_prefix(self) -> str:
        """The first tokens of the subjects that receive answers to this process."""
        return self._options.inbox_prefix

    @property
    def api_prefix(self) -> str:
        """The subject prefix of the JetStream API, without a trailing dot."""
        return self._options.prefix

    @property
    def publish_prefix(self) -> str:
        """The prefix of `$KV.…` subjects: empty, or the API prefix of a domain or import."""
        return "" if self.api_prefix == "$JS.API" else f"{self.api_prefix}."

    @property
    def stream_prefix(self) -> str:
        """The prefix of the subjects of other streams.

        A domain has a prefix for its API and for `$KV.…` only. Other subjects reach its streams as
        they are.
        """
        return "" if self._options.domain else self.publish_prefix

    @property
    def marker_ttl_s(self) -> float:
        """The time to live in seconds of delete markers that may expire; 0 if none expires."""
        return self._options.marker_ttl_s

    @property
    def request_timeout_s(self) -> float:
        """The time in seconds that a request waits for its answer by default."""
        return self._options.request_timeout_s

    @property
    def payload_max(self) -> int:
        """The maximum size of a message in bytes; the default of servers if not connected."""
        return PAYLOAD_MAX if self._link is None else self._link.client.max_payload

    @property
    def connected(self) -> bool:
        """True if the connection is up, as far as the client knows."""
        return self._link is not None and self._link.alive

    @property
    def losses(self) -> int:
        """The number of times that the connection was lost."""
        return self._state.losses

    @property
    def reconnects(self) -> bool:
        """True until `close`; False also if a task that reconnects has failed."""
        has_ended = self._reconnecting is not None and self._reconnecting.done()
        return not has_ended and (self._watches is None or self._watches.reconnects)

    def state(self) -> ConnectionState:
        """Return the present state."""
        return msgspec.structs.replace(
            self._state, connected=self.connected, since_s=self._clock() - self._since
        )

    async def wait_connected(self, *, forever: bool = True) -> None:
        """Wait until the connection is up; raises `StoreError` after `close`.

        Unless *forever*, raises `StoreError` after `connect_timeout_s`.
        """
        self._notice_loss()
        if self._reconnecting is None and not self._closed:
            self._reconnecting = asyncio.create_task(self._reconnect(), name="natsctl-watches")
        try:
            async with asyncio.timeout(None if forever else self._options.connect_timeout_s):
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
        token = object()
        self._listeners[token] = callback
        try:
            yield
        finally:
            del self._listeners[token]

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
            timeout_s = self._options.request_timeout_s
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
        return await requests.may_subscribe(subject, self._options.request_timeout_s)

    async def api(
        self,
        endpoint: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Call the JetStream API, for example `STREAM.INFO.x`, and return its JSON answer.

        Raises the errors of `request` and of `natsctl.jetstream.connection.api_errors.result`.
        """
        payload = b"" if body is None else msgspec.json.encode(body)
        subject = f"{self.api_prefix}.{endpoint}"
        with api_span(endpoint):
            reply = await self.request(subject, payload, timeout_s=timeout_s)
            return answers.result(reply.data, endpoint)

    @staticmethod
    def acknowledged(reply: Msg) -> int:
        """Return the revision at which a stream stored a message; raises the errors of `api`."""
        return answers.revision(reply.data)

    def _current(self) -> ServerLink:
        self._notice_loss()
        if self._closed:
            raise StoreError("the NATS connection was closed")
        if self._link is None:
            raise self._not_connected()
        return self._link

    def _not_connected(self) -> StoreError:
        reason = self._state.last_error or "no answer in time"
        return StoreError(f"not connected to NATS at {self._dial}: {reason}")

    def _notice_loss(self) -> None:
        """Notice a loss that nats-py has not reported yet."""
        link = self._link
        if link is not None and not link.alive:
            self._report_loss(link, link.reason)

    def _use_link(self, link: ServerLink) -> None:
        self._link = link
        self._since = self._clock()
        self._set_state(server=link.server.address)
        self._up.set()
        if self._carries_requests:
            log.info("connected to NATS", server=link.server.address)
        if self._state.losses:
            address = link.server.address
            self._notify(StoreError(f"reconnected to NATS at {address}"))
        else:
            self._set_state(last_error=None)

    def _report_loss(self, link: ServerLink, reason: str) -> None:
        if self._link is not link:
            return
        self._link = None
        self._up.clear()
        link.requests.lost(reason)
        ending = asyncio.create_task(link.end())
        self._closing.add(ending)
        ending.add_done_callback(self._closing.discard)
        self._notify(StoreError(f"the NATS connection to {link.server.address} is lost: {reason}"))
        if not self._closed:
            self._since = self._clock()
            self._set_state(losses=self._state.losses + 1, last_error=reason)
            if self._carries_requests:
                log.warning("lost the connection to NATS", server=link.server.address, error=reason)

    def _notify(self, error: StoreError) -> None:
        for callback in list(self._listeners.values()):
            try:
                callback(error)
            except Exception:
                log.exception("an on_lost callback failed")

    def _set_state(self, **changes: object) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)

    def _report(self, error: Exception) -> None:
        """Count a background error of nats-py, and log it unless it was logged just now."""
        if self._link is None:
            return  # part of an attempt to connect, which is reported as a whole
        message = str(error) or type(error).__name__
        self._set_state(errors=self._state.errors + 1, last_error=message)
        if self._repeats.due(message):
            log.warning("error of the NATS connection", error=message)

    def _report_progress(self, message: str) -> None:
        self._set_state(last_error=message)
        if self._repeats.due(message):
            log.warning("no connection to NATS yet", error=message)

    async def _reconnect(self, link: ServerLink | None = None) -> None:
        """Replace the link whenever it ends; without a link, make the first one."""
        while True:
            if link is not None:
                await link.ended()
                self._report_loss(link, link.reason)
            link = await self._dial.patiently()
            self._use_link(link)


def _checked(options: NatsOptions | str | None) -> NatsOptions:
    if isinstance(options, str):
        options = NatsOptions(servers=(options,))
    options = with_context(options or NatsOptions())
    options.check()
    return options
