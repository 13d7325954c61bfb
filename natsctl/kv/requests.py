"""Requests and their answers, over one connection."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import BadSubjectError, MaxPayloadError, NoRespondersError
from nats.errors import Error as NatsError

from natsctl.errors import PermissionDeniedError, StoreError, StoreTimeoutError, TooLargeError

ANSWERS_MAX = 1000  # to one question that are heard and not taken yet; others are dropped

NextAnswer = Callable[[], Awaitable[Msg]]
"""Waits for the next answer."""

_VIOLATION = re.compile(
    r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE
)


class _Open(msgspec.Struct, frozen=True):
    """A request that is answered to yet; without `heard` the first answer is all of it."""

    subject: str
    answer: asyncio.Future[Msg]
    heard: asyncio.Queue[Msg] | None = None


class Requests:
    """Asks, and matches answers to questions; all of them come in on one subscription.

    Unlike nats-py's own requests, these fail at once when the connection is lost or the server
    forbids them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = ""
        self._numbers = itertools.count(1)
        self._open: dict[str, _Open] = {}
        self._failed: Callable[[str], StoreError] | None = None

    async def start(self) -> None:
        """Begin to listen for answers, on a connected client."""
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._answered)

    async def ask(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None, timeout_s: float
    ) -> Msg:
        """Send a request and return its answer.

        Raises as `Connection.request` says.
        """
        if self._failed is not None:
            raise self._failed(subject)
        token = str(next(self._numbers))
        answer = asyncio.get_running_loop().create_future()
        self._open[token] = _Open(subject, answer)
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(subject, payload, f"{self._inbox}.{token}", headers)
                return _answer(await answer, subject)
        except TimeoutError as error:
            raise StoreTimeoutError(
                f"{subject} was not answered within {timeout_s:g} s; "
                "whether it took effect is unknown"
            ) from error
        finally:
            del self._open[token]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # told or not, it is seen

    @asynccontextmanager
    async def asking(self, subject: str, payload: bytes) -> AsyncIterator[NextAnswer]:
        """Send a request to all who listen, and give what waits for the next answer.

        Raises as `Connection.asking` says.
        """
        if self._failed is not None:
            raise self._failed(subject)
        token = str(next(self._numbers))
        failure = asyncio.get_running_loop().create_future()
        heard = asyncio.Queue[Msg](ANSWERS_MAX)
        self._open[token] = _Open(subject, failure, heard)

        async def answer() -> Msg:
            taken = asyncio.ensure_future(heard.get())
            try:
                await asyncio.wait((taken, failure), return_when=asyncio.FIRST_COMPLETED)
                return _answer(taken.result() if taken.done() else failure.result(), subject)
            finally:
                taken.cancel()

        try:
            await self._send(subject, payload, f"{self._inbox}.{token}", None)
            yield answer
        finally:
            del self._open[token]
            if not failure.cancel() and not failure.cancelled():
                failure.exception()  # told or not, it is seen

    def lost(self, reason: str) -> None:
        """Fail every request, those that wait and those to come: the connection is gone."""
        self._fail(
            lambda subject: StoreTimeoutError(
                f"{subject} was not answered: {reason}; whether it took effect is unknown"
            )
        )
        self._failed = lambda subject: StoreError(f"{subject} was not sent: {reason}")

    def denied(self, violation: str) -> None:
        """Fail the requests that the server forbade, as its permissions violation says."""
        match = _VIOLATION.search(violation)
        if match is None:
            return
        operation, subject = match[1].lower(), match[2].lower()
        if operation == "publish":
            self._fail(_publish_denied, subject)
        elif subject == f"{self._inbox}.*".lower():
            self._failed = _answers_denied
            self._fail(_answers_denied)

    def _fail(self, error: Callable[[str], StoreError], subject: str | None = None) -> None:
        for request in self._open.values():
            # nats-py tells subjects in lower case only
            concerned = subject is None or request.subject.lower() == subject
            if concerned and not request.answer.done():
                request.answer.set_exception(error(request.subject))

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
            raise StoreError(f"{subject!r} is no NATS subject") from error
        except NatsError as error:
            raise StoreError(f"{subject} was not sent: {error}") from error

    async def _answered(self, msg: Msg) -> None:
        request = self._open.get(msg.subject.rpartition(".")[2])
        if request is None or request.answer.done():
            return
        if request.heard is None:
            request.answer.set_result(msg)
        elif not request.heard.full():
            request.heard.put_nowait(msg)


def _answer(msg: Msg, subject: str) -> Msg:
    if msg.data or not msg.headers or msg.headers.get("Status") != "503":
        return msg
    if "$KV." in subject:
        why = "its bucket does not exist, or has no leader now"
    elif "$JS." in subject:
        why = "JetStream is not enabled there, or not reachable from this account"
    else:
        why = "nobody listens"
    raise StoreError(f"{subject} is answered by no one: {why}") from NoRespondersError()


def _publish_denied(subject: str) -> StoreError:
    return PermissionDeniedError(
        f"this NATS user may not publish to {subject}: allow it in the user's permissions"
    )


def _answers_denied(subject: str) -> StoreError:
    return PermissionDeniedError(
        f"{subject} cannot be answered: this NATS user may not subscribe to its inbox; allow "
        "_INBOX.> in the user's permissions, or name an inbox prefix that is allowed"
    )
