"""Simulation finds each of these bugs within 500 runs, and passes the same controllers without.

Other bugs are in `test_versions.py`, with all that their findings say.
"""

import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from natsctl.testing import Finding, SimulationError, StoredObjects, simulate
from tests.support.controllers import faulty, fragile

RUNS_MAX = 500
STEPS_MAX = 10
FAULTS_MAX = 3
LINES_MAX, COLUMNS = 40, 100  # a screen


class Case(msgspec.Struct, frozen=True):
    controller: type[Any]
    property: str = ""
    hint: str = ""
    text: str = ""  # of the finding
    always: Callable[[StoredObjects], None] | None = None
    objects: tuple[dict[str, Any], ...] = faulty.DOCUMENTS
    ignore: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    seed: int = 0  # of the first run; for a rare bug a later one saves time

    def simulate(self, runs: int, seed: int = 0) -> None:
        simulate(
            self.controller,
            objects=self.objects,
            runs=runs,
            seed=seed,
            always=self.always,
            ignore=self.ignore,
            keep=self.keep,
        )

    def finding(self, runs: int = RUNS_MAX, seed: int | None = None) -> Finding:
        with pytest.raises(SimulationError) as caught:
            self.simulate(runs, self.seed if seed is None else seed)
        return caught.value.finding


class FailsIfDeleted(faulty.FixedNames):
    async def sync_handler(self, key: str) -> None:
        if self.shops.get(key) is None:
            raise ValueError(key)
        await super().sync_handler(key)


BUGS = [
    Case(faulty.CountedNames, "same result", "a counter in memory"),
    Case(faulty.TimeInSpec, "quiet", "a time"),
    Case(faulty.ExistsIsRight, "same result", "is taken for a right one"),
    Case(faulty.RemembersInMemory, "same result", "the memory states that it was made"),
    Case(faulty.RestlessStatus, "quiet", "compare before you write"),
    Case(faulty.DoneBeforeDoing, "same result", "a status"),
    Case(faulty.LeavesRenamed, "same result", "no longer wanted stays"),
    Case(faulty.DeletesAllFirst, "quiet", "deletes and creates again"),
    Case(
        faulty.SamePort,
        "always",
        "two keys are synced at the same time",
        always=faulty.ports_are_unique,
    ),
    Case(faulty.StaleQuota, "always", "lacks another key's write", always=faulty.quota_holds),
    Case(
        faulty.ReadsConfigAtStart, "same result", "read it in each sync", objects=faulty.WITH_CONFIG
    ),
    Case(faulty.ReliesOnOrder, "same result", "the order in which keys are synced"),
    Case(faulty.CreatesUnnamed, "same result", "choose a fixed name"),
    Case(faulty.ReleasesFirst, "same result", "clean up before the finalizer is removed", seed=80),
    Case(
        fragile.AlwaysFails, "settles", "nothing around the handler failed", text=" still fails: "
    ),
    Case(FailsIfDeleted, "settles", text=" fails after its deletion: "),
    Case(
        faulty.ChargesOnce,
        "same result",
        "a change of the spec does not reach the object",
        keep=("cards",),
    ),
    Case(faulty.WaitsInVain, "quiet", "return the seconds until the next one"),
]
CORRECT = [
    Case(faulty.FixedNames),
    Case(faulty.TimeOfCreation),
    Case(faulty.ReportsErrors),
    Case(faulty.MakesSoonAfter),
    Case(faulty.DoneAfterDoing),
    Case(faulty.DeletesRenamed),
    Case(faulty.DeletesUnwanted),
    Case(faulty.ReservedQuota, always=faulty.quota_holds, ignore=("parts",)),
    Case(faulty.ReservedPort, always=faulty.ports_are_unique, ignore=("parts",)),
    Case(faulty.ReadsConfig, objects=faulty.WITH_CONFIG),
    Case(faulty.ReadsByName, objects=faulty.WITH_CONFIG),
    Case(faulty.Finalized),
    Case(faulty.ManagedShops),
]


def _name(case: Case) -> str:
    return case.controller.__name__


@pytest.mark.parametrize("case", BUGS, ids=_name)
def test_a_bug_is_found_and_its_finding_is_small(case: Case) -> None:
    finding = case.finding()
    assert finding.property == case.property
    assert case.hint in finding.hint
    assert case.text in str(finding)
    assert len(finding.script) <= STEPS_MAX
    assert len(finding.faults) <= FAULTS_MAX
    assert sum(-(-len(line) // COLUMNS) for line in str(finding).splitlines()) <= LINES_MAX


def test_the_seed_of_a_finding_shows_it_again() -> None:
    case = BUGS[0]
    finding = case.finding()
    assert case.finding(1, finding.seed) == finding


def test_primaries_that_make_primaries_without_an_end_are_a_finding() -> None:
    finding = Case(faulty.MakesShops, objects=({"key": "a", "spec": {}},)).finding(1)
    assert (finding.property, finding.faults) == ("settles", ())
    assert "primaries, and make more" in finding.detail
    assert "give the chain an end" in finding.hint


def test_objects_that_the_controller_never_opens_are_reported() -> None:
    unknown = {"bucket": "confgs", "key": "all", "spec": {"registry": "one"}}
    report = simulate(faulty.FixedNames, objects=(*faulty.DOCUMENTS, unknown), runs=3)
    assert report.unread == ("confgs",)
    read = simulate(faulty.ReadsByName, objects=faulty.WITH_CONFIG, runs=3)
    assert read.unread == ()


def test_an_interrupted_simulation_does_not_count_as_passed() -> None:
    interrupts = iter([signal.SIGINT])

    def interrupt(_objects: StoredObjects) -> None:
        for number in interrupts:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        simulate(faulty.FixedNames, objects=faulty.DOCUMENTS, runs=3, always=interrupt)


@pytest.mark.parametrize(
    "runs", [4, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("case", CORRECT, ids=_name)
def test_a_correct_controller_passes(case: Case, runs: int) -> None:
    case.simulate(runs)
