"""Requests and their answers, over one connection."""

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
from natsctl.jetstream.connection.permissions import Violation, may_not_publish

ANSWERS_MAX = 1000  # to one question that are heard and not taken yet; others are dropped

TOKEN_BYTES = 12  # of randomness in each reply subject

NOBODY = "natsctl.nobody"  # where nobody listens

NextAnswer = Callable[[], Awaitable[Msg]]
"""Waits for the next answer."""


class _Open(msgspec.Struct, frozen=True):
    """A request that is answered to yet; without `heard` the first answer is all of it."""

    subject: str
    answer: asyncio.Future[Msg]
    heard: asyncio.Queue[Msg] | None = None


class Requests:
    """Sends requests and matches answers to them; all answers come in on one subscription.

    Every request has a reply subject of its own that nobody can guess. A client that may publish to
    our inbox still cannot answer a request that was sent to another client. Unlike nats-py's own
    requests, these fail at once when the connection is lost or the server forbids them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = ""
        self._open: dict[str, _Open] = {}  # by reply subject
        self._failed: Callable[[str], StoreError] | None = None
        self._tried: dict[str, bool] = {}  # what may perhaps be heard, and whether it may

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
        reply = self._new_reply()
        answer = asyncio.get_running_loop().create_future()
        self._open[reply] = _Open(subject, answer)
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
            del self._open[reply]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # told or not, it is seen

    @asynccontextmanager
    async def asking(self, subject: str, payload: bytes) -> AsyncIterator[NextAnswer]:
        """Send a request to all who listen, and give what waits for the next answer.

        Raises as `Connection.asking` says.
        """
        if self._failed is not None:
            raise self._failed(subject)
        reply = self._new_reply()
        failure = asyncio.get_running_loop().create_future()
        heard = asyncio.Queue[Msg](ANSWERS_MAX)
        self._open[reply] = _Open(subject, failure, heard)

        async def answer() -> Msg:
            taken = asyncio.ensure_future(heard.get())
            try:
                await asyncio.wait((taken, failure), return_when=asyncio.FIRST_COMPLETED)
                return _answer(taken.result() if taken.done() else failure.result(), subject)
            finally:
                taken.cancel()

        try:
            await self._send(subject, payload, reply, None)
            yield answer
        finally:
            del self._open[reply]
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

    async def may_hear(self, subject: str, timeout_s: float) -> bool:
        """Find out whether the server lets us listen there, by doing so for a moment.

        Raises as `Connection.may_hear` says.
        """
        self._tried[subject.lower()] = True
        try:
            listening = await self._client.subscribe(subject, cb=_unheard)
            await self._there_and_back(timeout_s)  # by then the server has said what it thinks
            await listening.unsubscribe()
        except NatsError as error:
            raise StoreError(f"it is unknown whether {subject} may be heard: {error}") from error
        finally:
            allowed = self._tried.pop(subject.lower())
        return allowed

    async def _there_and_back(self, timeout_s: float) -> None:
        """Wait until the server has seen all that was sent, and we what it sent before.

        A ping would overtake what nats-py has not written yet.
        """
        try:
            await self.ask(NOBODY, b"", None, timeout_s)
        except StoreTimeoutError:
            raise
        except StoreError:
            if self._failed is not None:
                raise

    def denied(self, violation: Violation) -> bool:
        """Fail the requests that the server forbade; say whether it is known to anybody now."""
        if violation.publishing:
            return self._fail(may_not_publish, violation)
        if violation.concerns(f"{self._inbox}.*"):
            self._failed = _answers_denied
            self._fail(_answers_denied)
            return True
        if violation.subject in self._tried:
            self._tried[violation.subject] = False
            return True
        return False

    def _fail(self, error: Callable[[str], StoreError], violation: Violation | None = None) -> bool:
        """Fail all requests, or those that the violation is about; say whether there are any."""
        concerned = [
            request
            for request in self._open.values()
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
            raise StoreError(f"{subject!r} is no NATS subject") from error
        except NatsError as error:
            raise StoreError(f"{subject} was not sent: {error}") from error

    def _new_reply(self) -> str:
        return f"{self._inbox}.{secrets.token_hex(TOKEN_BYTES)}"

    async def _answered(self, msg: Msg) -> None:
        request = self._open.get(msg.subject)
        if request is None or request.answer.done():
            return
        if request.heard is None:
            request.answer.set_result(msg)
        elif not request.heard.full():
            request.heard.put_nowait(msg)


def _answer(msg: Msg, subject: str) -> Msg:
    if msg.data or not msg.headers or not msg.headers.get(STATUS, "").startswith("503"):
        return msg
    if "$KV." in subject:
        why = "its bucket does not exist, or has no leader now"
    elif "$JS." in subject:
        why = "JetStream is not enabled there, or not reachable from this account"
    else:
        why = "nobody listens"
    raise StoreError(f"{subject} is answered by no one: {why}") from NoRespondersError()


async def _unheard(_msg: Msg) -> None:
    """Leave what others are asked to them."""


def _answers_denied(subject: str) -> StoreError:
    return PermissionDeniedError(
        f"{subject} cannot be answered: this NATS user may not subscribe to its inbox; allow "
        "_INBOX.> in the user's permissions, or name an inbox prefix that is allowed"
    )
