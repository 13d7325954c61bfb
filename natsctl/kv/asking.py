"""Asking micro services, and hearing all that answer."""

import asyncio
import logging
from collections.abc import Iterable, Iterator

import msgspec
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from natsctl.errors import NatsctlError, StoreError, StoreTimeoutError
from natsctl.kv.connection import Connection
from natsctl.kv.micro import Info
from natsctl.kv.refusals import refused
from natsctl.kv.service import ROOT

log = logging.getLogger(__name__)

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
    """Ask one service and return its answer.

    Raises what it answers, and as `Connection.request` does: a `StoreError` whose cause is
    nats-py's `NoRespondersError` where nobody listens.
    """
    return _answer(await connection.request(subject, payload, timeout_s=timeout_s)).result()


async def ask_all(
    connection: Connection,
    subject: str,
    payload: bytes = b"",
    *,
    expected: int | None = None,
    timeout_s: float,
) -> list[Answer]:
    """Ask all services that listen, and return what each says, in *timeout_s* at most.

    Returns as soon as *expected* have answered; where that is None, as soon as it is quiet. Where
    nobody answers, raises as `ask` does.
    """
    found: list[Msg] = []
    try:
        async with asyncio.timeout(timeout_s), connection.asking(subject, payload) as answer:
            while expected is None or len(found) < expected:
                quiet_s = QUIET_S if found and expected is None else None
                async with asyncio.timeout(quiet_s):
                    found.append(await answer())
    except TimeoutError as error:
        if not found:  # else those that have come by now are the answers
            late = f"{subject} was not answered within {timeout_s:g} s"
            raise StoreTimeoutError(late) from error
    return [_answer(message) for message in found]


async def services(connection: Connection, name: str, *, timeout_s: float) -> list[Info]:
    """Return what the services of this name that run say of themselves, none where none runs.

    What answers otherwise than the protocol says is left out. Raises `PermissionDeniedError` where
    they may not be asked.
    """
    try:
        found = await ask_all(connection, f"{ROOT}.INFO.{name}", timeout_s=timeout_s)
    except StoreError as error:
        if isinstance(error.__cause__, NoRespondersError):
            return []
        raise
    return list(_told(found))


def _told(answers: Iterable[Answer]) -> Iterator[Info]:
    for answer in answers:
        try:
            yield _infos.decode(answer.result())
        except (NatsctlError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.debug("what a service says of itself cannot be read: %s", error)


def _answer(message: Msg) -> Answer:
    return Answer(message.data, refused(message.headers))
