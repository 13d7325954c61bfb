"""The tape of a replay: answers each read and call as recorded, over stores in memory."""

import ast
import asyncio
import base64
import builtins
import sys
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from natsctl.controller.owned import OWNER_INDEX
from natsctl.core.informer import Informer
from natsctl.core.record.document import Delivery, RecordedState, Recording
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
    TargetStep,
    place_of,
)
from natsctl.errors import DECODE_ERRORS, HandlerError, NotRecordedError, StoreError
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.store import Applied, Deleted, Stored
from natsctl.testing.cluster import MemoryCluster, MemoryManifestStore, MemoryResource
from natsctl.testing.memory import Backup, MemoryStore, MemoryStores
from natsctl.testing.watched import MemoryRecorder

T = TypeVar("T")

Name = tuple[str, str]  # the place and the key of an object


class ReplayTape(Tape):
    """Checks each step of a replayed sync against a recording, and answers its calls.

    Attributes:
        known: the first state of each object in the recording, by place and key; None if the
            object did not exist.
        missing: what the handler read that was not recorded.
        assumed: the targets of writes whose states the recording does not have; the replay takes
            them as missing objects.
        variables: the environment variables that the handler read.
        began: whether the handler runs.
    """

    replays = True

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        self.known: dict[Name, Stored | None] = {}
        self.missing: list[str] = []
        self.assumed: list[str] = []
        self.variables: list[str] = []
        self.began = False
        self._slots: dict[Informer[Any], str] = {}
        self._states = [_stored(state) for state in recording.states]
        self._later: dict[Name, deque[Stored | None]] = defaultdict(deque)  # cached, by slot
        self._lists: set[str] = set()  # the slots whose keys were all read
        self._queries: set[tuple[str, str, str]] = set()  # the slots, indexes and values
        self._dependencies: set[str] = set()
        self._answers: dict[tuple[str, str, str], deque[StoreStep]] = defaultdict(deque)
        self._outside: dict[str, deque[OutsideStep]] = defaultdict(deque)
        self._revisions: dict[tuple[str, str, int], int] = {}  # in memory, by recorded revision
        self._written: set[Name] = set()  # in the recording
        self._replayed: set[Name] = set()  # in the replay
        self._read_recording()

    @property
    def last(self) -> Stored | None:
        return self.state(self.recording.last)

    @property
    def delivery(self) -> Delivery | None:
        change = self.recording.delivery
        if change is None:
            return None
        before, after = self.state(change.before), self.state(change.after)
        return msgspec.structs.replace(change, before=before, after=after)

    def state(self, number: int | None) -> Stored | None:
        return None if number is None else self._states[number]

    def begin(self, informers: Mapping[str, Informer[Any]]) -> None:
        """Begin to check, with the informers of the controller by slot."""
        self._slots = {informer: slot for slot, informer in informers.items()}
        self.began = True

    def miss(self, read: str) -> NoReturn:
        """Note a read that was not recorded; raises `NotRecordedError`."""
        self.missing.append(read)
        raise NotRecordedError(f"the recording does not have {read}")

    # ---- the steps of the replay

    def append(self, step: Step) -> None:  # noqa: C901 - one case for each kind of step
        """Check a step; raises `NotRecordedError` for a read that the recording does not have."""
        super().append(step)
        match step:
            case TargetStep(slot=informer, key=key):
                if not self._knows(place_of(informer.table.kind), key):
                    self.assumed.append(f"{self._slot(informer)} {key}")
            case ReadStep(slot=informer, key=key, state=stored):
                self._read(informer, key, stored)
            case StoreStep(place=place, key=key):
                self._replayed.add((place, key))
            case KeysStep(slot=informer):
                if self._slot(informer) not in self._lists:
                    self.miss(f"all keys of {self._slot(informer)}")
            case QueryStep(slot=informer, index=index, value=value):
                slot = self._slot(informer)
                own = value == self.recording.key and index == OWNER_INDEX  # always recorded
                if (
                    not own
                    and slot not in self._lists
                    and (slot, index, value) not in self._queries
                ):
                    self.miss(f"the objects of {slot} with {value} in the index {index}")
            case DependencyStep(dependency=dependency):
                if dependency not in self._dependencies:
                    self.miss(dependency)
            case OutsideStep():
                pass

    def has(self, name: str) -> bool:
        return bool(self._outside.get(name))

    def expected(self, place: str, key: str, revision: int) -> int:
        return self._revisions.get((place, key, revision), revision)

    async def call(
        self,
        place: str,
        verb: str,
        key: str,
        send: Callable[[], Coroutine[Any, Any, T]],
        value: bytes | Document = b"",
    ) -> T:
        # writes that are not recorded are answered from memory
        return await super().call(
            place, verb, key, lambda: self._answered(place, verb, key, send), value
        )

    async def outside(
        self, name: str, call: Callable[[], Awaitable[T]], *, kind: type[T] | None = None
    ) -> T:
        # a call that made other calls is made, because these have recorded results
        steps = self._outside.get(name)
        if not steps:
            self.miss(f"the result of {name}")
        step = steps.popleft()
        if step.inner:
            return await call()
        await _elapsed(step.took_s, step.error)
        result_kind = kind or _class_of(step.type)
        try:
            if bytes(step.result) and result_kind is not None:
                return cast("T", msgspec.json.decode(step.result, type=result_kind))
        except (*DECODE_ERRORS, TypeError):
            pass
        return self.miss(f"the result of {name}, a {step.type}, which isn't a JSON value")

    async def remembered(
        self,
        name: str,
        memory: Callable[[], T],
        restore: Callable[[T], None],
        *,
        kind: type[T] | None = None,
    ) -> None:
        async def no_call() -> T:
            return memory()

        if self.has(name):
            restore(await self.outside(name, no_call, kind=kind))

    async def _answered(
        self, place: str, verb: str, key: str, send: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        steps = self._answers.get((place, verb, key)) if self.began else None
        step = steps.popleft() if steps else None
        recorded = None if step is None else self.state(step.state)
        if step is not None:
            await _elapsed(step.took_s, step.error)
            if recorded is not None and verb == "get":
                with suppress(StoreError):
                    present = cast("Stored", await send())
                    self._revisions[place, key, recorded.revision] = present.revision
            if not step.writes:
                return cast("T", self._answer(step, recorded))
        elif verb in {"get", "managed"} and self.began and not self._knows(place, key):
            self.miss(f"{place} {key}")
        result = await send()
        if recorded is not None and isinstance(result, Stored):
            self._revisions[place, key, recorded.revision] = result.revision
        return result

    def _answer(self, step: StoreStep, recorded: Stored | None) -> object:
        if step.verb == "managed":
            return msgspec.convert(step.answer, ManagedFields)
        if step.verb != "history":
            return recorded
        return [
            Deleted(entry["deleted"], entry["revision"], entry["purged"])
            if "deleted" in entry
            else self.state(entry["state"])
            for entry in step.answer
        ]

    def _read(self, informer: Informer[Any], key: str, stored: Stored | None) -> None:
        slot = self._slot(informer)
        if slot not in self._lists and not self._knows(place_of(informer.table.kind), key):
            self.miss(f"{slot} {key}")
        states = self._later.get((slot, key))
        if states:
            states.popleft()
            if states and states[0] != stored:  # the next read returns what the recorded one did
                following, table = states[0], informer.table
                deleted = Deleted(key, table.revision)
                for _ in table.apply(deleted if following is None else Applied(following)):
                    pass

    def _knows(self, place: str, key: str) -> bool:
        return (place, key) in self.known or (place, key) in self._replayed

    def _slot(self, informer: Informer[Any]) -> str:
        return self._slots.get(informer, informer.table.kind.name)

    # ---- the recording

    def _read_recording(self) -> None:
        recording = self.recording
        if recording.delivery is not None:
            after = self.state(recording.delivery.after)
            self._know(recording.place, recording.key, after)
        elif recording.primary is not None or recording.last is None:
            self._know(recording.place, recording.key, self.state(recording.primary))
        for step in recording.steps:
            self._recorded(step)
        for read in recording.around:
            self._know(self._place(read.slot), read.key, self.state(read.state))

    def _recorded(self, step: Step) -> None:  # noqa: C901 - one case for each kind of step
        match step:
            case ReadStep(slot=slot, key=key):
                name, stored = (self._place(slot), key), self.state(step.state)
                if name not in self._written:
                    self._know(*name, stored)
                    self._later[slot, key].append(stored)
            case KeysStep(slot=slot):
                self._lists.add(slot)
            case QueryStep(slot=slot, index=index, value=value):
                self._queries.add((slot, index, value))
            case DependencyStep(dependency=dependency, place=place, states=states):
                self._dependencies.add(dependency)
                for stored in filter(None, map(self.state, states)):
                    self._know(place, stored.key, stored)
            case StoreStep(place=place, verb=verb, key=key):
                self._answers[place, verb, key].append(step)
                if step.writes:
                    self._written.add((place, key))
                elif step.state is not None:
                    self._know(place, key, self.state(step.state))
            case OutsideStep(name=name):
                self._outside[name].append(step)

    def _place(self, slot: str) -> str:
        """Return the place of a slot; empty if the recording does not have the slot."""
        recorded = self.recording.slots.get(slot)
        return "" if recorded is None else recorded.place

    def _know(self, place: str, key: str, stored: Stored | None) -> None:
        if (place, key) not in self._written:
            self.known.setdefault((place, key), stored)


class ReplayStores(MemoryStores):
    """The buckets of a recording; each gets the recorded objects when it is opened first."""

    forgets = True  # no record of failing keys

    def __init__(self, tape: ReplayTape) -> None:
        super().__init__(kube=ReplayCluster(tape))
        self._tape = tape
        self._filled: set[str] = set()

    async def open(self, kind: Kind[Any]) -> MemoryStore:
        store = self.store(kind)
        states = _unfilled(self._tape, self._filled, kind)
        if states:
            entries: dict[str, list[Stored | Deleted]] = {stored.key: [stored] for stored in states}
            store.restore(Backup(entries, states[-1].revision))
        return store

    async def api(
        self,
        endpoint: str,
        body: Mapping[str, object] | None = None,  # noqa: ARG002 - no request is sent
    ) -> dict[str, Any]:
        self._tape.miss(f"the answer of JetStream to {endpoint}")


class ReplayCluster(MemoryCluster):
    """The kinds of a cluster in a recording."""

    def __init__(self, tape: ReplayTape) -> None:
        super().__init__(MemoryRecorder())
        self._tape = tape
        self._filled: set[str] = set()

    async def open(self, kind: Kind[Any]) -> MemoryManifestStore:
        store = await super().open(kind)
        store.restore(_unfilled(self._tape, self._filled, kind))
        return store

    async def resource(self, api_version: str, kind: str) -> MemoryResource:
        # recorded keys without a namespace prove that the kind has none
        regular = await super().resource(api_version, kind)
        place = f"kube/{api_version}/{kind}"
        keys = [key for known, key in self._tape.known if known == place]
        namespaced = any("/" in key for key in keys) if keys else regular.namespaced
        return MemoryResource(regular.plural, namespaced)


def _unfilled(tape: ReplayTape, filled: set[str], kind: Kind[Any]) -> list[Stored]:
    """Return the recorded objects, oldest first, of a place that is opened for the first time."""
    place = place_of(kind)
    if place in filled:
        return []
    filled.add(place)
    states = [stored for name, stored in tape.known.items() if name[0] == place]
    return sorted(filter(None, states), key=lambda stored: stored.revision)


def _stored(state: RecordedState) -> Stored:
    value = bytes(state.value) or base64.b64decode(state.base64)
    return Stored(state.key, state.revision, value)


async def _elapsed(took_s: float, error: RecordedError | None) -> None:
    """Let a recorded call take its time, and raise its error; a cancelled call never ends."""
    await asyncio.sleep(took_s)
    if error is None:
        return
    if error.type.endswith("CancelledError"):
        await asyncio.get_running_loop().create_future()
    raise _error_of(error)


def _error_of(recorded: RecordedError) -> BaseException:
    """Return an error that was recorded; a `HandlerError` if its class cannot be made again."""
    kind = _class_of(recorded.type)
    if kind is KeyError:
        with suppress(SyntaxError, ValueError):
            return KeyError(ast.literal_eval(recorded.message))
        return KeyError(recorded.message)
    if kind is not None and issubclass(kind, Exception):
        with suppress(Exception):  # a user's class may need other arguments
            fields = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in recorded.fields.items()
            }
            delay_s = fields.pop("delay_s", None)
            if delay_s is not None:
                return kind(delay_s, recorded.message)
            return kind(recorded.message, **fields)
    return HandlerError(f"{recorded.type}: {recorded.message}")


def _class_of(name: str) -> type[Any] | None:
    """Return the loaded class of a recorded name, None if there is none."""
    module, _, path = name.rpartition(":")
    if name == "NoneType":
        return type(None)
    value: Any = sys.modules.get(module) if module else builtins
    for part in path.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) else None
