"""Keeps recorded syncs in memory, within a bound, and writes them as recordings."""

import base64
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import dropwhile
from types import CodeType, TracebackType
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from natsctl.core.informer import Informer
from natsctl.core.record.document import (
    Delivery,
    RecordedOutcome,
    RecordedSlot,
    RecordedState,
    Recording,
    Surface,
    seed_of,
)
from natsctl.core.tape import (
    NOTHING,
    DependencyStep,
    KeysStep,
    OutsideStep,
    QueryStep,
    ReadStep,
    RecordedError,
    Step,
    StoreStep,
    Tape,
    place_of,
)
from natsctl.errors import DECODE_ERRORS
from natsctl.model import exact_json
from natsctl.model.kinds import Kind
from natsctl.model.masking import Masker
from natsctl.model.store import Deleted, Stored
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
        change, own = self.delivery, 0
        around = () if change is None else (change.before, change.after)
        states = [self.stored, self.last, *around]
        for step in (*self.steps, *self.around):
            states += states_of(step)
        for step in self.steps:
            match step:
                case StoreStep(value=value) | OutsideStep(result=value):
                    own += len(bytes(value))
                case KeysStep(keys=keys) | QueryStep(keys=keys):
                    own += POINTER_BYTES * len(keys)
                case _:
                    pass
        shared = {id(stored): len(stored.value) for stored in states if stored is not None}
        return sum(shared.values()) + own + STEP_BYTES * (len(self.steps) + len(shared) + 10)


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
        name, size = (recorded.controller, recorded.key), recorded.size
        if size > self.bytes_max // SHARE:
            recorded = replace(recorded, steps=(), around=(), complete=False)
            size = recorded.size
        self._kept[name] = kept = self._kept.pop(name, None) or deque()
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


def traceback_text(frames: tuple[Frame, ...]) -> str:
    """Return the text of a traceback: the file, the line and the function of each frame."""
    lines = (
        f'  File "{code.co_filename}", line {line}, in {code.co_qualname}' for code, line in frames
    )
    return "\n".join(lines)


# ---- a recording, which leaves the process


def recording_of(
    kept: KeptSync,
    informers: Mapping[str, Informer[Any]],
    primary: Kind[Any],
    *,
    surface: Surface,
    masked: bool,
    version: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Recording:
    """Return a kept sync as a recording.

    *informers* are those of the controller by slot, and *primary* is the kind of its keys.
    *surface*, *version* and *settings* are the controller's. A *masked* recording has no secrets.
    """
    from importlib.metadata import version as installed  # noqa: PLC0415 - it takes long

    writer = _Writer(informers, masked=masked)
    place, masker = place_of(primary), writer.masker
    if masker is not None:  # it notes every secret before anything is written
        writer.written(kept, place)
        writer.states.clear()
        writer.numbers.clear()
        masker.learned()
    kinds = {name: informer.table.kind for name, informer in informers.items()}
    return Recording(
        natsctl=installed("natsctl"),
        surface=surface,
        controller=kept.controller,
        controller_version=version,
        place=place,
        key=kept.key,
        operation=str(kept.operation),
        started=kept.started,
        duration_s=kept.duration_s,
        seed=seed_of(kept.key, kept.started),
        planning=kept.planning,
        masked=masked,
        complete=kept.complete,
        settings=dict(settings or {}),
        outcome=RecordedOutcome(
            error=writer.error(kept.error),
            traceback=writer.text(traceback_text(kept.frames)),
            after_s=kept.after_s,
        ),
        slots={
            name: RecordedSlot(
                kind=kind.name, place=place_of(kind), available=not informers[name].absent
            )
            for name, kind in kinds.items()
        },
        **writer.written(kept, place),
        states=tuple(writer.states),
    )


class _Writer:
    """Numbers the states of one recording, and names the slots in its steps."""

    def __init__(self, informers: Mapping[str, Informer[Any]], *, masked: bool) -> None:
        self.states: list[RecordedState] = []
        self.numbers: dict[tuple[str, str, int], int] = {}
        self.masker = Masker() if masked else None
        self._slots = {informer: name for name, informer in informers.items()}

    def written(self, kept: KeptSync, place: str) -> dict[str, Any]:
        """Return the fields of the recording that have states; primaries are in *place*."""
        change = kept.delivery
        return {
            "primary": self.state(place, kept.stored),
            "last": self.state(place, kept.last),
            "delivery": change
            and replace(
                change,
                before=self.state(place, change.before),
                after=self.state(place, change.after),
                kind=None,
            ),
            "around": tuple(self.steps(kept.around)),
            "steps": tuple(self.steps(kept.steps)),
        }

    def state(self, place: str, stored: Stored | None) -> int | None:
        """Return the number of a state; a new one if it is not in the recording yet."""
        if stored is None:
            return None
        key, revision = stored.key, stored.revision
        number = self.numbers.get((place, key, revision))
        if number is None:
            number = self.numbers[place, key, revision] = len(self.states)
            value = self._raw(place, stored.value)
            text = "" if bytes(value) or self.masker else base64.b64encode(stored.value).decode()
            self.states.append(
                RecordedState(place=place, key=key, revision=revision, value=value, base64=text)
            )
        return number

    def steps(self, steps: Sequence[Step]) -> Iterator[Any]:
        """Yield the steps of a tape as those of a recording; reads of other tables are left out."""
        for step in steps:
            match step:
                case ReadStep(slot=informer) if informer in self._slots:
                    number = self.state(place_of(informer.table.kind), step.state)
                    yield replace(step, slot=self._slots[informer], state=number)
                case KeysStep(slot=informer) | QueryStep(slot=informer) if informer in self._slots:
                    yield replace(step, slot=self._slots[informer])
                case DependencyStep(place=place):
                    numbers = tuple(self.state(place, stored) for stored in step.states)
                    yield replace(step, states=numbers)
                case StoreStep(place=place):
                    yield replace(
                        step,
                        value=self._raw(place, bytes(step.value)),
                        state=self.state(place, step.state),
                        answer=self._answer(place, step.answer),
                        error=self.error(step.error),
                    )
                case OutsideStep():  # in no store
                    result = self._raw("outside", bytes(step.result))
                    yield replace(step, result=result, error=self.error(step.error))
                case _:
                    pass

    def error(self, error: RecordedError | None) -> RecordedError | None:
        return None if error is None else replace(error, message=self.text(error.message))

    def text(self, text: str) -> str:
        return text if self.masker is None else self.masker.text(text)

    def _answer(self, place: str, answer: Any) -> Any:
        """Return an answer that is no state: a revision, a history, or field managers."""
        if not isinstance(answer, list):
            return msgspec.to_builtins(answer)
        return [
            {"deleted": entry.key, "revision": entry.revision, "purged": entry.purged}
            if isinstance(entry, Deleted)
            else {"state": self.state(place, entry)}
            for entry in answer
        ]

    def _raw(self, place: str, value: bytes) -> Raw:
        """Return a JSON value, masked if the recording is; `NOTHING` if the value is no JSON."""
        try:
            parsed = exact_json.decode(value)
        except DECODE_ERRORS:
            return NOTHING
        if self.masker is None:
            return Raw(value)
        self.masker.learn(parsed, place=place)
        return Raw(exact_json.encode(self.masker.masked(parsed, place=place)))
