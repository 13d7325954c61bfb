"""GC cycles repeat while this process leads, and a failed one does not end the others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from natsctl.controller.sync.gc_cycles import repeat_cycles
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.errors import UnreadError

INTERVAL_S = 60.0


class Cycles:
    """Records the times of cycles, and raises an error in each if there is one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun: list[float] = []
        self._error = error

    async def __call__(self) -> None:
        self.begun.append(asyncio.get_running_loop().time())
        if self._error is not None:
            raise self._error


@asynccontextmanager
async def repeating(collect: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.create_task(repeat_cycles(collect, controller="apps", interval_s=INTERVAL_S))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_a_cycle_runs_at_once_and_in_each_interval() -> None:
    cycles = Cycles()
    async with repeating(cycles):
        await asyncio.sleep(2.5 * INTERVAL_S)
    assert cycles.begun == [0, INTERVAL_S, 2 * INTERVAL_S]


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)])
async def test_a_failed_cycle_is_logged_and_the_next_one_runs(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    cycles = Cycles(error)
    async with repeating(cycles):
        await asyncio.sleep(1.5 * INTERVAL_S)
    assert len(cycles.begun) == 2
    assert caplog.messages.count("a GC cycle failed controller=apps") == 2


async def test_a_cycle_whose_values_are_not_read_yet_is_repeated_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = UnreadError("Site.sites", "shop")
    cycles = Cycles(error)
    async with repeating(cycles):
        await asyncio.sleep(1.5 * error.delay_s)
    assert cycles.begun == [0, error.delay_s]
    assert caplog.messages == []


async def test_no_cycle_runs_before_a_term() -> None:
    leadership = Leadership("apps", asyncio.get_running_loop().time)
    current_leadership.set(leadership)
    cycles = Cycles()
    async with repeating(cycles):
        await asyncio.sleep(INTERVAL_S)
        assert cycles.begun == []
        leadership.begin(1, until=1e6)
        await asyncio.sleep(1)
        assert cycles.begun == [INTERVAL_S]
