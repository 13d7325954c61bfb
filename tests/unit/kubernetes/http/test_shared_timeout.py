"""A shared timeout ends each task's block at its own deadline, as `asyncio.timeout` does."""

import asyncio

import pytest

from natsctl.kubernetes.http.shared_timeout import SharedTimeout

LIMIT_S = 10.0


@pytest.fixture
async def limit() -> SharedTimeout:
    return SharedTimeout(LIMIT_S)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_block_that_takes_too_long_raises_at_its_deadline(limit: SharedTimeout) -> None:
    started = now()
    with pytest.raises(TimeoutError), limit:
        await asyncio.sleep(3600)
    assert now() - started == pytest.approx(LIMIT_S)


async def test_a_block_that_ends_in_time_is_not_cancelled_later(limit: SharedTimeout) -> None:
    for _ in range(5):
        with limit:
            await asyncio.sleep(0.9 * LIMIT_S)
        await asyncio.sleep(LIMIT_S)


async def test_each_task_has_its_own_deadline(limit: SharedTimeout) -> None:
    ends: list[float] = []

    async def wait(start_s: float) -> None:
        await asyncio.sleep(start_s)
        try:
            with limit:
                await asyncio.sleep(3600)
        except TimeoutError:
            ends.append(now() - started)

    started = now()
    await asyncio.gather(*(wait(start_s) for start_s in (3.0, 0.0, 7.0)))
    assert ends == pytest.approx([LIMIT_S, LIMIT_S + 3.0, LIMIT_S + 7.0])


async def test_a_block_that_ended_does_not_delay_the_deadlines_of_others(
    limit: SharedTimeout,
) -> None:
    async def short() -> None:
        with limit:
            await asyncio.sleep(1.0)

    started = now()
    first = asyncio.create_task(short())
    await asyncio.sleep(0.5)
    with pytest.raises(TimeoutError), limit:
        await asyncio.sleep(3600)
    assert now() - started == pytest.approx(LIMIT_S + 0.5)
    await first


async def test_a_task_that_is_cancelled_from_outside_raises_no_timeout(
    limit: SharedTimeout,
) -> None:
    async def wait() -> None:
        with limit:
            await asyncio.sleep(3600)

    task = asyncio.create_task(wait())
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_task_still_has_a_limit_while_it_cleans_up(
    limit: SharedTimeout,
) -> None:
    raised: list[Exception] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            try:
                with limit:
                    await asyncio.sleep(3600)
            except TimeoutError as error:
                raised.append(error)

    task = asyncio.create_task(work())
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(raised) == 1


async def test_an_error_of_the_block_is_raised_unchanged(limit: SharedTimeout) -> None:
    with pytest.raises(KeyError), limit:
        raise KeyError


async def test_a_task_can_use_the_timeout_again_after_it_expired(limit: SharedTimeout) -> None:
    for _ in range(2):
        with pytest.raises(TimeoutError), limit:
            await asyncio.sleep(3600)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
