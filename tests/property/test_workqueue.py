"""Whatever is done to a workqueue, it does what a slow and plain model of it does."""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from natsctl.core.queue.retry import ExponentialLimiter
from natsctl.core.queue.workqueue import Held, Place, Priority, Ready, Waiting, Workqueue
from natsctl.errors import QueueShutDownError
from natsctl.testing.time import VirtualTimeLoop

T = TypeVar("T")

AGEING_S = 30.0
MOMENT = 2.0**-20  # added to delays, so that no two moments are the same
NAMES = ("a1", "a2", "a3", "b1", "b2", "c1")
KEYS = st.sampled_from(NAMES)
PRIORITIES = st.sampled_from(Priority)
DELAYS = st.integers(0, 40)


@dataclass
class Owed:
    """All that the model knows of one key; a visit asked for is a time and a priority."""

    explicit: tuple[float, Priority] | None = None
    retry: tuple[float, Priority] | None = None
    again: Priority | None = None
    ready: Ready | None = None
    came: int = 0  # which number it got when it became ready
    lined_up: int = 0  # and when it got its present priority
    held: Held | None = None
    failures: int = 0

    def visits(self) -> list[tuple[float, Priority]]:
        again = [] if self.again is None else [(0.0, self.again)]
        return again + [visit for visit in (self.explicit, self.retry) if visit]

    def at(self) -> float:
        return min(at for at, _ in self.visits())

    def place(self) -> Place | None:
        if self.held or self.ready:
            return self.held or self.ready
        return Waiting(self.at()) if self.visits() else None


def merged(
    first: tuple[float, Priority] | None, second: tuple[float, Priority]
) -> tuple[float, Priority]:
    if first is None:
        return second
    return min(first[0], second[0]), max(first[1], second[1])


class Model:
    """A workqueue that looks at every key, every time."""

    def __init__(self, share_of: Callable[[str], Hashable]) -> None:
        self.keys = {key: Owed() for key in NAMES}
        self.share_of = share_of
        self.turns: dict[Priority, list[Hashable]] = {priority: [] for priority in Priority}
        self.by_age = False  # whether the last turn went to the oldest
        self.now = 0.0
        self.numbers = count(1)
        self.shut = self.drain = False

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while ripe := [
            (owed.at(), key)
            for key, owed in self.keys.items()
            if isinstance(owed.place(), Waiting) and owed.at() <= until
        ]:
            self.now, key = min(ripe)
            self.put(key)
        self.now = until

    def put(self, key: str) -> None:
        """Let the key be where it belongs, now that something about it changed."""
        owed = self.keys[key]
        if owed.held or not (owed.visits() and (owed.ready or owed.at() <= self.now)):
            return
        self.make_ready(key, max(priority for _, priority in owed.visits()))

    def make_ready(self, key: str, priority: Priority) -> None:
        owed = self.keys[key]
        if owed.ready is None or owed.ready.priority < priority:
            since = self.now if owed.ready is None else owed.ready.since
            owed.lined_up = next(self.numbers)
            owed.came = owed.lined_up if owed.ready is None else owed.came
            owed.ready = Ready(since, priority)
            if self.share_of(key) not in self.turns[priority]:
                self.turns[priority].append(self.share_of(key))
            self.forget_empty_shares()

    def forget_empty_shares(self) -> None:
        for priority, shares in self.turns.items():
            filled = {self.share_of(key) for key in self.ready_keys(priority)}
            shares[:] = [share for share in shares if share in filled]

    def ready_keys(self, priority: Priority) -> list[str]:
        return [
            k for k, owed in self.keys.items() if owed.ready and owed.ready.priority is priority
        ]

    def add(self, key: str, after: float, priority: Priority) -> None:
        owed = self.keys[key]
        if self.shut:
            return
        if owed.ready:
            self.strike(key)
        if after > 0:
            owed.explicit = merged(owed.explicit, (self.now + after, priority))
        elif owed.held:
            owed.again = max(priority, owed.again or priority)
        else:
            self.make_ready(key, max([priority, *(asked for _, asked in owed.visits())]))
        self.put(key)

    def retry(self, key: str, after: float) -> None:
        owed = self.keys[key]
        owed.failures += 1
        if not self.shut:
            if owed.ready:
                self.strike(key)
            priority = owed.held.priority if owed.held else Priority.RETRY
            owed.retry = merged(owed.retry, (self.now + after, priority))
            self.put(key)

    def forget(self, key: str) -> None:
        owed = self.keys[key]
        owed.failures = 0
        owed.retry = None

    def following(self) -> str:
        """Say which key is next."""
        ready = [(owed.came, key, owed.ready) for key, owed in self.keys.items() if owed.ready]
        _, oldest, _ = min(ready)
        if self.oldest_is_due():
            return oldest
        highest = max(place.priority for _, _, place in ready)
        share = self.turns[highest][0]
        keys = [key for key in self.ready_keys(highest) if self.share_of(key) == share]
        return min(keys, key=lambda key: self.keys[key].lined_up)

    def due_while_held(self) -> int:
        """Count the held keys that are ready as soon as they are given back."""
        held = [owed for owed in self.keys.values() if owed.held and owed.visits()]
        return sum(owed.at() <= self.now for owed in held)

    def oldest_is_due(self) -> bool:
        """Say whether the next turn goes by age: it has aged, and the last turn did not."""
        ages = [self.now - owed.ready.since for owed in self.keys.values() if owed.ready]
        return not self.by_age and max(ages) > AGEING_S

    def take(self, key: str) -> None:
        owed = self.keys[key]
        assert owed.ready is not None
        priority = owed.ready.priority
        self.by_age = self.oldest_is_due()
        if not self.by_age:
            share = self.turns[priority].pop(0)
            self.turns[priority].append(share)
        owed.ready, owed.again = None, None
        owed.held = Held(self.now, priority)
        self.forget_empty_shares()
        self.strike(key)

    def strike(self, key: str) -> None:
        """Strike out what is answered by a visit that begins now, or that is ready to begin."""
        owed = self.keys[key]
        if owed.explicit and owed.explicit[0] <= self.now:
            owed.explicit = None
        if owed.retry and owed.retry[0] <= self.now:
            owed.retry = None

    def done(self, key: str) -> None:
        self.keys[key].held = None
        self.put(key)
        self.keys[key].again = None

    def shut_down(self, *, drain: bool) -> None:
        self.shut = True
        for owed in self.keys.values():
            owed.explicit = owed.retry = None
            if not drain:
                owed.ready = owed.again = None
        self.forget_empty_shares()


class Workqueues(RuleBasedStateMachine):
    """Does the same to a workqueue and to the model of it, and compares them after each step."""

    share_of: Callable[[str], Hashable] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.queue: Workqueue[str] = Workqueue(
            limiter=ExponentialLimiter(), share_of=type(self).share_of, ageing_s=AGEING_S
        )
        self.model = Model(type(self).share_of or (lambda _key: None))
        self.moments = count(1)

    def teardown(self) -> None:
        self.runner.close()

    def run(self, work: Callable[[], T]) -> T:
        async def inside() -> T:
            return work()

        return self.runner.run(inside())

    def held(self) -> list[str]:
        return [key for key, owed in self.model.keys.items() if owed.held]

    def delay(self, seconds: int) -> float:
        return seconds + next(self.moments) * MOMENT if seconds else 0.0

    @rule(key=KEYS, seconds=DELAYS, priority=PRIORITIES)
    def add(self, key: str, seconds: int, priority: Priority) -> None:
        after = self.delay(seconds)
        self.run(lambda: self.queue.add(key, after=after, priority=priority))
        self.model.add(key, after, priority)

    @rule(key=KEYS, priority=PRIORITIES)
    def add_now(self, key: str, priority: Priority) -> None:
        self.add(key, 0, priority)

    @rule(key=KEYS, seconds=DELAYS)
    def retry(self, key: str, seconds: int) -> None:
        after = self.delay(seconds)
        self.run(lambda: self.queue.retry(key, after=after))
        self.model.retry(key, after)

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.run(lambda: self.queue.forget(key))
        self.model.forget(key)

    @precondition(lambda self: len(self.queue) > 0)
    @rule()
    def get(self) -> None:
        expected = self.model.following()
        assert self.runner.run(self.queue.get()) == expected
        self.model.take(expected)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), succeeded=st.booleans())
    def done(self, data: st.DataObject, *, succeeded: bool) -> None:
        key = data.draw(st.sampled_from(self.held()))
        if succeeded:
            self.forget(key)
        self.run(lambda: self.queue.done(key))
        self.model.done(key)

    @rule(seconds=st.integers(1, 40))
    def sleep(self, seconds: int) -> None:
        self.runner.run(asyncio.sleep(seconds))
        self.model.sleep(seconds)

    @precondition(lambda self: self.model.now > 100)
    @rule(drain=st.booleans())
    def shut_down(self, *, drain: bool) -> None:
        self.run(lambda: self.queue.shut_down(drain=drain))
        self.model.shut_down(drain=drain)

    @precondition(lambda self: self.model.shut and not len(self.queue))
    @rule()
    def get_after_the_end(self) -> None:
        with pytest.raises(QueueShutDownError):
            self.runner.run(self.queue.get())

    @invariant()
    def every_key_is_where_it_belongs(self) -> None:
        expected = {key: owed.place() for key, owed in self.model.keys.items()}
        assert {key: self.queue.place(key) for key in NAMES} == expected
        assert self.queue.idle == (set(expected.values()) == {None})

    @invariant()
    def everything_is_counted(self) -> None:
        places = [owed.place() for owed in self.model.keys.values()]
        stats = self.run(self.queue.stats)
        ready, *counted = (
            sum(isinstance(place, of) for place in places) for of in (Ready, Waiting, Held)
        )
        assert [stats.waiting, stats.held] == counted
        assert stats.depth == ready + self.model.due_while_held()
        assert len(self.queue) == ready
        assert stats.adds >= stats.latency_s.count + ready
        failures = {key: owed.failures for key, owed in self.model.keys.items()}
        assert {key: self.queue.failures(key) for key in NAMES} == failures


class SharedWorkqueues(Workqueues):
    """The same, with shares that take turns."""

    share_of = staticmethod(lambda key: key[0])


TestWorkqueue = Workqueues.TestCase
TestSharedWorkqueue = SharedWorkqueues.TestCase
TestWorkqueue.settings = TestSharedWorkqueue.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)


PLAYS = st.lists(
    st.tuples(KEYS, st.integers(0, 3), PRIORITIES, st.integers(0, 2), st.sampled_from(NAMES)),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(plays=PLAYS, held_s=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_every_key_that_was_added_is_visited_afterwards(
    plays: list[tuple[str, int, Priority, int, str]], held_s: list[int]
) -> None:
    """Three workers, one of which is impatient, and no key is lost or held twice."""
    queue: Workqueue[str] = Workqueue(share_of=lambda key: key[0], ageing_s=5)
    wanted: dict[str, float] = {}
    begun: dict[str, float] = {}
    held: set[str] = set()

    async def visit(key: str) -> None:
        assert key not in held
        held.add(key)
        begun[key] = asyncio.get_running_loop().time()
        await asyncio.sleep(held_s[len(begun) % len(held_s)])
        held.remove(key)
        queue.done(key)

    async def work(patience_s: float | None) -> None:
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    key = await queue.get()
            except TimeoutError:
                continue
            except QueueShutDownError:
                return
            await visit(key)

    async def play() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as workers:
            for patience_s in (None, None, 1.0):
                workers.create_task(work(patience_s))
            for key, after, priority, pause_s, failing in plays:
                queue.add(key, after=after, priority=priority)
                wanted[key] = max(wanted.get(key, 0.0), loop.time())
                queue.retry(failing, after=after)
                wanted[failing] = max(wanted.get(failing, 0.0), loop.time())
                await asyncio.sleep(pause_s)
            await asyncio.sleep(1000)
            assert queue.idle
            queue.shut_down(drain=True)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())
    assert all(begun[key] >= at for key, at in wanted.items())


@settings(max_examples=100, deadline=None)
@given(
    workers=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "cancel", "turn"]), st.integers(0, 5)), max_size=30
    ),
)
def test_no_wakeup_is_lost_however_workers_are_cancelled(
    workers: int, steps: list[tuple[str, int]]
) -> None:
    """When all is calm, no worker waits while a key is ready."""

    async def play() -> None:
        queue: Workqueue[str] = Workqueue()
        waiting = [asyncio.create_task(queue.get()) for _ in range(workers)]
        for step, number in steps:
            if step == "add":
                queue.add(NAMES[number])
            elif step == "cancel":
                waiting[number % workers].cancel()
            else:
                await asyncio.sleep(0)
        await asyncio.sleep(1)
        taken = [task.result() for task in waiting if task.done() and not task.cancelled()]
        assert sorted(taken) == sorted(key for key in NAMES if isinstance(queue.place(key), Held))
        assert len(queue) == 0 or all(task.done() for task in waiting)
        queue.shut_down(drain=False)
        await asyncio.gather(*waiting, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())
