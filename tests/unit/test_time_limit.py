"""A time limit cancels work that takes too long and has no other effect."""

import asyncio

import pytest

from natsctl.time_limit import TimeLimit


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_work_within_the_limit_is_not_cancelled() -> None:
    limit = TimeLimit(10)
    for _ in range(3):
        with limit:
            await asyncio.sleep(9)
    await asyncio.sleep(100)
    assert now() == 127


async def test_work_beyond_the_limit_raises_timeout_error() -> None:
    limit = TimeLimit(10)
    with pytest.raises(TimeoutError), limit:
        await asyncio.Event().wait()
    assert now() == 10


async def test_a_task_that_hit_the_limit_is_not_cancelled() -> None:
    limit = TimeLimit(10)
    with pytest.raises(TimeoutError), limit:
        await asyncio.Event().wait()
    await asyncio.sleep(1)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with limit:
        await asyncio.sleep(9)


async def test_every_task_has_its_own_limit() -> None:
    limit = TimeLimit(10)
    ended: dict[int, float] = {}

    async def work(number: int) -> None:
        await asyncio.sleep(number)
        with pytest.raises(TimeoutError), limit:
            await asyncio.Event().wait()
        ended[number] = now()

    await asyncio.gather(*(work(number) for number in (3, 0, 7)))
    assert ended == {0: 10, 3: 13, 7: 17}


async def test_a_block_that_ended_does_not_delay_the_deadlines_of_others() -> None:
    limit = TimeLimit(10)

    async def short() -> None:
        with limit:
            await asyncio.sleep(2)

    first = asyncio.create_task(short())
    await asyncio.sleep(1)
    with pytest.raises(TimeoutError), limit:
        await asyncio.Event().wait()
    assert now() == 11
    await first


async def test_a_time_limit_raises_the_error_of_its_owner() -> None:
    limit = TimeLimit(10, error=lambda: ValueError("too long"))
    with pytest.raises(ValueError, match="too long"), limit:
        await asyncio.Event().wait()


async def test_a_cancellation_by_others_is_raised() -> None:
    limit = TimeLimit(10)

    async def work() -> None:
        with limit:
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == 5


async def test_a_cancellation_at_the_time_limit_cancels_the_task() -> None:
    limit = TimeLimit(10)

    async def work() -> None:
        with limit:
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(10, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cleanup_after_a_cancellation_may_exceed_the_limit() -> None:
    limit = TimeLimit(10)
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        with limit:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(20)
                cleaned = True

    task = asyncio.create_task(work())
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned


async def test_a_block_that_begins_after_a_cancellation_has_a_limit() -> None:
    limit = TimeLimit(10)
    ended = 0.0

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            with pytest.raises(TimeoutError), limit:
                await asyncio.Event().wait()
            ended = now()

    task = asyncio.create_task(work())
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == 15


async def test_an_error_of_the_work_is_raised() -> None:
    with pytest.raises(ValueError, match="mine"), TimeLimit(10):
        raise ValueError("mine")


async def test_work_that_ignores_the_cancellation_continues() -> None:
    limit = TimeLimit(10)
    with limit:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(5)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert now() == 15
