"""Visits every state of a model, breadth first, so the first counterexample is a shortest one.

Each step has a rank. A quiet world, in which nothing is lost and nobody does harm, takes the step
of the lowest rank, so it has one way from each state. A state from which this way doesn't come back
to work is a dead end.
"""

import time
from array import array
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

State = TypeVar("State", bound=Hashable)
Label: TypeAlias = tuple[Any, ...]
Step: TypeAlias = tuple[int, Label, State]

TICK = 9  # the rank of a tick of the clock
NEVER = 99  # a quiet world doesn't take this step
_NONE = -1
_BITS = 24  # for the number of a part
_RECENT_MAX = 100_000


class Model(Protocol[State]):
    """What a search needs to know.

    `tidy` returns one state for all that differ in names only. `parts` divides a state into parts
    of which there are far fewer than states, and `whole` joins them.
    """

    def start(self) -> State: ...
    def steps(self, w: State, /) -> Iterator[Step[State]]: ...
    def tidy(self, w: State, /) -> State: ...
    def parts(self, w: State, /) -> Sequence[Hashable]: ...
    def whole(self, parts: Sequence[Any], /) -> State: ...
    def conflict(self, w: State, /) -> bool: ...
    def at_work(self, w: State, /) -> bool: ...


class Found(NamedTuple):
    verdict: str  # "completed", "two at once", "dead end" or "cut off"
    states: int
    steps: int
    seconds: float  # of the processor
    ticks: int = 0  # the longest way back to work in a quiet world
    trace: tuple[Label, ...] = ()

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.steps:,} steps, {self.seconds:.1f} s"
        if self.verdict == "completed":
            return f"completed, {size}: never two at once, back at work within {self.ticks} ticks"
        lines = [f"    {' '.join(map(str, label))}" for label in self.trace]
        return "\n".join([f"{self.verdict}, {size}, {len(lines)} steps long:", *lines])


class Search(Generic[State]):
    def __init__(self, model: Model[State], states_max: int = 5_000_000) -> None:
        self._model = model
        self._states_max = states_max
        self._parts: dict[Hashable, int] = {}
        self._part_list: list[Hashable] = []
        self._numbers: dict[int, int] = {}  # of states, by the numbers of their parts
        self._came = array("l")  # from which state each was reached first
        self._quiet = array("l")  # to which state a quiet world goes
        self._ticks = bytearray()  # whether it does so by a tick
        self._work = bytearray()  # whether everything is worked on
        self._steps = 0

    def run(self) -> Found:
        began = time.process_time()
        verdict, at, ticks = self._explore()
        if verdict == "completed":
            at, ticks = self._way_back()
            verdict = "completed" if at == _NONE else "dead end"
        seconds = time.process_time() - began
        trace = self._trace(at) if at != _NONE else ()
        return Found(verdict, len(self._numbers), self._steps, seconds, ticks, trace)

    def _packed(self, state: State) -> int:
        """Return a number for a state, which takes a fifth of its memory."""
        packed = 1
        for part in self._model.parts(state):
            number = self._parts.setdefault(part, len(self._part_list))
            if number == len(self._part_list):
                self._part_list.append(part)
            packed = packed << _BITS | number
        return packed

    def _state(self, packed: int) -> State:
        numbers = []
        while packed > 1:
            numbers.append(packed & (1 << _BITS) - 1)
            packed >>= _BITS
        return self._model.whole([self._part_list[number] for number in reversed(numbers)])

    def _explore(self) -> tuple[str, int, int]:
        model, numbers, came = self._model, self._numbers, self._came
        queue = [self._packed(model.tidy(model.start()))]
        numbers[queue[0]] = 0
        came.append(_NONE)
        recent: dict[State, int] = {}  # before their names are tidied, which takes longest
        for packed in queue:
            state = self._state(packed)
            if len(recent) > _RECENT_MAX:
                recent.clear()
            at = len(self._quiet)
            lowest, quiet = NEVER, _NONE
            for rank, _, following in model.steps(state):
                self._steps += 1
                number = recent.get(following, _NONE)
                if number == _NONE:
                    tidied = model.tidy(following)
                    reached = self._packed(tidied)
                    number = recent[following] = numbers.setdefault(reached, len(queue))
                    if number == len(queue):
                        queue.append(reached)
                        came.append(at)
                        if model.conflict(tidied):
                            return "two at once", number, 0
                if rank < lowest:
                    lowest, quiet = rank, number
            self._quiet.append(quiet)
            self._ticks.append(lowest == TICK)
            self._work.append(model.at_work(state))
            if len(queue) > self._states_max:
                return "cut off", _NONE, 0
        return "completed", _NONE, 0

    def _way_back(self) -> tuple[int, int]:
        """Return the first state without a way back to work, and the longest way in ticks."""
        unknown, passed = -1, -2
        ways = [0 if work else unknown for work in self._work]
        for first in range(len(ways)):
            path, at = [], first
            while at != _NONE and ways[at] == unknown:
                ways[at] = passed
                path.append(at)
                at = self._quiet[at]
            if at == _NONE or ways[at] == passed:
                return first, 0
            way = ways[at]
            for number in reversed(path):
                way += self._ticks[number]
                ways[number] = way
        return _NONE, max(ways)

    def _trace(self, at: int) -> tuple[Label, ...]:
        """Return the steps to a state, with the names that everybody had at the start."""
        states, path = list(self._numbers), []
        while self._came[at] != _NONE:
            path.append(at)
            at = self._came[at]
        state, labels = self._model.start(), []
        for number in reversed(path):
            for _, label, following in self._model.steps(state):
                if self._packed(self._model.tidy(following)) == states[number]:
                    labels.append(label)
                    state = following
                    break
        return tuple(labels)
