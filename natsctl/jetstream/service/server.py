"""A NATS micro service: what programs and people can ask of this process.

Whoever speaks the micro protocol finds it: `nats micro list` does, and so does the command line.

Source: the micro protocol, ADR-32 of nats-architecture-and-design.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial

import msgspec
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from natsctl.errors import NatsctlError, StoreError, StoreTimeoutError, TooLargeError
from natsctl.jetstream.connection.client import OneTimeClient
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.service.errors import ERROR, refusal
from natsctl.jetstream.service.intake import RATE, Intake, reply_subject
from natsctl.jetstream.service.messages import EndpointInfo, EndpointStats, Info, Ping, Stats

log = logging.getLogger(__name__)

ROOT = "$SRV"
LIMIT_S = 30.0  # how long an endpoint may take to answer
WORKING_MAX = 16  # requests that are worked on at once; more are refused
TOO_MANY = f"there are more than {RATE:g} requests a second"
STOPPING = "it was told to stop meanwhile, and whether it was done is unknown: ask again"
AGAIN_S = 0.5  # until it is tried again to listen, where that failed

Handler = Callable[[bytes], Awaitable[bytes]]
"""Takes what was asked and returns the answer; a `NatsctlError` is told to whoever asked."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be asked. `subject` tells it from all others.

    Of the processes that name the same `group`, one is asked; without a group all are.
    """

    name: str
    subject: str
    handler: Handler
    group: str = ""
    metadata: Mapping[str, str] = {}


class ServiceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which service this is, and which of those that run: `id` is of this process alone."""

    name: str
    version: str
    description: str = ""
    metadata: Mapping[str, str] = {}
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


def control_subjects(name: str, own: str) -> tuple[str, str, str]:
    """Return where the protocol asks a service of this name, whose own id is *own*."""
    return f"{ROOT}.*", f"{ROOT}.*.{name}", f"{ROOT}.*.{name}.{own}"


class Service:
    """Answers for as long as `serving` lasts, whatever client the connection has just then.

    *Guarantees.* Every request is answered, if the connection stands: with a result, or with the
    reason why there is none, after `LIMIT_S` at most. At most `WORKING_MAX` are worked on at once,
    and at most `RATE` per second of each subject; others are refused, and dropped if there are
    thousands of them. Requests are counted since the start, over reconnects.
    """

    def __init__(self, connection: Connection, identity: ServiceIdentity) -> None:
        self.identity = identity
        self._connection = connection
        self._started = datetime.now(UTC)
        self._clock = asyncio.get_running_loop().time
        self._endpoints: dict[str, Endpoint] = {}
        self._stats: dict[str, EndpointStats] = {}
        self._client: OneTimeClient | None = None  # who listens for us
        self._intake = Intake(self._send_refusal)
        self._listening: dict[str, Subscription] = {}
        self._changed = asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()

    def offer(self, endpoints: Iterable[Endpoint]) -> None:
        """Have exactly these be asked, from soon on."""
        self._endpoints = {endpoint.subject: endpoint for endpoint in endpoints}
        self._changed.set()

    async def refuse(self) -> None:
        """Send refusals until cancelled."""
        await self._intake.run()

    async def listen(self) -> None:
        """Listen for what is offered, anew at every return of the connection, until it closes."""
        with self._connection.on_lost(lambda _: self._changed.set()):
            while True:
                self._changed.clear()
                try:
                    await self._connection.wait_connected()
                except StoreError:
                    return  # closed for good
                try:
                    await self._subscribe(self._connection.client)
                except (NatsError, StoreError) as error:
                    log.debug("not everything can be asked yet: %s", error)
                    await asyncio.sleep(AGAIN_S)
                else:
                    await self._changed.wait()

    async def close(self) -> None:
        """Listen no more, and tell who waits for an answer that there will be none."""
        for subscription in self._listening.values():
            with suppress(NatsError):
                await subscription.unsubscribe()
        for task in self._working:
            task.cancel()
        if self._working:
            await asyncio.wait(self._working)

    # ---- who listens

    async def _subscribe(self, client: OneTimeClient) -> None:
        """Make what this client listens to what is wanted."""
        if client is not self._client:
            self._client, self._listening = client, {}
        wanted = {*control_subjects(self.identity.name, self.identity.id), *self._endpoints}
        for subject in self._listening.keys() - wanted:
            await self._listening.pop(subject).unsubscribe()
        for subject in sorted(wanted - self._listening.keys()):
            endpoint = self._endpoints.get(subject)
            group = "" if endpoint is None else endpoint.group
            heard = partial(self._receive, subject)
            self._listening[subject] = await client.subscribe_raw(subject, heard, queue=group)

    def _receive(
        self, listening: str, subject: bytes, reply: bytes, data: bytes, _: bytes | None
    ) -> None:
        """Take a request in, or refuse it; this is called for every message of a flood."""
        answer_to = reply_subject(reply)
        if answer_to is None:
            return
        if not self._intake.admits(listening):
            self._intake.refuse(listening, answer_to, TOO_MANY)
        elif len(self._working) >= WORKING_MAX:
            why = f"{WORKING_MAX} requests are being worked on"
            self._intake.refuse(listening, answer_to, why)
        else:
            work = self._answer(listening, subject, answer_to, data)
            task = asyncio.create_task(work, name=listening)
            self._working.add(task)
            task.add_done_callback(self._working.discard)

    async def _answer(self, listening: str, subject: bytes, reply: str, data: bytes) -> None:
        endpoint = self._endpoints.get(listening)
        if endpoint is not None:
            await self._work(endpoint, reply, data)
        elif listening.startswith(f"{ROOT}."):
            await self._describe(subject, reply)
        else:
            await self._respond(reply, b"", refusal(NatsctlError("it stands by now: ask again")))

    async def _describe(self, subject: bytes, reply: str) -> None:
        """Answer what the protocol asks of every service."""
        answers = {b"PING": self.ping, b"INFO": self.info, b"STATS": self.stats}
        answer = answers.get(subject.split(b".")[1])
        if answer is not None:
            await self._respond(reply, msgspec.json.encode(answer()))

    # ---- what is answered

    async def _work(self, endpoint: Endpoint, reply: str, data: bytes) -> None:
        begun = self._clock()
        try:
            answer, headers = await self._answered(endpoint, data)
        except asyncio.CancelledError:
            await self._respond(reply, b"", refusal(NatsctlError(STOPPING)))
            raise
        if self._too_large(answer):
            answer, headers = b"", refusal(TooLargeError("the answer is larger than NATS takes"))
        self._count(endpoint, self._clock() - begun, headers.get(ERROR, ""))
        await self._respond(reply, answer, headers)

    async def _answered(self, endpoint: Endpoint, data: bytes) -> tuple[bytes, dict[str, str]]:
        try:
            async with asyncio.timeout(LIMIT_S):
                return await endpoint.handler(data), {}
        except TimeoutError:
            return b"", refusal(StoreTimeoutError(f"it was not done within {LIMIT_S:g} s"))
        except NatsctlError as error:
            return b"", refusal(error)
        except Exception:
            log.exception("%s failed", endpoint.subject)
            return b"", refusal(NatsctlError("it failed, and the daemon's log says why"))

    def _too_large(self, answer: bytes) -> bool:
        return self._client is not None and len(answer) > self._client.max_payload

    async def _respond(
        self, reply: str, answer: bytes, headers: dict[str, str] | None = None
    ) -> None:
        with suppress(NatsError, StoreError):  # nobody can be told without a connection
            await self._connection.client.publish(reply, answer, headers=headers or None)

    async def _send_refusal(self, reply: str, headers: dict[str, str]) -> None:
        await self._respond(reply, b"", headers)

    def _count(self, endpoint: Endpoint, took_s: float, error: str) -> None:
        before = self._worked(endpoint)
        count = before.num_requests + 1
        spent = before.processing_time + int(took_s * 1e9)
        self._stats[endpoint.subject] = msgspec.structs.replace(
            before,
            num_requests=count,
            num_errors=before.num_errors + bool(error),
            last_error=error or before.last_error,
            processing_time=spent,
            average_processing_time=spent // count,
        )

    def _worked(self, endpoint: Endpoint) -> EndpointStats:
        """Return what is counted of the requests that were worked on."""
        fresh = EndpointStats(endpoint.name, endpoint.subject, endpoint.group)
        return self._stats.get(endpoint.subject, fresh)

    def _stats_of(self, endpoint: Endpoint) -> EndpointStats:
        worked, refused = self._worked(endpoint), self._intake.refused[endpoint.subject]
        if not refused:
            return worked
        return msgspec.structs.replace(
            worked,
            num_requests=worked.num_requests + refused,
            num_errors=worked.num_errors + refused,
            last_error=worked.last_error or f"429: {TOO_MANY}",
        )

    # ---- what it says of itself

    def ping(self) -> Ping:
        """Return that it is there."""
        at = self.identity
        return Ping(name=at.name, id=at.id, version=at.version, metadata=dict(at.metadata))

    def info(self) -> Info:
        """Return what can be asked of it."""
        at = self.identity
        return Info(
            name=at.name,
            id=at.id,
            version=at.version,
            metadata=dict(at.metadata),
            description=at.description,
            endpoints=[
                EndpointInfo(each.name, each.subject, each.group, dict(each.metadata))
                for each in self._endpoints.values()
            ],
        )

    def stats(self) -> Stats:
        """Return how often it was asked, and how that went."""
        at = self.identity
        return Stats(
            name=at.name,
            id=at.id,
            version=at.version,
            metadata=dict(at.metadata),
            started=self._started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            endpoints=[self._stats_of(each) for each in self._endpoints.values()],
        )


@asynccontextmanager
async def serving(connection: Connection, identity: ServiceIdentity) -> AsyncIterator[Service]:
    """Run a service, which offers nothing yet, for as long as the context lasts."""
    service = Service(connection, identity)
    tasks = [
        asyncio.create_task(service.listen(), name=f"service {identity.name}"),
        asyncio.create_task(service.refuse(), name=f"refusals of service {identity.name}"),
    ]
    try:
        yield service
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await service.close()
