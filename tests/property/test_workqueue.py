"""Property tests of the work queue: it behaves as a simple model does."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from natsctl.core.workqueue import AGEING_S, Priority, WorkQueue
from natsctl.errors import QueueShutDownError
from natsctl.testing import VirtualTimeLoop, in_virtual_time
from tests.support.places import Claimed, Place, Ready, Waiting, place, take

T = TypeVar("T")

MOMENT = 2.0**-20  # added to delays, so that no two times are equal
NAMES = ("a", "b", "c", "d", "e", "f")
KEYS = st.sampled_from(NAMES)
PRIORITIES = st.sampled_from(Priority)
DELAYS = st.integers(0, 40)


@dataclass
class KeyState:
    """The state of one key in the model; a requested sync is a time and a priority."""

    explicit: tuple[float, Priority] | None = None
    retry: tuple[float, Priority] | None = None
    again: Priority | None = None
    ready: Ready | None = None
    position: int = 0  # the sequence number at which the key got its priority
    held: Claimed | None = None
    failures: int = 0

    def requests(self) -> list[tuple[float, Priority]]:
        repeated = [] if self.again is None else [(0.0, self.again)]
        return repeated + [request for request in (self.explicit, self.retry) if request]

    def due_at(self) -> float:
        return min(time for time, _ in self.requests())

    def place(self) -> Place | None:
        if self.held or self.ready:
            return self.held or self.ready
        return Waiting(self.due_at()) if self.requests() else None


def merged(
    first: tuple[float, Priority] | None, second: tuple[float, Priority]
) -> tuple[float, Priority]:
    if first is None:
        return second
    return min(first[0], second[0]), max(first[1], second[1])


class Model:
    """A work queue that scans all keys for every operation."""

    def __init__(self) -> None:
        self.keys = {key: KeyState() for key in NAMES}
        self.by_age = False  # whether the last get returned the oldest key
        self.now = 0.0
        self.numbers = count(1)
        self.shut = False

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [
            (state.due_at(), key)
            for key, state in self.keys.items()
            if isinstance(state.place(), Waiting) and state.due_at() <= until
        ]:
            self.now, key = min(due)
            self.put(key)
        self.now = until

    def put(self, key: str) -> None:
        """Make the key ready if it is due and not held."""
        state = self.keys[key]
        if state.held or not (state.requests() and (state.ready or state.due_at() <= self.now)):
            return
        self.make_ready(key, max(priority for _, priority in state.requests()))

    def make_ready(self, key: str, priority: Priority) -> None:
        state = self.keys[key]
        if state.ready is None or state.ready.priority < priority:
            since = self.now if state.ready is None else state.ready.since
            state.position = next(self.numbers)
            state.ready = Ready(since, priority)

    def add(self, key: str, after: float, priority: Priority) -> None:
        state = self.keys[key]
        if self.shut:
            return
        if state.ready:
            self.remove_due(key)
        if after > 0:
            state.explicit = merged(state.explicit, (self.now + after, priority))
        elif state.held:
            state.again = max(priority, state.again or priority)
        else:
            self.make_ready(key, max([priority, *(requested for _, requested in state.requests())]))
        self.put(key)

    def retry(self, key: str, after: float) -> None:
        state = self.keys[key]
        state.failures += 1
        if not self.shut:
            if state.ready:
                self.remove_due(key)
            priority = state.held.priority if state.held else Priority.RETRY
            state.retry = merged(state.retry, (self.now + after, priority))
            self.put(key)

    def forget(self, key: str) -> None:
        state = self.keys[key]
        state.failures = 0
        state.retry = None

    def next_key(self) -> str:
        ready = [(state, key, state.ready) for key, state in self.keys.items() if state.ready]
        if self.oldest_is_due():
            _, key, _ = min(
                ready, key=lambda item: (item[2].since, -item[2].priority, item[0].position)
            )
        else:
            _, key, _ = min(ready, key=lambda item: (-item[2].priority, item[0].position))
        return key

    def due_while_held(self) -> int:
        """Count the held keys that become ready as soon as they are done."""
        held = [state for state in self.keys.values() if state.held and state.requests()]
        return sum(state.due_at() <= self.now for state in held)

    def oldest_is_due(self) -> bool:
        """Return whether the next get goes by age: a key has aged, and the last get did not."""
        ages = [self.now - state.ready.since for state in self.keys.values() if state.ready]
        return not self.by_age and max(ages) > AGEING_S

    def take(self, key: str) -> None:
        state = self.keys[key]
        assert state.ready is not None
        priority = state.ready.priority
        self.by_age = self.oldest_is_due()
        state.ready, state.again = None, None
        state.held = Claimed(self.now, priority)
        self.remove_due(key)

    def remove_due(self, key: str) -> None:
        """Remove the due requests of a key that is ready or begins to be held."""
        state = self.keys[key]
        if state.explicit and state.explicit[0] <= self.now:
            state.explicit = None
        if state.retry and state.retry[0] <= self.now:
            state.retry = None

    def done(self, key: str) -> None:
        self.keys[key].held = None
        self.put(key)
        self.keys[key].again = None

    def shut_down(self) -> None:
        self.shut = True
        for state in self.keys.values():
            state.explicit = state.retry = state.ready = state.again = None
            if not state.held:
                state.failures = 0


class WorkQueues(RuleBasedStateMachine):
    """Applies each step to a work queue and to its model, and compares them afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.queue = WorkQueue[str]()
        self.model = Model()
        self.moments = count(1)

    def teardown(self) -> None:
        self.runner.close()

    def run(self, work: Callable[[], T]) -> T:
        async def inside() -> T:
            return work()

        return self.runner.run(inside())

    def held(self) -> list[str]:
        return [key for key, state in self.model.keys.items() if state.held]

    def delay(self, seconds: int) -> float:
        return seconds + next(self.moments) * MOMENT if seconds else 0.0

    @rule(key=KEYS, seconds=DELAYS, priority=PRIORITIES)
    def add(self, key: str, seconds: int, priority: Priority) -> None:
        after = self.delay(seconds)
        self.run(lambda: self.queue.offer(key, after=after, priority=priority))
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

    @precondition(lambda self: self.queue.ready > 0)
    @rule()
    def get(self) -> None:
        expected = self.model.next_key()
        assert self.runner.run(take(self.queue)) == expected
        self.model.take(expected)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), succeeded=st.booleans())
    def done(self, data: st.DataObject, *, succeeded: bool) -> None:
        key = data.draw(st.sampled_from(self.held()))
        if succeeded:
            self.forget(key)
        self.run(lambda: self.queue.give_back(key))
        self.model.done(key)

    @rule(seconds=st.integers(1, 40))
    def sleep(self, seconds: int) -> None:
        self.runner.run(asyncio.sleep(seconds))
        self.model.sleep(seconds)

    @precondition(lambda self: self.model.now > 100)
    @rule()
    def shut_down(self) -> None:
        self.run(self.queue.shut_down)
        self.model.shut_down()

    @precondition(lambda self: self.model.shut)
    @rule()
    def get_after_the_shutdown(self) -> None:
        with pytest.raises(QueueShutDownError):
            self.runner.run(take(self.queue))

    @invariant()
    def every_key_is_in_the_expected_place(self) -> None:
        expected = {key: state.place() for key, state in self.model.keys.items()}
        assert {key: place(self.queue, key) for key in NAMES} == expected
        assert self.queue.idle == (set(expected.values()) == {None})

    @invariant()
    def the_stats_equal_the_model(self) -> None:
        places = [state.place() for state in self.model.keys.values()]
        stats = self.run(self.queue.stats)
        ready, *counted = (
            sum(isinstance(place, kind) for place in places) for kind in (Ready, Waiting, Claimed)
        )
        assert [stats.waiting, stats.held] == counted
        assert stats.depth == ready + self.model.due_while_held()
        assert self.queue.ready == ready
        assert stats.adds >= stats.latency_s.count + ready
        failures = {key: state.failures for key, state in self.model.keys.items()}
        assert {key: self.queue.failures(key) for key in NAMES} == failures


TestWorkQueue = WorkQueues.TestCase
TestWorkQueue.settings = settings(max_examples=50, stateful_step_count=40)


STEPS = st.lists(
    st.tuples(KEYS, st.integers(0, 3), PRIORITIES, st.integers(0, 2), st.sampled_from(NAMES)),
    max_size=40,
)


@given(steps=STEPS, held_s=st.lists(st.integers(0, 3), min_size=1, max_size=5))
@in_virtual_time
async def test_every_added_key_is_processed_afterwards(
    steps: list[tuple[str, int, Priority, int, str]], held_s: list[int]
) -> None:
    """Three workers, one with a get timeout, lose no key and hold no key twice."""
    queue: WorkQueue[str] = WorkQueue()
    wanted: dict[str, float] = {}
    begun: dict[str, float] = {}
    held: set[str] = set()

    async def process(key: str) -> None:
        assert key not in held
        held.add(key)
        begun[key] = asyncio.get_running_loop().time()
        await asyncio.sleep(held_s[len(begun) % len(held_s)])
        held.remove(key)
        queue.give_back(key)

    async def work(timeout_s: float | None) -> None:
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    key = await take(queue)
            except TimeoutError:
                continue
            except QueueShutDownError:
                return
            await process(key)

    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as workers:
        for timeout_s in (None, None, 1.0):
            workers.create_task(work(timeout_s))
        for key, after, priority, pause_s, failing in steps:
            queue.offer(key, after=after, priority=priority)
            wanted[key] = max(wanted.get(key, 0.0), loop.time())
            queue.retry(failing, after=after)
            wanted[failing] = max(wanted.get(failing, 0.0), loop.time())
            await asyncio.sleep(pause_s)
        await asyncio.sleep(1000)
        assert queue.idle
        queue.shut_down()
    assert all(begun[key] >= added for key, added in wanted.items())


@given(
    workers=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "cancel", "turn"]), st.integers(0, 5)), max_size=30
    ),
)
@in_virtual_time
async def test_no_wakeup_is_lost_if_workers_are_cancelled(
    workers: int, steps: list[tuple[str, int]]
) -> None:
    """Once the queue is quiet, no worker waits while a key is ready."""

    queue: WorkQueue[str] = WorkQueue()
    waiting = [asyncio.create_task(take(queue)) for _ in range(workers)]
    for step, number in steps:
        if step == "add":
            queue.offer(NAMES[number])
        elif step == "cancel":
            waiting[number % workers].cancel()
        else:
            await asyncio.sleep(0)
    await asyncio.sleep(1)
    taken = [task.result() for task in waiting if task.done() and not task.cancelled()]
    assert sorted(taken) == sorted(key for key in NAMES if isinstance(place(queue, key), Claimed))
    assert queue.ready == 0 or all(task.done() for task in waiting)
    queue.shut_down()
    await asyncio.gather(*waiting, return_exceptions=True)
