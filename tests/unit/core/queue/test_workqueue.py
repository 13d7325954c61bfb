"""What a workqueue promises, one sentence at a time."""

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
    """Take everything that is ready, and say in which order."""
    taken = ""
    while (key := queue.get_nowait()) is not None:
        taken += key
        queue.done(key)
    return taken


class Observed:
    """Some work, awaited; each time that it is called on to go on is noted."""

    def __init__(self, work: Coroutine[Any, Any, str], wakes: list[int]) -> None:
        self.work = work
        self.wakes = wakes

    def __await__(self) -> Generator[Any, Any, str]:
        while True:
            self.wakes.append(1)
            try:
                waited_for = self.work.send(None)
            except StopIteration as ended:
                return str(ended.value)
            yield waited_for


async def told_when_woken(work: Coroutine[Any, Any, str], wakes: list[int]) -> str:
    return await Observed(work, wakes)


class Name:
    """A key that can be told to be gone."""


async def next_visit(queue: Workqueue[str]) -> tuple[str, float]:
    key = await queue.get()
    return key, now()


class TestOnePlace:
    async def test_keys_come_out_in_the_order_in_which_they_went_in(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "cab":
            queue.add(key)
        assert take_all(queue) == "cab"

    async def test_a_key_added_twice_is_visited_once(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.add("a")
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_key_added_again_keeps_its_turn(self, queue: Workqueue[str]) -> None:
        for key in "aba":
            queue.add(key)
        assert take_all(queue) == "ab"

    async def test_a_held_key_is_not_handed_out_again(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        assert queue.get_nowait() is None

    async def test_a_held_key_that_was_added_is_ready_once_when_given_back(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.add("a")
        queue.done("a")
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_key_given_back_and_not_added_is_gone(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.done(await queue.get())
        assert queue.idle
        assert queue.place("a") is None

    async def test_a_key_that_nobody_holds_cannot_be_given_back(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        with pytest.raises(UsageError, match="a was given back, but nobody holds it"):
            queue.done("a")

    async def test_its_length_is_the_number_of_ready_keys(self, queue: Workqueue[str]) -> None:
        for key in "abc":
            queue.add(key)
        queue.add("d", after=1)
        await queue.get()
        assert len(queue) == 2

    async def test_a_key_knows_its_place(self, queue: Workqueue[str]) -> None:
        await asyncio.sleep(5)
        queue.add("a", after=3)
        assert queue.place("a") == Waiting(until=8)
        await asyncio.sleep(4)
        assert queue.place("a") == Ready(since=8, priority=USER)
        await queue.get()
        assert queue.place("a") == Held(since=9, priority=USER)
        queue.done("a")
        assert queue.place("a") is None

    async def test_a_key_that_is_gone_leaves_nothing_behind(self) -> None:
        queue: Workqueue[Name] = Workqueue()

        async def visited() -> weakref.ref[Name]:
            key = Name()
            queue.add(key, after=5)
            queue.retry(key, after=9)
            for _ in range(2):
                queue.add(key)
                queue.forget(await queue.get())
                queue.done(key)
                await asyncio.sleep(6)
            return weakref.ref(key)

        gone = await visited()
        assert queue.idle
        gc.collect()
        assert gone() is None

    @pytest.mark.parametrize("drain", [True, False])
    async def test_a_key_dropped_at_the_end_leaves_nothing_behind(self, *, drain: bool) -> None:
        queue: Workqueue[Name] = Workqueue()

        def dropped() -> weakref.ref[Name]:
            key = Name()
            queue.add(key, after=5)
            if not drain:
                queue.add(key)
            queue.shut_down(drain=drain)
            return weakref.ref(key)

        gone = dropped()
        gc.collect()
        assert gone() is None

    async def test_a_key_whose_share_cannot_be_told_is_not_added(self) -> None:
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


class TestTime:
    async def test_a_delayed_key_is_ready_when_its_time_has_come(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=60)
        assert await next_visit(queue) == ("a", 60)

    async def test_keys_ripen_in_the_order_of_their_times(self, queue: Workqueue[str]) -> None:
        for key, after in ("c", 3), ("a", 1), ("d", 4), ("b", 2):
            queue.add(key, after=after)
        assert [await next_visit(queue) for _ in range(4)] == [
            ("a", 1),
            ("b", 2),
            ("c", 3),
            ("d", 4),
        ]

    async def test_keys_of_the_same_time_ripen_in_the_order_added(
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
        assert await next_visit(queue) == ("a", 60)
        queue.done("a")
        assert queue.idle

    async def test_a_negative_delay_is_none(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=-1)
        assert len(queue) == 1

    async def test_a_delay_without_end_holds_up_nothing(self, queue: Workqueue[str]) -> None:
        queue.add("never", after=math.inf)
        queue.add("b", after=1e7)
        assert await next_visit(queue) == ("b", 1e7)
        assert queue.place("never") == Waiting(until=math.inf)

    async def test_a_held_key_waits_for_the_delay_asked_for_meanwhile(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", after=10)
        await asyncio.sleep(4)
        queue.done("a")
        assert queue.place("a") == Waiting(until=10)
        assert await next_visit(queue) == ("a", 10)

    async def test_a_held_key_is_ready_when_given_back_after_its_delay(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", after=10)
        await asyncio.sleep(11)
        assert len(queue) == 0
        queue.done("a")
        assert queue.place("a") == Ready(since=11, priority=USER)

    async def test_an_immediate_visit_of_a_held_key_comes_before_a_delayed_one(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a", after=10)
        queue.add("a")
        queue.done("a")
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=10)

    async def test_an_explicit_visit_stays_when_the_key_is_visited_before(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=60)
        await asyncio.sleep(10)
        queue.add("a")
        key = await queue.get()
        queue.forget(key)
        queue.done(key)
        assert queue.place("a") == Waiting(until=60)
        assert await next_visit(queue) == ("a", 60)
        queue.done("a")
        assert queue.idle

    async def test_an_explicit_visit_asked_for_a_ready_key_stays(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.add("a", after=60)
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=60)

    async def test_a_visit_that_begins_after_the_explicit_time_is_that_visit(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.add("a", after=60)
        await asyncio.sleep(61)
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_visit_that_began_before_the_explicit_time_is_another(
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

    async def test_a_later_visit_asked_for_when_the_first_is_ripe_stays(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=5)
        await asyncio.sleep(6)
        queue.add("a", after=5)
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=11)

    async def test_a_later_visit_asked_for_after_the_first_came_due_stays(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        queue.add("a", after=5)
        await asyncio.sleep(6)
        queue.add("a", after=5)
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=11)

    async def test_one_visit_is_enough_for_all_that_is_ripe(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=5)
        queue.retry("a", after=6)
        await asyncio.sleep(7)
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_the_loop_gets_its_turn_while_thousands_ripen(
        self, queue: Workqueue[str]
    ) -> None:
        for number in range(5000):
            queue.add(f"key-{number}", after=1)
        await queue.get()
        assert 0 < len(queue) < 4999
        await asyncio.sleep(1)
        assert len(queue) == 4999

    async def test_timers_that_were_overtaken_do_nothing(self, queue: Workqueue[str]) -> None:
        for after in range(1000, 0, -1):
            queue.add("a", after=after)
        queue.add("b", after=2000)
        assert await next_visit(queue) == ("a", 1)
        queue.done("a")
        assert await next_visit(queue) == ("b", 2000)

    async def test_timers_of_many_keys_stay_in_time_when_most_are_cancelled(
        self, queue: Workqueue[str]
    ) -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        times = {f"key-{number}": number * 7919 % 1009 + 1.0 for number in range(1009)}
        for key, at in times.items():
            queue.retry(key, after=at)
        cancelled = [key for key, at in times.items() if at % 5]
        for key in cancelled:
            queue.forget(key)
        left = sorted((at, key) for key, at in times.items() if key not in cancelled)
        assert [await next_visit(queue) for _ in left] == [(key, at) for at, key in left]
        assert told == []

    async def test_a_key_without_a_share_does_not_stop_other_timers(self) -> None:
        def share_of(key: str) -> str:
            if key == "bad":
                raise LookupError(key)
            return key

        queue = make_queue(share_of=share_of)
        told: list[BaseException | None] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: told.append(context.get("exception"))
        )
        queue.add("bad", after=1)
        queue.add("good", after=2)
        assert await next_visit(queue) == ("good", 2)
        assert queue.get_nowait() is None
        assert [type(error) for error in told] == [LookupError]


class CoarseLoop(VirtualTimeLoop):
    """Calls back a little early, as uvloop does, and cannot look more than a week ahead."""

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
    def visit_after(seconds: float, loop: CoarseLoop) -> float:
        async def visit() -> float:
            queue = make_queue()
            queue.add("a", after=seconds)
            key, at = await next_visit(queue)
            queue.done(key)
            assert queue.idle
            return at

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(visit())

    def test_a_key_that_ripens_a_little_early_is_visited_once(self) -> None:
        loop = CoarseLoop()
        assert self.visit_after(1, loop) == pytest.approx(0.9996)
        assert loop.timers == 1

    def test_a_key_may_wait_for_longer_than_the_loop_can_look_ahead(self) -> None:
        assert self.visit_after(1e6, CoarseLoop()) == pytest.approx(1e6)


class TestPriority:
    async def test_the_higher_priority_goes_first(self, queue: Workqueue[str]) -> None:
        for key, priority in ("s", SECONDARY), ("r", RESYNC), ("u", USER), ("t", RETRY):
            queue.add(key, priority=priority)
        assert take_all(queue) == "ustr"

    async def test_a_user_asks_unless_it_is_said_otherwise(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        assert queue.place("a") == Ready(since=0, priority=USER)

    async def test_a_ready_key_is_raised_by_a_higher_priority(self, queue: Workqueue[str]) -> None:
        queue.add("a", priority=SECONDARY)
        queue.add("b", priority=RESYNC)
        queue.add("b", priority=USER)
        assert take_all(queue) == "ba"

    async def test_a_ready_key_is_not_lowered(self, queue: Workqueue[str]) -> None:
        queue.add("a", priority=USER)
        queue.add("a", priority=RESYNC)
        queue.add("b", priority=SECONDARY)
        assert take_all(queue) == "ab"

    async def test_a_ready_key_is_raised_by_a_delayed_visit_of_a_higher_priority(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", priority=RESYNC)
        queue.add("a", priority=USER, after=60)
        assert queue.place("a") == Ready(since=0, priority=USER)

    async def test_a_raised_key_goes_behind_those_of_its_new_priority(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", priority=RESYNC)
        queue.add("b", priority=USER)
        queue.add("a", priority=USER)
        assert take_all(queue) == "ba"

    @pytest.mark.parametrize("priorities", [(RESYNC, SECONDARY), (SECONDARY, RESYNC)])
    async def test_a_waiting_key_ripens_with_the_highest_priority(
        self, queue: Workqueue[str], priorities: tuple[Priority, Priority]
    ) -> None:
        for after, priority in zip((5, 6), priorities, strict=True):
            queue.add("a", after=after, priority=priority)
        await asyncio.sleep(7)
        assert queue.place("a") == Ready(since=5, priority=SECONDARY)

    async def test_a_waiting_key_added_now_has_the_priority_it_waits_with(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=60, priority=USER)
        queue.add("a", priority=RESYNC)
        assert queue.place("a") == Ready(since=0, priority=USER)

    async def test_a_held_key_comes_back_with_the_highest_priority(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        for priority in RESYNC, SECONDARY, RETRY:
            queue.add("a", priority=priority)
        queue.done("a")
        assert queue.place("a") == Ready(since=0, priority=SECONDARY)

    async def test_an_earlier_urgent_visit_does_not_make_a_later_one_urgent(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=60, priority=RESYNC)
        queue.add("a", priority=USER)
        take_all(queue)
        await asyncio.sleep(61)
        assert queue.place("a") == Ready(since=60, priority=RESYNC)


class TestAgeing:
    async def test_what_waited_too_long_goes_before_what_is_urgent(self) -> None:
        queue = make_queue(ageing_s=30)
        queue.add("old", priority=RESYNC)
        await asyncio.sleep(31)
        queue.add("new", priority=USER)
        assert queue.get_nowait() == "old"

    async def test_what_did_not_wait_too_long_does_not(self) -> None:
        queue = make_queue(ageing_s=30)
        queue.add("old", priority=RESYNC)
        await asyncio.sleep(30)
        queue.add("new", priority=USER)
        assert queue.get_nowait() == "new"

    async def test_of_those_that_waited_too_long_the_oldest_goes_first(self) -> None:
        queue = make_queue(ageing_s=30)
        for key in "abc":
            queue.add(key, priority=RESYNC)
            await asyncio.sleep(1)
        await asyncio.sleep(30)
        assert take_all(queue) == "abc"

    async def test_a_backlog_that_waited_too_long_leaves_every_other_turn_to_what_is_urgent(
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

    async def test_nothing_starves_behind_an_endless_stream(self) -> None:
        queue = make_queue(ageing_s=30)
        queue.add("patient", priority=RESYNC)
        for number in range(100):
            queue.add(f"urgent-{number}", priority=USER)
            key, at = await next_visit(queue)
            queue.done(key)
            if key == "patient":
                break
            await asyncio.sleep(1)
        assert (key, at) == ("patient", 31)


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

    async def test_a_share_that_comes_later_waits_for_one_turn(self, queue: Workqueue[str]) -> None:
        for key in "a1", "a2", "a3":
            queue.add(key)
        queue.get_nowait()
        queue.add("b1")
        assert self.order(queue) == ["a2", "b1", "a3"]

    async def test_a_higher_priority_goes_before_another_shares_turn(
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

    async def test_what_waited_too_long_goes_before_any_turn(self, queue: Workqueue[str]) -> None:
        queue.add("a1")
        queue.add("a2")
        await asyncio.sleep(1)
        queue.add("b1")
        await asyncio.sleep(30)
        assert self.order(queue) == ["a1", "a2", "b1"]


class TestRetry:
    async def test_a_failing_key_waits_longer_each_time(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        visits = []
        for _ in range(4):
            key, at = await next_visit(queue)
            visits.append(at)
            queue.retry(key)
            queue.done(key)
        assert visits == [0, 8, 24, 56]

    async def test_a_retry_may_say_when(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.retry(await queue.get(), after=3)
        queue.done("a")
        assert await next_visit(queue) == ("a", 3)

    async def test_a_retry_that_says_when_counts_as_a_failure(self, queue: Workqueue[str]) -> None:
        queue.retry("a", after=3)
        assert queue.failures("a") == 1

    async def test_a_retry_without_delay_is_ready_when_the_key_is_given_back(
        self, queue: Workqueue[str]
    ) -> None:
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

    async def test_success_cancels_a_retry_that_waits(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.retry(await queue.get())
        queue.done("a")
        queue.add("a")
        queue.forget(await queue.get())
        queue.done("a")
        assert queue.idle

    async def test_forgetting_a_waiting_key_cancels_its_retry(self, queue: Workqueue[str]) -> None:
        queue.retry("a")
        queue.forget("a")
        assert queue.idle
        await asyncio.sleep(100)
        assert len(queue) == 0

    async def test_a_visit_before_the_retry_that_says_nothing_leaves_it(
        self, queue: Workqueue[str]
    ) -> None:
        queue.retry("a", after=8)
        queue.add("a")
        assert take_all(queue) == "a"
        assert queue.place("a") == Waiting(until=8)

    async def test_success_leaves_an_explicit_visit_that_waits(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=60)
        queue.retry("a")
        assert queue.place("a") == Waiting(until=8)
        queue.forget("a")
        assert queue.place("a") == Waiting(until=60)

    async def test_success_leaves_what_is_ready(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.forget("a")
        assert len(queue) == 1

    async def test_a_ripe_retry_is_no_longer_cancelled(self, queue: Workqueue[str]) -> None:
        queue.retry("a")
        await asyncio.sleep(9)
        queue.forget("a")
        assert take_all(queue) == "a"
        assert queue.idle

    async def test_a_waiting_key_waits_for_the_earlier_of_retry_and_explicit_time(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a", after=5)
        queue.retry("a")
        assert await next_visit(queue) == ("a", 5)
        queue.done("a")
        assert await next_visit(queue) == ("a", 8)
        queue.done("a")
        assert queue.idle

    @pytest.mark.parametrize("priority", Priority)
    async def test_a_retry_keeps_the_priority_with_which_the_key_was_taken(
        self, queue: Workqueue[str], priority: Priority
    ) -> None:
        queue.add("a", priority=priority)
        queue.retry(await queue.get())
        queue.done("a")
        await asyncio.sleep(9)
        assert queue.place("a") == Ready(since=8, priority=priority)

    async def test_a_retry_of_a_key_that_nobody_holds_is_a_retry(
        self, queue: Workqueue[str]
    ) -> None:
        queue.retry("a")
        await asyncio.sleep(9)
        assert queue.place("a") == Ready(since=8, priority=RETRY)

    async def test_the_default_backoff_is_five_milliseconds_doubling(self) -> None:
        queue: Workqueue[str] = Workqueue()
        visits = []
        for _ in range(3):
            queue.retry("a")
            key, at = await next_visit(queue)
            visits.append(at)
            queue.done(key)
        assert 0.005 <= visits[0] <= 0.0055
        assert 0.010 <= visits[1] - visits[0] <= 0.011
        assert 0.020 <= visits[2] - visits[1] <= 0.022

    async def test_a_token_bucket_spreads_retries_of_many_keys(self) -> None:
        queue = make_queue(base_s=0.001, bucket=TokenBucket(rate_per_s=1, burst=2))
        for key in "abcd":
            queue.retry(key)
        visits = [await next_visit(queue) for _ in range(4)]
        assert visits == [("a", 0.001), ("b", 0.001), ("c", 1), ("d", 2)]

    async def test_a_token_bucket_limits_a_retry_that_says_when(self) -> None:
        queue = make_queue(bucket=TokenBucket(rate_per_s=1, burst=1))
        queue.retry("a", after=0)
        queue.retry("b", after=0)
        queue.retry("c", after=5)
        assert [await next_visit(queue) for _ in range(3)] == [("a", 0), ("b", 1), ("c", 5)]

    async def test_a_token_bucket_does_not_limit_what_is_added(self) -> None:
        queue = make_queue(bucket=TokenBucket(rate_per_s=1, burst=1))
        for key in "abc":
            queue.add(key)
        assert take_all(queue) == "abc"


class TestGet:
    async def test_it_waits_for_a_key(self, queue: Workqueue[str]) -> None:
        asyncio.get_running_loop().call_later(7, queue.add, "a")
        assert await next_visit(queue) == ("a", 7)

    async def test_every_waiting_worker_gets_one_of_the_keys(self, queue: Workqueue[str]) -> None:
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(1)
        for key in "abc":
            queue.add(key)
        assert await asyncio.gather(*workers) == ["a", "b", "c"]

    async def test_one_key_goes_to_the_worker_that_waits_longest(
        self, queue: Workqueue[str]
    ) -> None:
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
        cancelled, patient = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(1)
        cancelled.cancel()
        queue.add("a")
        assert await patient == "a"

    async def test_a_worker_cancelled_when_woken_leaves_the_key_to_the_next(
        self, queue: Workqueue[str]
    ) -> None:
        cancelled, patient = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(1)
        queue.add("a")
        cancelled.cancel()
        assert await patient == "a"
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

    async def test_a_worker_that_was_overtaken_gets_the_next_key(
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
        workers = [asyncio.create_task(told_when_woken(queue.get(), wakes)) for _ in range(5)]
        await asyncio.sleep(1)
        assert len(wakes) == 5
        queue.add("a")
        await asyncio.sleep(1)
        assert len(wakes) == 6
        queue.shut_down(drain=False)
        await asyncio.gather(*workers, return_exceptions=True)

    async def test_workers_that_gave_up_leave_nothing_behind(self, queue: Workqueue[str]) -> None:
        def futures() -> int:
            gc.collect()
            return sum(isinstance(thing, asyncio.Future) for thing in gc.get_objects())

        before = futures()
        for _ in range(100):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.get(), 1)
        assert futures() < before + 10

    async def test_timeouts_lose_nothing(self, queue: Workqueue[str]) -> None:
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

    async def test_without_waiting_it_is_a_key_or_none(self, queue: Workqueue[str]) -> None:
        assert queue.get_nowait() is None
        queue.add("a")
        assert queue.get_nowait() == "a"


class TestShutDown:
    async def test_what_is_ready_is_handed_out_when_draining(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.add("b")
        queue.shut_down(drain=True)
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        with pytest.raises(QueueShutDownError):
            await queue.get()

    async def test_what_is_ready_is_dropped_when_not_draining(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.shut_down(drain=False)
        with pytest.raises(QueueShutDownError):
            await queue.get()
        assert queue.idle

    @pytest.mark.parametrize("drain", [True, False])
    async def test_what_waits_is_dropped(self, queue: Workqueue[str], *, drain: bool) -> None:
        queue.add("a", after=1)
        queue.retry("b")
        queue.shut_down(drain=drain)
        assert queue.idle
        await asyncio.sleep(10)
        assert len(queue) == 0

    @pytest.mark.parametrize("drain", [True, False])
    async def test_workers_that_wait_are_told(self, queue: Workqueue[str], *, drain: bool) -> None:
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(1)
        queue.shut_down(drain=drain)
        results = await asyncio.gather(*workers, return_exceptions=True)
        assert [type(result) for result in results] == [QueueShutDownError] * 3

    async def test_a_worker_woken_for_a_key_still_gets_it_when_draining(
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
    async def test_nothing_more_is_taken(self, queue: Workqueue[str], *, drain: bool) -> None:
        queue.shut_down(drain=drain)
        queue.add("a")
        queue.add("b", after=1)
        queue.retry("c")
        assert queue.idle

    @pytest.mark.parametrize("drain", [True, False])
    async def test_a_held_key_that_was_added_is_as_good_as_ready(
        self, queue: Workqueue[str], *, drain: bool
    ) -> None:
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.shut_down(drain=drain)
        queue.done("a")
        assert take_all(queue) == ("a" if drain else "")
        assert queue.idle

    async def test_a_delayed_visit_of_a_held_or_ready_key_is_dropped(
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

    async def test_draining_can_be_cut_short(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.shut_down(drain=True)
        queue.shut_down(drain=False)
        with pytest.raises(QueueShutDownError):
            await queue.get()


class TestJoin:
    async def test_it_returns_at_once_when_nothing_is_held(self, queue: Workqueue[str]) -> None:
        queue.add("ready")
        queue.add("waiting", after=60)
        await queue.join()
        assert now() == 0

    async def test_it_waits_for_every_key_that_is_held(self, queue: Workqueue[str]) -> None:
        for key, after in ("a", 3), ("b", 5):
            queue.add(key)
            await queue.get()
            asyncio.get_running_loop().call_later(after, queue.done, key)
        queue.shut_down(drain=False)
        await queue.join()
        assert now() == 5

    async def test_it_waits_until_all_is_drained(self, queue: Workqueue[str]) -> None:
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

    async def test_it_ends_when_what_should_drain_is_dropped(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.shut_down(drain=True)
        joined = asyncio.create_task(queue.join())
        await asyncio.sleep(1)
        assert not joined.done()
        queue.shut_down(drain=False)
        await joined

    async def test_everyone_who_joins_is_told(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        await queue.get()
        joined = [asyncio.create_task(queue.join()) for _ in range(3)]
        await asyncio.sleep(1)
        joined[0].cancel()
        queue.done("a")
        await asyncio.gather(*joined[1:])


class TestStats:
    async def test_a_new_queue_counted_nothing(self, queue: Workqueue[str]) -> None:
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

    async def test_adds_are_counted_when_a_key_becomes_ready(self, queue: Workqueue[str]) -> None:
        queue.add("a")
        queue.add("a")
        queue.add("b", after=5)
        assert queue.stats().adds == 1
        await asyncio.sleep(6)
        assert queue.stats().adds == 2

    async def test_a_key_added_while_it_is_held_is_an_add_and_is_in_the_depth(
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

    async def test_a_key_added_while_it_is_held_waits_from_the_add(
        self, queue: Workqueue[str]
    ) -> None:
        queue.add("a")
        await queue.get()
        await asyncio.sleep(10)
        queue.add("a")
        await asyncio.sleep(20)
        queue.done("a")
        await asyncio.sleep(3)
        await queue.get()
        assert queue.stats().latency_s.sum == 23

    async def test_a_delay_that_ends_while_the_key_is_held_makes_it_due(
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

    async def test_a_held_key_that_is_added_and_dropped_was_added(
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

    async def test_retries_are_counted_when_asked_for(self, queue: Workqueue[str]) -> None:
        queue.retry("a")
        queue.retry("a")
        assert queue.stats().retries == 2

    async def test_latency_is_from_ready_to_taken(self, queue: Workqueue[str]) -> None:
        queue.add("a", after=100)
        await asyncio.sleep(107)
        await queue.get()
        latency = queue.stats().latency_s
        assert latency.sum == 7
        assert dict(zip(latency.bounds, latency.counts, strict=False))[10] == 1
        assert latency.count == 1

    async def test_work_is_from_taken_to_given_back(self, queue: Workqueue[str]) -> None:
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

    async def test_a_burst_is_taken_at_once_and_then_so_many_a_second(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "abcdefg":
            queue.add(key)
        taken: list[tuple[float, str]] = []
        workers = [asyncio.create_task(self.work(queue, taken)) for _ in range(4)]
        await asyncio.sleep(10)
        assert [key for _, key in taken] == list("abcdefg")
        assert [at for at, _ in taken] == pytest.approx([0, 0, 0, 0.5, 1, 1.5, 2])
        for worker in workers:
            worker.cancel()

    async def test_what_is_urgent_goes_first_although_it_came_during_the_wait(
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

    async def test_idle_workers_use_up_nothing(self, queue: Workqueue[str]) -> None:
        taken: list[tuple[float, str]] = []
        workers = [asyncio.create_task(self.work(queue, taken)) for _ in range(4)]
        await asyncio.sleep(100)
        for key in "abcde":
            queue.add(key)
        await asyncio.sleep(10)
        assert [at for at, _ in taken] == pytest.approx([100, 100, 100, 100.5, 101])
        for worker in workers:
            worker.cancel()

    async def test_a_cancelled_get_uses_up_nothing_and_wakes_another(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "abcd":
            queue.add(key)
        for _ in range(3):
            queue.done(await queue.get())
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0.1)
        other = asyncio.create_task(queue.get())
        waiting.cancel()
        assert await other == "d"
        assert asyncio.get_running_loop().time() <= 1.0

    async def test_a_stop_does_not_wait_for_the_pace(self) -> None:
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

    async def test_without_waiting_no_key_is_taken_beyond_the_pace(
        self, queue: Workqueue[str]
    ) -> None:
        for key in "abcd":
            queue.add(key)
        assert [queue.get_nowait() for _ in range(5)] == ["a", "b", "c", None, None]
        await asyncio.sleep(0.5)
        assert queue.get_nowait() == "d"


async def test_a_key_that_is_dropped_is_nowhere_and_no_failure_is_remembered() -> None:
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


async def test_a_held_key_that_is_dropped_is_not_ready_again_when_it_is_given_back() -> None:
    queue = Workqueue[str]()
    queue.add("a")
    assert queue.get_nowait() == "a"
    queue.add("a")
    queue.retry("a")
    queue.drop("a")
    queue.done("a")
    assert queue.idle


async def test_only_what_is_wanted_is_kept() -> None:
    queue = Workqueue[str](share_of=len)
    for key in ("a", "b", "aa", "bb"):
        queue.add(key)
    queue.add("ab", after=10)
    queue.add("ba", after=10)
    queue.keep(lambda key: key.startswith("a"))
    assert [queue.get_nowait() for _ in range(3)] == ["a", "aa", None]
    assert queue.place("ab") == Waiting(until=10)
    assert queue.place("ba") is None
