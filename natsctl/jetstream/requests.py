"""Sends requests over one connection and matches their answers."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import BadSubjectError, MaxPayloadError, NoRespondersError
from nats.errors import Error as NatsError

from natsctl.errors import (
    DECODE_ERRORS,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
)
from natsctl.jetstream.reader import STATUS
from natsctl.telemetry.tracing import Attributes, Span, call_span

_VIOLATION = re.compile(
    r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE
)


_CONSUMER = re.compile(r"(\.CONSUMER\.[^.]+\.[^.]+)\.natsctl-[^.]+")


class PermissionViolation(msgspec.Struct, frozen=True):
    """A denied publish, or a denied subscription.

    `subject` is in lower case, because nats-py reports no other form.
    """

    publishing: bool
    subject: str

    def concerns(self, subject: str) -> bool:
        """Return whether the violation is about *subject*."""
        return self.subject == subject.lower()


def violation(error: Exception) -> PermissionViolation | None:
    """Return the violation in an error of nats-py, or None if the error is another one."""
    match = _VIOLATION.search(str(error))
    if match is None:
        return None
    return PermissionViolation(match[1].lower() == "publish", match[2].lower())


def may_not_publish(subject: str) -> PermissionDeniedError:
    """Return the error of a denied publish; `*` is the name of a consumer, which is random."""
    subjects = _CONSUMER.sub(r"\1.*", subject)
    return PermissionDeniedError(
        f"this NATS user may not publish to {subjects}: allow it in the user's permissions"
    )


def may_not_subscribe(subject: str) -> PermissionDeniedError:
    """Return the error of a denied subscription."""
    return PermissionDeniedError(
        f"this NATS user may not subscribe to {subject}: allow it in the user's permissions"
    )


_KINDS: dict[int, type[StoreError]] = {
    10008: StoreTimeoutError,  # a server without a leader of JetStream; most of them do not answer
    10014: NotFoundError,  # consumer
    10037: NotFoundError,  # message
    10054: TooLargeError,
    10059: StoreMissingError,
    10071: ConflictError,  # wrong last sequence
    10164: ConflictError,  # the same, without the sequence that is stored
}
_DISABLED = (10039, 10076)


class _Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = "no reason given"


class _Answer(msgspec.Struct, frozen=True):
    error: _Refusal | None = None


_answers = msgspec.json.Decoder(_Answer)
_results = msgspec.json.Decoder(dict[str, Any])


def result_of(data: bytes, about: str) -> dict[str, Any]:
    """Return the JSON object of an answer; *about* names the request in errors.

    Raises `StoreMissingError` (no such stream), `NotFoundError` (no such message or consumer),
    `ConflictError` (wrong last sequence), `TooLargeError`, `StoreTimeoutError` (JetStream has no
    leader), or `StoreError` with the server's description and error code.
    """
    try:
        refusal = _answers.decode(data).error
        if refusal is None:
            return _results.decode(data)
    except DECODE_ERRORS as error:
        raise StoreError(f"{about}: the answer is not a JSON object") from error
    raise _refused(refusal, about)


def revision_of(data: bytes) -> int:
    """Return the sequence at which a stream stored a message; raises the errors of `result_of`."""
    answer = result_of(data, "publish")
    sequence = answer.get("seq")
    if not isinstance(sequence, int):
        raise StoreError("publish: the answer is not an acknowledgement of a stream")
    return sequence


def _refused(refusal: _Refusal, about: str) -> StoreError:
    kind = _KINDS.get(refusal.err_code, StoreError)
    advice = ""
    if refusal.err_code in _DISABLED:
        advice = "; start the server with -js, and give the account JetStream"
    return kind(f"{about}: {refusal.description} ({refusal.err_code or refusal.code}){advice}")


def kv_span(operation: str, bucket: str, key: str) -> Span:
    """Return the span of an operation on a key: `get`, `create`, `update`, `delete`, `purge`.

    Source: OpenTelemetry's semantic conventions for database clients.
    """
    return call_span(partial(_operation, operation, bucket, key), expected=(NotFoundError,))


def api_span(endpoint: str) -> Span:
    """Return the span of a JetStream API call, for example `STREAM.INFO.KV_orders`.

    Source: OpenTelemetry's semantic conventions for RPC clients.
    """
    return call_span(partial(_call, endpoint), expected=(NotFoundError,))


def _operation(operation: str, bucket: str, key: str) -> tuple[str, Attributes]:
    return f"kv {operation} {bucket}", {
        "db.system.name": "nats",
        "db.operation.name": operation,
        "db.collection.name": bucket,
        "natsctl.kv.key": key,
    }


def _call(endpoint: str) -> tuple[str, Attributes]:
    verb = endpoint.partition(".KV_")[0]  # one name for all buckets
    facts = {"rpc.system": "nats", "rpc.service": "jetstream", "rpc.method": endpoint}
    return f"jetstream {verb}", facts


ANSWERS_MAX = 1000  # received answers to one request that wait to be read; more are dropped

TOKEN_BYTES = 12  # of randomness in each reply subject, so that others cannot guess it

UNUSED_SUBJECT = "natsctl.nobody"  # a subject without subscribers

NextAnswer = Callable[[], Awaitable[Msg]]
"""Waits for the next answer."""


class _PendingRequest(msgspec.Struct, frozen=True):
    """A request that waits: for one answer, or for any number if it has a queue.

    `answer` receives the first answer, or the error of the request.
    """

    subject: str
    answer: asyncio.Future[Msg]
    answers: asyncio.Queue[Msg] | None = None


class Requests:
    """Sends requests and matches their answers, which arrive on one subscription.

    Every request has an unguessable reply subject. A client that may publish to this inbox still
    cannot answer a request that was sent to another client. Unlike nats-py's requests, these fail
    at once if the connection is lost or the server denies them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = ""
        self._pending: dict[str, _PendingRequest] = {}  # by reply subject
        self._failed: Callable[[str], StoreError] | None = None
        self._probed: dict[str, bool] = {}  # whether a subject is allowed

    async def start(self) -> None:
        """Subscribe to the inbox; the client must be connected."""
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._deliver_reply)

    async def ask(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None, timeout_s: float
    ) -> Msg:
        """Send a request and return its answer; raises the errors of `Connection.request`."""
        if self._failed is not None:
            raise self._failed(subject)
        reply = self._new_reply()
        answer = asyncio.get_running_loop().create_future()
        self._pending[reply] = _PendingRequest(subject, answer)
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(subject, payload, reply, headers)
                return _answer(await answer, subject)
        except TimeoutError as error:
            raise StoreTimeoutError(
                f"{subject} was not answered within {timeout_s:g} s; "
                "whether it took effect is unknown"
            ) from error
        finally:
            del self._pending[reply]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # marks the error as retrieved

    @asynccontextmanager
    async def request_many(self, subject: str, payload: bytes) -> AsyncIterator[NextAnswer]:
        """Send a request to all subscribers; see `Connection.request_many`."""
        if self._failed is not None:
            raise self._failed(subject)
        reply = self._new_reply()
        failure = asyncio.get_running_loop().create_future()
        answers = asyncio.Queue[Msg](ANSWERS_MAX)
        self._pending[reply] = _PendingRequest(subject, failure, answers)

        async def next_answer() -> Msg:
            received = asyncio.ensure_future(answers.get())
            try:
                await asyncio.wait((received, failure), return_when=asyncio.FIRST_COMPLETED)
                return _answer(received.result() if received.done() else failure.result(), subject)
            finally:
                received.cancel()

        try:
            await self._send(subject, payload, reply, None)
            yield next_answer
        finally:
            del self._pending[reply]
            if not failure.cancel() and not failure.cancelled():
                failure.exception()  # marks the error as retrieved

    def lost(self, reason: str) -> None:
        """Fail all pending and future requests, because the connection is lost."""
        self._fail(
            lambda subject: StoreTimeoutError(
                f"{subject} was not answered: {reason}; whether it took effect is unknown"
            )
        )
        self._failed = lambda subject: StoreError(f"{subject} was not sent: {reason}")

    async def may_subscribe(self, subject: str, timeout_s: float) -> bool:
        """Return whether the server permits the subscription; see `Connection.may_subscribe`."""
        self._probed[subject.lower()] = True
        try:
            subscription = await self._client.subscribe(subject, cb=_ignore)
            await self._round_trip(timeout_s)  # a violation arrives before the answer
            await subscription.unsubscribe()
        except NatsError as error:
            raise StoreError(f"cannot try to subscribe to {subject}: {error}") from error
        finally:
            allowed = self._probed.pop(subject.lower())
        return allowed

    async def _round_trip(self, timeout_s: float) -> None:
        """Wait until the server has processed all commands sent before, and answered them.

        A ping does not suffice: its caller may wait for the answer after the connection was lost.
        """
        try:
            await self.ask(UNUSED_SUBJECT, b"", None, timeout_s)
        except StoreTimeoutError:
            raise
        except StoreError:
            if self._failed is not None:
                raise

    def denied(self, violation: PermissionViolation) -> bool:
        """Fail the requests that the server denied; return whether the violation concerns any."""
        if violation.publishing:
            return self._fail(may_not_publish, violation)
        if violation.concerns(f"{self._inbox}.*"):
            self._failed = _answers_denied
            self._fail(_answers_denied)
            return True
        if violation.subject in self._probed:
            self._probed[violation.subject] = False
            return True
        return False

    def _fail(
        self, error: Callable[[str], StoreError], violation: PermissionViolation | None = None
    ) -> bool:
        """Fail all requests, or only those of the violation; return whether there are any."""
        concerned = [
            request
            for request in self._pending.values()
            if violation is None or violation.concerns(request.subject)
        ]
        for request in concerned:
            if not request.answer.done():
                request.answer.set_exception(error(request.subject))
        return bool(concerned)

    async def _send(
        self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str] | None
    ) -> None:
        try:
            await self._client.publish(
                subject, payload, reply=reply, headers=None if headers is None else dict(headers)
            )
        except MaxPayloadError as error:
            raise TooLargeError(
                f"{subject}: {len(payload)} bytes are more than the "
                f"{self._client.max_payload} that the server takes"
            ) from error
        except BadSubjectError as error:
            raise StoreError(f"{subject!r} is not a NATS subject") from error
        except NatsError as error:
            raise StoreError(f"{subject} was not sent: {error}") from error

    def _new_reply(self) -> str:
        return f"{self._inbox}.{secrets.token_hex(TOKEN_BYTES)}"

    async def _deliver_reply(self, msg: Msg) -> None:
        request = self._pending.get(msg.subject)
        if request is None or request.answer.done():
            return
        if request.answers is None:
            request.answer.set_result(msg)
        elif not request.answers.full():
            request.answers.put_nowait(msg)


def _answer(msg: Msg, subject: str) -> Msg:
    if msg.data or not msg.headers or not msg.headers.get(STATUS, "").startswith("503"):
        return msg
    if "$KV." in subject:
        reason = "the bucket does not exist, or has no leader now"
    elif "$JS." in subject:
        reason = "JetStream is not enabled, or this account cannot reach it"
    else:
        reason = "it has no subscribers"
    raise StoreError(f"no answer to {subject}: {reason}") from NoRespondersError()


async def _ignore(_msg: Msg) -> None:
    """Do nothing; other subscribers answer."""


def _answers_denied(subject: str) -> StoreError:
    return PermissionDeniedError(
        f"{subject} cannot be answered: this NATS user may not subscribe to its inbox; allow "
        "_INBOX.> in the user's permissions, or set an inbox prefix that is allowed"
    )
