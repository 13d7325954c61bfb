"""A cancelled dial ends, even if a round of attempts swallows the cancellation."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from natsctl import NatsOptions
from natsctl.jetstream.connection import Dial, Failure, ServerLink


class SwallowingDial(Dial):
    """A dial whose rounds swallow a cancellation and return `result`."""

    def __init__(self, result: ServerLink | list[Failure]) -> None:
        options = NatsOptions(servers=("nats://127.0.0.1:1",))
        super().__init__(options, report=_ignore, progress=_ignore)
        self.rounds = 0
        self._result = result

    async def _try_servers(self) -> ServerLink | list[Failure]:
        self.rounds += 1
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return self._result
        return []


class FakeLink(ServerLink):
    def __init__(self) -> None:
        self.is_ended = False

    async def end(self) -> None:
        self.is_ended = True


def _ignore(_event: object) -> None:
    pass


@pytest.mark.parametrize("dial_method", [Dial.once, Dial.patiently])
async def test_a_cancellation_that_an_attempt_swallows_ends_the_dial(
    dial_method: Callable[[Dial], Coroutine[None, None, ServerLink]],
) -> None:
    dial = SwallowingDial([])
    task = asyncio.create_task(dial_method(dial))
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait({task}, timeout=60)
    assert task.cancelled()
    assert dial.rounds == 1


async def test_a_link_that_opens_during_the_cancellation_is_closed() -> None:
    link = FakeLink()
    task = asyncio.create_task(SwallowingDial(link).patiently())
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert link.is_ended
