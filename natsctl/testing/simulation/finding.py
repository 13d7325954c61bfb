"""Presents the finding of a simulation, with its likely cause, for people and for programs."""
# ruff: noqa: ISC004 - each row of a table has two items

from collections import Counter
from typing import Any

import msgspec

from natsctl.telemetry.hiding import abbreviated
from natsctl.testing.simulation.faults import CRASHES, CUTS, FaultType
from natsctl.testing.simulation.process import Division
from natsctl.testing.simulation.properties import Property, StateDifference, Violation
from natsctl.testing.simulation.run import Ran
from natsctl.testing.simulation.script import Act, Put, Remove, StepAction
from natsctl.testing.simulation.subject import Subject

ERRORS = {FaultType.TIMEOUT, FaultType.AWAY, FaultType.LOST_ANSWER, FaultType.CONFLICT}
HANDS = {StepAction.EDIT, StepAction.REMOVE}
OLD_READS = {FaultType.LAG, FaultType.BREAK, FaultType.OLD}
WRITES_SHOWN = 8
WIDTH = 110


def hint_of(violation: Violation, ran: Ran, subject: Subject) -> str:
    """Return the likely cause of a violation."""
    faults = {fault.fault for fault in ran.faults}
    crashed, old_read = faults & CRASHES, faults and faults <= OLD_READS
    # each error of a call can have failed its sync, so that none was swallowed
    reported = not crashed and (not faults & ERRORS or ran.failed_syncs)
    taken = [step for step, done in ran.steps if done or isinstance(step, Put)]
    by_hand = any(isinstance(step, Act) and step.action in HANDS for step in taken)
    removed = any(isinstance(step, Remove) for step, _ in ran.steps)
    versions = Counter(step.desired.name for step in taken if isinstance(step, Put))
    synced = {kind.name for kind in subject.primaries}

    fails = violation.difference is StateDifference.FAILS
    ended = violation.difference is StateDifference.ENDED
    extra = violation.difference is StateDifference.EXTRA
    missing = violation.difference is StateDifference.MISSING
    hints: dict[Property, list[tuple[object, str]]] = {
        Property.SETTLES: [
            (
                fails and faults,
                "the handler cannot continue from the state that the faults left behind: begin "
                "each sync with what exists",
            ),
            (
                fails,
                "nothing around the handler failed: handle the state after these steps, or "
                "raise PermanentError if only a change of the object helps",
            ),
            (ended and crashed, "start() fails when the process starts again"),
            (ended, "start() or run() fails"),
            (
                violation.difference is StateDifference.GROWS,
                "a primary that a sync makes is synced too: give the chain an end",
            ),
            (True, "each sync enqueues its own key, or waits for something that never happens"),
        ],
        Property.SAME_RESULT: [
            (
                violation.difference is StateDifference.NAMES,
                "the names of objects differ between runs: they depend on randomness, on the "
                "memory of a process or on the order of keys",
            ),
            (
                extra and not faults,
                "an object that is no longer wanted stays: delete what exists and the spec does "
                "not name, also after a restart",
            ),
            (
                extra and not old_read and not removed,
                "a call took effect, and the process does not know that: choose a fixed name, "
                "so that a later sync finds the created object",
            ),
            (
                extra and not old_read,
                "a cleanup was lost: hold the object by a finalizer, clean up before the "
                "finalizer is removed, and let errors pass, so that the key is retried",
            ),
            (
                not extra and faults & CUTS,
                "another process led for a while: what this process remembers is old, or a "
                "write of the process before arrived late, so read the store in each sync, and "
                "watch what you write, as the secondaries of a Controller are watched",
            ),
            (
                not extra and crashed,
                "the process crashed between two steps: a status or another record states that "
                "the work is done before it is done",
            ),
            (
                old_read,
                "a sync decided by an old read or missed an event: compare with the newest state",
            ),
            (faults and reported, _NOT_REQUEUED),
            (
                faults,
                "a call failed, and the sync ended as done: an error was swallowed, or a status "
                "or the memory states that the work is done",
            ),
            (
                missing or by_hand,
                "an object that exists is taken for a right one, or a status or the memory "
                "states that it was made: ask the store in each sync",
            ),
            (
                any(kind not in synced for kind, _ in versions),
                "an object that is only read is not read again: read it in each sync",
            ),
            (
                max(versions.values(), default=0) > 1,
                "a change of the spec does not reach the object: an existing object is taken "
                "for a right one",
            ),
            (
                len(versions) > 1,
                "a field depends on the order in which keys are synced, such as a counter in "
                "memory",
            ),
            (True, "a field depends on the clock or on randomness"),
        ],
        Property.QUIET: [
            (violation.difference is StateDifference.LATE and reported, _NOT_REQUEUED),
            (
                faults,
                "a sync ended as done before its work was done, and only the resync finished "
                "it: an error was swallowed, or something was written after the sync that no "
                "change follows",
            ),
            (
                True,
                "a sync writes something else each time, such as a time, a counter or a random "
                "value, or deletes and creates again: compare before you write",
            ),
        ],
        Property.CLEAN: [
            (
                faults,
                "the cleanup can be lost: clean up before the finalizer is removed, and create "
                "only what a later sync finds by its name or by its owner",
            ),
            (
                True,
                "nothing deletes what the controller made: make it as a secondary, or hold the "
                "primary by a finalizer until it is deleted; keep= names buckets whose objects "
                "stay",
            ),
        ],
        Property.EXCLUSIVE: [
            (True, "natsctl itself broke a promise: please report the controller and the seed"),
        ],
        Property.ALWAYS: [
            (
                True,
                "two keys are synced at the same time, or a sync decides by a cache that lacks "
                "another key's write: reserve by creating an object whose key is what must be "
                "unique",
            ),
        ],
        Property.FINALLY: [
            (True, "the state is stable, and is not what finally_ demands"),
        ],
    }
    return next(hint for holds, hint in hints[violation.property] if holds)


_NOT_REQUEUED = (
    "a sync ended while work was left, and no error was swallowed: a status or the memory states "
    "that the work is done, or the sync waits for something: return the seconds until the next one"
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
        group = "" if self.processes == Division.ALONE.value else f", with {self.processes}"
        origin = f"property `{self.property}`, seed {self.seed}"
        lines = [
            f"{self.controller}: {_MEANINGS[self.property]} ({origin})",
            f"  {self.detail}",
            "script",
            *(f"  {number}. {step}" for number, step in enumerate(self.script, start=1)),
            f"faults{group}",
            *(f"  {fault}" for fault in self.faults or ("none",)),
            "last writes",
            *(f"  {write}" for write in self.writes or ("none",)),
            "hint",
            f"  {self.hint}",
        ]
        return "\n".join(abbreviated(line, 2 * WIDTH) for line in lines)


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


def finding_of(subject: Subject, seed: int, ran: Ran, violation: Violation) -> Finding:
    """Return the finding of a run that violates a property."""
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
