"""Writes a kept sync as a recording, which leaves the process."""

import base64
from collections.abc import Iterator, Mapping
from importlib.metadata import version as installed
from typing import Any

import msgspec
from msgspec import Raw

from natsctl.core.informer import Informer
from natsctl.core.recording.document import (
    NOTHING,
    DependencyStep,
    KeysStep,
    OutsideStep,
    QueryStep,
    ReadStep,
    RecordedDelivery,
    RecordedOutcome,
    RecordedSlot,
    RecordedState,
    Recording,
    Step,
    StoreStep,
    Surface,
    TargetStep,
    seed_of,
)
from natsctl.core.recording.noted_stores import place_of
from natsctl.core.recording.recordings import Delivery, Frame, KeptSync
from natsctl.core.tape import (
    CacheKeys,
    CacheQuery,
    CacheRead,
    CacheStates,
    CacheTarget,
    DependencyRead,
    Note,
    OutsideCall,
    RecordedError,
    StoreCall,
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
        outcome=writer.outcome(kept),
        slots={name: _slot(informer) for name, informer in informers.items()},
        primary=writer.state(writer.primary_place, kept.stored),
        last=writer.state(writer.primary_place, kept.last),
        delivery=writer.delivery(kept.delivery),
        around=tuple(writer.reads(kept.around)),
        steps=tuple(step for note in kept.notes for step in writer.steps(note)),
        states=tuple(states),
    )


def traceback_text(frames: tuple[Frame, ...]) -> str:
    """Return the text of a traceback: the file, the line and the function of each frame."""
    lines = (
        f'  File "{code.co_filename}", line {line}, in {code.co_qualname}' for code, line in frames
    )
    return "\n".join(lines)


def _slot(informer: Informer[Any]) -> RecordedSlot:
    kind = informer.cache.kind
    return RecordedSlot(kind=kind.name, place=place_of(kind), available=not informer.absent)


class _Writer:
    """Numbers the states of one recording, and turns its notes into steps."""

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
        for note in (*kept.notes, *kept.around):
            list(self.steps(note))
        self.state(self.primary_place, kept.stored)
        self.state(self.primary_place, kept.last)
        self.delivery(kept.delivery)
        self.states.clear()
        self._numbers.clear()
        if self._masker is not None:
            self._masker.learned()

    def outcome(self, kept: KeptSync) -> RecordedOutcome:
        """Return the result of the sync."""
        traceback = self._text(traceback_text(kept.frames))
        return RecordedOutcome(
            error=self._error(kept.error), traceback=traceback, after_s=kept.after_s
        )

    def state(self, place: str, stored: Stored | None) -> int | None:
        """Return the number of a state; a new one if it is not in the recording yet."""
        if stored is None:
            return None
        name = place, stored.key, stored.revision
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.states)
            self.states.append(self._state(place, stored))
        return number

    def delivery(self, change: Delivery | None) -> RecordedDelivery | None:
        """Return the change that a watcher got."""
        if change is None:
            return None
        return RecordedDelivery(
            resource_kind=change.resource_kind,
            watcher=change.watcher,
            before=self.state(self.primary_place, change.before),
            after=self.state(self.primary_place, change.after),
        )

    def reads(self, reads: tuple[CacheRead, ...]) -> Iterator[ReadStep]:
        """Yield the steps of reads from caches."""
        for informer, key, stored in reads:
            slot = self._slots.get(informer)
            if slot is not None:
                place = place_of(informer.cache.kind)
                yield ReadStep(slot=slot, key=key, state=self.state(place, stored))

    def steps(self, note: Note) -> Iterator[Step]:
        """Yield the steps of a note."""
        match note:
            case tuple():
                yield from self.reads((note,))
            case CacheStates(informer, keys, states):
                by_key = {stored.key: stored for stored in states}
                yield from self.reads(tuple((informer, key, by_key.get(key)) for key in keys))
            case CacheTarget(informer, key, stored):
                for read in self.reads(((informer, key, stored),)):
                    yield TargetStep(slot=read.slot, key=key, state=read.state)
            case CacheKeys(informer, keys) if informer in self._slots:
                yield KeysStep(slot=self._slots[informer], keys=keys)
            case CacheQuery(informer, index, value, keys) if informer in self._slots:
                slot = self._slots[informer]
                yield QueryStep(slot=slot, index=index, value=value, keys=keys)
            case DependencyRead(dependency, place, states):
                numbers = [self.state(place, stored) for stored in states]
                yield DependencyStep(
                    dependency=dependency,
                    place=place,
                    states=tuple(number for number in numbers if number is not None),
                )
            case StoreCall():
                yield self._call(note)
            case OutsideCall(name, result, error, took_s, inner):
                yield OutsideStep(
                    name=name,
                    type="" if result is None else result.type,
                    result=self._raw(_OUTSIDE, result.json if result is not None else b""),
                    error=self._error(error),
                    took_s=took_s,
                    inner=inner,
                )
            case _:
                pass

    def _call(self, call: StoreCall) -> StoreStep:
        stored = call.answer if isinstance(call.answer, Stored) else None
        return StoreStep(
            place=call.place,
            verb=call.verb,
            key=call.key,
            value=self._raw(call.place, call.value),
            state=self.state(call.place, stored),
            answer=NOTHING if stored is not None else self._answer(call.place, call.answer),
            error=self._error(call.error),
            took_s=call.took_s,
        )

    def _answer(self, place: str, answer: Any) -> Raw:
        """Return an answer that is no state: a revision, a history, or field managers."""
        if answer is None:
            return NOTHING
        if isinstance(answer, list):
            answer = [
                {"deleted": entry.key, "revision": entry.revision, "purged": entry.purged}
                if isinstance(entry, Deleted)
                else {"state": self.state(place, entry)}
                for entry in answer
            ]
        return Raw(msgspec.json.encode(answer))

    def _state(self, place: str, stored: Stored) -> RecordedState:
        raw = self._raw(place, stored.value)
        text = "" if bytes(raw) or self._masker else base64.b64encode(stored.value).decode()
        return RecordedState(
            place=place, key=stored.key, revision=stored.revision, value=raw, base64=text
        )

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

    def _error(self, error: RecordedError | None) -> RecordedError | None:
        if error is None or self._masker is None:
            return error
        return msgspec.structs.replace(error, message=self._text(error.message))

    def _text(self, text: str) -> str:
        return text if self._masker is None else self._masker.text(text)
