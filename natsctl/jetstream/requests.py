"""Sends requests over one connection and matches their answers."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
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
from natsctl.jetstream.reader import STATUS, OneTimeClient
from natsctl.telemetry.tracing import Attributes, Span, call_span

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
_NO_PEERS = 10005


class _Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = "no reason given"


_results = msgspec.json.Decoder(dict[str, Any])


def result_of(data: bytes, about: str) -> dict[str, Any]:
    """Return the JSON object of an answer; *about* names the request in errors.

    Raises `StoreMissingError` (no such stream), `NotFoundError` (no such message or consumer),
    `ConflictError` (wrong last sequence), `TooLargeError`, `StoreTimeoutError` (JetStream has no
    leader, or a server for a replica is offline), or `StoreError` with the server's description
    and error code.
    """
    try:
        result = _results.decode(data)
        if result.get("error") is None:
            return result
        refusal = msgspec.convert(result["error"], _Refusal)
    except DECODE_ERRORS as error:
        raise StoreError(f"{about}: the answer is not a JSON object") from error
    kind, code, advice = _KINDS.get(refusal.err_code, StoreError), refusal.err_code, ""
    if code == _NO_PEERS and "offline" in refusal.description:
        kind = StoreTimeoutError  # it comes back; fewer replicas would be for ever
    if code in _DISABLED:
        advice = "; start the server with -js, and give the account JetStream"
    raise kind(f"{about}: {refusal.description} ({code or refusal.code}){advice}")


def revision_of(data: bytes) -> int:
    """Return the sequence at which a stream stored a message; raises the errors of `result_of`."""
    sequence = result_of(data, "publish").get("seq")
    if not isinstance(sequence, int):
        raise StoreError("publish: the answer is not an acknowledgement of a stream")
    return sequence


def kv_span(operation: str, bucket: str, key: str) -> Span:
    """Return the span of an operation on a key: `get`, `create`, `update`, `delete`, `purge`.

    Source: OpenTelemetry's semantic conventions for database clients.
    """

    def facts() -> tuple[str, Attributes]:
        return f"kv {operation} {bucket}", {
            "db.system.name": "nats",
            "db.operation.name": operation,
            "db.collection.name": bucket,
            "natsctl.kv.key": key,
        }

    return call_span(facts, expected=(NotFoundError,))


def api_span(endpoint: str) -> Span:
    """Return the span of a JetStream API call, for example `STREAM.INFO.KV_orders`.

    Source: OpenTelemetry's semantic conventions for RPC clients.
    """

    def facts() -> tuple[str, Attributes]:
        verb = endpoint.partition(".KV_")[0]  # one name for all buckets
        attributes = {"rpc.system": "nats", "rpc.service": "jetstream", "rpc.method": endpoint}
        return f"jetstream {verb}", attributes

    return call_span(facts, expected=(NotFoundError,))


ANSWERS_MAX = 1000  # received answers to one request that wait to be read; more are dropped
TOKEN_BYTES = 12  # of randomness in each reply subject, so that others cannot guess it
UNUSED_SUBJECT = "natsctl.nobody"  # a subject without subscribers

_VIOLATION = re.compile(
    r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE
)
_CONSUMER = re.compile(r"(\.CONSUMER\.[^.]+\.[^.]+)\.natsctl-[^.]+")  # its name is random

NextAnswer = Callable[[], Awaitable[Msg]]
"""Waits for the next answer."""


class Requests:
    """Sends requests and matches their answers, which arrive on one subscription.

    Every request has an unguessable reply subject. A client that may publish to this inbox still
    cannot answer a request that was sent to another client. Unlike nats-py's requests, these fail
    at once if the connection is lost or the server denies them.
    """

    def __init__(self, client: OneTimeClient) -> None:
        self._client = client
        self._inbox = ""
        # subjects and answers, or the error of the request, by reply subject
        self._pending: dict[str, tuple[str, asyncio.Queue[Msg | StoreError]]] = {}
        self._failed: Callable[[str], StoreError] | None = None
        self._probed: dict[str, bool] = {}  # whether a subject is allowed

    async def start(self) -> None:
        """Subscribe to the inbox; the client must be connected."""
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._deliver_reply)

    async def ask(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None, timeout_s: float
    ) -> Msg:
        try:
            async with (
                asyncio.timeout(timeout_s),
                self.request_many(subject, payload, headers) as next_answer,
            ):
                return await next_answer()
        except TimeoutError as error:
            raise StoreTimeoutError(
                f"{subject} was not answered within {timeout_s:g} s; "
                "whether it took effect is unknown"
            ) from error

    @asynccontextmanager
    async def request_many(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[NextAnswer]:
        if self._failed is not None:
            raise self._failed(subject)
        reply = f"{self._inbox}.{secrets.token_hex(TOKEN_BYTES)}"
        answers = asyncio.Queue[Msg | StoreError](ANSWERS_MAX)

        async def next_answer() -> Msg:
            answer = await answers.get()
            if isinstance(answer, StoreError):
                raise answer
            if not answer.data and (answer.headers or {}).get(STATUS, "").startswith("503"):
                raise _no_responders(subject) from NoRespondersError()
            return answer

        self._pending[reply] = subject, answers
        try:
            try:
                sent = None if headers is None else dict(headers)
                await self._client.publish(subject, payload, reply, sent)
            except MaxPayloadError as error:
                raise TooLargeError(
                    f"{subject}: {len(payload)} bytes are more than the "
                    f"{self._client.max_payload} that the server takes"
                ) from error
            except BadSubjectError as error:
                raise StoreError(f"{subject!r} is not a NATS subject") from error
            except NatsError as error:
                raise StoreError(f"{subject} was not sent: {error}") from error
            yield next_answer
        finally:
            del self._pending[reply]

    async def may_subscribe(self, subject: str, timeout_s: float) -> bool:
        self._probed[subject.lower()] = True
        try:
            subscription = await self._client.subscribe(subject, cb=_ignore)
            try:
                # a violation arrives before the answer; the caller of a ping may wait for its
                # answer after the connection was lost
                await self.ask(UNUSED_SUBJECT, b"", None, timeout_s)
            except StoreTimeoutError:
                raise
            except StoreError:
                if self._failed is not None:
                    raise
            await subscription.unsubscribe()
        except NatsError as error:
            raise StoreError(f"cannot try to subscribe to {subject}: {error}") from error
        finally:
            allowed = self._probed.pop(subject.lower())
        return allowed

    def lost(self, reason: str) -> None:
        self._fail(
            lambda subject: StoreTimeoutError(
                f"{subject} was not answered: {reason}; whether it took effect is unknown"
            )
        )
        self._failed = lambda subject: StoreError(f"{subject} was not sent: {reason}")

    def denied(self, error: Exception) -> Exception | None:
        """Fail the requests that the server denied; return an error that concerns none of them.

        nats-py reports subjects in lower case.
        """
        match = _VIOLATION.search(str(error))
        if match is None:
            return error
        subject = match[2].lower()
        if match[1].lower() == "publish":
            return None if self._fail(_may_not_publish, subject) else error
        if subject == f"{self._inbox}.*".lower():
            self._failed = _answers_denied
            self._fail(_answers_denied)
        elif subject in self._probed:
            self._probed[subject] = False
        elif (subscribed := self._client.subscribed(subject)) is not None:
            return PermissionDeniedError(
                f"this NATS user may not subscribe to {subscribed}: allow it in the user's "
                "permissions"
            )
        else:
            return error
        return None

    def _fail(self, error: Callable[[str], StoreError], lowered: str | None = None) -> bool:
        """Fail all requests, or those to a subject in lower case; return whether there are any."""
        concerned = [
            request
            for request in self._pending.values()
            if lowered is None or request[0].lower() == lowered
        ]
        for subject, answers in concerned:
            with suppress(asyncio.QueueFull):
                answers.put_nowait(error(subject))
        return bool(concerned)

    async def _deliver_reply(self, msg: Msg) -> None:
        if msg.subject in self._pending:
            with suppress(asyncio.QueueFull):
                self._pending[msg.subject][1].put_nowait(msg)


def _no_responders(subject: str) -> StoreError:
    if "$KV." in subject:
        reason = "the bucket does not exist, or has no leader now"
    elif "$JS." in subject:
        reason = "JetStream is not enabled, or this account cannot reach it"
    else:
        reason = "it has no subscribers"
    return StoreError(f"no answer to {subject}: {reason}")


async def _ignore(_msg: Msg) -> None:
    """Do nothing; other subscribers answer."""


def _may_not_publish(subject: str) -> StoreError:
    subjects = _CONSUMER.sub(r"\1.*", subject)
    return PermissionDeniedError(
        f"this NATS user may not publish to {subjects}: allow it in the user's permissions"
    )


def _answers_denied(subject: str) -> StoreError:
    return PermissionDeniedError(
        f"{subject} cannot be answered: this NATS user may not subscribe to its inbox; allow "
        "_INBOX.> in the user's permissions, or set an inbox prefix that is allowed"
    )
