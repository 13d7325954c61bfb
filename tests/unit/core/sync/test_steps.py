"""An awaitable runs until it waits, and its rest continues in the same task."""

import asyncio
from collections.abc import Awaitable, Callable, Generator

import pytest

from natsctl.core.sync import Rest, first_step


async def answer() -> int:
    return 42


async def answer_later() -> int:
    await asyncio.sleep(1)
    await asyncio.sleep(2)
    return 42


class Answer:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Generator[object, object, int]:
        return answer_later().__await__()


async def rest_of(work: Awaitable[int]) -> int:
    rest = first_step(work)
    assert isinstance(rest, Rest)
    return await rest


def test_work_that_does_not_wait_ends_with_its_first_step() -> None:
    assert first_step(answer()) == 42


@pytest.mark.parametrize("work", [answer_later, Answer])
async def test_the_rest_of_the_work_returns_its_result(work: Callable[[], Awaitable[int]]) -> None:
    assert await rest_of(work()) == 42
    assert asyncio.get_running_loop().time() == 3


async def test_the_first_step_raises_the_error_of_the_work() -> None:
    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        first_step(work())


async def test_a_cancellation_of_the_rest_cancels_the_work() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return "cancelled"

    async def task() -> str:
        rest = first_step(work())
        assert isinstance(rest, Rest)
        return await rest

    running = asyncio.create_task(task())
    await asyncio.sleep(1)
    running.cancel()
    assert await running == "cancelled"


async def test_the_rest_raises_the_error_of_a_future_in_the_work() -> None:
    future = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await future
        except ValueError as error:
            return str(error)
        return ""

    asyncio.get_running_loop().call_later(1, future.set_exception, ValueError("failed"))
    rest = first_step(work())
    assert isinstance(rest, Rest)
    assert await rest == "failed"
