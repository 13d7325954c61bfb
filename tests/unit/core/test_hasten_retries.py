"""When an outage is over, what failed meanwhile is tried again at once."""

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


async def test_a_key_that_waits_for_its_retry_is_ready() -> None:
    queue = Workqueue[str]()
    await failed(queue, "a", 15)
    begun = now()
    queue.hasten_retries()
    assert await queue.get() == "a"
    assert now() == begun


async def test_its_backoff_begins_anew() -> None:
    queue = Workqueue[str]()
    await failed(queue, "a", 15)
    queue.hasten_retries()
    assert queue.failures("a") == 0


async def test_a_key_that_is_held_is_retried_when_it_is_given_back() -> None:
    queue = Workqueue[str]()
    await failed(queue, "a", 15)
    begun = now()
    queue.hasten_retries()
    await queue.get()
    queue.retry("a", after=1000)
    queue.hasten_retries()
    queue.done("a")
    assert await queue.get() == "a"
    assert now() == begun


async def test_a_time_that_was_asked_for_is_kept() -> None:
    queue = Workqueue[str]()
    begun = now()
    queue.add("a", after=3600)
    queue.hasten_retries()
    assert await queue.get() == "a"
    assert now() == begun + 3600


async def test_a_token_bucket_is_heeded() -> None:
    queue = Workqueue[str](bucket=TokenBucket(rate_per_s=0.1, burst=1))
    await failed(queue, "a", 1)
    begun = now()
    queue.hasten_retries()
    assert await queue.get() == "a"
    assert begun < now() <= begun + 10
