"""The workqueue: places, timers, priorities, fairness, retries, shutdown and statistics."""

import asyncio
import gc
import math
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

import pytest

from natsctl import Drop, ExponentialLimiter, Operation, RateLimit, Retry, Stop, TokenBucket
from natsctl.core.workqueue import AGEING_S, FEW, STALE_MAX, Failed, Priority, Synced, WorkQueue
from natsctl.errors import (
    InvalidKeyError,
    PermanentError,
    QueueShutDownError,
    RetryAfter,
    UsageError,
)
from natsctl.testing import VirtualTimeLoop
from tests.support.places import Ready, Waiting, place, places, take, take_nowait

Ts = TypeVarTuple("Ts")

RESYNC, RETRY, SECONDARY, USER = sorted(Priority)


def make_queue(*, base_s: float = 8.0, bucket: TokenBucket | None = None) -> WorkQueue[str]:
    limiter = ExponentialLimiter[str](base_s=base_s, jitter=lambda: 0.0)
    return WorkQueue(limiter=limiter, bucket=bucket)


@pytest.fixture
def queue() -> WorkQueue[str]:
    return make_queue()


def now() -> float:
    return asyncio.get_running_loop().time()


class WeakKey:
    """A key to which a test can hold a weak reference."""


async def next_key(queue: WorkQueue[str]) -> tuple[str, float]:
    key = await take(queue)
    return key, now()


class TestPlaces:
    async def test_done_for_a_key_that_is_not_held_is_refused(self, queue: WorkQueue[str]) -> None:
        queue.offer("a")
        with pytest.raises(UsageError, match="a was given back, but nobody has claimed it"):
            queue.give_back("a")

    async def test_a_removed_key_leaves_no_memory(self) -> None:
        queue: WorkQueue[WeakKey] = WorkQueue()

        async def process_key() -> weakref.ref[WeakKey]:
            key = WeakKey()
            queue.offer(key, after=5)
            queue.retry(key, after=9)
            for _ in range(2):
                queue.offer(key)
                queue.forget(await take(queue))
                queue.give_back(key)
                await asyncio.sleep(6)
            return weakref.ref(key)

        reference = await process_key()
        assert queue.idle
        gc.collect()
        assert reference() is None


class TestDelays:
    async def test_an_infinite_delay_does_not_block_other_keys(self, queue: WorkQueue[str]) -> None:
        queue.offer("never", after=math.inf)
        queue.offer("b", after=1e7)
        assert await next_key(queue) == ("b", 1e7)
        assert place(queue, "never") == Waiting(until=math.inf)

    async def test_the_loop_runs_other_tasks_while_thousands_of_keys_become_ready(
        self, queue: WorkQueue[str]
    ) -> None:
        for number in range(5000):
            queue.offer(f"key-{number}", after=1)
        await take(queue)
        assert 0 < queue.ready < 4999
        await asyncio.sleep(1)
        assert queue.ready == 4999

    async def test_timers_of_many_keys_stay_exact_when_most_are_cancelled(
        self, queue: WorkQueue[str]
    ) -> None:
        contexts: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: contexts.append(context)
        )
        times = {f"key-{number}": number * 7919 % 1009 + 1.0 for number in range(1009)}
        for key, time_s in times.items():
            queue.retry(key, after=time_s)
        for key, time_s in times.items():
            if time_s % 5:
                queue.drop(key)
        remaining = sorted((time_s, key) for key, time_s in times.items() if not time_s % 5)
        soonest = [(key, Waiting(time_s)) for time_s, key in remaining[:3]]
        assert places(queue, 3) == soonest
        assert [await next_key(queue) for _ in remaining] == [
            (key, time_s) for time_s, key in remaining
        ]
        assert contexts == []


class CoarseLoop(VirtualTimeLoop):
    """A loop that calls timers slightly early, as uvloop does, and limits them to a week."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = 0

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.timers += 1
        if when > self.time() + 7 * 86_400:
            raise OverflowError("too far ahead")
        return super().call_at(when - 0.0004, callback, *args, context=context)


@pytest.mark.parametrize(("after_s", "at_s"), [(1, 0.9996), (1e6, 1e6)])
def test_a_timer_may_fire_early_and_a_delay_may_exceed_the_limit_of_the_loop(
    after_s: float, at_s: float
) -> None:
    async def wait() -> float:
        queue = make_queue()
        queue.offer("a", after=after_s)
        key, time_s = await next_key(queue)
        queue.give_back(key)
        assert queue.idle
        return time_s

    loop = CoarseLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(wait()) == pytest.approx(at_s)
    assert after_s > 1 or loop.timers == 1


class TestRetry:
    async def test_the_default_backoff_starts_at_five_milliseconds_and_doubles(self) -> None:
        queue: WorkQueue[str] = WorkQueue()
        times_s = []
        for _ in range(3):
            queue.retry("a")
            key, time_s = await next_key(queue)
            times_s.append(time_s)
            queue.give_back(key)
        assert 0.005 <= times_s[0] <= 0.0055
        assert 0.010 <= times_s[1] - times_s[0] <= 0.011
        assert 0.020 <= times_s[2] - times_s[1] <= 0.022

    async def test_a_token_bucket_spreads_retries_of_many_keys(self) -> None:
        queue = make_queue(base_s=0.001, bucket=TokenBucket(rate_per_s=1, burst=2))
        for key in "abcd":
            queue.retry(key)
        times_s = [await next_key(queue) for _ in range(4)]
        assert times_s == [("a", 0.001), ("b", 0.001), ("c", 1), ("d", 2)]


async def test_latency_lasts_from_ready_to_taken_and_work_from_taken_to_given_back(
    queue: WorkQueue[str],
) -> None:
    queue.offer("a", after=100)
    await asyncio.sleep(107)
    await take(queue)
    latency = queue.stats().latency_s
    assert latency.sum == 7
    assert dict(zip(latency.bounds, latency.counts, strict=False))[10] == 1
    assert latency.count == 1
    queue.offer("a")
    await asyncio.sleep(1)
    queue.give_back("a")
    await asyncio.sleep(3)
    await take(queue)
    assert queue.stats().latency_s.sum == 7 + 4  # it begins while the key is claimed
    await asyncio.sleep(5000)
    queue.give_back("a")
    work = queue.stats().work_s
    assert (work.sum, work.count) == (5001, 2)
    assert dict(zip(work.bounds, work.counts, strict=False))[1] == 1
    assert work.counts[-1] == 1


class TestPace:
    @pytest.fixture
    async def queue(self) -> WorkQueue[str]:
        return WorkQueue(pace=RateLimit(qps=2, burst=3))

    async def work(self, queue: WorkQueue[str], taken: list[tuple[float, str]]) -> None:
        while True:
            key = await take(queue)
            taken.append((asyncio.get_running_loop().time(), key))
            queue.give_back(key)

    async def test_a_burst_is_taken_at_once_and_further_keys_at_the_rate(
        self, queue: WorkQueue[str]
    ) -> None:
        for key in "abcdefg":
            queue.offer(key)
        taken: list[tuple[float, str]] = []
        workers = [asyncio.create_task(self.work(queue, taken)) for _ in range(4)]
        await asyncio.sleep(10)
        assert [key for _, key in taken] == list("abcdefg")
        assert [taken_at for taken_at, _ in taken] == pytest.approx([0, 0, 0, 0.5, 1, 1.5, 2])
        for worker in workers:
            worker.cancel()

    async def test_a_cancelled_get_uses_no_token_and_wakes_another_worker(
        self, queue: WorkQueue[str]
    ) -> None:
        for key in "abcd":
            queue.offer(key)
        for _ in range(3):
            queue.give_back(await take(queue))
        waiting = asyncio.create_task(take(queue))
        await asyncio.sleep(0.1)
        waiting_get = asyncio.create_task(take(queue))
        waiting.cancel()
        assert await waiting_get == "d"
        assert asyncio.get_running_loop().time() <= 1.0

    async def test_a_key_that_is_dropped_before_its_turn_uses_no_turn(
        self, queue: WorkQueue[str]
    ) -> None:
        for key in "abcd":
            queue.offer(key)
        for _ in range(3):
            take_nowait(queue)
        waiting = asyncio.create_task(take(queue))
        await asyncio.sleep(0)
        queue.drop("d")
        await asyncio.sleep(0.5)
        queue.offer("e")
        await waiting
        assert asyncio.get_running_loop().time() == 0.5


async def test_a_dropped_key_leaves_the_queue_and_loses_its_failures() -> None:
    queue = WorkQueue[str]()
    queue.offer("ready")
    queue.offer("later", after=10)
    queue.retry("failing")
    for key in ("ready", "later", "failing", "unknown"):
        queue.drop(key)
        assert place(queue, key) is None
        assert queue.failures(key) == 0
    assert queue.idle
    await asyncio.sleep(1000)
    assert take_nowait(queue) is None


async def test_keep_drops_all_other_keys() -> None:
    queue = WorkQueue[str]()
    for key in ("a", "b", "aa", "bb"):
        queue.offer(key)
    queue.offer("ab", after=10)
    queue.offer("ba", after=10)
    await queue.keep(lambda key: key.startswith("a"))
    assert [take_nowait(queue) for _ in range(3)] == ["a", "aa", None]
    assert place(queue, "ab") == Waiting(until=10)
    assert place(queue, "ba") is None


ERROR = OSError("no")


async def take_failed(queue: WorkQueue[str], *, failures: int) -> None:
    """Take the key `a` after the given number of failures."""
    for _ in range(failures):
        queue.retry("a", after=0)
    assert await take(queue) == "a"


class Policy:
    """A retry policy with a fixed decision; records its calls."""

    def __init__(self, decision: Retry | Drop | Stop) -> None:
        self.decision = decision
        self.calls: list[tuple[Exception, int]] = []

    def __call__(self, error: Exception, failures: int) -> Retry | Drop | Stop:
        self.calls.append((error, failures))
        return self.decision


class TestSettle:
    """One function decides what follows a sync."""

    @pytest.mark.parametrize(
        ("outcome", "decision", "until", "failures"),
        [
            (Synced(), None, None, 0),
            (Synced(after=30), None, 30, 0),
            (Failed(ERROR), Retry(), 2**2 * 8, 3),
            (Failed(ERROR), Retry(7), 7, 3),
            (Failed(ERROR), Drop(), None, 0),
            (Failed(RetryAfter(30)), None, 30, 2),
            (Failed(PermanentError("never")), None, None, 0),
            (Failed(InvalidKeyError("odd")), None, None, 0),
        ],
        ids=repr,
    )
    async def test_a_key_waits_or_is_at_rest(
        self,
        queue: WorkQueue[str],
        outcome: Synced | Failed,
        decision: Retry | Drop | None,
        until: float | None,
        failures: int,
    ) -> None:
        policy = Policy(decision or Stop())
        await take_failed(queue, failures=2)
        queue.settle("a", outcome, policy)
        assert place(queue, "a") == (None if until is None else Waiting(until))
        assert queue.failures("a") == failures
        assert policy.calls == ([] if decision is None else [(ERROR, 3)])

    async def test_a_requeued_key_has_a_lower_priority_than_a_retry(
        self, queue: WorkQueue[str]
    ) -> None:
        await take_failed(queue, failures=1)
        queue.settle("a", Synced(after=1))
        queue.offer("b", after=1, priority=RETRY)
        await asyncio.sleep(2)
        assert [await take(queue), await take(queue)] == ["b", "a"]

    async def test_a_stop_shuts_down_the_queue(self, queue: WorkQueue[str]) -> None:
        queue.offer("b", after=1)
        await take_failed(queue, failures=1)
        queue.offer("c")
        queue.settle("a", Failed(ERROR), Policy(Stop()))
        with pytest.raises(QueueShutDownError):
            await take(queue)
        assert queue.idle

    @pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(1)])
    async def test_a_key_is_retried_with_backoff_if_the_policy_raises(
        self, queue: WorkQueue[str], error: BaseException
    ) -> None:
        def broken(_error: Exception, _failures: int) -> Retry | Drop | Stop:
            raise error

        await take_failed(queue, failures=1)
        queue.settle("a", Failed(ERROR), broken)
        assert queue.failures("a") == 2
        assert await take(queue) == "a"


def queue_of(*works: tuple[str, Priority]) -> WorkQueue[str]:
    queue = WorkQueue[str]()
    for key, priority in works:
        queue.offer(key, priority=priority)
    return queue


class TestLines:
    async def test_the_oldest_ready_keys_come_first(self) -> None:
        queue = queue_of(("a", RESYNC))
        await asyncio.sleep(1)
        queue.offer("b", priority=USER)
        await asyncio.sleep(1)
        queue.offer("a", priority=RETRY)
        assert places(queue, 2) == [("a", Ready(0, RETRY)), ("b", Ready(1, USER))]
        assert queue.oldest_ready() == 0

        await take(queue)
        assert [key for key, _ in places(queue, 9)] == ["b", "a"]

    @pytest.mark.parametrize("priorities", [(USER,), (RESYNC, USER)], ids=["offered", "raised"])
    async def test_an_old_key_keeps_few_of_the_keys_that_overtake_it(
        self, priorities: tuple[Priority, ...]
    ) -> None:
        queue = WorkQueue[WeakKey]()
        queue.offer(WeakKey(), priority=RESYNC)
        kept = weakref.WeakSet[WeakKey]()
        for _ in range(2 * STALE_MAX):
            kept.add(name := WeakKey())
            for priority in priorities:
                queue.offer(name, priority=priority)
            queue.settle((await queue.take()).key)
        assert len(kept) <= STALE_MAX + 2

    @pytest.mark.parametrize("wait_s", [0, 2 * AGEING_S], ids=["by priority", "by age"])
    async def test_an_old_key_that_many_keys_overtook_is_taken(self, wait_s: float) -> None:
        queue = queue_of(("old", RESYNC))
        for number in range(STALE_MAX + 10):
            queue.offer(f"k{number}", priority=RESYNC)
            queue.offer(f"k{number}", priority=USER)
            queue.settle(await take(queue))
        await asyncio.sleep(wait_s)
        assert take_nowait(queue) == "old"


def reasons_of(queue: WorkQueue[str]) -> dict[str, Operation]:
    """Take all ready keys, and return the reasons for their syncs."""
    reasons = {}
    while (work := queue.take_nowait()) is not None:
        reasons[work.key] = queue.reason(work.key)
        queue.settle(work.key)
    return reasons


class TestReasons:
    @pytest.mark.parametrize("claimed", [False, True], ids=["ready", "claimed"])
    @pytest.mark.parametrize(
        ("offered", "reason"),
        [
            ((Operation.PUT,), Operation.PUT),
            ((Operation.PUT, Operation.DELETE), Operation.DELETE),
            ((Operation.DELETE, Operation.PUT), Operation.PUT),
            ((Operation.PUT, Operation.RESYNC), Operation.PUT),
            ((Operation.RESYNC, Operation.SECONDARY), Operation.SECONDARY),
            ((Operation.MANUAL, Operation.PUT), Operation.MANUAL),
            ((Operation.RESYNC, Operation.MANUAL, Operation.DELETE), Operation.MANUAL),
        ],
    )
    async def test_the_strongest_reason_wins_then_the_newest(
        self,
        queue: WorkQueue[str],
        offered: tuple[Operation, ...],
        reason: Operation,
        *,
        claimed: bool,
    ) -> None:
        if claimed:
            queue.offer("a", Operation.MANUAL)
            await queue.take()
        for operation in offered:
            queue.offer("a", operation)
        if claimed:
            queue.settle("a")
        assert reasons_of(queue) == {"a": reason}

    async def test_a_delayed_reason_counts_from_its_time_on(self, queue: WorkQueue[str]) -> None:
        queue.offer("a", Operation.MANUAL, after=10)
        queue.offer("a", Operation.SECONDARY)
        assert reasons_of(queue) == {"a": Operation.SECONDARY}
        await asyncio.sleep(9)
        assert reasons_of(queue) == {}
        await asyncio.sleep(1)
        assert reasons_of(queue) == {"a": Operation.MANUAL}

    async def test_a_delayed_reason_that_is_due_counts_for_a_ready_key(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a", Operation.MANUAL, after=10)
        queue.offer("a", Operation.SECONDARY)
        await asyncio.sleep(10)
        assert reasons_of(queue) == {"a": Operation.MANUAL}

    async def test_an_untouched_key_keeps_its_reason_and_its_priority(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a", Operation.RESYNC)
        await queue.take()
        queue.give_back("a", untouched=True)
        assert place(queue, "a") == Ready(0, RESYNC)
        assert reasons_of(queue) == {"a": Operation.RESYNC}


class TestUnansweredChanges:
    @pytest.fixture
    def queue(self) -> WorkQueue[str]:
        queue = make_queue()
        queue.answers = True
        return queue

    async def test_the_first_change_counts_until_a_success(self, queue: WorkQueue[str]) -> None:
        await asyncio.sleep(3)
        queue.offer("a", changed=True)
        await asyncio.sleep(1)
        queue.offer("a", changed=True)
        for error in (ERROR, RetryAfter(1)):
            assert (await queue.take()).changed == 3
            await asyncio.sleep(5)
            queue.settle("a", Failed(error))
            assert list(queue.unanswered().values()) == [3]
        work = await queue.take()
        assert (work.changed, queue.unanswered()) == (3, {})
        queue.settle("a")
        assert list(queue.unanswered().values()) == []
        assert queue.idle

    async def test_changes_are_not_noted_while_no_key_is_synced(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a", changed=True)
        queue.offer("b", changed=True)
        await queue.take()
        queue.settle("a", Failed(ERROR), Policy(Drop()))
        queue.stop_answering()
        queue.offer("c", changed=True)
        assert list(queue.unanswered().values()) == []
        queue.answers = True
        assert list(queue.unanswered().values()) == []


MANY = [f"k{number:05}" for number in range(20 * FEW)]


def add_to(queue: WorkQueue[str]) -> list[str]:
    """Feed the queue, and return the list of the keys that are added."""
    added: list[str] = []

    def add(key: str) -> None:
        added.append(key)
        queue.offer(key, priority=Priority.RESYNC)

    queue.feed(MANY, add)
    return added


async def sync_next(queue: WorkQueue[str]) -> str:
    key = await take(queue)
    queue.give_back(key)
    return key


async def test_every_key_counts_as_due_and_is_added_in_order(queue: WorkQueue[str]) -> None:
    add_to(queue)
    assert queue.stats().depth == len(MANY)
    synced = [await sync_next(queue)]
    assert queue.stats().depth == len(MANY) - 1
    assert not queue.idle
    assert not queue.settled
    synced += [await sync_next(queue) for _ in MANY[1:]]
    assert synced == MANY
    assert queue.idle


async def test_keys_that_are_left_out_delay_no_other_task(queue: WorkQueue[str]) -> None:
    queue.feed(MANY, lambda _key: None)
    worker, turns = asyncio.create_task(take(queue)), 0
    while not queue.idle:
        await asyncio.sleep(0)
        turns += 1
    worker.cancel()
    assert turns >= len(MANY) / FEW - 2


async def test_feed_no_more_adds_none_of_the_remaining_keys(queue: WorkQueue[str]) -> None:
    added = add_to(queue)
    queue.feed_no_more()
    for _ in added:
        await sync_next(queue)
    assert queue.idle
    assert len(added) <= FEW


async def test_many_failed_keys_are_hastened(queue: WorkQueue[str]) -> None:
    for key in MANY:
        queue.retry(key, after=1000)
    assert not queue.settled
    queue.hasten_retries()
    assert {await sync_next(queue) for _ in MANY} == set(MANY)
    assert queue.settled


async def failed(queue: WorkQueue[str], key: str, times: int) -> None:
    queue.offer(key)
    for _ in range(times):
        assert await take(queue) == key
        queue.retry(key)
        queue.give_back(key)


async def test_a_held_key_is_retried_after_done() -> None:
    queue = WorkQueue[str]()
    await failed(queue, "a", 15)
    started = now()
    queue.hasten_retries()
    await take(queue)
    queue.retry("a", after=1000)
    queue.hasten_retries()
    queue.give_back("a")
    assert await take(queue) == "a"
    assert now() == started


async def test_an_explicit_delay_is_kept() -> None:
    queue = WorkQueue[str]()
    started = now()
    queue.offer("a", after=3600)
    queue.hasten_retries()
    assert await take(queue) == "a"
    assert now() == started + 3600


async def test_the_token_bucket_still_limits_retries() -> None:
    queue = WorkQueue[str](bucket=TokenBucket(rate_per_s=0.1, burst=1))
    await failed(queue, "a", 1)
    started = now()
    queue.hasten_retries()
    assert await take(queue) == "a"
    assert started < now() <= started + 10
