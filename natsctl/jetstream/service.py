"""Serves requests to this process, as a NATS micro service.

Programs that speak the micro protocol find the service, for example `nats micro list`.

Source: the micro protocol, ADR-32 of nats-architecture-and-design.
"""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final

import msgspec
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NatsctlError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
    TooManyRequestsError,
    UsageError,
)
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.reader import OneTimeClient, RawMessage
from natsctl.model.times import time_text
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.logger import get_logger

ERROR: Final = "Nats-Service-Error"
ERROR_CODE: Final = "Nats-Service-Error-Code"
FAILED: Final = "500"

_CODES: tuple[tuple[type[NatsctlError], str], ...] = (
    (UsageError, "400"),
    (InvalidKeyError, "400"),
    (PermissionDeniedError, "403"),
    (NotFoundError, "404"),
    (StoreMissingError, "404"),
    (ConflictError, "409"),
    (TooLargeError, "413"),
    (TooManyRequestsError, "429"),
    (StoreTimeoutError, "504"),
)


def error_headers(error: NatsctlError) -> dict[str, str]:
    """Return the headers that report *error*, its message on one line and without secrets."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
    return {ERROR: " ".join(hidden(str(error)).split()), ERROR_CODE: code}


def error_from(headers: Mapping[str, str] | None) -> NatsctlError | None:
    """Return the error that the headers of an answer report; None if the request succeeded."""
    if not headers or ERROR_CODE not in headers:
        return None
    code = headers[ERROR_CODE]
    kind = next((kind for kind, kind_code in _CODES if kind_code == code), NatsctlError)
    return kind(headers.get(ERROR) or f"the request failed with code {code}")


class _About(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: str
    version: str
    metadata: Mapping[str, str] = {}


class Ping(_About, frozen=True, kw_only=True):
    """The answer to a `PING`: the service runs."""

    type: str = "io.nats.micro.v1.ping_response"


class EndpointInfo(msgspec.Struct, frozen=True):
    """An endpoint of a service; `queue_group` is empty if every instance gets each request."""

    name: str
    subject: str
    queue_group: str = ""
    metadata: Mapping[str, str] = {}


class Info(_About, frozen=True, kw_only=True):
    """The answer to an `INFO`: the description of a service and its endpoints."""

    type: str = "io.nats.micro.v1.info_response"
    description: str = ""
    endpoints: list[EndpointInfo] = []


class EndpointStats(msgspec.Struct, frozen=True):
    """The requests to an endpoint since the start; times are nanoseconds."""

    name: str
    subject: str
    queue_group: str = ""
    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""
    processing_time: int = 0
    average_processing_time: int = 0


class Stats(_About, frozen=True, kw_only=True):
    """The answer to a `STATS`: the requests since `started` (RFC 3339)."""

    type: str = "io.nats.micro.v1.stats_response"
    started: str
    endpoints: list[EndpointStats] = []


RATE = 50.0  # requests per second to one subject
BURST = 50  # requests at once
REFUSALS_MAX = 10_000  # pending rejections; further requests are dropped
RESERVED = "natsctl"  # the first token of subjects that only natsctl itself publishes to
REFUSALS_AT_ONCE = 20  # rejections that are sent before other tasks run

Send = Callable[[str, dict[str, str]], Awaitable[None]]
"""Sends the headers of a rejection to a reply subject."""


class Intake:
    """A rate limit for each subject; `run` sends the rejections."""

    def __init__(self, send: Send) -> None:
        self.refused = Counter[str]()  # rejected requests by subject
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._tokens: dict[str, tuple[float, float]] = {}  # tokens and their time, by subject
        self._refusals: deque[tuple[str, str]] = deque()
        self._pending = asyncio.Event()

    def admits(self, subject: str) -> bool:
        """Count a request and return whether it is within the rate of its subject."""
        now = self._clock()
        tokens, counted = self._tokens.get(subject, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - counted) * RATE)
        admitted = tokens >= 1
        self._tokens[subject] = (tokens - admitted, now)
        return admitted

    def refuse(self, subject: str, reply: str, reason: str) -> None:
        """Reject a request, or drop it if too many rejections are pending."""
        self.refused[subject] += 1
        if len(self._refusals) < REFUSALS_MAX:
            self._refusals.append((reply, reason))
            self._pending.set()

    async def run(self) -> None:
        """Send rejections until cancelled."""
        while True:
            await self._pending.wait()
            for _ in range(min(REFUSALS_AT_ONCE, len(self._refusals))):
                reply, reason = self._refusals.popleft()
                await self._send(reply, _headers(reason))
            if not self._refusals:
                self._pending.clear()
            await asyncio.sleep(0)


@cache
def _headers(reason: str) -> dict[str, str]:
    return error_headers(TooManyRequestsError(f"{reason}: try again later"))


def reply_subject(reply: bytes, own_inboxes: str) -> str | None:
    """Return the inbox to answer to; None if the subject isn't an inbox, or isn't safe.

    The sender of a request chooses the reply subject, and the answer is published with the
    permissions of this process. So it must not become a write to a bucket (`$KV.…`), a request to
    the server (`$JS.API.…`), or a message of natsctl's own streams: enough answers below
    `natsctl.events.` would push all events out. Inboxes begin with `_INBOX`, with *own_inboxes*,
    or with `_R_.` if the request came from another account.
    """
    if not reply.isascii():
        return None
    text = reply.decode()
    tokens = text.split(".")
    if not text.startswith(("_INBOX", "_R_.", f"{own_inboxes}.")):
        return None
    legal = text.isprintable() and " " not in text and tokens[0] != RESERVED
    return text if legal and not {"", "*", ">"} & set(tokens) else None


log = get_logger(__name__)

ROOT = "$SRV"
LIMIT_S = 30.0  # the time limit of a handler
WORKING_MAX = 16  # requests that are handled at once; more are rejected
TOO_MANY = f"there are more than {RATE:g} requests a second"
STOPPING = "the daemon stopped during the request, and its outcome is unknown: send it again"
WITHDRAWN = "the daemon no longer leads this controller: send the request again"
AGAIN_S = 0.5  # between two attempts to subscribe

Handler = Callable[[bytes], Awaitable[bytes]]
"""Takes the data of a request and returns the answer; a `NatsctlError` is sent to the client."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A subject and the handler of its requests; the subject identifies the endpoint.

    If several processes name the same `group`, one of them gets each request. Without a group each
    process gets every request.
    """

    name: str
    subject: str
    handler: Handler
    group: str = ""
    metadata: Mapping[str, str] = {}


class ServiceIdentity(_About, frozen=True, kw_only=True):
    """The name of a service and the id of one of its instances."""

    description: str = ""
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


def control_subjects(name: str, instance: str) -> tuple[str, str, str]:
    """Return the subjects of the protocol's requests to a service and to one instance of it."""
    return f"{ROOT}.*", f"{ROOT}.*.{name}", f"{ROOT}.*.{name}.{instance}"


class Service:
    """A micro service that serves while `serving` lasts, on every client of the connection.

    *Guarantees.* While the connection stands, every request is answered within `LIMIT_S`, with a
    result or with an error. The service handles at most `WORKING_MAX` requests at once, and at most
    `RATE` per second of each subject. It rejects further requests, and drops them if thousands of
    rejections are pending. It answers to inboxes only. Requests are counted since the start, across
    reconnects.
    """

    def __init__(self, connection: Connection, identity: ServiceIdentity) -> None:
        self.identity = identity
        self._connection = connection
        self._started = datetime.now(UTC)
        self._clock = asyncio.get_running_loop().time
        self._endpoints: dict[str, Endpoint] = {}
        self._stats: dict[str, EndpointStats] = {}
        self._client: OneTimeClient | None = None  # the client that has the subscriptions
        self.intake = Intake(lambda reply, headers: self._respond(reply, b"", headers))
        self._subscriptions: dict[str, Subscription] = {}
        self._changed = asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()
        self._warned = False  # about a reply subject that isn't an inbox

    def offer(self, endpoints: Iterable[Endpoint]) -> None:
        """Serve exactly these endpoints; subscriptions follow shortly after."""
        self._endpoints = {endpoint.subject: endpoint for endpoint in endpoints}
        self._changed.set()

    async def listen(self) -> None:
        """Subscribe to the subjects of all endpoints, on every new client, until cancelled.

        Returns if the connection is closed.
        """
        with self._connection.on_lost(lambda _: self._changed.set()):
            while True:
                self._changed.clear()
                try:
                    await self._connection.wait_connected()
                except StoreError:
                    return  # this process closed the connection
                try:
                    await self._subscribe(self._connection.client)
                except (NatsError, StoreError) as error:
                    log.debug("cannot subscribe to all endpoints", wait_s=AGAIN_S, error=error)
                    await asyncio.sleep(AGAIN_S)
                else:
                    await self._changed.wait()

    async def close(self) -> None:
        """End all subscriptions, and answer the requests in progress with an error."""
        for subscription in self._subscriptions.values():
            with suppress(NatsError):
                await subscription.unsubscribe()
        for task in self._working:
            task.cancel()
        if self._working:
            await asyncio.wait(self._working)

    # ---- subscriptions

    async def _subscribe(self, client: OneTimeClient) -> None:
        """Make the subscriptions of the client equal to those that the endpoints need."""
        if client is not self._client:
            self._client, self._subscriptions = client, {}
        needed = {*control_subjects(self.identity.name, self.identity.id), *self._endpoints}
        for subject in self._subscriptions.keys() - needed:
            await self._subscriptions.pop(subject).unsubscribe()
        for subject in sorted(needed - self._subscriptions.keys()):
            endpoint = self._endpoints.get(subject)
            group = "" if endpoint is None else endpoint.group
            receive = partial(self._admit, subject)
            self._subscriptions[subject] = await client.subscribe_raw(subject, receive, queue=group)

    def _admit(self, subscribed: str, requests: Sequence[RawMessage]) -> None:
        """Accept or reject requests; runs for every message of a flood."""
        for subject, reply, data, *_ in requests:
            answer_to = reply_subject(reply, self._connection.inbox_prefix)
            if answer_to is None:
                if reply and not self._warned:
                    self._warned = True
                    log.warning(
                        "a request isn't answered, because its reply subject isn't an inbox",
                        subject=subscribed,
                        hint="let the inbox prefix of the client begin with _INBOX",
                    )
            elif not self.intake.admits(subscribed):
                self.intake.refuse(subscribed, answer_to, TOO_MANY)
            elif len(self._working) >= WORKING_MAX:
                reason = f"{WORKING_MAX} requests are being handled"
                self.intake.refuse(subscribed, answer_to, reason)
            else:
                work = self._answer(subscribed, subject, answer_to, data)
                task = asyncio.create_task(work, name=subscribed)
                self._working.add(task)
                task.add_done_callback(self._working.discard)

    # ---- answers

    async def _answer(self, subscribed: str, subject: bytes, reply: str, data: bytes) -> None:
        endpoint = self._endpoints.get(subscribed)
        if endpoint is not None:
            await self._handle(endpoint, reply, data)
        elif subscribed.startswith(f"{ROOT}."):
            answers = {b"PING": self.ping, b"INFO": self.info, b"STATS": self.stats}
            answer = answers.get(subject.split(b".")[1])
            if answer is not None:  # else an unknown request of the protocol
                await self._respond(reply, msgspec.json.encode(answer()))
        else:
            await self._respond(reply, b"", error_headers(NatsctlError(WITHDRAWN)))

    async def _handle(self, endpoint: Endpoint, reply: str, data: bytes) -> None:
        started = self._clock()
        try:
            answer, headers = await self._result(endpoint, data)
        except asyncio.CancelledError:
            await self._respond(reply, b"", error_headers(NatsctlError(STOPPING)))
            raise
        if self._client is not None and len(answer) > self._client.max_payload:
            answer = b""
            headers = error_headers(TooLargeError("the answer is larger than NATS accepts"))
        self._count(endpoint, self._clock() - started, headers.get(ERROR, ""))
        await self._respond(reply, answer, headers)

    async def _result(self, endpoint: Endpoint, data: bytes) -> tuple[bytes, dict[str, str]]:
        """Return the data and headers of the answer."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await endpoint.handler(data), {}
        except TimeoutError:
            return b"", error_headers(
                StoreTimeoutError(f"the request took longer than {LIMIT_S:g} s")
            )
        except NatsctlError as error:
            return b"", error_headers(error)
        except Exception:
            log.exception("request failed", subject=endpoint.subject)
            return b"", error_headers(NatsctlError("the request failed: see the daemon's log"))

    async def _respond(
        self, reply: str, answer: bytes, headers: dict[str, str] | None = None
    ) -> None:
        with suppress(NatsError, StoreError):  # without a connection the client times out
            await self._connection.client.publish(reply, answer, headers=headers or None)

    # ---- counters

    def _count(self, endpoint: Endpoint, took_s: float, error: str) -> None:
        before = self._handled(endpoint)
        count = before.num_requests + 1
        total_ns = before.processing_time + int(took_s * 1e9)
        self._stats[endpoint.subject] = msgspec.structs.replace(
            before,
            num_requests=count,
            num_errors=before.num_errors + bool(error),
            last_error=error or before.last_error,
            processing_time=total_ns,
            average_processing_time=total_ns // count,
        )

    def _handled(self, endpoint: Endpoint) -> EndpointStats:
        """Return the counters of requests that were not rejected."""
        fresh = EndpointStats(endpoint.name, endpoint.subject, endpoint.group)
        return self._stats.get(endpoint.subject, fresh)

    def _stats_of(self, endpoint: Endpoint) -> EndpointStats:
        handled, refused = self._handled(endpoint), self.intake.refused[endpoint.subject]
        if not refused:
            return handled
        return msgspec.structs.replace(
            handled,
            num_requests=handled.num_requests + refused,
            num_errors=handled.num_errors + refused,
            last_error=handled.last_error or f"429: {TOO_MANY}",
        )

    # ---- messages of the protocol

    def ping(self) -> Ping:
        """Return the answer to `PING`."""
        return Ping(**self._about)

    def info(self) -> Info:
        """Return the answer to `INFO`: the service and its endpoints."""
        endpoints = [
            EndpointInfo(endpoint.name, endpoint.subject, endpoint.group, endpoint.metadata)
            for endpoint in self._endpoints.values()
        ]
        return Info(**self._about, description=self.identity.description, endpoints=endpoints)

    def stats(self) -> Stats:
        """Return the answer to `STATS`: the counters of each endpoint."""
        started = time_text(self._started, timespec="milliseconds")
        endpoints = [self._stats_of(endpoint) for endpoint in self._endpoints.values()]
        return Stats(**self._about, started=started, endpoints=endpoints)

    @property
    def _about(self) -> dict[str, Any]:
        return {name: getattr(self.identity, name) for name in _About.__struct_fields__}


@asynccontextmanager
async def serving(connection: Connection, identity: ServiceIdentity) -> AsyncIterator[Service]:
    """Run a service while the context lasts; it has no endpoints until `Service.offer`.

    It has a connection of its own, so that a flood of large requests delays neither the answers
    that this process waits for nor its leases.
    """
    own = connection.apart()
    service = Service(own, identity)
    tasks = [
        asyncio.create_task(service.listen(), name=f"service {identity.name}"),
        asyncio.create_task(service.intake.run(), name=f"rejections of service {identity.name}"),
    ]
    try:
        yield service
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await service.close()
        await own.close()
