"""Checks each read of a replayed sync against the recording, and notes its calls."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.core.informer import Informer
from natsctl.core.recording.document import OutsideStep
from natsctl.core.recording.noted_stores import place_of
from natsctl.core.tape import (
    CacheKeys,
    CacheQuery,
    CacheStates,
    CacheTarget,
    DependencyRead,
    Note,
    OutsideCall,
    StoreCall,
)
from natsctl.errors import DECODE_ERRORS
from natsctl.model.store import Applied, Deleted, Stored
from natsctl.testing.replaying.errors import class_of, elapsed
from natsctl.testing.replaying.world import World


class ReplayTape:
    """The tape of a replayed sync; a `Playback`.

    Attributes:
        assumed: the targets of writes whose states the recording does not have; the replay takes
            them as missing objects.
    """

    def __init__(self, world: World) -> None:
        self.assumed: list[str] = []
        self.calls: list[StoreCall] = []
        self._world = world
        self._slots: dict[Informer[Any], str] = {}

    def begin(self, informers: Mapping[str, Informer[Any]]) -> None:
        """Begin to check, with the informers of the controller by slot."""
        self._slots = {informer: slot for slot, informer in informers.items()}
        self._world.began = True

    def append(self, note: Note) -> None:
        """Check a note; raises `NotRecordedError` for a read that the recording does not have."""
        match note:
            case tuple():
                self._read(*note)
            case CacheStates(informer, keys, states):
                by_key = {stored.key: stored for stored in states}
                for key in keys:
                    self._read(informer, key, by_key.get(key))
            case CacheTarget(informer, key):
                self._target(informer, key)
            case StoreCall():
                self.calls.append(note)
                self._world.replayed.add((note.place, note.key))
            case CacheKeys() | CacheQuery() | DependencyRead():
                self._select(note)
            case OutsideCall():
                pass

    def has(self, name: str) -> bool:
        """See `Playback.has`."""
        return bool(self._world.outside.get(name))

    async def answer(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """See `Playback.answer`."""
        steps = self._world.outside.get(name)
        if not steps:
            self._world.miss(f"the result of {name}")
        step = steps.popleft()
        if step.inner:
            return await call()
        await elapsed(step.took_s, step.error)
        return self._result(step)

    def _result(self, step: OutsideStep) -> Any:
        kind = class_of(step.type)
        try:
            if bytes(step.result) and kind is not None:
                return msgspec.json.decode(step.result, type=kind)
        except (*DECODE_ERRORS, TypeError):
            pass
        return self._world.miss(f"the result of {step.name}, a {step.type}, which is no JSON value")

    def _read(self, informer: Informer[Any], key: str, stored: Stored | None) -> None:
        slot = self._slot(informer)
        listed = slot in self._world.lists
        if not (listed or self._knows(informer, key)):
            self._world.miss(f"{slot} {key}")
        states = self._world.later.get((slot, key))
        if states:
            states.popleft()
            if states and states[0] != stored:
                _advance(informer, key, states[0])

    def _target(self, informer: Informer[Any], key: str) -> None:
        if not self._knows(informer, key):
            self.assumed.append(f"{self._slot(informer)} {key}")

    def _select(self, note: CacheKeys | CacheQuery | DependencyRead) -> None:
        """Check a read of several objects."""
        world = self._world
        match note:
            case CacheKeys(informer):
                if self._slot(informer) not in world.lists:
                    world.miss(f"all keys of {self._slot(informer)}")
            case CacheQuery(informer, index, value):
                slot = self._slot(informer)
                own = value == world.recording.key and index == OWNER_INDEX  # always recorded
                if (
                    not own
                    and slot not in world.lists
                    and (slot, index, value) not in world.queries
                ):
                    world.miss(f"the objects of {slot} with {value} in the index {index}")
            case DependencyRead(dependency):
                if dependency not in world.dependencies:
                    world.miss(dependency)

    def _knows(self, informer: Informer[Any], key: str) -> bool:
        name = place_of(informer.cache.kind), key
        return name in self._world.known or name in self._world.replayed

    def _slot(self, informer: Informer[Any]) -> str:
        return self._slots.get(informer, informer.cache.kind.name)


def _advance(informer: Informer[Any], key: str, stored: Stored | None) -> None:
    """Show the next read of the cache what the next read of the recorded sync returned."""
    cache = informer.cache
    event = Deleted(key, cache.revision) if stored is None else Applied(stored)
    for _ in cache.apply(event):
        pass
