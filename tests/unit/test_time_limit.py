"""A time limit cancels work that takes too long and has no other effect."""

import asyncio
from collections.abc import Awaitable

import pytest

from natsctl.time_limit import IGNORED_S, TimeLimit, happens


def now() -> float:
    return asyncio.get_running_loop().time()


async def within(limit: TimeLimit, work: Awaitable[object]) -> None:
    with limit:
        await work


def never() -> Awaitable[object]:
    return asyncio.Event().wait()


async def test_work_within_the_limit_is_not_cancelled() -> None:
    limit = TimeLimit(10)
    for _ in range(3):
        await within(limit, asyncio.sleep(9))
    await asyncio.sleep(100)
    assert now() == 127


async def test_every_task_has_its_own_limit_which_raises_timeout_error() -> None:
    limit = TimeLimit(10)
    ended: dict[int, float] = {}

    async def work(number: int) -> None:
        await asyncio.sleep(number)
        with pytest.raises(TimeoutError):
            await within(limit, never())
        ended[number] = now()

    await asyncio.gather(*(work(number) for number in (3, 0, 7)))
    assert ended == {0: 10, 3: 13, 7: 17}


async def test_a_block_that_ended_does_not_delay_the_deadlines_of_others() -> None:
    limit = TimeLimit(10)
    first = asyncio.create_task(within(limit, asyncio.sleep(2)))
    await asyncio.sleep(1)
    with pytest.raises(TimeoutError):
        await within(limit, never())
    assert now() == 11
    await first


@pytest.mark.parametrize("after_s", [5, 10])
async def test_a_cancellation_by_others_is_raised(after_s: float) -> None:
    task = asyncio.create_task(within(TimeLimit(10), never()))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(after_s, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == after_s


async def test_a_block_that_begins_after_a_cancellation_has_a_limit() -> None:
    ended = 0.0

    async def work() -> None:
        nonlocal ended
        try:
            await never()
        finally:
            with pytest.raises(TimeoutError):
                await within(TimeLimit(10), never())
            ended = now()

    task = asyncio.create_task(work())
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == 15


async def test_work_that_ignores_the_cancellation_continues_and_is_reported_once() -> None:
    reported: list[tuple[object, float]] = []
    with TimeLimit(10, on_ignored=lambda task: reported.append((task, now()))):
        try:
            await never()
        except asyncio.CancelledError:
            await asyncio.sleep(100)
    task = asyncio.current_task()
    assert task is not None
    assert (task.cancelling(), now()) == (0, 110)
    assert reported == [(task, 10 + IGNORED_S)]


def test_a_limit_outside_a_task_is_refused() -> None:
    loop = asyncio.new_event_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    loop.call_soon(TimeLimit(10).__enter__)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert [str(error) for error in errors] == ["a time limit works only inside a task"]


async def test_waiting_for_an_event_ends_after_the_time_limit() -> None:
    assert not await happens(asyncio.Event(), within_s=10)
    assert now() == 10
