"""Prepares a recording for its replay: the first states of objects, and the answers in order."""

import base64
from collections import defaultdict, deque
from typing import NoReturn

from natsctl.core.recording.document import (
    DependencyStep,
    KeysStep,
    OutsideStep,
    QueryStep,
    ReadStep,
    RecordedState,
    Recording,
    Step,
    StoreStep,
    TargetStep,
)
from natsctl.core.recording.recordings import Delivery
from natsctl.errors import NotRecordedError
from natsctl.model.store import Stored

Name = tuple[str, str]  # the place and the key of an object


class World:
    """The content of a recording, as a replay looks it up.

    Attributes:
        known: the first state of each object in the recording, by place and key; None if the
            object did not exist.
        later: the further states that the handler read from a cache, by slot and key.
        lists: the slots whose keys were all read.
        queries: the slot, the index and the value of each query.
        dependencies: the texts of the dependencies that were read.
        calls: the calls of stores by place, verb and key, in order.
        outside: the calls outside of the stores by name, in order.
        revisions: the revisions in memory by place, key and recorded revision.
        began: whether the handler runs.
        missing: what the handler read that was not recorded.
        replayed: the objects that the handler wrote.
        variables: the environment variables that the handler read, in order.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.known: dict[Name, Stored | None] = {}
        self.later: dict[Name, deque[Stored | None]] = defaultdict(deque)
        self.lists: set[str] = set()
        self.queries: set[tuple[str, str, str]] = set()
        self.dependencies: set[str] = set()
        self.calls: dict[tuple[str, str, str], deque[StoreStep]] = defaultdict(deque)
        self.outside: dict[str, deque[OutsideStep]] = defaultdict(deque)
        self.revisions: dict[tuple[str, str, int], int] = {}
        self.began = False
        self.missing: list[str] = []
        self.replayed: set[Name] = set()
        self.variables: dict[str, None] = {}
        self._states = [_stored(state) for state in recording.states]
        self._written: set[Name] = set()
        self._read()

    @property
    def last(self) -> Stored | None:
        """The last state of a deleted primary."""
        return self.state(self.recording.last)

    def state(self, number: int | None) -> Stored | None:
        """Return a state by its number."""
        return None if number is None else self._states[number]

    @property
    def delivery(self) -> Delivery | None:
        """The change that a watcher or a stream got; None if the recording has none."""
        change = self.recording.delivery
        if change is None:
            return None
        before, after = self.state(change.before), self.state(change.after)
        return Delivery(change.resource_kind, change.watcher, before, after)

    def stored_in(self, place: str) -> list[Stored]:
        """Return the first states of the objects in a place, in the order of revisions."""
        states = (stored for name, stored in self.known.items() if name[0] == place)
        return sorted(
            (stored for stored in states if stored is not None), key=lambda stored: stored.revision
        )

    def slot_place(self, slot: str) -> str:
        """Return the place of a slot; empty if the recording does not have the slot."""
        recorded = self.recording.slots.get(slot)
        return "" if recorded is None else recorded.place

    def found(self, read: str) -> None:
        """Note that the handler read something from outside of the recording."""
        self.missing.append(read)

    def variable(self, name: str) -> None:
        """Note that the handler read an environment variable."""
        self.variables[name] = None

    def miss(self, read: str) -> NoReturn:
        """Note a read that was not recorded; raises `NotRecordedError`."""
        self.missing.append(read)
        raise NotRecordedError(f"the recording does not have {read}")

    def _read(self) -> None:
        recording = self.recording
        if recording.delivery is not None:
            after = self.state(recording.delivery.after)
            self._know(recording.place, recording.key, after)
        elif recording.primary is not None or recording.last is None:
            self._know(recording.place, recording.key, self.state(recording.primary))
        for step in recording.steps:
            self._step(step)
        for read in recording.around:
            self._know(self.slot_place(read.slot), read.key, self.state(read.state))

    def _step(self, step: Step) -> None:
        match step:
            case ReadStep(slot=slot, key=key) | TargetStep(slot=slot, key=key):
                self._cached(slot, key, self.state(step.state))
            case KeysStep(slot=slot):
                self.lists.add(slot)
            case QueryStep(slot=slot, index=index, value=value):
                self.queries.add((slot, index, value))
            case DependencyStep(dependency=dependency, place=place, states=states):
                self.dependencies.add(dependency)
                for stored in filter(None, map(self.state, states)):
                    self._know(place, stored.key, stored)
            case StoreStep(place=place, verb=verb, key=key):
                self.calls[place, verb, key].append(step)
                if step.writes:
                    self._written.add((place, key))
                elif step.state is not None:
                    self._know(place, key, self.state(step.state))
            case OutsideStep(name=name):
                self.outside[name].append(step)

    def _cached(self, slot: str, key: str, stored: Stored | None) -> None:
        place = self.slot_place(slot)
        if (place, key) in self._written:
            return
        if (place, key) in self.known:
            self.later[slot, key].append(stored)
        else:
            self._know(place, key, stored)
            self.later[slot, key].append(stored)

    def _know(self, place: str, key: str, stored: Stored | None) -> None:
        if (place, key) not in self._written:
            self.known.setdefault((place, key), stored)


def _stored(state: RecordedState) -> Stored:
    value = bytes(state.value) or base64.b64decode(state.base64)
    return Stored(state.key, state.revision, value)
