"""Sends requests over one connection and matches their answers."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import BadSubjectError, MaxPayloadError, NoRespondersError
from nats.errors import Error as NatsError

from natsctl.errors import PermissionDeniedError, StoreError, StoreTimeoutError, TooLargeError
from natsctl.jetstream.connection.headers import STATUS
from natsctl.jetstream.connection.permissions import PermissionViolation, may_not_publish

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
