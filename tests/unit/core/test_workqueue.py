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
from natsctl.core.workqueue import (
    AGEING_S,
    FEW,
    STALE_MAX,
    Failed,
    Outcome,
    Priority,
    Synced,
    WorkQueue,
)
from natsctl.errors import (
    InvalidKeyError,
    PermanentError,
    QueueShutDownError,
    RetryAfter,
    UsageError,
)
from natsctl.testing import VirtualTimeLoop
from tests.support.places import Claimed, Ready, Waiting, place, places, take, take_nowait

Ts = TypeVarTuple("Ts")

RESYNC, RETRY, SECONDARY, USER = sorted(Priority)


def make_queue(
    *,
    base_s: float = 8.0,
    bucket: TokenBucket | None = None,
) -> WorkQueue[str]:
    limiter = ExponentialLimiter[str](base_s=base_s, jitter=lambda: 0.0)
    return WorkQueue(limiter=limiter, bucket=bucket)


@pytest.fixture
def queue() -> WorkQueue[str]:
    return make_queue()


def now() -> float:
    return asyncio.get_running_loop().time()


def take_all(queue: WorkQueue[str]) -> str:
    """Take every ready key and return the keys in their order."""
    taken = ""
    while (key := take_nowait(queue)) is not None:
        taken += key
        queue.give_back(key)
    return taken


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

    async def test_a_key_dropped_at_shutdown_leaves_no_memory(self) -> None:
        queue: WorkQueue[WeakKey] = WorkQueue()

        def drop_key() -> weakref.ref[WeakKey]:
            key = WeakKey()
            queue.offer(key, after=5)
            queue.offer(key)
            queue.shut_down()
            return weakref.ref(key)

        reference = drop_key()
        gc.collect()
        assert reference() is None


class TestDelays:
    async def test_keys_with_the_same_time_become_ready_in_the_order_added(
        self, queue: WorkQueue[str]
    ) -> None:
        for key in "cab":
            queue.offer(key, after=1)
        await asyncio.sleep(2)
        assert take_all(queue) == "cab"

    async def test_a_negative_delay_is_no_delay(self, queue: WorkQueue[str]) -> None:
        queue.offer("a", after=-1)
        assert queue.ready == 1

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
        cancelled = [key for key, time_s in times.items() if time_s % 5]
        for key in cancelled:
            queue.forget(key)
        remaining = sorted((time_s, key) for key, time_s in times.items() if key not in cancelled)
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


class TestCoarseLoop:
    @staticmethod
    def run_after(seconds: float, loop: CoarseLoop) -> float:
        async def take() -> float:
            queue = make_queue()
            queue.offer("a", after=seconds)
            key, time_s = await next_key(queue)
            queue.give_back(key)
            assert queue.idle
            return time_s

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(take())

    def test_a_timer_that_fires_slightly_early_makes_the_key_ready_once(self) -> None:
        loop = CoarseLoop()
        assert self.run_after(1, loop) == pytest.approx(0.9996)
        assert loop.timers == 1

    def test_a_delay_may_exceed_the_limit_of_the_loop(self) -> None:
        assert self.run_after(1e6, CoarseLoop()) == pytest.approx(1e6)


class TestPriority:
    async def test_the_default_priority_is_user(self, queue: WorkQueue[str]) -> None:
        queue.offer("a")
        assert place(queue, "a") == Ready(since=0, priority=USER)


class TestAgeing:
    async def test_no_key_starves_behind_an_endless_stream_of_urgent_ones(self) -> None:
        queue = make_queue()
        queue.offer("patient", priority=RESYNC)
        for number in range(100):
            queue.offer(f"urgent-{number}", priority=USER)
            key, time_s = await next_key(queue)
            queue.give_back(key)
            if key == "patient":
                break
            await asyncio.sleep(1)
        assert (key, time_s) == ("patient", 31)


class TestRetry:
    async def test_the_delay_of_a_failing_key_grows(self, queue: WorkQueue[str]) -> None:
        queue.offer("a")
        times_s = []
        for _ in range(4):
            key, time_s = await next_key(queue)
            times_s.append(time_s)
            queue.retry(key)
            queue.give_back(key)
        assert times_s == [0, 8, 24, 56]

    async def test_a_retry_may_have_a_delay(self, queue: WorkQueue[str]) -> None:
        queue.offer("a")
        queue.retry(await take(queue), after=3)
        queue.give_back("a")
        assert await next_key(queue) == ("a", 3)

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

    async def test_a_token_bucket_limits_a_retry_with_a_delay(self) -> None:
        queue = make_queue(bucket=TokenBucket(rate_per_s=1, burst=1))
        queue.retry("a", after=0)
        queue.retry("b", after=0)
        queue.retry("c", after=5)
        assert [await next_key(queue) for _ in range(3)] == [("a", 0), ("b", 1), ("c", 5)]

    async def test_a_token_bucket_does_not_limit_added_keys(self) -> None:
        queue = make_queue(bucket=TokenBucket(rate_per_s=1, burst=1))
        for key in "abc":
            queue.offer(key)
        assert take_all(queue) == "abc"


class TestGet:
    async def test_get_waits_for_a_key(self, queue: WorkQueue[str]) -> None:
        asyncio.get_running_loop().call_later(7, queue.offer, "a")
        assert await next_key(queue) == ("a", 7)

    async def test_the_worker_that_waits_longest_gets_the_key(self, queue: WorkQueue[str]) -> None:
        workers = [asyncio.create_task(take(queue)) for _ in range(3)]
        await asyncio.sleep(1)
        queue.offer("a")
        await asyncio.sleep(1)
        assert [worker.done() for worker in workers] == [True, False, False]
        queue.shut_down()
        await asyncio.gather(*workers, return_exceptions=True)

    async def test_a_worker_that_lost_a_key_to_get_nowait_gets_the_next_key(
        self, queue: WorkQueue[str]
    ) -> None:
        overtaken = asyncio.create_task(take(queue))
        await asyncio.sleep(1)
        queue.offer("a")
        assert take_nowait(queue) == "a"
        await asyncio.sleep(1)
        queue.offer("b")
        assert await overtaken == "b"

    async def test_cancelled_workers_leave_no_memory(self, queue: WorkQueue[str]) -> None:
        def futures() -> int:
            gc.collect()
            return sum(isinstance(obj, asyncio.Future) for obj in gc.get_objects())

        before = futures()
        for _ in range(100):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(take(queue), 1)
        assert futures() < before + 10

    async def test_get_nowait_returns_a_key_or_none(self, queue: WorkQueue[str]) -> None:
        assert take_nowait(queue) is None
        queue.offer("a")
        assert take_nowait(queue) == "a"


class TestShutDown:
    async def test_waiting_workers_get_a_shutdown_error(self, queue: WorkQueue[str]) -> None:
        workers = [asyncio.create_task(take(queue)) for _ in range(3)]
        await asyncio.sleep(1)
        queue.shut_down()
        results = await asyncio.gather(*workers, return_exceptions=True)
        assert [type(result) for result in results] == [QueueShutDownError] * 3

    async def test_a_worker_woken_for_a_key_gets_none_after_the_shutdown(
        self, queue: WorkQueue[str]
    ) -> None:
        worker = asyncio.create_task(take(queue))
        await asyncio.sleep(1)
        queue.offer("a")
        queue.shut_down()
        with pytest.raises(QueueShutDownError):
            await worker
        assert queue.idle


class TestStats:
    async def test_an_add_is_counted_when_the_key_becomes_ready(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a")
        queue.offer("a")
        queue.offer("b", after=5)
        assert queue.stats().adds == 1
        await asyncio.sleep(6)
        assert queue.stats().adds == 2

    async def test_an_add_of_a_held_key_is_counted_and_is_in_the_depth(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a")
        await take(queue)
        for _ in range(3):
            queue.offer("a")
        assert (queue.stats().adds, queue.stats().depth) == (2, 1)
        queue.give_back("a")
        assert (queue.stats().adds, queue.stats().depth) == (2, 1)
        await take(queue)
        assert (queue.stats().adds, queue.stats().depth) == (2, 0)

    async def test_latency_of_a_held_key_counts_from_its_add(self, queue: WorkQueue[str]) -> None:
        queue.offer("a")
        await take(queue)
        await asyncio.sleep(10)
        queue.offer("a")
        await asyncio.sleep(20)
        queue.give_back("a")
        await asyncio.sleep(3)
        await take(queue)
        assert queue.stats().latency_s.sum == 23

    async def test_latency_of_a_held_key_with_a_delay_counts_from_the_end_of_the_delay(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a")
        await take(queue)
        queue.offer("a", after=10)
        assert (queue.stats().adds, queue.stats().depth) == (1, 0)
        await asyncio.sleep(15)
        assert queue.stats().depth == 1
        queue.give_back("a")
        await take(queue)
        stats = queue.stats()
        assert (stats.adds, stats.depth, stats.latency_s.sum) == (2, 0, 5)

    async def test_an_add_of_a_held_key_that_is_dropped_is_counted(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a")
        await take(queue)
        queue.offer("a")
        queue.drop("a")
        queue.give_back("a")
        assert (queue.stats().adds, queue.stats().depth) == (2, 0)

    async def test_a_delay_counts_as_a_retry(self, queue: WorkQueue[str]) -> None:
        queue.offer("a", after=10)
        queue.offer("a")
        assert queue.stats().retries == 1

    async def test_a_retry_is_counted_when_it_is_requested(self, queue: WorkQueue[str]) -> None:
        queue.retry("a")
        queue.retry("a")
        assert queue.stats().retries == 2

    async def test_latency_lasts_from_ready_to_get(self, queue: WorkQueue[str]) -> None:
        queue.offer("a", after=100)
        await asyncio.sleep(107)
        await take(queue)
        latency = queue.stats().latency_s
        assert latency.sum == 7
        assert dict(zip(latency.bounds, latency.counts, strict=False))[10] == 1
        assert latency.count == 1

    async def test_work_lasts_from_get_to_done(self, queue: WorkQueue[str]) -> None:
        for key, held_s in ("a", 1), ("b", 5000):
            queue.offer(key)
            await take(queue)
            await asyncio.sleep(held_s)
            queue.give_back(key)
        work = queue.stats().work_s
        assert work.sum == 5001
        assert dict(zip(work.bounds, work.counts, strict=False))[1] == 1
        assert work.counts[-1] == 1
        assert work.count == 2

    async def test_unfinished_work_is_measured_while_it_lasts(self, queue: WorkQueue[str]) -> None:
        for key in "ab":
            queue.offer(key)
            await take(queue)
            await asyncio.sleep(10)
        stats = queue.stats()
        assert (stats.unfinished_s, stats.longest_s) == (30, 20)


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

    async def test_an_urgent_key_added_during_the_wait_is_taken_first(
        self, queue: WorkQueue[str]
    ) -> None:
        for key in "abcd":
            queue.offer(key, priority=Priority.RESYNC)
        taken: list[tuple[float, str]] = []
        worker = asyncio.create_task(self.work(queue, taken))
        await asyncio.sleep(0.1)
        queue.offer("urgent")
        await asyncio.sleep(5)
        assert [key for _, key in taken] == ["a", "b", "c", "urgent", "d"]
        worker.cancel()

    async def test_idle_workers_use_no_tokens(self, queue: WorkQueue[str]) -> None:
        taken: list[tuple[float, str]] = []
        workers = [asyncio.create_task(self.work(queue, taken)) for _ in range(4)]
        await asyncio.sleep(100)
        for key in "abcde":
            queue.offer(key)
        await asyncio.sleep(10)
        assert [taken_at for taken_at, _ in taken] == pytest.approx([100, 100, 100, 100.5, 101])
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

    async def test_a_shutdown_does_not_wait_for_the_pace(self) -> None:
        queue = WorkQueue[str](pace=RateLimit(qps=0.001, burst=1))
        for key in "ab":
            queue.offer(key)
        queue.give_back(await take(queue))
        waiting = asyncio.create_task(take(queue))
        await asyncio.sleep(1)
        queue.shut_down()
        with pytest.raises(QueueShutDownError):
            await waiting
        assert asyncio.get_running_loop().time() == 1

    async def test_get_nowait_returns_no_key_beyond_the_pace(self, queue: WorkQueue[str]) -> None:
        for key in "abcd":
            queue.offer(key)
        assert [take_nowait(queue) for _ in range(5)] == ["a", "b", "c", None, None]
        await asyncio.sleep(0.5)
        assert take_nowait(queue) == "d"

    async def test_get_nowait_uses_no_turn_if_it_returns_no_key(
        self, queue: WorkQueue[str]
    ) -> None:
        for key in "abcdefgh":
            queue.offer(key)
        for _ in range(20):
            take_nowait(queue)
        await asyncio.sleep(1)
        assert [take_nowait(queue) for _ in range(3)] == ["d", "e", None]

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

    async def test_a_cancelled_get_uses_no_turn(self, queue: WorkQueue[str]) -> None:
        for key in "abcdef":
            queue.offer(key)
        for _ in range(3):
            take_nowait(queue)
        waiting = [asyncio.create_task(take(queue)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.sleep(1)
        assert [take_nowait(queue) for _ in range(3)] == ["d", "e", None]


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


async def test_a_dropped_key_that_is_held_is_not_ready_after_done() -> None:
    queue = WorkQueue[str]()
    queue.offer("a")
    assert take_nowait(queue) == "a"
    queue.offer("a")
    queue.retry("a")
    queue.drop("a")
    queue.give_back("a")
    assert queue.idle


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


async def take_failed(queue: WorkQueue[str], *, failures: int = 0) -> None:
    """Take the key `a` after the given number of failures."""
    for _ in range(failures):
        queue.retry("a", after=0)
    if not failures:
        queue.offer("a")
    assert await take(queue) == "a"


class Policy:
    """A retry policy with a fixed decision; records its calls."""

    def __init__(self, decision: Retry | Drop | Stop) -> None:
        self.decision = decision
        self.calls: list[tuple[Exception, int]] = []

    def __call__(self, error: Exception, failures: int) -> Retry | Drop | Stop:
        self.calls.append((error, failures))
        return self.decision


ALWAYS = Policy(Retry())


def waits_s(queue: WorkQueue[str]) -> float:
    where = place(queue, "a")
    assert isinstance(where, Waiting)
    return where.until - asyncio.get_running_loop().time()


class TestSettleSuccess:
    async def test_a_synced_key_leaves_the_queue_and_loses_its_failures(
        self, queue: WorkQueue[str]
    ) -> None:
        await take_failed(queue, failures=3)
        queue.settle("a", Synced(), ALWAYS)
        assert place(queue, "a") is None
        assert queue.failures("a") == 0

    async def test_a_key_is_requeued_after_the_returned_delay(self, queue: WorkQueue[str]) -> None:
        await take_failed(queue, failures=3)
        queue.settle("a", Synced(after=60), ALWAYS)
        assert waits_s(queue) == 60
        assert queue.failures("a") == 0

    async def test_a_requeued_key_has_a_lower_priority_than_a_retry(
        self, queue: WorkQueue[str]
    ) -> None:
        await take_failed(queue)
        queue.settle("a", Synced(after=1), ALWAYS)
        queue.offer("b", after=1, priority=RETRY)
        await asyncio.sleep(2)
        assert [await take(queue), await take(queue)] == ["b", "a"]

    async def test_a_delay_of_zero_requeues_at_once(self, queue: WorkQueue[str]) -> None:
        await take_failed(queue)
        queue.settle("a", Synced(after=0), ALWAYS)
        assert await take(queue) == "a"

    async def test_a_change_during_the_sync_requeues_the_key(self, queue: WorkQueue[str]) -> None:
        await take_failed(queue)
        queue.offer("a")
        queue.settle("a", Synced(), ALWAYS)
        assert await take(queue) == "a"


class TestSettleFailure:
    async def test_the_policy_gets_the_error_and_the_number_of_failures(
        self, queue: WorkQueue[str]
    ) -> None:
        policy = Policy(Retry())
        for _ in range(3):
            if not policy.calls:
                queue.offer("a")
            await take(queue)
            queue.settle("a", Failed(ERROR), policy)
        assert policy.calls == [(ERROR, 1), (ERROR, 2), (ERROR, 3)]

    async def test_a_retry_without_a_delay_uses_the_limiter(self, queue: WorkQueue[str]) -> None:
        await take_failed(queue)
        queue.settle("a", Failed(ERROR), Policy(Retry()))
        assert waits_s(queue) == 8
        assert queue.failures("a") == 1

    async def test_a_retry_with_a_delay_uses_that_delay(self, queue: WorkQueue[str]) -> None:
        await take_failed(queue)
        queue.settle("a", Failed(ERROR), Policy(Retry(after=7)))
        assert waits_s(queue) == 7
        assert queue.failures("a") == 1

    async def test_a_dropped_key_leaves_the_queue_and_loses_its_failures(
        self, queue: WorkQueue[str]
    ) -> None:
        await take_failed(queue, failures=3)
        queue.settle("a", Failed(ERROR), Policy(Drop()))
        assert place(queue, "a") is None
        assert queue.failures("a") == 0

    async def test_a_stop_shuts_down_the_queue(self, queue: WorkQueue[str]) -> None:
        queue.offer("b", after=1)
        await take_failed(queue)
        queue.offer("c")
        queue.settle("a", Failed(ERROR), Policy(Stop()))
        with pytest.raises(QueueShutDownError):
            await take_failed(queue)
        assert queue.idle

    @pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(1)])
    async def test_a_key_is_retried_with_backoff_if_the_policy_raises(
        self, queue: WorkQueue[str], error: BaseException
    ) -> None:
        def broken(_error: Exception, _failures: int) -> Retry | Drop | Stop:
            raise error

        await take_failed(queue)
        queue.settle("a", Failed(ERROR), broken)
        assert queue.failures("a") == 1
        assert await take(queue) == "a"

    async def test_a_timeout_is_a_failure(self, queue: WorkQueue[str]) -> None:
        await take_failed(queue)
        queue.settle("a", Failed(TimeoutError()), Policy(Retry(after=7)))
        assert queue.failures("a") == 1


class TestRaisedRequests:
    async def test_retry_after_requeues_without_a_failure(self, queue: WorkQueue[str]) -> None:
        policy = Policy(Drop())
        await take_failed(queue, failures=2)
        queue.settle("a", Failed(RetryAfter(30)), policy)
        assert waits_s(queue) == 30
        assert queue.failures("a") == 2
        assert policy.calls == []

    async def test_retry_after_keeps_the_priority_of_the_sync(self, queue: WorkQueue[str]) -> None:
        queue.offer("a", priority=Priority.SECONDARY)
        await take(queue)
        queue.settle("a", Failed(RetryAfter(1)), Policy(Drop()))
        queue.offer("b", after=1, priority=RETRY)
        queue.offer("c", after=1, priority=Priority.USER)
        await asyncio.sleep(2)
        assert [await take(queue) for _ in range(3)] == ["c", "a", "b"]

    @pytest.mark.parametrize("priority", list(Priority))
    async def test_retry_after_keeps_every_priority(
        self, queue: WorkQueue[str], priority: Priority
    ) -> None:
        queue.offer("a", priority=priority)
        await take(queue)
        queue.settle("a", Failed(RetryAfter(1)), Policy(Drop()))
        await asyncio.sleep(2)
        ready = place(queue, "a")
        assert isinstance(ready, Ready)
        assert ready.priority is priority

    @pytest.mark.parametrize("error", [PermanentError("never"), InvalidKeyError("odd")])
    async def test_a_permanent_error_drops_the_key(
        self, queue: WorkQueue[str], error: Exception
    ) -> None:
        policy = Policy(Retry())
        await take_failed(queue, failures=2)
        queue.settle("a", Failed(error), policy)
        assert place(queue, "a") is None
        assert queue.failures("a") == 0
        assert policy.calls == []


def queue_of(*works: tuple[str, Priority]) -> WorkQueue[str]:
    queue = WorkQueue[str]()
    for key, priority in works:
        queue.offer(key, priority=priority)
    return queue


class TestLines:
    async def test_a_dropped_key_is_not_taken_by_its_age(self) -> None:
        queue = queue_of(("dropped", USER), ("next", USER))
        queue.drop("dropped")
        await asyncio.sleep(2 * AGEING_S)
        assert take_all(queue) == "next"

    async def test_a_dropped_key_is_not_taken_by_its_priority(self) -> None:
        queue = queue_of(("dropped", USER), ("next", USER))
        queue.drop("dropped")
        queue.drop("unknown")
        assert take_all(queue) == "next"

    async def test_a_dropped_key_whose_priority_rose_is_not_taken(self) -> None:
        queue = queue_of(("a", RESYNC), ("a", USER))
        queue.drop("a")
        assert take_nowait(queue) is None
        assert queue.idle

    async def test_keys_that_were_taken_are_not_kept(self) -> None:
        queue = WorkQueue[WeakKey]()
        kept = weakref.WeakSet[WeakKey]()
        for priority in (RESYNC, USER, RETRY):
            for _ in range(3):
                kept.add(name := WeakKey())
                queue.offer(name, priority=priority)
                queue.offer(name, priority=SECONDARY)
        del name
        for _ in range(9):
            queue.settle((await queue.take()).key)
            await asyncio.sleep(10)
        assert len(kept) == 0

    async def test_keys_whose_priority_rose_are_not_kept_once_they_are_taken(self) -> None:
        queue = WorkQueue[WeakKey]()
        kept = weakref.WeakSet[WeakKey]()
        for _ in range(3):
            kept.add(name := WeakKey())
            queue.offer(name, priority=RESYNC)
            queue.offer(name, priority=USER)
        del name
        queue.offer(WeakKey(), priority=RESYNC)
        for _ in range(3):
            queue.settle((await queue.take()).key)
        assert len(kept) == 0

    async def test_the_oldest_ready_keys_come_first(self) -> None:
        queue = queue_of(("a", RESYNC))
        await asyncio.sleep(1)
        queue.offer("b", priority=USER)
        await asyncio.sleep(1)
        queue.offer("a", priority=RETRY)
        assert places(queue, 2) == [("a", Ready(0, RETRY)), ("b", Ready(1, USER))]
        assert queue.oldest_ready() == 0

    async def test_a_key_that_was_taken_is_not_among_the_oldest_ready_ones(self) -> None:
        queue = queue_of(("old", RESYNC), ("urgent", USER))
        taken = await take(queue)
        assert [key for key, _ in places(queue, 9)] == [taken, "old"]

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
    async def test_a_sync_without_a_reason_was_asked_for_by_the_one_before(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a")
        assert reasons_of(queue) == {"a": Operation.REQUEUE}

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

    async def test_the_priority_of_the_reason_is_the_default(self, queue: WorkQueue[str]) -> None:
        for reason in Operation:
            queue.offer(reason.value, reason)
            assert place(queue, reason.value) == Ready(0, reason.priority)

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

    async def test_the_reason_of_the_earlier_of_two_delays_wins(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a", Operation.MANUAL, after=20)
        queue.offer("a", Operation.RESYNC, after=10)
        await asyncio.sleep(10)
        assert reasons_of(queue) == {"a": Operation.RESYNC}

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

    async def test_the_first_change_counts(self, queue: WorkQueue[str]) -> None:
        await asyncio.sleep(3)
        queue.offer("a", changed=True)
        await asyncio.sleep(1)
        queue.offer("a", changed=True)
        assert list(queue.unanswered().values()) == [3]

    async def test_a_request_is_no_change(self, queue: WorkQueue[str]) -> None:
        queue.offer("a")
        assert list(queue.unanswered().values()) == []

    async def test_a_success_answers_a_change(self, queue: WorkQueue[str]) -> None:
        queue.offer("a", changed=True)
        work = await queue.take()
        assert (work.changed, queue.unanswered()) == (0, {})
        queue.settle("a")
        assert list(queue.unanswered().values()) == []
        assert queue.idle

    @pytest.mark.parametrize("error", [ERROR, RetryAfter(1)])
    async def test_a_failure_answers_no_change(
        self, queue: WorkQueue[str], error: Exception
    ) -> None:
        queue.offer("a", changed=True)
        await queue.take()
        await asyncio.sleep(5)
        queue.settle("a", Failed(error))
        assert list(queue.unanswered().values()) == [0]
        assert (await queue.take()).changed == 0

    async def test_a_change_whose_retry_was_dropped_stays_unanswered_until_a_success(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a", changed=True)
        await queue.take()
        queue.settle("a", Failed(ERROR), Policy(Drop()))
        assert list(queue.unanswered().values()) == [0]
        assert queue.idle
        queue.offer("a")
        queue.settle(await take(queue))
        assert list(queue.unanswered().values()) == []

    async def test_a_permanent_failure_ends_the_wait_of_a_change(
        self, queue: WorkQueue[str]
    ) -> None:
        queue.offer("a", changed=True)
        await queue.take()
        queue.settle("a", Failed(PermanentError("never")))
        assert list(queue.unanswered().values()) == []

    @pytest.mark.parametrize(
        ("outcome", "since"), [(Synced(), 5), (Failed(ERROR), 0)], ids=["synced", "failed"]
    )
    async def test_a_change_during_a_sync_is_answered_by_the_next(
        self, queue: WorkQueue[str], outcome: Outcome, since: float
    ) -> None:
        queue.offer("a", changed=True)
        await queue.take()
        await asyncio.sleep(5)
        queue.offer("a", changed=True)
        assert list(queue.unanswered().values()) == [5]
        queue.settle("a", outcome)
        assert list(queue.unanswered().values()) == [since]

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


async def test_every_key_is_added_in_order(queue: WorkQueue[str]) -> None:
    add_to(queue)
    assert [await sync_next(queue) for _ in MANY] == MANY
    assert queue.idle


async def test_few_keys_are_added_at_a_time(queue: WorkQueue[str]) -> None:
    added = add_to(queue)
    assert 0 < len(added) <= FEW
    for synced in range(5 * FEW):
        await sync_next(queue)
        assert len(added) <= synced + 2 * FEW


async def test_all_keys_count_as_due(queue: WorkQueue[str]) -> None:
    add_to(queue)
    assert queue.stats().depth == len(MANY)
    await sync_next(queue)
    assert queue.stats().depth == len(MANY) - 1
    assert not queue.idle
    assert not queue.settled


async def test_an_urgent_key_goes_first(queue: WorkQueue[str]) -> None:
    add_to(queue)
    await sync_next(queue)
    queue.offer("urgent")
    assert await sync_next(queue) == "urgent"


async def test_a_waiting_worker_gets_a_fed_key(queue: WorkQueue[str]) -> None:
    worker = asyncio.create_task(take(queue))
    await asyncio.sleep(0)
    add_to(queue)
    assert await worker == MANY[0]


async def test_keys_that_are_left_out_delay_no_other_task(queue: WorkQueue[str]) -> None:
    queue.feed(MANY, lambda _key: None)
    worker, turns = asyncio.create_task(take(queue)), 0
    while not queue.idle:
        await asyncio.sleep(0)
        turns += 1
    worker.cancel()
    assert turns >= len(MANY) / FEW - 2


async def test_two_feeds_follow_each_other(queue: WorkQueue[str]) -> None:
    queue.feed(MANY[:150], queue.offer)
    queue.feed(MANY[150:300], queue.offer)
    assert [await sync_next(queue) for _ in range(300)] == MANY[:300]


async def test_no_keys_are_fed_to_a_queue_that_is_shut_down(queue: WorkQueue[str]) -> None:
    added = add_to(queue)
    queue.shut_down()
    queue.feed(MANY, queue.offer)
    with pytest.raises(QueueShutDownError):
        await take(queue)
    assert len(added) <= FEW


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


async def test_a_queue_is_settled_when_failed_keys_have_succeeded(queue: WorkQueue[str]) -> None:
    queue.offer("a")
    key = await take(queue)
    queue.retry(key, after=10)
    queue.give_back(key)
    assert not queue.settled
    await asyncio.sleep(11)
    key = await take(queue)
    queue.forget(key)
    queue.give_back(key)
    assert queue.settled


async def test_a_queue_lists_the_longest_held_keys_first() -> None:
    queue = WorkQueue[str]()
    for key in "abc":
        queue.offer(key)
    assert take_nowait(queue) == "a"
    await asyncio.sleep(1)
    assert (take_nowait(queue), take_nowait(queue)) == ("b", "c")
    assert places(queue, 2) == [("a", Claimed(0, Priority.USER)), ("b", Claimed(1, Priority.USER))]


async def test_a_queue_lists_the_longest_ready_keys_first_whatever_their_priority() -> None:
    queue = WorkQueue[str]()
    queue.offer("old", priority=Priority.RESYNC)
    await asyncio.sleep(1)
    queue.offer("new")
    assert places(queue, 9) == [
        ("old", Ready(0, Priority.RESYNC)),
        ("new", Ready(1, Priority.USER)),
    ]


async def test_a_queue_lists_the_keys_that_become_ready_next() -> None:
    queue = WorkQueue[str]()
    for delay_s in (5, 3, 9, 4):
        queue.offer(f"after {delay_s}", after=delay_s)
    assert places(queue, 2) == [("after 3", Waiting(3)), ("after 4", Waiting(4))]


async def test_the_soonest_of_many_keys_are_in_order_without_cancelled_ones() -> None:
    queue, many = WorkQueue[int](), 2_000
    at = {number: float(1 + number * 7919 % many) for number in range(many)}
    for number, after in at.items():
        queue.offer(number, after=after)
    for number in range(many):
        if at[number] in {1.0, 3.0, 4.0}:
            queue.drop(number)
    assert [where for _, where in places(queue, 3)] == [Waiting(2.0), Waiting(5.0), Waiting(6.0)]


async def test_the_soonest_keys_are_fewer_rather_than_a_walk_over_many_cancelled_ones() -> None:
    queue, many = WorkQueue[int](), 2_000
    for number in range(many):
        queue.offer(number, after=float(1 + number))
    for number in range(many // 2 - 1):
        queue.drop(number)
    assert places(queue, 3) == []


async def failed(queue: WorkQueue[str], key: str, times: int) -> None:
    queue.offer(key)
    for _ in range(times):
        assert await take(queue) == key
        queue.retry(key)
        queue.give_back(key)


async def test_a_key_that_waits_for_its_retry_becomes_ready() -> None:
    queue = WorkQueue[str]()
    await failed(queue, "a", 15)
    started = now()
    queue.hasten_retries()
    assert await take(queue) == "a"
    assert now() == started


async def test_the_backoff_of_a_hastened_key_restarts() -> None:
    queue = WorkQueue[str]()
    await failed(queue, "a", 15)
    queue.hasten_retries()
    assert queue.failures("a") == 0


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
