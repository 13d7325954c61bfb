"""Derives every choice of a run from its seed, and decides which faults it has, and where.

A choice depends on the seed and on the name of its place, not on the choices before it. So a choice
stays the same when shrinking removes other steps and faults.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from hashlib import blake2b
from struct import Struct
from typing import Self, TypeVar

import msgspec

from natsctl.jetstream.store import LEASES

T = TypeVar("T")

_FOUR = Struct("<4H")
_SCALE = 1 << 16


class Choices:
    """The choices of one seed, the same on every machine."""

    def __init__(self, seed: int) -> None:
        self._hash = blake2b(digest_size=_FOUR.size, key=seed.to_bytes(16, "little", signed=True))

    def draw(self, place: str) -> tuple[float, float, float, float]:
        """Return four numbers from 0 to less than 1, which don't depend on each other."""
        place_hash = self._hash.copy()
        place_hash.update(place.encode())
        one, two, three, four = _FOUR.unpack(place_hash.digest())
        return one / _SCALE, two / _SCALE, three / _SCALE, four / _SCALE

    def share(self, place: str) -> float:
        return self.draw(place)[0]

    def below(self, place: str, count: int) -> int:
        return int(self.share(place) * count)

    def pick(self, place: str, options: Sequence[T]) -> T:
        return options[self.below(place, len(options))]

    def shuffled(self, place: str, items: Sequence[T]) -> list[T]:
        order = sorted(range(len(items)), key=lambda number: self.share(f"{place}/{number}"))
        return [items[number] for number in order]


RUN_MAX, STORM_MAX = (8, 3), (60, 6)  # faults of one run, and crashes among them
JUMPS_MAX = 3
LEASES_SHARE = 0.05  # of the rate, for the records of sessions
ALLOWED_SHARE = 0.5  # of the types of faults, in one run
RATES = (0.0, 0.02, 0.06, 0.15, 0.35)  # the probability of a fault at a call, one for each run
SECONDS = (0.05, 0.5, 3.0, 20.0)  # how long a fault lasts
JUMPS_S = (30.0, 600.0, 7200.0)
CUTS_S = (0.5, 6.0, 20.0, 60.0)  # around the time after which others take over


class FaultType(Enum):
    """The type of a fault: its name, and a fault of the type in words."""

    CRASH_BEFORE = "crash before", "crash before {call}; restart after {seconds:g} s"
    CRASH_AFTER = "crash after", "crash after {call}; restart after {seconds:g} s"
    LOST_ANSWER = "answer lost", "the answer to {call} is lost; the write took effect"
    TIMEOUT = "timeout", "timeout of {call}, which has no effect"
    CONFLICT = "conflict", "conflict of {call}"
    AWAY = "store away", "the store is away for {seconds:g} s from {call}"
    JUMP = "time jumps", "time jumps by {seconds:g} s during {call}"
    BREAK = "watch breaks", "a watch breaks before {call}"
    LAG = "cache lags", "a cache lags by {seconds:g} s at {call}"
    SLOW = "slow", "{call} takes {seconds:g} s"
    OLD = "old read", "{call} returns the state of {seconds:g} s ago"
    CUT = "process cut off", "the process reaches nothing for {seconds:g} s from {call}"
    LATE = "late write", "the process reaches nothing for {seconds:g} s; then {call} arrives"

    text: str

    def __new__(cls, name: str, text: str) -> Self:
        made = object.__new__(cls)
        made._value_, made.text = name, text
        return made


READ_FAULTS = (
    FaultType.CRASH_BEFORE,
    FaultType.CRASH_AFTER,
    FaultType.TIMEOUT,
    FaultType.AWAY,
    FaultType.JUMP,
    FaultType.CUT,
)
REQUEST_FAULTS = (*READ_FAULTS, FaultType.LOST_ANSWER)  # of writes without compare-and-set
WRITE_FAULTS = (*REQUEST_FAULTS, FaultType.LATE)
REPLACE_FAULTS = (*WRITE_FAULTS, FaultType.CONFLICT)
EXTERNAL_READ_FAULTS = (*READ_FAULTS, FaultType.SLOW, FaultType.OLD)
EXTERNAL_WRITE_FAULTS = (*REQUEST_FAULTS, FaultType.SLOW)
EVENT_FAULTS = (FaultType.BREAK, FaultType.LAG)
CRASHES = {FaultType.CRASH_BEFORE, FaultType.CRASH_AFTER}
CUTS = {FaultType.CUT, FaultType.LATE}
LENGTHS_S = {FaultType.JUMP: JUMPS_S, FaultType.CUT: CUTS_S, FaultType.LATE: CUTS_S}


class SimulatedCall(msgspec.Struct, frozen=True):
    """The *number*-th call of an operation on an object, or event of a watch, in a run."""

    operation: str
    target: str
    number: int

    def __str__(self) -> str:
        number = self.number
        if number == 1:
            return f"{self.operation} {self.target}"
        last = 0 if number % 100 in (11, 12, 13) else number % 10
        ordinal = f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
        return f"{self.operation} {self.target} for the {ordinal} time"


class Fault(msgspec.Struct, frozen=True):
    """One fault: its type, its place, and how long it lasts."""

    fault: FaultType
    call: SimulatedCall
    seconds: float = 0.0

    def __str__(self) -> str:
        return self.fault.text.format(call=self.call, seconds=self.seconds)


class Faults:
    """The faults of one run, given or drawn by the seed, and those that have happened.

    Each run has its own rate and its own types of faults, so that some runs have many faults of
    one type. In a *storm* there are many, and each store and each watch has its own. A process is
    cut off only if there's a *group*, in which others take over.
    """

    def __init__(
        self,
        choices: Choices,
        given: Iterable[Fault] | None = None,
        *,
        group: bool = False,
        storm: bool = False,
    ) -> None:
        self.happened: list[Fault] = []
        self.over = False
        self._choices, self._group, self._storm = choices, group, storm
        self._faults_max, self._crashes_max = STORM_MAX if storm else RUN_MAX
        self._drawable: dict[object, tuple[float, Sequence[FaultType]]] = {}
        self._given = None if given is None else {(f.call, f.fault): f for f in given}

    def at(self, call: SimulatedCall, types: tuple[FaultType, ...]) -> Fault | None:
        """Return the fault that happens at this call now, one of these types, or None."""
        if self.over:
            return None
        if self._given is None:
            fault = self._drawn(call, types)
        else:
            faults = (self._given.get((call, fault_type)) for fault_type in types)
            fault = next(filter(None, faults), None)
        if fault is not None:
            self.happened.append(fault)
        return fault

    def _drawn(self, call: SimulatedCall, types: tuple[FaultType, ...]) -> Fault | None:
        if not types or len(self.happened) >= self._faults_max:
            return None
        store, _, _ = call.target.partition("/")
        source = "faults"
        if self._storm:
            source = f"watch/{store}" if types is EVENT_FAULTS else store
        rate, drawable = self._drawable.get((source, id(types))) or self._draw(source, types)
        if store == LEASES.bucket:  # it has most of the calls
            rate *= LEASES_SHARE
        if not rate or not drawable:
            return None
        share, which, length, _ = self._choices.draw(
            f"fault/{call.operation}/{call.target}/{call.number}"
        )
        if share >= rate:
            return None
        fault_type = drawable[int(which * len(drawable))]
        happened = [fault.fault for fault in self.happened]
        if fault_type in CRASHES and sum(map(CRASHES.__contains__, happened)) >= self._crashes_max:
            return None
        if fault_type is FaultType.JUMP and happened.count(fault_type) >= JUMPS_MAX:
            return None
        lengths = LENGTHS_S.get(fault_type, SECONDS)
        return Fault(fault_type, call, lengths[int(length * len(lengths))])

    def _draw(self, source: str, types: tuple[FaultType, ...]) -> tuple[float, Sequence[FaultType]]:
        """Return the rate of a source, and which of the types it has."""
        share = self._choices.share
        allowed = {kind for kind in types if share(f"{source}/{kind.value}") < ALLOWED_SHARE}
        allowed = allowed | {FaultType.CUT} if self._group else allowed - CUTS
        drawable = tuple(filter(allowed.__contains__, types))
        drawn = self._choices.pick(f"{source}/rate", RATES), drawable
        self._drawable[source, id(types)] = drawn
        return drawn
