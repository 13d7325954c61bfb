"""A queue that is fed with many keys adds a few of them at a time."""

import asyncio

import pytest

from natsctl.core.queue.backlog import FEW
from natsctl.core.queue.workqueue import Priority, Workqueue
from natsctl.errors import QueueShutDownError

MANY = [f"k{number:05}" for number in range(20 * FEW)]


@pytest.fixture
async def queue() -> Workqueue[str]:
    return Workqueue[str]()


def add_to(queue: Workqueue[str]) -> list[str]:
    """Feed the queue, and return the list of the keys that are added."""
    added: list[str] = []

    def add(key: str) -> None:
        added.append(key)
        queue.add(key, priority=Priority.RESYNC)

    queue.feed(MANY, add)
    return added


async def sync_next(queue: Workqueue[str]) -> str:
    key = await queue.get()
    queue.done(key)
    return key


async def test_every_key_is_added_in_order(queue: Workqueue[str]) -> None:
    add_to(queue)
    assert [await sync_next(queue) for _ in MANY] == MANY
    assert queue.idle


async def test_few_keys_are_added_at_a_time(queue: Workqueue[str]) -> None:
    added = add_to(queue)
    assert 0 < len(added) <= FEW
    for synced in range(5 * FEW):
        await sync_next(queue)
        assert len(added) <= synced + 2 * FEW


async def test_all_keys_count_as_due(queue: Workqueue[str]) -> None:
    add_to(queue)
    assert queue.stats().depth == len(MANY)
    await sync_next(queue)
    assert queue.stats().depth == len(MANY) - 1
    assert not queue.idle
    assert not queue.settled


async def test_an_urgent_key_goes_first(queue: Workqueue[str]) -> None:
    add_to(queue)
    await sync_next(queue)
    queue.add("urgent")
    assert await sync_next(queue) == "urgent"


async def test_a_waiting_worker_gets_a_fed_key(queue: Workqueue[str]) -> None:
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    add_to(queue)
    assert await worker == MANY[0]


async def test_keys_that_are_left_out_delay_no_other_task(queue: Workqueue[str]) -> None:
    queue.feed(MANY, lambda _key: None)
    worker, turns = asyncio.create_task(queue.get()), 0
    while not queue.idle:
        await asyncio.sleep(0)
        turns += 1
    worker.cancel()
    assert turns >= len(MANY) / FEW - 2


async def test_two_feeds_follow_each_other(queue: Workqueue[str]) -> None:
    queue.feed(MANY[:150], queue.add)
    queue.feed(MANY[150:300], queue.add)
    assert [await sync_next(queue) for _ in range(300)] == MANY[:300]


async def test_no_keys_are_fed_to_a_queue_that_is_shut_down(queue: Workqueue[str]) -> None:
    added = add_to(queue)
    queue.shut_down(drain=False)
    queue.feed(MANY, queue.add)
    with pytest.raises(QueueShutDownError):
        await queue.get()
    assert len(added) <= FEW


async def test_feed_no_more_adds_none_of_the_remaining_keys(queue: Workqueue[str]) -> None:
    added = add_to(queue)
    queue.feed_no_more()
    for _ in added:
        await sync_next(queue)
    assert queue.idle
    assert len(added) <= FEW


async def test_many_failed_keys_are_hastened(queue: Workqueue[str]) -> None:
    for key in MANY:
        queue.retry(key, after=1000)
    assert not queue.settled
    queue.hasten_retries()
    assert {await sync_next(queue) for _ in MANY} == set(MANY)
    assert queue.settled


async def test_a_queue_is_settled_when_failed_keys_have_succeeded(queue: Workqueue[str]) -> None:
    queue.add("a")
    key = await queue.get()
    queue.retry(key, after=10)
    queue.done(key)
    assert not queue.settled
    await asyncio.sleep(11)
    key = await queue.get()
    queue.forget(key)
    queue.done(key)
    assert queue.settled
