"""The order of ready keys, apart from the work queue."""

import weakref

import pytest

from natsctl.core.queue.ready_queue import SKIPPED_MAX, Priority, Ready, ReadyQueue


def test_a_cleared_queue_keeps_no_key_of_a_share() -> None:
    queue = ReadyQueue[str](lambda key: key[0], ageing_s=1)
    queue.push("a1", Priority.USER, 0)
    queue.clear()
    queue.push("a2", Priority.USER, 0)
    key, _ = queue.pop(0)
    assert (key, list(queue.keys)) == ("a2", [])


def test_a_key_that_is_ready_for_exactly_the_ageing_time_is_not_preferred() -> None:
    queue = ReadyQueue[str](None, ageing_s=10)
    queue.push("old", Priority.RESYNC, 0)
    queue.push("urgent", Priority.USER, 10)
    key, _ = queue.pop(10)
    assert key == "urgent"


def test_a_removed_key_is_not_taken_by_its_priority() -> None:
    queue = ReadyQueue[str](None, ageing_s=1)
    queue.push("removed", Priority.USER, 0)
    queue.push("next", Priority.USER, 0)
    queue.remove("removed")
    queue.remove("unknown")
    key, _ = queue.pop(0)
    assert key == "next"


def test_an_empty_queue_raises_a_key_error() -> None:
    queue = ReadyQueue[str](None, ageing_s=1)
    with pytest.raises(KeyError):
        queue.pop(0)


class Name:
    """A key of which weak references exist."""


def test_keys_that_were_taken_are_not_kept() -> None:
    queue = ReadyQueue[Name](None, ageing_s=1)
    kept = weakref.WeakSet[Name]()
    for priority in (Priority.RESYNC, Priority.USER, Priority.RETRY):
        for _ in range(3):
            kept.add(name := Name())
            queue.push(name, priority, 0)
            queue.push(name, Priority.SECONDARY, 0)
    del name
    for now in range(9):
        queue.pop(now)
    assert len(kept) == 0


def test_the_oldest_keys_come_first() -> None:
    queue = ReadyQueue[str](None, ageing_s=10)
    for now, (key, priority) in enumerate([("a", Priority.RESYNC), ("b", Priority.USER)]):
        queue.push(key, priority, now)
    queue.push("a", Priority.RETRY, 2)
    assert list(queue.oldest()) == [
        ("a", Ready(0, Priority.RETRY)),
        ("b", Ready(1, Priority.USER)),
    ]


@pytest.mark.parametrize(
    "priorities", [(Priority.USER,), (Priority.RESYNC, Priority.USER)], ids=["added", "raised"]
)
def test_an_old_key_keeps_few_of_the_keys_that_overtake_it(priorities: tuple[Priority]) -> None:
    queue = ReadyQueue[Name](None, ageing_s=1)
    queue.push(Name(), Priority.RESYNC, 0)
    kept = weakref.WeakSet[Name]()
    for _ in range(2 * SKIPPED_MAX):
        kept.add(name := Name())
        for priority in priorities:
            queue.push(name, priority, 0)
        queue.pop(0)
    assert len(kept) <= SKIPPED_MAX + 2
