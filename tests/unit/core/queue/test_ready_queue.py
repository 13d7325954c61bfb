"""The order of ready keys, apart from the work queue."""

import pytest

from natsctl.core.queue.ready_queue import Priority, ReadyQueue


def test_a_cleared_queue_keeps_no_key_of_a_share() -> None:
    queue = ReadyQueue[str](lambda key: key[0], ageing_s=1)
    queue.push("a1", Priority.USER, 0)
    queue.clear()
    queue.push("a2", Priority.USER, 0)
    key, _ = queue.pop(0)
    assert (key, dict(queue.entries)) == ("a2", {})


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
