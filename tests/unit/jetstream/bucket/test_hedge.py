"""A hedged request is repeated if its response is late, and the first response is returned."""

import asyncio

import pytest

from natsctl.jetstream.bucket.hedge import hedged


class Attempts:
    """Attempts that end after these times, in order."""

    def __init__(self, *durations_s: float) -> None:
        self._durations_s = list(durations_s)
        self.count = 0
        self.cancelled = 0

    async def __call__(self) -> int:
        number, self.count = self.count, self.count + 1
        try:
            await asyncio.sleep(self._durations_s[number])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return number


async def test_a_fast_attempt_is_not_repeated() -> None:
    attempts = Attempts(0.1)
    assert await hedged(attempts, every_s=0.5) == 0
    assert attempts.count == 1


async def test_the_first_response_is_returned_and_the_other_attempts_are_cancelled() -> None:
    attempts = Attempts(60.0, 60.0, 0.1)
    started = asyncio.get_running_loop().time()
    assert await hedged(attempts, every_s=0.5) == 2
    assert asyncio.get_running_loop().time() - started == pytest.approx(1.1)
    assert attempts.cancelled == 2


async def test_the_first_error_is_raised() -> None:
    async def fail() -> int:
        await asyncio.sleep(1.2)
        raise ValueError("no")

    started = asyncio.get_running_loop().time()
    with pytest.raises(ValueError, match="no"):
        await hedged(fail, every_s=0.5)
    assert asyncio.get_running_loop().time() - started == pytest.approx(1.2)


async def test_a_cancelled_caller_cancels_every_attempt() -> None:
    attempts = Attempts(60.0, 60.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.7):
            await hedged(attempts, every_s=0.5)
    assert (attempts.count, attempts.cancelled) == (2, 2)


async def test_a_result_is_preferred_to_an_error_that_comes_at_the_same_time() -> None:
    responses, attempts = asyncio.Event(), 0

    async def attempt() -> int:
        nonlocal attempts
        attempts += 1
        number = attempts
        await responses.wait()
        if number % 2:
            raise OSError(number)
        return number

    hedging = asyncio.create_task(hedged(attempt, every_s=0.5))
    await asyncio.sleep(0.7)
    responses.set()
    assert await hedging == 2
