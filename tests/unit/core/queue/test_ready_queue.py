"""The order of ready keys, apart from the work queue."""

import weakref
from collections.abc import Callable, Hashable

import pytest

from natsctl.core.queue.ready_queue import SKIPPED_MAX, Priority, Ready, ReadyQueue


def test_a_cleared_queue_keeps_no_key_of_a_share() -> None:
    queue = ReadyQueue[str](lambda key: key[0], ageing_s=1)
    queue.push("a1", Priority.USER, 0)
    queue.clear()
    queue.push("a2", Priority.USER, 0)
    key = queue.pop(0).key
    assert (key, list(queue.keys)) == ("a2", [])


@pytest.mark.parametrize("share_of", [None, len], ids=["one share", "shares"])
def test_a_cleared_key_is_not_taken_by_its_age(
    share_of: Callable[[str], Hashable] | None,
) -> None:
    queue = ReadyQueue[str](share_of, ageing_s=1)
    queue.push("cleared", Priority.USER, 0)
    queue.clear()
    queue.push("new", Priority.USER, 0)
    assert queue.pop(2).key == "new"


@pytest.mark.parametrize("share_of", [None, len], ids=["one share", "shares"])
def test_a_cleared_queue_has_no_key_to_take(share_of: Callable[[str], Hashable] | None) -> None:
    queue = ReadyQueue[str](share_of, ageing_s=1)
    queue.push("a", Priority.USER, 0)
    queue.clear()
    with pytest.raises(KeyError):
        queue.pop(0)


def test_a_share_whose_only_key_was_removed_has_no_key_to_take() -> None:
    queue = ReadyQueue[str](len, ageing_s=1)
    queue.push("a", Priority.USER, 0)
    queue.remove("a")
    with pytest.raises(KeyError):
        queue.pop(0)


def test_a_key_that_is_ready_for_exactly_the_ageing_time_is_not_preferred() -> None:
    queue = ReadyQueue[str](None, ageing_s=10)
    queue.push("old", Priority.RESYNC, 0)
    queue.push("urgent", Priority.USER, 10)
    key = queue.pop(10).key
    assert key == "urgent"


@pytest.mark.parametrize("share_of", [None, len], ids=["one share", "shares"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(Priority.RESYNC, Priority.RETRY), (Priority.RETRY, Priority.RESYNC)],
    ids=["a more urgent second key", "a less urgent second key"],
)
def test_the_first_of_two_keys_that_were_added_at_the_same_time_is_the_oldest(
    first: Priority, second: Priority, share_of: Callable[[str], Hashable] | None
) -> None:
    queue = ReadyQueue[str](share_of, ageing_s=1)
    queue.push("first", first, 0)
    queue.push("second", second, 0)
    key = queue.pop(2).key
    assert key == "first"


def test_a_removed_key_is_not_taken_by_its_priority() -> None:
    queue = ReadyQueue[str](None, ageing_s=1)
    queue.push("removed", Priority.USER, 0)
    queue.push("next", Priority.USER, 0)
    queue.remove("removed")
    queue.remove("unknown")
    key = queue.pop(0).key
    assert key == "next"


@pytest.mark.parametrize("share_of", [None, len], ids=["one share", "shares"])
def test_a_queue_whose_last_key_was_removed_after_its_priority_rose_has_no_key_to_take(
    share_of: Callable[[str], Hashable] | None,
) -> None:
    queue = ReadyQueue[str](share_of, ageing_s=1)
    queue.push("a", Priority.RESYNC, 0)
    queue.push("a", Priority.USER, 0)
    queue.remove("a")
    with pytest.raises(KeyError, match="no key is ready"):
        queue.pop(0)


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


def test_keys_whose_priority_rose_are_not_kept_once_they_are_taken() -> None:
    queue = ReadyQueue[Name](None, ageing_s=1)
    kept = weakref.WeakSet[Name]()
    for _ in range(3):
        kept.add(name := Name())
        queue.push(name, Priority.RESYNC, 0)
        queue.push(name, Priority.USER, 0)
    del name
    queue.push(Name(), Priority.RESYNC, 0)
    for _ in range(3):
        queue.pop(0)
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


def test_a_key_that_was_taken_is_not_among_the_oldest() -> None:
    queue = ReadyQueue[str](None, ageing_s=10)
    queue.push("old", Priority.RESYNC, 0)
    queue.push("urgent", Priority.USER, 1)
    queue.pop(1)
    assert [key for key, _ in queue.oldest()] == ["old"]


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


@pytest.mark.parametrize("now", [0, 2], ids=["by priority", "by age"])
def test_an_old_key_that_many_keys_overtook_is_taken(now: float) -> None:
    queue = ReadyQueue[str](None, ageing_s=1)
    queue.push("old", Priority.RESYNC, 0)
    for number in range(SKIPPED_MAX + 10):
        queue.push(f"k{number}", Priority.RESYNC, 0)
        queue.push(f"k{number}", Priority.USER, 0)
        queue.pop(0)
    key = queue.pop(now).key
    assert key == "old"
