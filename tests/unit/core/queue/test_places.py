"""The keys in each place of a queue: the oldest and the next ones, found without a full walk."""

import asyncio

from natsctl.core.queue.timers import Timers
from natsctl.core.queue.workqueue import Held, Priority, Ready, Waiting, Workqueue

MANY = 2_000


async def test_a_queue_lists_the_longest_held_keys_first() -> None:
    queue = Workqueue[str]()
    for key in "abc":
        queue.add(key)
    assert queue.get_nowait() == "a"
    await asyncio.sleep(1)
    assert (queue.get_nowait(), queue.get_nowait()) == ("b", "c")
    assert list(queue.places(2)) == [("a", Held(0, Priority.USER)), ("b", Held(1, Priority.USER))]


async def test_a_queue_lists_the_longest_ready_keys_first_whatever_their_priority() -> None:
    queue = Workqueue[str]()
    queue.add("old", priority=Priority.RESYNC)
    await asyncio.sleep(1)
    queue.add("new")
    assert list(queue.places(9)) == [
        ("old", Ready(0, Priority.RESYNC)),
        ("new", Ready(1, Priority.USER)),
    ]


async def test_a_queue_lists_the_keys_that_become_ready_next() -> None:
    queue = Workqueue[str]()
    for delay_s in (5, 3, 9, 4):
        queue.add(f"after {delay_s}", after=delay_s)
    assert list(queue.places(2)) == [("after 3", Waiting(3)), ("after 4", Waiting(4))]


async def test_an_empty_queue_has_no_places() -> None:
    assert list(Workqueue[str]().places(9)) == []


async def test_the_soonest_of_many_timers_are_in_order_without_cancelled_ones() -> None:
    timers = Timers[int](lambda _: None)
    for number in range(MANY):
        timers.set(number, float(1 + number * 7919 % MANY))
    cancelled = {number for number in range(MANY) if timers.get(number) in {1.0, 3.0, 4.0}}
    for number in cancelled:
        timers.cancel(number)
    assert [when for _, when in timers.soonest(3)] == [2.0, 5.0, 6.0]
    timers.clear()


async def test_the_soonest_timers_are_fewer_rather_than_a_walk_over_many_cancelled_ones() -> None:
    timers = Timers[int](lambda _: None)
    for number in range(MANY):
        timers.set(number, float(1 + number))
    for number in range(MANY // 2 - 1):
        timers.cancel(number)
    assert timers.soonest(3) == []
    timers.clear()
