"""Decides what users do in a run: which objects they create, edit and delete, and when."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.telemetry.hiding import abbreviated
from natsctl.testing.cluster import leaves
from natsctl.testing.simulation.faults import Choices
from natsctl.testing.simulation.network import place_of
from natsctl.testing.simulation.objects import Desired, stored_form

STEPS_MAX = 5  # between the first objects and the last ones
STORM_STEPS_MIN, STORM_STEPS_MAX = 8, 30
THERE_SHARE = 0.7  # of the other objects, at the start
DELETED_SHARE = 0.15  # of the primaries, at the end
EDITS, REMOVALS, HAND_REMOVALS, HAND_EDITS, RESYNCS = 0.45, 0.65, 0.78, 0.9, 0.95
"""Shares of the steps in between, each added to the ones before it; the rest are waits."""

ACTS = 0.35  # the share of administrators' steps, in a storm
EDITED = 1_000_000  # the number of a version that is not in the file
WAITS_S = (0.02, 1.0, 40.0)
PAUSES_S = (0.5, 3.0, 30.0)
SHOWN_MAX = 80  # characters of an object in the list of steps


class StepPause(Enum):
    """The wait before a step."""

    NONE = "at once"
    SHORT = "shortly later"
    IDLE = "when idle"


_PAUSES = ((0.4, StepPause.NONE), (0.7, StepPause.SHORT), (1.0, StepPause.IDLE))  # below a share


class Put(msgspec.Struct, frozen=True):
    """A user stores an object."""

    desired: Desired
    note: str = ""
    pause: StepPause = StepPause.NONE

    def __str__(self) -> str:
        document = documents.without(self.desired.document, "metadata")
        text = abbreviated(documents.render(document).decode(), SHOWN_MAX)
        note = f"  ({self.note})" if self.note else ""
        return f"put {place_of(self.desired.kind)}/{self.desired.key} {text}{note}"


class Remove(msgspec.Struct, frozen=True):
    """A user deletes an object."""

    kind: Any
    key: str
    pause: StepPause = StepPause.NONE

    def __str__(self) -> str:
        return f"delete {place_of(self.kind)}/{self.key}"


class StepAction(Enum):
    """What else happens: by the hands of persons, by the controller, by administrators."""

    REMOVE = "delete a secondary by hand"
    EDIT = "edit a secondary by hand"
    RESYNC = "resync every key"  # when its caches are up to date
    WAIT = "wait"
    STOP = "stop a process, which starts again"
    RELIST = "break a watch"
    PAUSE = "pause an object"
    PAUSE_ALL = "pause the controller"
    LEASE = "delete a record of the leases"
    LEASES = "recreate the bucket of leases"


class Act(msgspec.Struct, frozen=True):
    """Something happens; a pause lasts for *seconds*, beside the steps that follow."""

    action: StepAction
    number: int = 0
    seconds: float = 0.0
    pause: StepPause = StepPause.NONE

    def __str__(self) -> str:
        length = f"{self.seconds:g} s" if self.seconds else ""
        if self.action is StepAction.WAIT:
            return f"wait {length}"
        return f"{self.action.value} for {length}" if length else str(self.action.value)


Step: TypeAlias = Put | Remove | Act
Names = tuple[str, str]


class Author:
    """Writes scripts.

    Args:
        objects: the objects of the file; several for one key are its versions, in order.
        primaries: the names of the kinds whose keys are synced.
        hands: whether persons may change secondaries.
        acts: what administrators do all the time, in a storm.
    """

    def __init__(
        self,
        objects: Sequence[Desired],
        *,
        primaries: Collection[str],
        hands: bool,
        acts: Sequence[StepAction] = (),
    ) -> None:
        self._primaries = primaries
        self._hands, self._acts = hands, acts
        self.versions: dict[Names, list[Desired]] = {}
        for desired in objects:
            self.versions.setdefault(desired.name, []).append(desired)

    def write(self, choices: Choices) -> tuple[Step, ...]:
        """Return the script of a seed, with the pause before each step."""
        script = []
        for number, step in enumerate(self._steps(choices)):
            share = choices.share(f"script/pause/{number}")
            pause = next(pause for limit, pause in _PAUSES if share < limit)
            script.append(msgspec.structs.replace(step, pause=pause))
        return tuple(script)

    def plain(self, final: Iterable[Desired]) -> tuple[Step, ...]:
        """Return the script that only creates the objects: first those that are only read."""
        ordered = sorted(final, key=lambda desired: desired.name[0] in self._primaries)
        return tuple(Put(desired) for desired in ordered)

    def complete(self, script: Iterable[Step]) -> bool:
        """Return whether a resync follows every change of an object that is only read."""
        pending = False
        for step in script:
            match step:
                case Put(desired=Desired(kind=kind)) | Remove(kind=kind):
                    pending |= kind.name not in self._primaries
                case Act(action=StepAction.RESYNC):
                    pending = False
                case _:
                    pass
        return not pending

    def _steps(self, choices: Choices) -> Iterator[Step]:
        names = list(self.versions)
        read_only = [name for name in names if name[0] not in self._primaries]
        primaries = [name for name in names if name[0] in self._primaries]
        current: dict[Names, int | None] = dict.fromkeys(names)
        for name in choices.shuffled("script/first", names):
            there = choices.share(f"script/first/{name}/there") < THERE_SHARE
            if there or name in primaries:
                yield self._version(name, 0, current)
        if read_only:
            yield from self._middle_steps("read", choices, names, current)
            yield from self._last_steps(choices, read_only, current)
            yield Act(StepAction.RESYNC)
        yield from self._middle_steps("own", choices, primaries, current)
        yield from self._last_steps(choices, primaries, current)

    def _middle_steps(
        self, part: str, choices: Choices, names: Sequence[Names], current: dict[Names, int | None]
    ) -> Iterator[Step]:
        count = choices.below(f"script/{part}/count", STEPS_MAX + 1)
        if self._acts:
            count = STORM_STEPS_MIN + choices.below(f"script/{part}/storm", STORM_STEPS_MAX)
        for number in range(count):
            place = f"script/{part}/{number}"
            if self._acts and choices.share(f"{place}/act") < ACTS:
                yield self._act(f"{place}/act", choices)
                continue
            share, which, chosen, _ = choices.draw(place)
            name, chosen_number = names[int(which * len(names))], int(chosen * 1000)
            if share < EDITS:
                yield self._edit(place, choices, name, current)
            elif share < REMOVALS and current[name] is not None:
                current[name] = None
                yield Remove(self.versions[name][0].kind, name[1])
            elif share < HAND_REMOVALS and self._hands:
                yield Act(StepAction.REMOVE, chosen_number)
            elif share < HAND_EDITS and self._hands:
                yield Act(StepAction.EDIT, chosen_number)
            elif share < RESYNCS:
                yield Act(StepAction.RESYNC)
            else:
                yield Act(StepAction.WAIT, seconds=choices.pick(f"{place}/wait", WAITS_S))

    def _act(self, place: str, choices: Choices) -> Act:
        action = choices.pick(f"{place}/action", self._acts)
        pauses = action in {StepAction.PAUSE, StepAction.PAUSE_ALL}
        seconds = choices.pick(f"{place}/seconds", PAUSES_S) if pauses else 0.0
        return Act(action, choices.below(f"{place}/number", 1000), seconds)

    def _edit(
        self, place: str, choices: Choices, name: Names, current: dict[Names, int | None]
    ) -> Step:
        """Return the next version of an object; an object without versions has a field edited."""
        versions, before = self.versions[name], current[name]
        if before is None or len(versions) > 1:
            return self._version(name, 0 if before is None else before + 1, current)
        desired = versions[0]
        fields = edited_fields(editable(desired.document)) if desired.declared else []
        for path, value in choices.shuffled(f"{place}/field", fields):
            document = replaced(desired.document, path, value)
            edited = msgspec.structs.replace(desired, document=document)
            if desired.kind.valid(stored_form(edited, None)):
                current[name] = EDITED
                return Put(edited, f"{'.'.join(path)} edited")
        return self._version(name, 0, current)

    def _last_steps(
        self, choices: Choices, names: Sequence[Names], current: dict[Names, int | None]
    ) -> Iterator[Step]:
        """Yield the steps that end in the known state: the last version, or nothing."""
        for name in choices.shuffled(f"script/last/{len(names)}", names):
            deleted = choices.share(f"script/last/{name}") < DELETED_SHARE and len(names) > 1
            last = len(self.versions[name]) - 1
            if deleted and name[0] in self._primaries:
                if current[name] is not None:
                    yield Remove(self.versions[name][last].kind, name[1])
            elif current[name] != last:
                yield self._version(name, last, current)

    def _version(self, name: Names, number: int, current: dict[Names, int | None]) -> Put:
        versions = self.versions[name]
        current[name] = number = number % len(versions)
        return Put(versions[number], f"version {number + 1}" if len(versions) > 1 else "")


def final_state(script: Iterable[Step]) -> dict[Names, Desired]:
    """Return the objects that exist after a script."""
    state: dict[Names, Desired] = {}
    for step in script:
        match step:
            case Put(desired=desired):
                state[desired.name] = desired
            case Remove(kind=kind, key=key):
                state.pop((kind.name, key), None)
            case _:
                pass
    return state


def edited_fields(document: Mapping[str, Any]) -> list[tuple[tuple[str, ...], object]]:
    """Return every field whose value can be edited, with its new value."""
    fields: list[tuple[tuple[str, ...], object]] = []
    for path, value in leaves(document):
        match value:
            case bool():
                fields.append((path, not value))
            case int():
                fields.append((path, value + 1))
            case str():
                fields.append((path, f"{value}x"))
            case _:
                pass
    return fields


def replaced(document: Document, path: tuple[str, ...], value: object) -> Document:
    """Return the document with another value of one field."""
    name, *inner_path = path
    below = document[name]
    if inner_path and isinstance(below, dict):
        value = replaced(below, tuple(inner_path), value)
    return {**document, name: value}


def editable(document: Document) -> Document:
    """Return the fields of an object that describe its desired state."""
    left_out = ("metadata", "status", "apiVersion", "kind", "bucket", "key")
    return documents.without(document, *left_out)
