"""Serves requests to this process as a NATS micro service, and asks the services of others.

Programs that speak the micro protocol find the service, for example `nats micro list`.

Source: the micro protocol, ADR-32 of nats-architecture-and-design.
"""

import asyncio
import random
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from typing import Final

import msgspec
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from natsctl.errors import (
    DECODE_ERRORS,
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

log = get_logger(__name__)

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


RESERVED = "natsctl"  # the first token of subjects that only natsctl itself publishes to


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


ROOT = "$SRV"
LIMIT_S = 30.0  # the time limit of a handler
RATE = 50.0  # requests per second to one subject
BURST = 50  # requests at once
WORKING_MAX = 16  # requests that are handled at once; more are rejected
REFUSALS_MAX = 10_000  # pending rejections; further requests are dropped
REFUSALS_AT_ONCE = 20  # rejections that are sent before other tasks run
AGAIN_S = 0.5  # between two attempts to subscribe
TOO_MANY = f"there are more than {RATE:g} requests a second"
STOPPING = "the daemon stopped during the request, and its outcome is unknown: send it again"
WITHDRAWN = "the daemon no longer leads this controller: send the request again"

Handler = Callable[[bytes], Awaitable[bytes]]
"""Takes the data of a request and returns the answer; a `NatsctlError` is sent to the client."""


class ServiceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a service and the id of one of its instances."""

    name: str
    version: str
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    description: str = ""
    metadata: Mapping[str, str] = {}


class EndpointInfo(msgspec.Struct, frozen=True):
    """An endpoint of a service; `queue_group` is empty if every instance gets each request."""

    name: str
    subject: str
    queue_group: str = ""
    metadata: Mapping[str, str] = {}


class Info(ServiceIdentity, frozen=True, kw_only=True):
    """The answer to an `INFO`: the description of a service and its endpoints."""

    id: str
    endpoints: list[EndpointInfo] = []


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


class _Handled(msgspec.Struct):
    """The requests to an endpoint that were not rejected."""

    requests: int = 0
    errors: int = 0
    last_error: str = ""
    time_ns: int = 0


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
        self._identity = identity
        self._connection = connection
        self._started = datetime.now(UTC)
        self._clock = asyncio.get_running_loop().time
        self._endpoints: dict[str, Endpoint] = {}
        self._handled: dict[str, _Handled] = {}
        self._refused = Counter[str]()  # rejected requests by subject
        self._refusals: deque[tuple[str, str]] = deque()  # reply subjects and reasons
        self._any_refused = asyncio.Event()
        self._tokens: dict[str, tuple[float, float]] = {}  # tokens and their time, by subject
        self._client: OneTimeClient | None = None  # the client that has the subscriptions
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

    async def refuse(self) -> None:
        while True:
            await self._any_refused.wait()
            for _ in range(min(REFUSALS_AT_ONCE, len(self._refusals))):
                reply, reason = self._refusals.popleft()
                await self._respond(reply, b"", _refusal(reason))
            if not self._refusals:
                self._any_refused.clear()
            await asyncio.sleep(0)

    async def close(self) -> None:
        for subscription in self._subscriptions.values():
            with suppress(NatsError):
                await subscription.unsubscribe()
        for task in self._working:
            task.cancel()
        if self._working:
            await asyncio.wait(self._working)

    async def _subscribe(self, client: OneTimeClient) -> None:
        if client is not self._client:
            self._client, self._subscriptions = client, {}
        needed = {*control_subjects(self._identity.name, self._identity.id), *self._endpoints}
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
            answer_to = reply_subject(reply, self._connection.options.inbox_prefix)
            if answer_to is None:
                if reply and not self._warned:
                    self._warned = True
                    log.warning(
                        "a request isn't answered, because its reply subject isn't an inbox",
                        subject=subscribed,
                        hint="let the inbox prefix of the client begin with _INBOX",
                    )
                continue
            now = self._clock()
            tokens, counted = self._tokens.get(subscribed, (float(BURST), now))
            tokens = min(float(BURST), tokens + (now - counted) * RATE)
            self._tokens[subscribed] = tokens - (tokens >= 1), now
            if tokens >= 1 and len(self._working) < WORKING_MAX:
                work = self._answer(subscribed, subject, answer_to, data)
                task = asyncio.create_task(work, name=subscribed)
                self._working.add(task)
                task.add_done_callback(self._working.discard)
                continue
            self._refused[subscribed] += 1
            if len(self._refusals) < REFUSALS_MAX:
                busy = f"{WORKING_MAX} requests are being handled"
                self._refusals.append((answer_to, TOO_MANY if tokens < 1 else busy))
                self._any_refused.set()

    async def _answer(self, subscribed: str, subject: bytes, reply: str, data: bytes) -> None:
        endpoint = self._endpoints.get(subscribed)
        if endpoint is not None:
            await self._handle(endpoint, reply, data)
        elif subscribed.startswith(f"{ROOT}."):
            answer = self._of_protocol(subject.split(b".")[1].decode(errors="replace"))
            if answer is not None:
                await self._respond(reply, msgspec.json.encode(answer))
        else:
            await self._respond(reply, b"", error_headers(NatsctlError(WITHDRAWN)))

    async def _handle(self, endpoint: Endpoint, reply: str, data: bytes) -> None:
        started, answer = self._clock(), b""
        error: NatsctlError | None = None
        try:
            async with asyncio.timeout(LIMIT_S):
                answer = await endpoint.handler(data)
        except asyncio.CancelledError:
            await self._respond(reply, b"", error_headers(NatsctlError(STOPPING)))
            raise
        except TimeoutError:
            error = StoreTimeoutError(f"the request took longer than {LIMIT_S:g} s")
        except NatsctlError as raised:
            error = raised
        except Exception:
            log.exception("request failed", subject=endpoint.subject)
            error = NatsctlError("the request failed: see the daemon's log")
        if self._client is not None and len(answer) > self._client.max_payload:
            answer, error = b"", TooLargeError("the answer is larger than NATS accepts")
        headers = {} if error is None else error_headers(error)
        handled = self._handled.setdefault(endpoint.subject, _Handled())
        handled.requests += 1
        handled.errors += bool(headers)
        handled.last_error = headers.get(ERROR) or handled.last_error
        handled.time_ns += int((self._clock() - started) * 1e9)
        await self._respond(reply, answer, headers)

    async def _respond(
        self, reply: str, answer: bytes, headers: dict[str, str] | None = None
    ) -> None:
        with suppress(NatsError, StoreError):  # without a connection the client times out
            await self._connection.client.publish(reply, answer, headers=headers or None)

    def _of_protocol(self, verb: str) -> dict[str, object] | None:
        """Return the answer to a request of the protocol; None if it isn't known."""
        identity = self._identity
        about: dict[str, object] = {
            "type": f"io.nats.micro.v1.{verb.lower()}_response",
            "name": identity.name,
            "id": identity.id,
            "version": identity.version,
            "metadata": identity.metadata,
        }
        match verb:
            case "PING":
                return about
            case "INFO":
                endpoints = [
                    EndpointInfo(endpoint.name, endpoint.subject, endpoint.group, endpoint.metadata)
                    for endpoint in self._endpoints.values()
                ]
                return {**about, "description": identity.description, "endpoints": endpoints}
            case "STATS":
                started = time_text(self._started, timespec="milliseconds")
                stats = [self._stats_of(endpoint) for endpoint in self._endpoints.values()]
                return {**about, "started": started, "endpoints": stats}
            case _:
                return None

    def _stats_of(self, endpoint: Endpoint) -> dict[str, object]:
        handled = self._handled.get(endpoint.subject, _Handled())
        refused = self._refused[endpoint.subject]
        return {
            "name": endpoint.name,
            "subject": endpoint.subject,
            "queue_group": endpoint.group,
            "num_requests": handled.requests + refused,
            "num_errors": handled.errors + refused,
            "last_error": handled.last_error or (f"429: {TOO_MANY}" if refused else ""),
            "processing_time": handled.time_ns,
            "average_processing_time": handled.time_ns // max(1, handled.requests),
        }


@cache
def _refusal(reason: str) -> dict[str, str]:
    return error_headers(TooManyRequestsError(f"{reason}: try again later"))


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
        asyncio.create_task(service.refuse(), name=f"rejections of service {identity.name}"),
    ]
    try:
        yield service
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await service.close()
        await own.close()


PAUSE_MIN_S = 0.1  # before a rejected request is sent again; each further pause is longer
QUIET_S = 0.3  # without a further answer, if the number of answers is unknown


class NoServiceError(StoreError):
    """Raised if no service listens to the subject of a request."""


class ServiceAnswer(msgspec.Struct, frozen=True):
    """The answer of one service; `error` is None if the request succeeded."""

    data: bytes
    error: NatsctlError | None

    def result(self) -> bytes:
        """Return the data; raises the error of a failed request."""
        if self.error is not None:
            raise self.error
        return self.data


async def ask_all(
    connection: Connection,
    subject: str,
    payload: bytes = b"",
    *,
    expected: int | None = None,
    timeout_s: float,
) -> list[ServiceAnswer]:
    """Send a request to all services that listen, and return their answers.

    Returns after *timeout_s* at the latest. Returns earlier if *expected* services have answered,
    or, if *expected* is None, if no further answer arrives for `QUIET_S`. The request is sent again
    if all services reject it because they are busy. Raises `NoServiceError` if no service listens,
    and the errors of `Connection.request` if none answers.
    """
    clock = asyncio.get_running_loop().time
    deadline, pause_s = clock() + timeout_s, PAUSE_MIN_S
    while True:
        answers: list[ServiceAnswer] = []
        try:
            async with (
                asyncio.timeout(deadline - clock()),
                connection.request_many(subject, payload) as next_answer,
            ):
                while expected is None or len(answers) < expected:
                    quiet_s = QUIET_S if answers and expected is None else None
                    async with asyncio.timeout(quiet_s):
                        reply = await next_answer()
                    answers.append(ServiceAnswer(reply.data, error_from(reply.headers)))
        except TimeoutError as error:
            if not answers:
                late = f"{subject} was not answered within {timeout_s:g} s"
                raise StoreTimeoutError(late) from error
        except StoreError as error:
            if isinstance(error.__cause__, NoRespondersError):
                raise NoServiceError(str(error)) from error.__cause__
            raise
        pause_s *= random.uniform(1.0, 2.0)  # noqa: S311 - jitter only
        busy = all(isinstance(answer.error, TooManyRequestsError) for answer in answers)
        if not busy or clock() + pause_s >= deadline:
            return answers
        await asyncio.sleep(pause_s)
        if clock() >= deadline:  # the event loop was blocked
            return answers


async def services(connection: Connection, name: str, *, timeout_s: float) -> list[Info]:
    """Return the description of each running service of this name.

    Answers that break the protocol are left out. Raises `PermissionDeniedError` if the user may not
    send the request, and `TooManyRequestsError` if all services that answer are busy.
    """
    infos: list[Info] = []
    try:
        answers = await ask_all(connection, f"{ROOT}.INFO.{name}", timeout_s=timeout_s)
    except NoServiceError:
        return infos
    for answer in answers:
        try:
            infos.append(msgspec.json.decode(answer.result(), type=Info))
        except (NatsctlError, *DECODE_ERRORS) as error:
            log.debug("cannot decode the description of a service", error=error)
    busy = [answer.error for answer in answers if isinstance(answer.error, TooManyRequestsError)]
    if busy and not infos:
        raise busy[0]
    return infos
