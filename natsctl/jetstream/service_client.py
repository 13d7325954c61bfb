"""Sends requests to micro services and collects their answers."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator

import msgspec
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from natsctl.errors import (
    DECODE_ERRORS,
    NatsctlError,
    StoreError,
    StoreTimeoutError,
    TooManyRequestsError,
)
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.service import ROOT, Info, error_from
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

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


async def ask(
    connection: Connection, subject: str, payload: bytes = b"", *, timeout_s: float
) -> bytes:
    """Send a request to one service and return its answer.

    A request that is rejected because the service is busy is sent again within *timeout_s*. Raises
    the error of a failed request, `NoServiceError` if no service listens, and the errors of
    `Connection.request`.
    """

    async def ask_once(left_s: float) -> list[ServiceAnswer]:
        return [_answer(await connection.request(subject, payload, timeout_s=left_s))]

    return (await _retried(ask_once, timeout_s))[0].result()


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
    if all services reject it because they are busy. Raises the errors of `ask` if no service
    answers.
    """
    return await _retried(
        lambda left_s: _ask_all_once(connection, subject, payload, expected, left_s), timeout_s
    )


async def _ask_all_once(
    connection: Connection, subject: str, payload: bytes, expected: int | None, timeout_s: float
) -> list[ServiceAnswer]:
    replies: list[Msg] = []
    try:
        async with asyncio.timeout(timeout_s), connection.request_many(subject, payload) as reply:
            while expected is None or len(replies) < expected:
                quiet_s = QUIET_S if replies and expected is None else None
                async with asyncio.timeout(quiet_s):
                    replies.append(await reply())
    except TimeoutError as error:
        if not replies:
            late = f"{subject} was not answered within {timeout_s:g} s"
            raise StoreTimeoutError(late) from error
    return [_answer(message) for message in replies]


async def _retried(
    ask_once: Callable[[float], Awaitable[list[ServiceAnswer]]], timeout_s: float
) -> list[ServiceAnswer]:
    """Return the answers; repeats the request with backoff while all services are busy."""
    clock = asyncio.get_running_loop().time
    deadline, pause_s = clock() + timeout_s, PAUSE_MIN_S
    while True:
        try:
            answers = await ask_once(deadline - clock())
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
    try:
        answers = await ask_all(connection, f"{ROOT}.INFO.{name}", timeout_s=timeout_s)
    except NoServiceError:
        return []
    infos = list(_infos(answers))
    if not infos:
        for answer in answers:
            if isinstance(answer.error, TooManyRequestsError):
                raise answer.error
    return infos


def _infos(answers: Iterable[ServiceAnswer]) -> Iterator[Info]:
    for answer in answers:
        try:
            yield msgspec.json.decode(answer.result(), type=Info)
        except (NatsctlError, *DECODE_ERRORS) as error:
            log.debug("cannot decode the description of a service", error=error)


def _answer(message: Msg) -> ServiceAnswer:
    return ServiceAnswer(message.data, error_from(message.headers))
