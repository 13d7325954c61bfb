"""Asking micro services, and hearing all that answer."""

import asyncio
import logging
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
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.service.errors import refused
from natsctl.jetstream.service.messages import Info
from natsctl.jetstream.service.server import ROOT

log = logging.getLogger(__name__)

PAUSE_MIN_S = 0.1  # before a service that was too busy is asked again, growing
QUIET_S = 0.3  # after an answer: then no more are waited for, where nobody knows how many there are

_infos = msgspec.json.Decoder(Info)


class Answer(msgspec.Struct, frozen=True):
    """What one of those who were asked says; `error` where it could not do it."""

    data: bytes
    error: NatsctlError | None

    def result(self) -> bytes:
        """Return the answer; raises the error where it is one."""
        if self.error is not None:
            raise self.error
        return self.data


async def ask(
    connection: Connection, subject: str, payload: bytes = b"", *, timeout_s: float
) -> bytes:
    """Ask one service and return its answer; a refusal of a busy one is retried in that time.

    Raises what it answers, and as `Connection.request` does: a `StoreError` whose cause is
    nats-py's `NoRespondersError` where nobody listens.
    """

    async def ask_once(left_s: float) -> list[Answer]:
        return [_answer(await connection.request(subject, payload, timeout_s=left_s))]

    return (await _patiently(ask_once, timeout_s))[0].result()


async def ask_all(
    connection: Connection,
    subject: str,
    payload: bytes = b"",
    *,
    expected: int | None = None,
    timeout_s: float,
) -> list[Answer]:
    """Ask all services that listen, and return what each says, in *timeout_s* at most.

    Returns as soon as *expected* have answered; where that is None, as soon as it is quiet. If all
    refuse because they are busy, they are asked again in that time. Where nobody answers, raises as
    `ask` does.
    """
    return await _patiently(
        lambda left_s: _ask_all_once(connection, subject, payload, expected, left_s), timeout_s
    )


async def _ask_all_once(
    connection: Connection, subject: str, payload: bytes, expected: int | None, timeout_s: float
) -> list[Answer]:
    found: list[Msg] = []
    try:
        async with asyncio.timeout(timeout_s), connection.request_many(subject, payload) as answer:
            while expected is None or len(found) < expected:
                quiet_s = QUIET_S if found and expected is None else None
                async with asyncio.timeout(quiet_s):
                    found.append(await answer())
    except TimeoutError as error:
        if not found:  # else those that have come by now are the answers
            late = f"{subject} was not answered within {timeout_s:g} s"
            raise StoreTimeoutError(late) from error
    return [_answer(message) for message in found]


async def _patiently(
    ask_once: Callable[[float], Awaitable[list[Answer]]], timeout_s: float
) -> list[Answer]:
    """Ask, and again, later and later, while all answers are refusals of busy services."""
    clock = asyncio.get_running_loop().time
    deadline, pause_s = clock() + timeout_s, PAUSE_MIN_S
    while True:
        answers = await ask_once(deadline - clock())
        pause_s *= random.uniform(1.0, 2.0)  # noqa: S311 - jitter only
        busy = all(isinstance(answer.error, TooManyRequestsError) for answer in answers)
        if not busy or clock() + pause_s >= deadline:
            return answers
        await asyncio.sleep(pause_s)


async def services(connection: Connection, name: str, *, timeout_s: float) -> list[Info]:
    """Return what the services of this name that run say of themselves, none where none runs.

    What answers otherwise than the protocol says is left out. Raises `PermissionDeniedError` where
    they may not be asked, and `TooManyRequestsError` if all that answered are too busy.
    """
    try:
        found = await ask_all(connection, f"{ROOT}.INFO.{name}", timeout_s=timeout_s)
    except StoreError as error:
        if isinstance(error.__cause__, NoRespondersError):
            return []
        raise
    told = list(_told(found))
    if not told:
        for answer in found:
            if isinstance(answer.error, TooManyRequestsError):
                raise answer.error
    return told


def _told(answers: Iterable[Answer]) -> Iterator[Info]:
    for answer in answers:
        try:
            yield _infos.decode(answer.result())
        except (NatsctlError, *DECODE_ERRORS) as error:
            log.debug("what a service says of itself cannot be read: %s", error)


def _answer(message: Msg) -> Answer:
    return Answer(message.data, refused(message.headers))
