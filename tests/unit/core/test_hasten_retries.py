"""Hastened retries: after an outage, failed keys are retried at once."""

import asyncio

from natsctl.core.queue.retry import TokenBucket
from natsctl.core.queue.workqueue import Workqueue


async def failed(queue: Workqueue[str], key: str, times: int) -> None:
    queue.add(key)
    for _ in range(times):
        assert await queue.get() == key
        queue.retry(key)
        queue.done(key)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_key_that_waits_for_its_retry_becomes_ready() -> None:
    queue = Workqueue[str]()
    await failed(queue, "a", 15)
    started = now()
    queue.hasten_retries()
    assert await queue.get() == "a"
    assert now() == started


async def test_the_backoff_of_a_hastened_key_restarts() -> None:
    queue = Workqueue[str]()
    await failed(queue, "a", 15)
    queue.hasten_retries()
    assert queue.failures("a") == 0


async def test_a_held_key_is_retried_after_done() -> None:
    queue = Workqueue[str]()
    await failed(queue, "a", 15)
    started = now()
    queue.hasten_retries()
    await queue.get()
    queue.retry("a", after=1000)
    queue.hasten_retries()
    queue.done("a")
    assert await queue.get() == "a"
    assert now() == started


async def test_an_explicit_delay_is_kept() -> None:
    queue = Workqueue[str]()
    started = now()
    queue.add("a", after=3600)
    queue.hasten_retries()
    assert await queue.get() == "a"
    assert now() == started + 3600


async def test_the_token_bucket_still_limits_retries() -> None:
    queue = Workqueue[str](bucket=TokenBucket(rate_per_s=0.1, burst=1))
    await failed(queue, "a", 1)
    started = now()
    queue.hasten_retries()
    assert await queue.get() == "a"
    assert started < now() <= started + 10
