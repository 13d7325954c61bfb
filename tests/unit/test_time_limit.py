"""A time limit cancels work that takes too long and has no other effect."""

import asyncio

import pytest

from natsctl.time_limit import IGNORED_S, TimeLimit, happens


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


async def stubborn(limit: TimeLimit, s: float) -> None:
    """Stay in a block of the limit for so many seconds after the cancellation."""
    with limit:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(s)


async def test_a_task_that_ignores_the_cancellation_is_reported_once() -> None:
    reported: list[tuple[object, float]] = []
    limit = TimeLimit(10, on_ignored=lambda task: reported.append((task, now())))
    task = asyncio.create_task(stubborn(limit, 100))
    await task
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
