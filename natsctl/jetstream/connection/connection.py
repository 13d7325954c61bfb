"""A connection to NATS that says how it is.

It reconnects by itself, for ever, and never quietly: whoever builds on it is told of every loss
and every return (`on_lost`), what was asked and not answered fails at once, and nothing that
failed is sent later. Each time it comes back it does so with a new nats-py client.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
from nats.aio.msg import Msg

from natsctl.errors import StoreError
from natsctl.jetstream.connection import api_errors as answers
from natsctl.jetstream.connection.client import OneTimeClient
from natsctl.jetstream.connection.dial import Dial
from natsctl.jetstream.connection.link import Link
from natsctl.jetstream.connection.nats_contexts import with_context
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.repeats import Repeats
from natsctl.jetstream.connection.requests import NextAnswer
from natsctl.jetstream.connection.servers import secrets
from natsctl.jetstream.connection.spans import api_span
from natsctl.telemetry.hiding import Secrets

log = logging.getLogger(__name__)

PAYLOAD_MAX = 1024 * 1024
FLUSH_S = 2.0  # how long a close waits for what was published

OnLost = Callable[[StoreError], None]


class ConnectionState(msgspec.Struct, frozen=True):
    """How a connection is, for health checks and people; no secret in it.

    Attributes:
        connected: whether it stands.
        server: the address of the server, the last one where it does not stand.
        losses: how often it was lost so far.
        since_s: for how many seconds it has been so.
        errors: how many errors were met in the background.
        last_error: the newest of them, or why it was lost; None where all was well.
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
    """Connect to NATS, for as long as the context lasts; see `Connection.open`.

    Meanwhile no text shows the secrets in the options.
    """
    options = _resolved(options)
    with Secrets(secrets(options)):
        connection = await Connection.open(options, wait=wait)
        try:
            yield connection
        finally:
            await connection.close()


class Connection:
    """A connection to NATS; made by `connect`, or by `open` and ended by `close`.

    *Guarantees.* A request fails at once with `StoreError` while there is no connection, and is
    then never sent. A request under way when the connection breaks fails at once with
    `StoreTimeoutError`. A server that is silent, stopped or cut off is noticed after
    `silence_s`, a closed connection at once. Reconnecting starts at once and never ends.

    *Assumes* that every use is in the event loop in which it was opened.
    """

    def __init__(self, options: NatsOptions) -> None:
        self._options = options
        self._clock = asyncio.get_running_loop().time
        self._dial = Dial(options, report=self._report, progress=self._waiting)
        self._repeats = Repeats(self._clock)
        self._link: Link | None = None
        self._standing = asyncio.Event()
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
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
        """Connect to the first of the servers that answers.

        Args:
            options: how, or only a URL (or several, comma-separated); None is the default server.
            wait: keep trying, and say so in the log, for as long as no server can be reached.

        Raises:
            UsageError: an option, a context or a file is wrong.
            ConnectError: no server could be reached within `connect_timeout_s`, or one refused
                us, which waiting does not change. It names each server and what to do.
        """
        connection = cls(_resolved(options))
        dial = connection._dial
        link = await (dial.patiently(refusals_final=True) if wait else dial.once())
        connection._found(link)
        connection._keeper = asyncio.create_task(connection._keep(link), name="natsctl-connection")
        return connection

    async def close(self) -> None:
        """End the connection, in 4 s at most: what was published has reached the server.

        Requests under way fail, `on_lost` is told, nothing is left running.
        """
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        link = self._link
        if link is not None:
            await link.flush(FLUSH_S)
            self._lost(link, "it was closed")
        self._standing.set()
        if self._endings:
            await asyncio.wait(self._endings)

    @property
    def client(self) -> OneTimeClient:
        """The nats-py client of the connection as it stands; raises `StoreError` where it does not.

        Ask for it again after every `on_lost`: each return brings another client, and what was
        subscribed on the one before is gone.
        """
        return self._current().client

    @property
    def api_prefix(self) -> str:
        """The subject prefix of the JetStream API, without a dot at its end."""
        return self._options.prefix

    @property
    def publish_prefix(self) -> str:
        """What goes before a `$KV.…` subject: empty, or the API's prefix of a domain or import."""
        return "" if self.api_prefix == "$JS.API" else f"{self.api_prefix}."

    @property
    def marker_ttl_s(self) -> float:
        """How long a delete marker stays that may expire; 0 is for ever."""
        return self._options.marker_ttl_s

    @property
    def payload_max(self) -> int:
        """How many bytes a message may have; a server's default where none is connected."""
        return PAYLOAD_MAX if self._link is None else self._link.client.max_payload

    @property
    def connected(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._link is not None and self._link.alive

    @property
    def losses(self) -> int:
        """How often the connection was lost so far."""
        return self._state.losses

    @property
    def kept(self) -> bool:
        """Whether it comes back by itself when it is lost: not at its end, nor by our own fault."""
        return self._keeper is not None and not self._keeper.done()

    def state(self) -> ConnectionState:
        """Return how the connection is now."""
        return msgspec.structs.replace(
            self._state, connected=self.connected, since_s=self._clock() - self._since
        )

    async def wait_connected(self) -> None:
        """Wait until the connection stands; raises `StoreError` once it was closed for good."""
        self._look()
        await self._standing.wait()
        if self._closed:
            raise StoreError("the NATS connection was closed")

    @contextmanager
    def on_lost(self, callback: OnLost) -> Iterator[None]:
        """Call *callback* at every loss and every return of the connection, in this context.

        It is called at once, with what happened, in the event loop, and must not block. At a
        return too, because what was built on the connection before is gone.
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
        """Send a request and return the answer, after `request_timeout_s` at most by default.

        Raises:
            StoreTimeoutError: no answer came, or the connection was lost before it did; whether
                the request took effect is unknown.
            PermissionDeniedError: the server does not let us send it, or be answered.
            TooLargeError: the payload is larger than the server takes.
            StoreError: it was not sent, for there is no connection, or nobody answers on the
                subject: then nats-py's `NoRespondersError` is its cause.
        """
        if timeout_s is None:
            timeout_s = self._options.request_timeout_s
        return await self._current().requests.ask(subject, payload, headers, timeout_s)

    @asynccontextmanager
    async def asking(self, subject: str, payload: bytes) -> AsyncIterator[NextAnswer]:
        """Send a request to all who listen, and give what waits for the next answer to it.

        There is no deadline: whoever waits sets one. Waiting raises as `request` does, except for
        an answer that does not come.
        """
        async with self._current().requests.asking(subject, payload) as answer:
            yield answer

    async def may_hear(self, subject: str) -> bool:
        """Find out whether this user may subscribe to *subject*, by listening for a moment.

        Takes nothing from whoever listens there. Raises `StoreTimeoutError` where the server does
        not say within `request_timeout_s`, `StoreError` while there is no connection.
        """
        return await self._current().requests.may_hear(subject, self._options.request_timeout_s)

    async def api(
        self,
        endpoint: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Ask the JetStream API, `STREAM.INFO.x` for example, and return its JSON answer.

        Raises as `request` and `natsctl.jetstream.connection.api_errors.result` do.
        """
        payload = b"" if body is None else msgspec.json.encode(body)
        subject = f"{self.api_prefix}.{endpoint}"
        with api_span(endpoint):
            reply = await self.request(subject, payload, timeout_s=timeout_s)
            return answers.result(reply.data, endpoint)

    @staticmethod
    def acknowledged(reply: Msg) -> int:
        """Return the revision at which a stream took a message; raises as `api` does."""
        return answers.revision(reply.data)

    def _current(self) -> Link:
        self._look()
        if self._closed:
            raise StoreError("the NATS connection was closed")
        if self._link is None:
            raise StoreError(f"not connected to NATS at {self._dial}: {self._state.last_error}")
        return self._link

    def _look(self) -> None:
        """Believe what nats-py knows already, before it tells."""
        link = self._link
        if link is not None and not link.alive:
            self._lost(link, link.reason)

    def _found(self, link: Link) -> None:
        self._link = link
        self._since = self._clock()
        self._note(server=link.server.address)
        self._standing.set()
        log.info("connected to %s", link.server.address)
        if self._state.losses:
            address = link.server.address
            self._tell(StoreError(f"the connection to NATS is another one, to {address}"))
        else:
            self._note(last_error=None)

    def _lost(self, link: Link, reason: str) -> None:
        if self._link is not link:
            return
        self._link = None
        self._standing.clear()
        link.requests.lost(reason)
        ending = asyncio.create_task(link.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        self._tell(StoreError(f"the NATS connection to {link.server.address} is lost: {reason}"))
        if not self._closed:
            self._since = self._clock()
            self._note(losses=self._state.losses + 1, last_error=reason)
            log.warning("lost the connection to %s: %s", link.server.address, reason)

    def _tell(self, error: StoreError) -> None:
        for callback in list(self._listeners.values()):
            try:
                callback(error)
            except Exception:
                log.exception("a callback of a lost connection failed")

    def _note(self, **changes: object) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)

    def _report(self, error: Exception) -> None:
        """Count what nats-py meets in the background, and log it once in a while."""
        if self._link is None:
            return  # of an attempt to connect, which is told as a whole
        message = str(error) or type(error).__name__
        self._note(errors=self._state.errors + 1, last_error=message)
        if self._repeats.due(message):
            log.warning("NATS connection: %s", message)

    def _waiting(self, message: str) -> None:
        self._note(last_error=message)
        if self._repeats.due(message):
            log.warning("no connection to NATS yet: %s", message)

    async def _keep(self, link: Link) -> None:
        """Replace the link whenever it ends."""
        while True:
            await link.ended()
            self._lost(link, link.reason)
            link = await self._dial.patiently()
            self._found(link)


def _resolved(options: NatsOptions | str | None) -> NatsOptions:
    if isinstance(options, str):
        options = NatsOptions(servers=(options,))
    options = with_context(options or NatsOptions())
    options.check()
    return options
