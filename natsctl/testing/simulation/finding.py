"""Presents the finding of a simulation, with its likely cause, for people and for programs."""

from collections import Counter
from typing import Any

import msgspec

from natsctl.telemetry.hiding import abbreviated
from natsctl.testing.simulation.properties import Property, StateDifference, Violation
from natsctl.testing.simulation.run import Ran
from natsctl.testing.simulation.script import Act, Put, Remove, StepAction
from natsctl.testing.simulation.subject import Subject
from natsctl.testing.simulation.world.faults import CRASHES, CUTS, FaultType
from natsctl.testing.simulation.world.process import Division

ERRORS = {FaultType.TIMEOUT, FaultType.AWAY, FaultType.LOST_ANSWER, FaultType.CONFLICT}
HANDS = {StepAction.EDIT, StepAction.REMOVE}
OLD_READS = {FaultType.LAG, FaultType.BREAK, FaultType.OLD}


def hint_of(violation: Violation, ran: Ran, subject: Subject) -> str:
    """Return the likely cause of a violation."""
    faults = {fault.fault for fault in ran.faults}
    match violation.property:
        case Property.SETTLES:
            return _never_settles(violation, faults)
        case Property.SAME_RESULT:
            return _another_result(violation, ran, subject, faults)
        case Property.QUIET:
            return _not_quiet(violation, ran, faults)
        case Property.CLEAN:
            return _CLEANUP_LOST if faults else _NO_CLEANUP
        case other:
            return _OTHER_HINTS[other]


def _never_settles(violation: Violation, faults: set[FaultType]) -> str:
    match violation.difference:
        case StateDifference.FAILS if faults:
            return (
                "the handler cannot continue from the state that the faults left behind: begin "
                "each sync with what exists"
            )
        case StateDifference.FAILS:
            return (
                "nothing around the handler failed: handle the state after these steps, or raise "
                "PermanentError if only a change of the object helps"
            )
        case StateDifference.ENDED if faults & CRASHES:
            return "start() fails when the process starts again"
        case StateDifference.ENDED:
            return "start() or run() fails"
        case StateDifference.GROWS:
            return "a primary that a sync makes is synced too: give the chain an end"
        case _:
            return "each sync enqueues its own key, or waits for something that never happens"


def _not_quiet(violation: Violation, ran: Ran, faults: set[FaultType]) -> str:
    if violation.difference is StateDifference.LATE and _reported(ran, faults):
        return _NOT_REQUEUED
    return _REPAIRED_LATE if faults else _RESTLESS


def _another_result(
    violation: Violation, ran: Ran, subject: Subject, faults: set[FaultType]
) -> str:
    """Return the likely cause of a result that differs from a run without faults."""
    match violation.difference:
        case StateDifference.NAMES:
            return (
                "the names of objects differ between runs: they depend on randomness, on the "
                "memory of a process or on the order of keys"
            )
        case StateDifference.EXTRA:
            return _too_many(ran, faults)
        case StateDifference.MISSING:
            return _unfinished(ran, faults) or _NOT_ASKED
        case _:
            return _unfinished(ran, faults) or _from_steps(ran, subject)


def _too_many(ran: Ran, faults: set[FaultType]) -> str:
    """Return the likely cause of an object that should not exist."""
    if not faults:
        return (
            "an object that is no longer wanted stays: delete what exists and the spec does not "
            "name, also after a restart"
        )
    if faults <= OLD_READS:
        return _OLD_READ
    if not any(isinstance(step, Remove) for step, _ in ran.steps):
        return (
            "a call took effect, and the process does not know that: choose a fixed name, so that "
            "a later sync finds the created object"
        )
    return (
        "a cleanup was lost: hold the object by a finalizer, clean up before the finalizer is "
        "removed, and let errors pass, so that the key is retried"
    )


def _reported(ran: Ran, faults: set[FaultType]) -> bool:
    """Return whether each error of a call can have failed its sync, so that none was swallowed."""
    return not faults & CRASHES and (not faults & ERRORS or bool(ran.failed_syncs))


def _unfinished(ran: Ran, faults: set[FaultType]) -> str:
    """Return the likely cause of an object that lacks a write; empty without faults."""
    if faults & CUTS:
        return (
            "another process led for a while: what this process remembers is old, or a write of "
            "the process before arrived late, so read the store in each sync"
        )
    if faults & CRASHES:
        return (
            "the process crashed between two steps: a status or another record states that the "
            "work is done before it is done"
        )
    if faults and faults <= OLD_READS:
        return _OLD_READ
    if faults and _reported(ran, faults):
        return _NOT_REQUEUED
    if faults:
        return (
            "a call failed, and the sync ended as done: an error was swallowed, or a status or "
            "the memory states that the work is done"
        )
    return ""


def _from_steps(ran: Ran, subject: Subject) -> str:
    """Return the likely cause of a wrong field in a run without faults."""
    steps = [step for step, done in ran.steps if done or isinstance(step, Put)]
    if any(isinstance(step, Act) and step.action in HANDS for step in steps):
        return _NOT_ASKED
    names = Counter(step.desired.name for step in steps if isinstance(step, Put))
    synced = {kind.name for kind in subject.primaries}
    if any(kind not in synced for kind, _ in names):
        return "an object that is only read is not read again: read it in each sync"
    if max(names.values(), default=0) > 1:
        return (
            "a change of the spec does not reach the object: an existing object is taken for a "
            "right one"
        )
    if len(names) > 1:
        return "a field depends on the order in which keys are synced, such as a counter in memory"
    return "a field depends on the clock or on randomness"


_OTHER_HINTS = {
    Property.EXCLUSIVE: "natsctl itself broke a promise: please report the controller and the seed",
    Property.ALWAYS: (
        "two keys are synced at the same time, or a sync decides by a cache that lacks another "
        "key's write: reserve by creating an object whose key is what must be unique"
    ),
    Property.FINALLY: "the state is stable, and is not what finally_ demands",
}
_OLD_READ = "a sync decided by an old read or missed an event: compare with the newest state"
_NOT_REQUEUED = (
    "a sync ended while work was left, and no error was swallowed: a status or the memory states "
    "that the work is done, or the sync waits for something: return the seconds until the next one"
)
_NOT_ASKED = (
    "an object that exists is taken for a right one, or a status or the memory states that it was "
    "made: ask the store in each sync"
)
_RESTLESS = (
    "a sync writes something else each time, such as a time, a counter or a random value, or "
    "deletes and creates again: compare before you write"
)
_REPAIRED_LATE = (
    "a sync ended as done before its work was done, and only the resync finished it: an error was "
    "swallowed, or something was written after the sync that no change follows"
)
_CLEANUP_LOST = (
    "the cleanup can be lost: clean up before the finalizer is removed, and create only what a "
    "later sync finds by its name or by its owner"
)
_NO_CLEANUP = (
    "nothing deletes what the controller made: make it as a secondary, or hold the primary by a "
    "finalizer until it is deleted; keep= names buckets whose objects stay"
)


WRITES_SHOWN = 8
WIDTH = 110


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A property that a controller violates, with the shortest schedule that shows it.

    Attributes:
        seed: the seed of the run; `--seed` shows the finding again.
        property: the property that doesn't hold.
        hint: the likely cause.
        script: the steps of users, in order.
        processes: how many processes there are, and how they divide the work.
    """

    controller: str
    seed: int
    property: str
    detail: str
    hint: str
    script: tuple[str, ...]
    faults: tuple[str, ...]
    writes: tuple[str, ...]
    processes: str = Division.ALONE.value

    def __str__(self) -> str:
        return "\n".join(abbreviated(line, 2 * WIDTH) for line in self._lines())

    def _lines(self) -> list[str]:
        origin = f"property `{self.property}`, seed {self.seed}"
        return [
            f"{self.controller}: {_MEANINGS[self.property]} ({origin})",
            f"  {self.detail}",
            "script",
            *(f"  {number}. {step}" for number, step in enumerate(self.script, start=1)),
            "faults"
            if self.processes == Division.ALONE.value
            else f"faults, with {self.processes}",
            *(f"  {fault}" for fault in self.faults or ("none",)),
            "last writes",
            *(f"  {write}" for write in self.writes or ("none",)),
            "hint",
            f"  {self.hint}",
        ]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulation: the number of runs, and the finding of the last run, if any."""

    controller: str
    runs: int
    seed: int
    finding: Finding | None = None
    interrupted: bool = False
    unread: tuple[str, ...] = ()
    """Buckets and kinds of given objects that the controller never opened."""

    def document(self) -> dict[str, Any]:
        """Return the report as `natsctl simulate -o json` prints it."""
        finding = self.finding
        return {
            "controller": self.controller,
            "runs": self.runs,
            "seed": self.seed if finding is None else finding.seed,
            "property": None if finding is None else finding.property,
            "hint": "" if finding is None else f"{finding.hint} ({finding.detail})",
            "script": [] if finding is None else list(finding.script),
            "faults": [] if finding is None else list(finding.faults),
            "writes": [] if finding is None else list(finding.writes),
            "unread": list(self.unread),
        }


def finding_of(subject: Subject, seed: int, ran: Ran) -> Finding:
    """Return the finding of a run that violates a property."""
    violation = ran.violation
    if violation is None:
        raise ValueError("the run violates no property")
    return Finding(
        controller=subject.name,
        seed=seed,
        property=violation.property.value,
        detail=violation.detail,
        hint=hint_of(violation, ran, subject),
        script=ran.script,
        faults=tuple(map(str, ran.faults)),
        writes=tuple(str(write).strip() for write in ran.writes[-WRITES_SHOWN:]),
        processes=ran.mode.value,
    )


_MEANINGS = {
    Property.SETTLES.value: "the controller does not become idle after the faults",
    Property.SAME_RESULT.value: "the result differs from a run without faults",
    Property.QUIET.value: "a resync writes although nothing changed",
    Property.CLEAN.value: "objects stay after their primary was deleted",
    Property.EXCLUSIVE.value: "two processes work on the same keys",
    Property.ALWAYS.value: "a write violates always=",
    Property.FINALLY.value: "the final state violates finally_=",
}
