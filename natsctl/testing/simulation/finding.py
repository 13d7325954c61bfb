"""Presents the finding of a simulation, for people and for programs."""

from typing import Any

import msgspec

from natsctl.telemetry.hiding import abbreviated
from natsctl.testing.simulation.hints import hint_of
from natsctl.testing.simulation.properties import Property
from natsctl.testing.simulation.run import Ran
from natsctl.testing.simulation.subject import Subject
from natsctl.testing.simulation.world.process import Division

WRITES_SHOWN = 8
WIDTH = 110


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A property that a controller violates, with the shortest schedule that shows it.

    Attributes:
        seed: the seed of the run; `--seed` shows the finding again.
        property: the property that does not hold.
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
