"""Writes a kept sync as a recording, which leaves the process."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version as installed
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
from natsctl.core.record.recordings import Frame, KeptSync
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
    place_of,
)
from natsctl.errors import DECODE_ERRORS
from natsctl.model import exact_json
from natsctl.model.kinds import Kind
from natsctl.model.masking import Masker
from natsctl.model.store import Deleted, Stored

_OUTSIDE = "outside"  # the place of values that are in no store


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
    writer = _Writer(informers, primary, masked=masked)
    if masked:
        writer.learn(kept)
    states = writer.states
    return Recording(
        natsctl=installed("natsctl"),
        surface=surface,
        controller=kept.controller,
        controller_version=version,
        place=writer.primary_place,
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
        slots={name: _slot(informer) for name, informer in informers.items()},
        primary=writer.state(writer.primary_place, kept.stored),
        last=writer.state(writer.primary_place, kept.last),
        delivery=writer.delivery(kept.delivery),
        around=tuple(writer.reads(kept.around)),
        steps=tuple(writer.steps(kept.steps)),
        states=tuple(states),
    )


def traceback_text(frames: tuple[Frame, ...]) -> str:
    """Return the text of a traceback: the file, the line and the function of each frame."""
    lines = (
        f'  File "{code.co_filename}", line {line}, in {code.co_qualname}' for code, line in frames
    )
    return "\n".join(lines)


def _slot(informer: Informer[Any]) -> RecordedSlot:
    kind = informer.table.kind
    return RecordedSlot(kind=kind.name, place=place_of(kind), available=not informer.absent)


class _Writer:
    """Numbers the states of one recording, and names the slots in its steps."""

    def __init__(
        self, informers: Mapping[str, Informer[Any]], primary: Kind[Any], *, masked: bool
    ) -> None:
        self.states: list[RecordedState] = []
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._slots = {informer: name for name, informer in informers.items()}
        self._masker = Masker() if masked else None
        self.primary_place = place_of(primary)

    def learn(self, kept: KeptSync) -> None:
        """Let the masker note every secret before anything is written."""
        list(self.steps((*kept.steps, *kept.around)))
        self.state(self.primary_place, kept.stored)
        self.state(self.primary_place, kept.last)
        self.delivery(kept.delivery)
        self.states.clear()
        self._numbers.clear()
        if self._masker is not None:
            self._masker.learned()

    def state(self, place: str, stored: Stored | None) -> int | None:
        """Return the number of a state; a new one if it is not in the recording yet."""
        if stored is None:
            return None
        name = place, stored.key, stored.revision
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.states)
            value = self._raw(place, stored.value)
            text = "" if bytes(value) or self._masker else base64.b64encode(stored.value).decode()
            self.states.append(
                RecordedState(
                    place=place,
                    key=stored.key,
                    revision=stored.revision,
                    value=value,
                    base64=text,
                )
            )
        return number

    def delivery(self, change: Delivery | None) -> Delivery | None:
        if change is None:
            return None
        before = self.state(self.primary_place, change.before)
        after = self.state(self.primary_place, change.after)
        return replace(change, before=before, after=after, kind=None)

    def reads(self, reads: Sequence[ReadStep]) -> Iterator[ReadStep]:
        """Yield the reads of the controller's slots."""
        for read in reads:
            if read.slot in self._slots:
                number = self.state(place_of(read.slot.table.kind), read.state)
                yield replace(read, slot=self._slots[read.slot], state=number)

    def steps(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield the steps of a tape as those of a recording; reads of other tables are left out."""
        for step in steps:
            match step:
                case ReadStep():
                    yield from self.reads((step,))
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
                case OutsideStep():
                    result = self._raw(_OUTSIDE, bytes(step.result))
                    yield replace(step, result=result, error=self.error(step.error))
                case _:
                    pass

    def error(self, error: RecordedError | None) -> RecordedError | None:
        """Return the error without secrets, if the recording is masked."""
        return None if error is None else replace(error, message=self.text(error.message))

    def text(self, text: str) -> str:
        """Return the text without secrets, if the recording is masked."""
        return text if self._masker is None else self._masker.text(text)

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
        if self._masker is None:
            return Raw(value)
        self._masker.learn(parsed, place=place)
        return Raw(exact_json.encode(self._masker.masked(parsed, place=place)))
