"""Keeps the recordings of syncs in memory, within a bound."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import dropwhile
from types import CodeType, TracebackType

import msgspec

from natsctl.core.record.document import Delivery
from natsctl.core.tape import (
    DependencyStep,
    KeysStep,
    OutsideStep,
    QueryStep,
    ReadStep,
    RecordedError,
    Step,
    StoreStep,
    Tape,
)
from natsctl.model.store import Stored
from natsctl.telemetry.exceptions import in_natsctl

BYTES_MAX = 16 * 1024 * 1024
SYNCS_MAX = 5  # of each key that is being recorded
SHARE = 4  # one recording takes at most this part of the memory
STEP_BYTES = 150  # the approximate size of a step without its values
POINTER_BYTES = 8  # in a list of keys, which the table has too
FRAMES_MAX = 50

Frame = tuple[CodeType, int]


class KeptSync(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A recorded sync, which refers to the objects that it read."""

    controller: str
    key: str
    operation: str  # the reason for the sync
    failures: int = 0  # the failed syncs of the key before this one
    started: datetime  # the time of its start
    duration_s: float
    stored: Stored | None  # the primary as the sync began; None if it did not exist
    last: Stored | None = None  # the last state of a deleted primary
    delivery: Delivery | None = None  # None for a sync handler
    planning: bool = False  # whether the sync only planned
    error: RecordedError | None = None  # the error of a failed sync; None if it succeeded
    frames: tuple[Frame, ...] = ()  # the code and the line of each frame of the error's traceback
    after_s: float | None = None
    steps: tuple[Step, ...] = ()  # what the sync read, called and wrote, in order
    around: tuple[ReadStep, ...] = ()  # what a corrected handler may read
    complete: bool = True  # false if it was too large, and its steps were dropped

    @property
    def failed(self) -> bool:
        """True if the sync failed; a request for a delay is no failure."""
        return self.error is not None and not self.error.type.endswith(":RetryAfter")

    @property
    def size(self) -> int:
        """The approximate number of bytes that the recording holds."""
        states = {id(stored): len(stored.value) for stored in self._states()}
        own = sum(map(_own_bytes, self.steps))
        return sum(states.values()) + own + STEP_BYTES * (len(self.steps) + len(states) + 10)

    def _states(self) -> Iterator[Stored]:
        change = self.delivery
        around = () if change is None else (change.before, change.after)
        yield from (stored for stored in (self.stored, self.last, *around) if stored is not None)
        for step in (*self.steps, *self.around):
            yield from states_of(step)


class Recordings:
    """The last failed sync of each failing key, and the last syncs of each recorded key.

    If all recordings together are larger than *bytes_max*, the oldest are dropped. `successes` is
    false while no successful sync is kept. *tape* makes the tape of a new sync.
    """

    def __init__(
        self,
        bytes_max: int = BYTES_MAX,
        *,
        everything: bool = False,
        tape: Callable[[], Tape] = Tape,
    ) -> None:
        self.tape = tape
        self.bytes = 0
        self.bytes_max = bytes_max
        self.successes = everything
        self._everything = everything  # whether every key is recorded
        self._selected: set[tuple[str, str]] = set()
        self._kept: OrderedDict[tuple[str, str], deque[KeptSync]] = OrderedDict()
        self._sizes: dict[int, int] = {}  # by the identity of a recording

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def wants(self, controller: str, key: str) -> bool:
        return self._everything or (controller, key) in self._selected

    def select(self, controller: str, keys: Iterable[str]) -> None:
        """Record every sync of these keys from now on."""
        self._selected.update((controller, key) for key in keys)
        self.successes = True

    def deselect(self, controller: str, keys: Iterable[str]) -> None:
        """Record only failed syncs of these keys again."""
        self._selected.difference_update((controller, key) for key in keys)
        self.successes = self._everything or bool(self._selected)

    def selected(self, controller: str) -> list[str]:
        return sorted(key for name, key in self._selected if name == controller)

    def bytes_of(self, controller: str) -> int:
        kept = (syncs for (name, _), syncs in self._kept.items() if name == controller)
        return sum(self._sizes[id(recorded)] for syncs in kept for recorded in syncs)

    def of(self, controller: str, key: str) -> list[KeptSync]:
        return list(self._kept.get((controller, key), ()))

    def newest(self, controller: str, key: str) -> KeptSync | None:
        """Return the last failed sync of the key, or else its last sync; None if there is none."""
        kept = self.of(controller, key)
        failed = [sync for sync in kept if sync.failed]
        return next(reversed(failed or kept), None)

    def keys(self, controller: str) -> list[str]:
        return [key for name, key in self._kept if name == controller]

    def keep(self, recorded: KeptSync) -> None:
        name = recorded.controller, recorded.key
        size = recorded.size
        if size > self.bytes_max // SHARE:
            recorded = msgspec.structs.replace(recorded, steps=(), around=(), complete=False)
            size = recorded.size
        kept = self._kept.pop(name, None) or deque()
        self._kept[name] = kept
        kept.append(recorded)
        self._sizes[id(recorded)] = size
        self.bytes += size
        while len(kept) > (SYNCS_MAX if self.wants(*name) else 1):
            self._drop(kept.popleft())
        while self.bytes > self.bytes_max and self._kept:
            oldest, kept = next(iter(self._kept.items()))
            self._drop(kept.popleft())
            if not kept:
                del self._kept[oldest]

    def _drop(self, recorded: KeptSync) -> None:
        self.bytes -= self._sizes.pop(id(recorded))


def frames_of(traceback: TracebackType | None) -> tuple[Frame, ...]:
    """Return the code and the line of the innermost frames, without their variables.

    The frames of natsctl that come before the user's code are left out.
    """
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    users = list(dropwhile(lambda frame: in_natsctl(frame[0].co_filename), frames))
    return tuple((users or frames)[-FRAMES_MAX:])


def _own_bytes(step: Step) -> int:
    """Return the bytes that only the step holds, beside the states of objects."""
    match step:
        case StoreStep(value=value) | OutsideStep(result=value):
            return len(bytes(value))
        case KeysStep(keys=keys) | QueryStep(keys=keys):
            return POINTER_BYTES * len(keys)
        case _:
            return 0


def states_of(step: Step) -> Iterator[Stored]:
    """Yield the states of objects that the step has."""
    match step:
        case ReadStep(state=Stored() as stored) | StoreStep(state=Stored() as stored):
            yield stored
        case DependencyStep(states=states) | StoreStep(answer=list() as states):
            yield from (state for state in states if isinstance(state, Stored))
        case _:
            pass


def listed(steps: Iterable[Step]) -> Iterator[ReadStep]:
    """Yield reads of the present cached states of all keys that lists and queries returned."""
    for step in steps:
        if isinstance(step, KeysStep | QueryStep):
            for key in step.keys:
                yield ReadStep(step.slot, key, step.slot.table.get(key))
