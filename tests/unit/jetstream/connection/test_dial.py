"""Trying servers until one answers ends when it is cancelled, whenever that comes."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from natsctl.jetstream.connection.connect_errors import Failure
from natsctl.jetstream.connection.dial import Dial
from natsctl.jetstream.connection.link import ServerLink
from natsctl.jetstream.connection.options import NatsOptions


class Deaf(Dial):
    """Its rounds end in the moment in which they are cancelled, and nobody hears of that."""

    def __init__(self, found: ServerLink | list[Failure]) -> None:
        options = NatsOptions(servers=("nats://127.0.0.1:1",))
        super().__init__(options, report=_ignore, progress=_ignore)
        self.rounds = 0
        self._found = found

    async def _round(self) -> ServerLink | list[Failure]:
        self.rounds += 1
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return self._found
        return []


class Standing(ServerLink):
    def __init__(self) -> None:
        self.over = False

    async def end(self) -> None:
        self.over = True


def _ignore(_told: object) -> None:
    pass


@pytest.mark.parametrize("way", [Dial.once, Dial.patiently])
async def test_a_cancellation_that_an_attempt_loses_is_heeded_all_the_same(
    way: Callable[[Dial], Coroutine[None, None, ServerLink]],
) -> None:
    dial = Deaf([])
    task = asyncio.create_task(way(dial))
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait({task}, timeout=60)
    assert task.cancelled()
    assert dial.rounds == 1


async def test_a_connection_that_comes_in_that_moment_is_ended() -> None:
    link = Standing()
    task = asyncio.create_task(Deaf(link).patiently())
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert link.over
