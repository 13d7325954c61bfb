"""Serves requests to this process, as a NATS micro service.

Programs that speak the micro protocol find the service, for example `nats micro list`.

Source: the micro protocol, ADR-32 of nats-architecture-and-design.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial

import msgspec
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from natsctl.errors import NatsctlError, StoreError, StoreTimeoutError, TooLargeError
from natsctl.jetstream.connection.client import OneTimeClient, RawMessage
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.service.errors import ERROR, error_headers
from natsctl.jetstream.service.intake import RATE, Intake, reply_subject
from natsctl.jetstream.service.messages import EndpointInfo, EndpointStats, Info, Ping, Stats
from natsctl.model.times import time_text
from natsctl.telemetry.logger import get_logger

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


class ServiceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a service and the id of one of its instances."""

    name: str
    version: str
    description: str = ""
    metadata: Mapping[str, str] = {}
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
        self._intake = Intake(self._send_refusal)
        self._subscriptions: dict[str, Subscription] = {}
        self._changed = asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()
        self._warned = False  # about a reply subject that isn't an inbox

    def offer(self, endpoints: Iterable[Endpoint]) -> None:
        """Serve exactly these endpoints; subscriptions follow shortly after."""
        self._endpoints = {endpoint.subject: endpoint for endpoint in endpoints}
        self._changed.set()

    async def refuse(self) -> None:
        """Send rejections until cancelled."""
        await self._intake.run()

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
            receive = partial(self._receive, subject)
            self._subscriptions[subject] = await client.subscribe_raw(subject, receive, queue=group)

    def _receive(self, subscribed: str, requests: Sequence[RawMessage]) -> None:
        for subject, reply, data, *_ in requests:
            self._admit(subscribed, subject, reply, data)

    def _admit(self, subscribed: str, subject: bytes, reply: bytes, data: bytes) -> None:
        """Accept or reject a request; runs for every message of a flood."""
        answer_to = reply_subject(reply, self._connection.inbox_prefix)
        if answer_to is None:
            if reply and not self._warned:
                self._warned = True
                log.warning(
                    "a request isn't answered, because its reply subject isn't an inbox",
                    subject=subscribed,
                    hint="let the inbox prefix of the client begin with _INBOX",
                )
            return
        if not self._intake.admits(subscribed):
            self._intake.refuse(subscribed, answer_to, TOO_MANY)
        elif len(self._working) >= WORKING_MAX:
            reason = f"{WORKING_MAX} requests are being handled"
            self._intake.refuse(subscribed, answer_to, reason)
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
            await self._describe(subject, reply)
        else:
            await self._respond(reply, b"", error_headers(NatsctlError(WITHDRAWN)))

    async def _describe(self, subject: bytes, reply: str) -> None:
        """Answer a request of the protocol itself; ignores unknown ones."""
        answers = {b"PING": self.ping, b"INFO": self.info, b"STATS": self.stats}
        answer = answers.get(subject.split(b".")[1])
        if answer is not None:
            await self._respond(reply, msgspec.json.encode(answer()))

    async def _handle(self, endpoint: Endpoint, reply: str, data: bytes) -> None:
        started = self._clock()
        try:
            answer, headers = await self._result(endpoint, data)
        except asyncio.CancelledError:
            await self._respond(reply, b"", error_headers(NatsctlError(STOPPING)))
            raise
        if self._client is not None and len(answer) > self._client.max_payload:
            answer, headers = (
                b"",
                error_headers(TooLargeError("the answer is larger than NATS accepts")),
            )
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

    async def _send_refusal(self, reply: str, headers: dict[str, str]) -> None:
        await self._respond(reply, b"", headers)

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
        handled, refused = self._handled(endpoint), self._intake.refused[endpoint.subject]
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
        identity = self.identity
        return Ping(
            name=identity.name,
            id=identity.id,
            version=identity.version,
            metadata=dict(identity.metadata),
        )

    def info(self) -> Info:
        """Return the answer to `INFO`: the service and its endpoints."""
        identity = self.identity
        return Info(
            name=identity.name,
            id=identity.id,
            version=identity.version,
            metadata=dict(identity.metadata),
            description=identity.description,
            endpoints=[
                EndpointInfo(
                    endpoint.name, endpoint.subject, endpoint.group, dict(endpoint.metadata)
                )
                for endpoint in self._endpoints.values()
            ],
        )

    def stats(self) -> Stats:
        """Return the answer to `STATS`: the counters of each endpoint."""
        identity = self.identity
        return Stats(
            name=identity.name,
            id=identity.id,
            version=identity.version,
            metadata=dict(identity.metadata),
            started=time_text(self._started, timespec="milliseconds"),
            endpoints=[self._stats_of(endpoint) for endpoint in self._endpoints.values()],
        )


@asynccontextmanager
async def serving(connection: Connection, identity: ServiceIdentity) -> AsyncIterator[Service]:
    """Run a service while the context lasts; it has no endpoints until `Service.offer`."""
    service = Service(connection, identity)
    tasks = [
        asyncio.create_task(service.listen(), name=f"service {identity.name}"),
        asyncio.create_task(service.refuse(), name=f"rejections of service {identity.name}"),
    ]
    try:
        yield service
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await service.close()
