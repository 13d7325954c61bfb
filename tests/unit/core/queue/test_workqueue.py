"""The workqueue: places, timers, priorities, fairness, retries, shutdown and statistics."""

import asyncio
import gc
import math
import weakref
from collections.abc import Callable, Coroutine, Generator, Hashable
from contextvars import Context
from typing import Any, TypeVarTuple

import pytest

from natsctl.core.queue.retry import ExponentialLimiter, RateLimit, TokenBucket, no_jitter
from natsctl.core.queue.workqueue import Held, Place, Priority, Ready, Waiting, Workqueue
from natsctl.errors import QueueShutDownError, UsageError
from natsctl.testing.time import VirtualTimeLoop

Ts = TypeVarTuple("Ts")

RESYNC, RETRY, SECONDARY, USER = sorted(Priority)


def make_queue(
    *,
    base_s: float = 8.0,
    bucket: TokenBucket | None = None,
    share_of: Callable[[str], Hashable] | None = None,
    ageing_s: float = 1e6,
) -> Workqueue[str]:
    limiter = ExponentialLimiter[str](base_s=base_s, jitter=no_jitter)
    return Workqueue(limiter=limiter, bucket=bucket, share_of=share_of, ageing_s=ageing_s)


@pytest.fixture
def queue() -> Workqueue[str]:
    return make_queue()


def now() -> float:
    return asyncio.get_running_loop().time()


def take_all(queue: Workqueue[str]) -> str:
    """Take every ready key and return the keys in their order."""
    taken = ""
    while (key := queue.get_nowait()) is not None:
        taken += key
        queue.done(key)
    return taken


class CountedWakes:
    """An awaitable that records each time that the loop resumes it."""

    def __init__(self, work: Coroutine[Any, Any, str], wakes: list[int]) -> None:
        self.work = work
        self.wakes = wakes

    def __await__(self) -> Generator[Any, Any, str]:
        while True:
            self.wakes.append(1)
            try:
                awaited = self.work.send(None)
            except StopIteration as ended:
                return str(ended.value)
            yield awaited


async def count_wakes(work: Coroutine[Any, Any, str], wakes: list[int]) -> str:
    return await CountedWakes(work, wakes)


class WeakKey:
    """A key to which a test can hold a weak reference."""


async def next_key(queue: Workqueue[str]) -> tuple[str, float]:
    key = await queue.get()
    return key, now()


class TestPlaces:
    async def test_keys_are_taken_in_the_order_added(self, queue: Workqueue[str]) -> None:
        for key in "cab":
            queue.add(key)
        assert take_all(queue) == "cab"

    async def test_a_key_added_twice_is_taken_once(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.add("a")
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_key_added_again_keeps_its_position(self, queue: Workqueue[str]) -> None:
        for key in "aba":
            queue.add(key)
        assert take_all(queue) == "ab"

    async def test_a_held_key_is_not_handed_out_again(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        assert queue.get_nowait() is None

    async def test_a_held_key_that_was_added_again_is_ready_once_after_done(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.add("a")
        queue.done("a")
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_key_that_was_not_added_again_leaves_the_queue_after_done(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.done(await queue.get())
        assert queue.idle
        assert queue.place("a") is None

    async def test_done_for_a_key_that_is_not_held_is_refused(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        with pytest.raises(UsageError, match="a was given back, but nobody holds it"):
            queue.done("a")

    async def test_the_length_is_the_number_of_ready_keys(self, queue: Workqueue[str]) -> None:
        for key in "abc":
            queue.add(key)
        queue.add("d", after=1)
        await queue.get()
        assert len(queue) == 2

    async def test_place_returns_the_state_of_a_key(self, queue: Workqueue[str]) -> None:
        await asyncio.sleep(5)
        queue.add("a", after=3)
        assert queue.place("a") == Waiting(until=8)
        await asyncio.sleep(4)
        assert queue.place("a") == Ready(since=8, priority=USER)
        await queue.get()
        assert queue.place("a") == Held(since=9, priority=USER)
        queue.done("a")
        assert queue.place("a") is None

    async def test_a_removed_key_leaves_no_memory(self) -> None:
        queue: Workqueue[WeakKey] = Workqueue()

        async def process_key() -> weakref.ref[WeakKey]:
            key = WeakKey()
            queue.add(key, after=5)
            queue.retry(key, after=9)
            for _ in range(2):
                queue.add(key)
                queue.forget(await queue.get())
                queue.done(key)
                await asyncio.sleep(6)
            return weakref.ref(key)

        reference = await process_key()
        assert queue.idle
        gc.collect()
        assert reference() is None

    @pytest.mark.parametrize("drain", [True, False])
    async def test_a_key_dropped_at_shutdown_leaves_no_memory(self, *, drain: bool) -> None:
        queue: Workqueue[WeakKey] = Workqueue()

        def drop_key() -> weakref.ref[WeakKey]:
            key = WeakKey()
            queue.add(key, after=5)
            if not drain:
                queue.add(key)
            queue.shut_down(drain=drain)
            return weakref.ref(key)

        reference = drop_key()
        gc.collect()
        assert reference() is None

    async def test_a_key_whose_share_raises_is_not_added(self) -> None:
        queue = make_queue(share_of=lambda key: {"a": 1}[key])
        with pytest.raises(KeyError):
            queue.add("b")
        assert queue.idle

    @pytest.mark.parametrize("place", [Waiting, Ready, Held])
    async def test_a_queue_with_a_key_in_any_place_is_not_idle(
        self, queue: Workqueue[str], place: type[Place]
    ) -> None:
        assert queue.idle
        queue.add("a", after=5 if place is Waiting else 0)
        if place is Held:
            await queue.get()
        assert isinstance(queue.place("a"), place)
        assert not queue.idle


class TestDelays:
    async def test_a_delayed_key_is_ready_after_its_delay(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=60)
        assert await next_key(queue) == ("a", 60)

    async def test_delayed_keys_become_ready_in_the_order_of_their_times(
        self, queue: Workqueue[str]
    ) -> None:
        for key, after in ("c", 3), ("a", 1), ("d", 4), ("b", 2):
            queue.add(key, after=after)
        assert [await next_key(queue) for _ in range(4)] == [
            ("a", 1),
            ("b", 2),
            ("c", 3),
            ("d", 4),
        ]

    async def test_keys_with_the_same_time_become_ready_in_the_order_added(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "cab":
            queue.add(key, after=1)
        await asyncio.sleep(2)
        assert take_all(queue) == "cab"

    @pytest.mark.parametrize("delays", [(60, 3600), (3600, 60)])
    async def test_the_earliest_time_wins(
        self, queue: Workqueue[str], delays: tuple[float, float]
    ) -> None:
        for after in delays:
            queue.add("a", after=after)
        assert await next_key(queue) == ("a", 60)
        queue.done("a")
        assert queue.idle

    async def test_a_negative_delay_is_no_delay(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=-1)
        assert len(queue) == 1

    async def test_an_infinite_delay_does_not_block_other_keys(self, queue: Workqueue[str]) -> None:
        queue.add("never", after=math.inf)
        queue.add("b", after=1e7)
        assert await next_key(queue) == ("b", 1e7)
        assert queue.place("never") == Waiting(until=math.inf)

    async def test_a_delay_added_while_a_key_is_held_applies_after_done(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", after=10)
        await asyncio.sleep(4)
        queue.done("a")
        assert queue.place("a") == Waiting(until=10)
        assert await next_key(queue) == ("a", 10)

    async def test_a_held_key_whose_delay_has_passed_is_ready_after_done(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", after=10)
        await asyncio.sleep(11)
        assert len(queue) == 0
        queue.done("a")
        assert queue.place("a") == Ready(since=11, priority=USER)

    async def test_an_immediate_add_of_a_held_key_keeps_its_delayed_add(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", after=10)
        queue.add("a")
        queue.done("a")
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=10)

    async def test_a_delayed_add_stays_when_the_key_is_taken_earlier(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=60)
        await asyncio.sleep(10)
        queue.add("a")
        key = await queue.get()
        queue.forget(key)
        queue.done(key)
        assert queue.place("a") == Waiting(until=60)
        assert await next_key(queue) == ("a", 60)
        queue.done("a")
        assert queue.idle

    async def test_a_delayed_add_of_a_ready_key_stays(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.add("a", after=60)
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=60)

    async def test_a_ready_key_taken_after_its_delay_satisfies_the_delayed_add(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.add("a", after=60)
        await asyncio.sleep(61)
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_key_taken_before_its_delay_is_ready_again_after_the_delay(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.add("a", after=60)
        await asyncio.sleep(59)
        await queue.get()
        await asyncio.sleep(2)
        queue.done("a")
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_delay_added_after_an_earlier_one_has_passed_stays(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=5)
        await asyncio.sleep(6)
        queue.add("a", after=5)
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=11)

    async def test_a_delay_added_to_a_ready_key_after_an_earlier_one_has_passed_stays(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.add("a", after=5)
        await asyncio.sleep(6)
        queue.add("a", after=5)
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=11)

    async def test_one_sync_satisfies_all_delays_that_have_passed(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=5)
        queue.retry("a", after=6)
        await asyncio.sleep(7)
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_the_loop_runs_other_tasks_while_thousands_of_keys_become_ready(
        self, queue: Workqueue[str]
    ) -> None:
        for number in range(5000):
            queue.add(f"key-{number}", after=1)
        await queue.get()
        assert 0 < len(queue) < 4999
        await asyncio.sleep(1)
        assert len(queue) == 4999

    async def test_superseded_timers_have_no_effect(self, queue: Workqueue[str]) -> None:
        for after in range(1000, 0, -1):
            queue.add("a", after=after)
        queue.add("b", after=2000)
        assert await next_key(queue) == ("a", 1)
        queue.done("a")
        assert await next_key(queue) == ("b", 2000)

    async def test_timers_of_many_keys_stay_exact_when_most_are_cancelled(
        self, queue: Workqueue[str]
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

    async def test_a_key_whose_share_raises_does_not_stop_other_timers(self) -> None:
        def share_of(key: str) -> str:
            if key == "bad":
                raise LookupError(key)
            return key

        queue = make_queue(share_of=share_of)
        errors: list[BaseException | None] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: errors.append(context.get("exception"))
        )
        queue.add("bad", after=1)
        queue.add("good", after=2)
        assert await next_key(queue) == ("good", 2)
        assert queue.get_nowait() is None
        assert [type(error) for error in errors] == [LookupError]


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
            queue.add("a", after=seconds)
            key, time_s = await next_key(queue)
            queue.done(key)
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
    async def test_a_higher_priority_is_taken_first(self, queue: Workqueue[str]) -> None:
        for key, priority in ("s", SECONDARY), ("r", RESYNC), ("u", USER), ("t", RETRY):
            queue.add(key, priority=priority)
        assert take_all(queue) == "ustr"

    async def test_the_default_priority_is_user(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        assert queue.place("a") == Ready(since=0, priority=USER)

    async def test_a_higher_priority_raises_a_ready_key(self, queue: Workqueue[str]) -> None:
        queue.add("a", priority=SECONDARY)
        queue.add("b", priority=RESYNC)
        queue.add("b", priority=USER)
        assert take_all(queue) == "ba"

    async def test_a_lower_priority_does_not_lower_a_ready_key(self, queue: Workqueue[str]) -> None:
        queue.add("a", priority=USER)
        queue.add("a", priority=RESYNC)
        queue.add("b", priority=SECONDARY)
        assert take_all(queue) == "ab"

    async def test_a_delayed_add_with_a_higher_priority_raises_a_ready_key(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", priority=RESYNC)
        queue.add("a", priority=USER, after=60)
        assert queue.place("a") == Ready(since=0, priority=USER)

    async def test_a_raised_key_is_queued_behind_keys_of_its_new_priority(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", priority=RESYNC)
        queue.add("b", priority=USER)
        queue.add("a", priority=USER)
        assert take_all(queue) == "ba"

    @pytest.mark.parametrize("priorities", [(RESYNC, SECONDARY), (SECONDARY, RESYNC)])
    async def test_a_waiting_key_becomes_ready_with_the_highest_priority(
        self, queue: Workqueue[str], priorities: tuple[Priority, Priority]
    ) -> None:
        for after, priority in zip((5, 6), priorities, strict=True):
            queue.add("a", after=after, priority=priority)
        await asyncio.sleep(7)
        assert queue.place("a") == Ready(since=5, priority=SECONDARY)

    async def test_an_immediate_add_of_a_waiting_key_keeps_its_higher_priority(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=60, priority=USER)
        queue.add("a", priority=RESYNC)
        assert queue.place("a") == Ready(since=0, priority=USER)

    async def test_a_held_key_returns_with_the_highest_priority(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        for priority in RESYNC, SECONDARY, RETRY:
            queue.add("a", priority=priority)
        queue.done("a")
        assert queue.place("a") == Ready(since=0, priority=SECONDARY)

    async def test_an_urgent_sync_does_not_raise_a_later_delayed_one(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=60, priority=RESYNC)
        queue.add("a", priority=USER)
        take_all(queue)
        await asyncio.sleep(61)
        assert queue.place("a") == Ready(since=60, priority=RESYNC)


class TestAgeing:
    async def test_a_key_that_waited_too_long_is_taken_before_an_urgent_one(self) -> None:
        queue = make_queue(ageing_s=30)
        queue.add("old", priority=RESYNC)
        await asyncio.sleep(31)
        queue.add("new", priority=USER)
        assert queue.get_nowait() == "old"

    async def test_a_key_that_did_not_wait_too_long_is_not_preferred(self) -> None:
        queue = make_queue(ageing_s=30)
        queue.add("old", priority=RESYNC)
        await asyncio.sleep(30)
        queue.add("new", priority=USER)
        assert queue.get_nowait() == "new"

    async def test_the_oldest_of_the_keys_that_waited_too_long_is_taken_first(self) -> None:
        queue = make_queue(ageing_s=30)
        for key in "abc":
            queue.add(key, priority=RESYNC)
            await asyncio.sleep(1)
        await asyncio.sleep(30)
        assert take_all(queue) == "abc"

    async def test_urgent_keys_get_every_other_turn_beside_an_old_backlog(
        self,
    ) -> None:
        queue = make_queue(ageing_s=30)
        for key in "abcd":
            queue.add(key, priority=RESYNC)
        await asyncio.sleep(31)
        queue.add("x", priority=USER)
        queue.add("y", priority=USER)
        assert take_all(queue) == "axbycd"

    async def test_a_raised_key_keeps_its_age(self) -> None:
        queue = make_queue(ageing_s=30)
        queue.add("a", priority=RESYNC)
        await asyncio.sleep(29)
        queue.add("a", priority=SECONDARY)
        await asyncio.sleep(2)
        queue.add("b", priority=USER)
        assert take_all(queue) == "ab"

    async def test_ageing_begins_when_a_key_is_ready(self) -> None:
        queue = make_queue(ageing_s=30)
        queue.add("a", after=60, priority=RESYNC)
        await asyncio.sleep(80)
        queue.add("b", priority=USER)
        assert take_all(queue) == "ba"

    async def test_no_key_starves_behind_an_endless_stream_of_urgent_ones(self) -> None:
        queue = make_queue(ageing_s=30)
        queue.add("patient", priority=RESYNC)
        for number in range(100):
            queue.add(f"urgent-{number}", priority=USER)
            key, time_s = await next_key(queue)
            queue.done(key)
            if key == "patient":
                break
            await asyncio.sleep(1)
        assert (key, time_s) == ("patient", 31)


class TestShares:
    @pytest.fixture
    def queue(self) -> Workqueue[str]:
        return make_queue(share_of=lambda key: key[0], ageing_s=30)

    @staticmethod
    def order(queue: Workqueue[str]) -> list[str]:
        taken: list[str] = []
        while (key := queue.get_nowait()) is not None:
            taken.append(key)
        return taken

    async def test_shares_take_turns(self, queue: Workqueue[str]) -> None:
        for key in "a1", "a2", "a3", "b1", "c1", "c2":
            queue.add(key)
        assert self.order(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]

    async def test_a_new_share_waits_for_one_turn(self, queue: Workqueue[str]) -> None:
        for key in "a1", "a2", "a3":
            queue.add(key)
        queue.get_nowait()
        queue.add("b1")
        assert self.order(queue) == ["a2", "b1", "a3"]

    async def test_a_higher_priority_precedes_the_turn_of_another_share(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a1", priority=USER)
        queue.add("a2", priority=USER)
        queue.add("b1", priority=RESYNC)
        assert self.order(queue) == ["a1", "a2", "b1"]

    async def test_a_raised_key_leaves_its_share_in_order(self, queue: Workqueue[str]) -> None:
        for key in "a1", "a2", "b1":
            queue.add(key, priority=RESYNC)
        queue.add("b1", priority=USER)
        assert self.order(queue) == ["b1", "a1", "a2"]

    async def test_keys_that_waited_too_long_precede_any_turn(self, queue: Workqueue[str]) -> None:
        queue.add("a1")
        queue.add("a2")
        await asyncio.sleep(1)
        queue.add("b1")
        await asyncio.sleep(30)
        assert self.order(queue) == ["a1", "a2", "b1"]


class TestRetry:
    async def test_the_delay_of_a_failing_key_grows(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        times_s = []
        for _ in range(4):
            key, time_s = await next_key(queue)
            times_s.append(time_s)
            queue.retry(key)
            queue.done(key)
        assert times_s == [0, 8, 24, 56]

    async def test_a_retry_may_have_a_delay(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.retry(await queue.get(), after=3)
        queue.done("a")
        assert await next_key(queue) == ("a", 3)

    async def test_a_retry_with_a_delay_counts_as_a_failure(self, queue: Workqueue[str]) -> None:
        queue.retry("a", after=3)
        assert queue.failures("a") == 1

    async def test_a_retry_without_a_delay_is_ready_after_done(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.retry(await queue.get(), after=0)
        assert len(queue) == 0
        queue.done("a")
        assert len(queue) == 1

    async def test_failures_are_counted_until_forgotten(self, queue: Workqueue[str]) -> None:
        queue.retry("a")
        queue.retry("a")
        assert queue.failures("a") == 2
        queue.forget("a")
        assert queue.failures("a") == 0

    async def test_success_cancels_a_pending_retry(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.retry(await queue.get())
        queue.done("a")
        queue.add("a")
        queue.forget(await queue.get())
        queue.done("a")
        assert queue.idle

    async def test_forget_cancels_the_retry_of_a_waiting_key(self, queue: Workqueue[str]) -> None:
        queue.retry("a")
        queue.forget("a")
        assert queue.idle
        await asyncio.sleep(100)
        assert len(queue) == 0

    async def test_a_sync_before_the_retry_keeps_the_retry(self, queue: Workqueue[str]) -> None:
        queue.retry("a", after=8)
        queue.add("a")
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=8)

    async def test_success_keeps_a_delayed_add(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=60)
        queue.retry("a")
        assert queue.place("a") == Waiting(until=8)
        queue.forget("a")
        assert queue.place("a") == Waiting(until=60)

    async def test_success_keeps_a_ready_key(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.forget("a")
        assert len(queue) == 1

    async def test_a_retry_that_is_due_is_not_cancelled(self, queue: Workqueue[str]) -> None:
        queue.retry("a")
        await asyncio.sleep(9)
        queue.forget("a")
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_key_with_a_retry_and_a_delayed_add_is_ready_at_both_times(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=5)
        queue.retry("a")
        assert await next_key(queue) == ("a", 5)
        queue.done("a")
        assert await next_key(queue) == ("a", 8)
        queue.done("a")
        assert queue.idle

    @pytest.mark.parametrize("priority", Priority)
    async def test_a_retry_keeps_the_priority_of_the_held_key(
        self, queue: Workqueue[str], priority: Priority
    ) -> None:
        queue.add("a", priority=priority)
        queue.retry(await queue.get())
        queue.done("a")
        await asyncio.sleep(9)
        assert queue.place("a") == Ready(since=8, priority=priority)

    async def test_a_retry_of_a_key_that_is_not_held_has_retry_priority(
        self, queue: Workqueue[str]
    ) -> None:
        queue.retry("a")
        await asyncio.sleep(9)
        assert queue.place("a") == Ready(since=8, priority=RETRY)

    async def test_the_default_backoff_starts_at_five_milliseconds_and_doubles(self) -> None:
        queue: Workqueue[str] = Workqueue()
        times_s = []
        for _ in range(3):
            queue.retry("a")
            key, time_s = await next_key(queue)
            times_s.append(time_s)
            queue.done(key)
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
            queue.add(key)
        assert take_all(queue) == "abc"


class TestGet:
    async def test_get_waits_for_a_key(self, queue: Workqueue[str]) -> None:
        asyncio.get_running_loop().call_later(7, queue.add, "a")
        assert await next_key(queue) == ("a", 7)

    async def test_every_waiting_worker_gets_one_key(self, queue: Workqueue[str]) -> None:
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(1)
        for key in "abc":
            queue.add(key)
        assert await asyncio.gather(*workers) == ["a", "b", "c"]

    async def test_the_worker_that_waits_longest_gets_the_key(self, queue: Workqueue[str]) -> None:
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(1)
        queue.add("a")
        await asyncio.sleep(1)
        assert [worker.done() for worker in workers] == [True, False, False]
        queue.shut_down(drain=False)
        await asyncio.gather(*workers, return_exceptions=True)

    async def test_a_worker_cancelled_while_it_waits_takes_no_key(
        self, queue: Workqueue[str]
    ) -> None:
        cancelled, waiting = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(1)
        cancelled.cancel()
        queue.add("a")
        assert await waiting == "a"

    async def test_a_worker_cancelled_after_its_wakeup_leaves_the_key_to_the_next(
        self, queue: Workqueue[str]
    ) -> None:
        cancelled, waiting = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(1)
        queue.add("a")
        cancelled.cancel()
        assert await waiting == "a"
        assert cancelled.cancelled()

    async def test_a_key_whose_only_worker_was_cancelled_stays_ready(
        self, queue: Workqueue[str]
    ) -> None:
        worker = asyncio.create_task(queue.get())
        await asyncio.sleep(1)
        queue.add("a")
        worker.cancel()
        await asyncio.sleep(1)
        assert queue.place("a") == Ready(since=1, priority=USER)

    async def test_a_worker_that_lost_a_key_to_get_nowait_gets_the_next_key(
        self, queue: Workqueue[str]
    ) -> None:
        overtaken = asyncio.create_task(queue.get())
        await asyncio.sleep(1)
        queue.add("a")
        assert queue.get_nowait() == "a"
        await asyncio.sleep(1)
        queue.add("b")
        assert await overtaken == "b"

    async def test_one_key_wakes_one_worker(self, queue: Workqueue[str]) -> None:
        wakes: list[int] = []
        workers = [asyncio.create_task(count_wakes(queue.get(), wakes)) for _ in range(5)]
        await asyncio.sleep(1)
        assert len(wakes) == 5
        queue.add("a")
        await asyncio.sleep(1)
        assert len(wakes) == 6
        queue.shut_down(drain=False)
        await asyncio.gather(*workers, return_exceptions=True)

    async def test_cancelled_workers_leave_no_memory(self, queue: Workqueue[str]) -> None:
        def futures() -> int:
            gc.collect()
            return sum(isinstance(obj, asyncio.Future) for obj in gc.get_objects())

        before = futures()
        for _ in range(100):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.get(), 1)
        assert futures() < before + 10

    async def test_a_timeout_of_get_loses_no_key(self, queue: Workqueue[str]) -> None:
        taken: list[str] = []
        for number in range(50):
            queue.add(f"{number:02}", after=number + (number % 3 - 1) * 0.01)
        while len(taken) < 50:
            try:
                async with asyncio.timeout(0.5):
                    taken.append(await queue.get())
            except TimeoutError:
                continue
        assert taken == sorted(taken)

    async def test_get_nowait_returns_a_key_or_none(self, queue: Workqueue[str]) -> None:
        assert queue.get_nowait() is None
        queue.add("a")
        assert queue.get_nowait() == "a"


class TestShutDown:
    async def test_ready_keys_are_handed_out_while_draining(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.add("b")
        queue.shut_down(drain=True)
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        with pytest.raises(QueueShutDownError):
            await queue.get()

    async def test_ready_keys_are_dropped_without_a_drain(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.shut_down(drain=False)
        with pytest.raises(QueueShutDownError):
            await queue.get()
        assert queue.idle

    @pytest.mark.parametrize("drain", [True, False])
    async def test_waiting_keys_are_dropped(self, queue: Workqueue[str], *, drain: bool) -> None:
        queue.add("a", after=1)
        queue.retry("b")
        queue.shut_down(drain=drain)
        assert queue.idle
        await asyncio.sleep(10)
        assert len(queue) == 0

    @pytest.mark.parametrize("drain", [True, False])
    async def test_waiting_workers_get_a_shutdown_error(
        self, queue: Workqueue[str], *, drain: bool
    ) -> None:
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(1)
        queue.shut_down(drain=drain)
        results = await asyncio.gather(*workers, return_exceptions=True)
        assert [type(result) for result in results] == [QueueShutDownError] * 3

    async def test_a_worker_woken_for_a_key_still_gets_it_while_draining(
        self, queue: Workqueue[str]
    ) -> None:
        workers = [asyncio.create_task(queue.get()) for _ in range(2)]
        await asyncio.sleep(1)
        queue.add("a")
        queue.shut_down(drain=True)
        first, second = await asyncio.gather(*workers, return_exceptions=True)
        assert first == "a"
        assert isinstance(second, QueueShutDownError)

    @pytest.mark.parametrize("drain", [True, False])
    async def test_no_more_keys_are_accepted(self, queue: Workqueue[str], *, drain: bool) -> None:
        queue.shut_down(drain=drain)
        queue.add("a")
        queue.add("b", after=1)
        queue.retry("c")
        assert queue.idle

    @pytest.mark.parametrize("drain", [True, False])
    async def test_a_held_key_that_was_added_again_is_treated_as_ready(
        self, queue: Workqueue[str], *, drain: bool
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.shut_down(drain=drain)
        queue.done("a")
        assert take_all(queue) == ("a" if drain else "")
        assert queue.idle

    async def test_a_delayed_add_of_a_held_or_ready_key_is_dropped(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "ab":
            queue.add(key)
            queue.add(key, after=60)
        await queue.get()
        queue.shut_down(drain=True)
        queue.done("a")
        assert take_all(queue) == "b"
        assert queue.idle

    async def test_a_drain_can_be_aborted(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.shut_down(drain=True)
        queue.shut_down(drain=False)
        with pytest.raises(QueueShutDownError):
            await queue.get()


class TestJoin:
    async def test_join_returns_at_once_without_held_keys(self, queue: Workqueue[str]) -> None:
        queue.add("ready")
        queue.add("waiting", after=60)
        await queue.join()
        assert now() == 0

    async def test_join_waits_for_every_held_key(self, queue: Workqueue[str]) -> None:
        for key, after in ("a", 3), ("b", 5):
            queue.add(key)
            await queue.get()
            asyncio.get_running_loop().call_later(after, queue.done, key)
        queue.shut_down(drain=False)
        await queue.join()
        assert now() == 5

    async def test_join_waits_for_the_drain(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.add("b")

        async def work() -> None:
            await asyncio.sleep(1)
            for _ in range(2):
                key = await queue.get()
                await asyncio.sleep(2)
                queue.done(key)

        queue.shut_down(drain=True)
        worker = asyncio.create_task(work())
        await queue.join()
        assert now() == 5
        await worker

    async def test_join_returns_when_an_aborted_drain_drops_its_keys(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.shut_down(drain=True)
        joined = asyncio.create_task(queue.join())
        await asyncio.sleep(1)
        assert not joined.done()
        queue.shut_down(drain=False)
        await joined

    async def test_every_caller_of_join_returns(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        await queue.get()
        joined = [asyncio.create_task(queue.join()) for _ in range(3)]
        await asyncio.sleep(1)
        joined[0].cancel()
        queue.done("a")
        await asyncio.gather(*joined[1:])


class TestStats:
    async def test_the_counts_of_a_new_queue_are_zero(self, queue: Workqueue[str]) -> None:
        stats = queue.stats()
        assert (stats.depth, stats.waiting, stats.held, stats.adds, stats.retries) == (0,) * 5
        assert (stats.latency_s.count, stats.work_s.count) == (0, 0)
        assert (stats.unfinished_s, stats.longest_s) == (0, 0)

    async def test_keys_are_counted_by_place(self, queue: Workqueue[str]) -> None:
        for key in "abcdef":
            queue.add(key, after=5 if key in "abc" else 0)
        await queue.get()
        stats = queue.stats()
        assert (stats.depth, stats.waiting, stats.held) == (2, 3, 1)

    async def test_an_add_is_counted_when_the_key_becomes_ready(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.add("a")
        queue.add("b", after=5)
        assert queue.stats().adds == 1
        await asyncio.sleep(6)
        assert queue.stats().adds == 2

    async def test_an_add_of_a_held_key_is_counted_and_is_in_the_depth(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        for _ in range(3):
            queue.add("a")
        assert (queue.stats().adds, queue.stats().depth) == (2, 1)
        queue.done("a")
        assert (queue.stats().adds, queue.stats().depth) == (2, 1)
        await queue.get()
        assert (queue.stats().adds, queue.stats().depth) == (2, 0)

    async def test_latency_of_a_held_key_counts_from_its_add(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        await queue.get()
        await asyncio.sleep(10)
        queue.add("a")
        await asyncio.sleep(20)
        queue.done("a")
        await asyncio.sleep(3)
        await queue.get()
        assert queue.stats().latency_s.sum == 23

    async def test_latency_of_a_held_key_with_a_delay_counts_from_the_end_of_the_delay(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", after=10)
        assert (queue.stats().adds, queue.stats().depth) == (1, 0)
        await asyncio.sleep(15)
        assert queue.stats().depth == 1
        queue.done("a")
        await queue.get()
        stats = queue.stats()
        assert (stats.adds, stats.depth, stats.latency_s.sum) == (2, 0, 5)

    async def test_an_add_of_a_held_key_that_is_dropped_is_counted(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.drop("a")
        queue.done("a")
        assert (queue.stats().adds, queue.stats().depth) == (2, 0)

    async def test_a_delay_counts_as_a_retry(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=10)
        queue.add("a")
        assert queue.stats().retries == 1

    async def test_a_retry_is_counted_when_it_is_requested(self, queue: Workqueue[str]) -> None:
        queue.retry("a")
        queue.retry("a")
        assert queue.stats().retries == 2

    async def test_latency_lasts_from_ready_to_get(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=100)
        await asyncio.sleep(107)
        await queue.get()
        latency = queue.stats().latency_s
        assert latency.sum == 7
        assert dict(zip(latency.bounds, latency.counts, strict=False))[10] == 1
        assert latency.count == 1

    async def test_work_lasts_from_get_to_done(self, queue: Workqueue[str]) -> None:
        for key, held_s in ("a", 1), ("b", 5000):
            queue.add(key)
            await queue.get()
            await asyncio.sleep(held_s)
            queue.done(key)
        work = queue.stats().work_s
        assert work.sum == 5001
        assert dict(zip(work.bounds, work.counts, strict=False))[1] == 1
        assert work.counts[-1] == 1
        assert work.count == 2

    async def test_unfinished_work_is_measured_while_it_lasts(self, queue: Workqueue[str]) -> None:
        for key in "ab":
            queue.add(key)
            await queue.get()
            await asyncio.sleep(10)
        stats = queue.stats()
        assert (stats.unfinished_s, stats.longest_s) == (30, 20)

    async def test_an_empty_queue_is_falsy(self, queue: Workqueue[str]) -> None:
        assert not queue
        queue.add("a")
        assert queue


class TestPace:
    @pytest.fixture
    async def queue(self) -> Workqueue[str]:
        return Workqueue(pace=RateLimit(qps=2, burst=3))

    async def work(self, queue: Workqueue[str], taken: list[tuple[float, str]]) -> None:
        while True:
            key = await queue.get()
            taken.append((asyncio.get_running_loop().time(), key))
            queue.done(key)

    async def test_a_burst_is_taken_at_once_and_further_keys_at_the_rate(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "abcdefg":
            queue.add(key)
        taken: list[tuple[float, str]] = []
        workers = [asyncio.create_task(self.work(queue, taken)) for _ in range(4)]
        await asyncio.sleep(10)
        assert [key for _, key in taken] == list("abcdefg")
        assert [taken_at for taken_at, _ in taken] == pytest.approx([0, 0, 0, 0.5, 1, 1.5, 2])
        for worker in workers:
            worker.cancel()

    async def test_an_urgent_key_added_during_the_wait_is_taken_first(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "abcd":
            queue.add(key, priority=Priority.RESYNC)
        taken: list[tuple[float, str]] = []
        worker = asyncio.create_task(self.work(queue, taken))
        await asyncio.sleep(0.1)
        queue.add("urgent")
        await asyncio.sleep(5)
        assert [key for _, key in taken] == ["a", "b", "c", "urgent", "d"]
        worker.cancel()

    async def test_idle_workers_use_no_tokens(self, queue: Workqueue[str]) -> None:
        taken: list[tuple[float, str]] = []
        workers = [asyncio.create_task(self.work(queue, taken)) for _ in range(4)]
        await asyncio.sleep(100)
        for key in "abcde":
            queue.add(key)
        await asyncio.sleep(10)
        assert [taken_at for taken_at, _ in taken] == pytest.approx([100, 100, 100, 100.5, 101])
        for worker in workers:
            worker.cancel()

    async def test_a_cancelled_get_uses_no_token_and_wakes_another_worker(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "abcd":
            queue.add(key)
        for _ in range(3):
            queue.done(await queue.get())
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0.1)
        waiting_get = asyncio.create_task(queue.get())
        waiting.cancel()
        assert await waiting_get == "d"
        assert asyncio.get_running_loop().time() <= 1.0

    async def test_a_shutdown_does_not_wait_for_the_pace(self) -> None:
        queue = Workqueue[str](pace=RateLimit(qps=0.001, burst=1))
        for key in "ab":
            queue.add(key)
        queue.done(await queue.get())
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(1)
        queue.shut_down(drain=False)
        with pytest.raises(QueueShutDownError):
            await waiting
        assert asyncio.get_running_loop().time() == 1

    async def test_get_nowait_returns_no_key_beyond_the_pace(self, queue: Workqueue[str]) -> None:
        for key in "abcd":
            queue.add(key)
        assert [queue.get_nowait() for _ in range(5)] == ["a", "b", "c", None, None]
        await asyncio.sleep(0.5)
        assert queue.get_nowait() == "d"

    async def test_get_nowait_uses_no_turn_if_it_returns_no_key(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "abcdefgh":
            queue.add(key)
        for _ in range(20):
            queue.get_nowait()
        await asyncio.sleep(1)
        assert [queue.get_nowait() for _ in range(3)] == ["d", "e", None]

    async def test_a_key_that_is_dropped_before_its_turn_uses_no_turn(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "abcd":
            queue.add(key)
        for _ in range(3):
            queue.get_nowait()
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.drop("d")
        await asyncio.sleep(0.5)
        queue.add("e")
        await waiting
        assert asyncio.get_running_loop().time() == 0.5

    async def test_a_cancelled_get_uses_no_turn(self, queue: Workqueue[str]) -> None:
        for key in "abcdef":
            queue.add(key)
        for _ in range(3):
            queue.get_nowait()
        waiting = [asyncio.create_task(queue.get()) for _ in range(5)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.sleep(1)
        assert [queue.get_nowait() for _ in range(3)] == ["d", "e", None]


async def test_a_dropped_key_leaves_the_queue_and_loses_its_failures() -> None:
    queue = Workqueue[str]()
    queue.add("ready")
    queue.add("later", after=10)
    queue.retry("failing")
    for key in ("ready", "later", "failing", "unknown"):
        queue.drop(key)
        assert queue.place(key) is None
        assert queue.failures(key) == 0
    assert queue.idle
    await asyncio.sleep(1000)
    assert queue.get_nowait() is None


async def test_a_dropped_key_that_is_held_is_not_ready_after_done() -> None:
    queue = Workqueue[str]()
    queue.add("a")
    assert queue.get_nowait() == "a"
    queue.add("a")
    queue.retry("a")
    queue.drop("a")
    queue.done("a")
    assert queue.idle


async def test_keep_drops_all_other_keys() -> None:
    queue = Workqueue[str](share_of=len)
    for key in ("a", "b", "aa", "bb"):
        queue.add(key)
    queue.add("ab", after=10)
    queue.add("ba", after=10)
    await queue.keep(lambda key: key.startswith("a"))
    assert [queue.get_nowait() for _ in range(3)] == ["a", "aa", None]
    assert queue.place("ab") == Waiting(until=10)
    assert queue.place("ba") is None
