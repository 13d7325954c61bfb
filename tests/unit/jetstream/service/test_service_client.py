"""Requests to services that are busy."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from natsctl.errors import TooManyRequestsError
from natsctl.jetstream.service import error_headers
from natsctl.jetstream.service_client import ask_all

TIMEOUT_S = 2.0


class BusyService:
    """A connection to a service that refuses each request."""

    def __init__(self) -> None:
        self.requests = 0

    @asynccontextmanager
    async def request_many(
        self, _subject: str, _payload: bytes
    ) -> AsyncIterator[Callable[[], Awaitable[Msg]]]:
        self.requests += 1

        async def answer() -> Msg:
            return Msg(Client(), headers=error_headers(TooManyRequestsError("busy")))

        yield answer


async def errors_of(connection: BusyService) -> list[type[Exception] | None]:
    answers = await ask_all(connection, "s", expected=1, timeout_s=TIMEOUT_S)  # type: ignore[arg-type]  # has the method that is used
    return [None if answer.error is None else type(answer.error) for answer in answers]


async def test_a_refused_request_is_sent_again_until_the_timeout() -> None:
    service = BusyService()
    started = asyncio.get_running_loop().time()
    assert await errors_of(service) == [TooManyRequestsError]
    assert service.requests > 1
    assert asyncio.get_running_loop().time() - started < TIMEOUT_S


async def test_a_refusal_is_returned_if_the_pause_before_the_next_request_exceeds_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A blocked event loop lengthens the pause."""
    service, sleep = BusyService(), asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda pause_s: sleep(pause_s + TIMEOUT_S))
    assert await errors_of(service) == [TooManyRequestsError]
    assert service.requests == 1
