"""Requeue, retry or drop of a key after its sync."""

import asyncio

import pytest

from natsctl.core.queue.ready_queue import Ready
from natsctl.core.queue.retry import Decision, Drop, Retry, Stop
from natsctl.core.queue.workqueue import Priority, Waiting, Workqueue
from natsctl.core.sync.follow_up import Failed, Synced, settle
from natsctl.errors import InvalidKeyError, PermanentError, QueueShutDownError, RetryAfter

ERROR = OSError("no")


@pytest.fixture
def queue() -> Workqueue[str]:
    return Workqueue()


async def take(queue: Workqueue[str], *, failures: int = 0) -> None:
    """Take the key `a` after the given number of failures."""
    for _ in range(failures):
        queue.retry("a", after=0)
    if not failures:
        queue.add("a")
    assert await queue.get() == "a"


class Policy:
    """A retry policy with a fixed decision; records its calls."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.calls: list[tuple[Exception, int]] = []

    def __call__(self, error: Exception, failures: int) -> Decision:
        self.calls.append((error, failures))
        return self.decision


RETRY = Policy(Retry())


def waits_s(queue: Workqueue[str]) -> float:
    place = queue.place("a")
    assert isinstance(place, Waiting)
    return place.until - asyncio.get_running_loop().time()


class TestSuccess:
    async def test_a_synced_key_leaves_the_queue_and_loses_its_failures(
        self, queue: Workqueue[str]
    ) -> None:
        await take(queue, failures=3)
        settle(queue, "a", Synced(), RETRY)
        assert queue.place("a") is None
        assert queue.failures("a") == 0

    async def test_a_key_is_requeued_after_the_returned_delay(self, queue: Workqueue[str]) -> None:
        await take(queue, failures=3)
        settle(queue, "a", Synced(after=60), RETRY)
        assert waits_s(queue) == 60
        assert queue.failures("a") == 0

    async def test_a_requeued_key_has_a_lower_priority_than_a_retry(
        self, queue: Workqueue[str]
    ) -> None:
        await take(queue)
        settle(queue, "a", Synced(after=1), RETRY)
        queue.add("b", after=1, priority=Priority.RETRY)
        await asyncio.sleep(2)
        assert [await queue.get(), await queue.get()] == ["b", "a"]

    async def test_a_delay_of_zero_requeues_at_once(self, queue: Workqueue[str]) -> None:
        await take(queue)
        settle(queue, "a", Synced(after=0), RETRY)
        assert await queue.get() == "a"

    async def test_a_change_during_the_sync_requeues_the_key(self, queue: Workqueue[str]) -> None:
        await take(queue)
        queue.add("a")
        settle(queue, "a", Synced(), RETRY)
        assert await queue.get() == "a"


class TestFailure:
    async def test_the_policy_gets_the_error_and_the_number_of_failures(
        self, queue: Workqueue[str]
    ) -> None:
        policy = Policy(Retry())
        for _ in range(3):
            await take(queue) if not policy.calls else await queue.get()
            settle(queue, "a", Failed(ERROR), policy)
        assert policy.calls == [(ERROR, 1), (ERROR, 2), (ERROR, 3)]

    async def test_a_retry_without_a_delay_uses_the_limiter(self, queue: Workqueue[str]) -> None:
        await take(queue)
        settle(queue, "a", Failed(ERROR), Policy(Retry()))
        assert 0.005 <= waits_s(queue) <= 0.0056
        assert queue.failures("a") == 1

    async def test_a_retry_with_a_delay_uses_that_delay(self, queue: Workqueue[str]) -> None:
        await take(queue)
        settle(queue, "a", Failed(ERROR), Policy(Retry(after=7)))
        assert waits_s(queue) == 7
        assert queue.failures("a") == 1

    async def test_a_dropped_key_leaves_the_queue_and_loses_its_failures(
        self, queue: Workqueue[str]
    ) -> None:
        await take(queue, failures=3)
        settle(queue, "a", Failed(ERROR), Policy(Drop()))
        assert queue.place("a") is None
        assert queue.failures("a") == 0

    async def test_a_stop_shuts_down_the_queue(self, queue: Workqueue[str]) -> None:
        queue.add("b", after=1)
        await take(queue)
        queue.add("c")
        settle(queue, "a", Failed(ERROR), Policy(Stop()))
        with pytest.raises(QueueShutDownError):
            await queue.get()
        assert queue.idle

    @pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(1)])
    async def test_a_key_is_retried_with_backoff_if_the_policy_raises(
        self, queue: Workqueue[str], error: BaseException
    ) -> None:
        def broken(_error: Exception, _failures: int) -> Decision:
            raise error

        await take(queue)
        settle(queue, "a", Failed(ERROR), broken)
        assert queue.failures("a") == 1
        assert await queue.get() == "a"

    async def test_a_timeout_is_a_failure(self, queue: Workqueue[str]) -> None:
        await take(queue)
        settle(queue, "a", Failed(TimeoutError()), Policy(Retry(after=7)))
        assert queue.failures("a") == 1


class TestRaisedRequests:
    async def test_retry_after_requeues_without_a_failure(self, queue: Workqueue[str]) -> None:
        policy = Policy(Drop())
        await take(queue, failures=2)
        settle(queue, "a", Failed(RetryAfter(30)), policy)
        assert waits_s(queue) == 30
        assert queue.failures("a") == 2
        assert policy.calls == []

    async def test_retry_after_keeps_the_priority_of_the_sync(self, queue: Workqueue[str]) -> None:
        queue.add("a", priority=Priority.SECONDARY)
        await queue.get()
        settle(queue, "a", Failed(RetryAfter(1)), Policy(Drop()))
        queue.add("b", after=1, priority=Priority.RETRY)
        queue.add("c", after=1, priority=Priority.USER)
        await asyncio.sleep(2)
        assert [await queue.get() for _ in range(3)] == ["c", "a", "b"]

    @pytest.mark.parametrize("priority", list(Priority))
    async def test_retry_after_keeps_every_priority(
        self, queue: Workqueue[str], priority: Priority
    ) -> None:
        queue.add("a", priority=priority)
        await queue.get()
        settle(queue, "a", Failed(RetryAfter(1)), Policy(Drop()))
        await asyncio.sleep(2)
        ready = queue.place("a")
        assert isinstance(ready, Ready)
        assert ready.priority is priority

    @pytest.mark.parametrize("error", [PermanentError("never"), InvalidKeyError("odd")])
    async def test_a_permanent_error_drops_the_key(
        self, queue: Workqueue[str], error: Exception
    ) -> None:
        policy = Policy(Retry())
        await take(queue, failures=2)
        settle(queue, "a", Failed(error), policy)
        assert queue.place("a") is None
        assert queue.failures("a") == 0
        assert policy.calls == []
