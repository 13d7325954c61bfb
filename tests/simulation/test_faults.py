"""Each type of fault shows a bug that the same schedule without the fault does not show."""

from collections.abc import Callable

import msgspec
import pytest

from natsctl.testing import StoredObjects
from natsctl.testing.simulation.faults import CUTS, Choices, Fault, Faults, FaultType, SimulatedCall
from natsctl.testing.simulation.finding import hint_of
from natsctl.testing.simulation.objects import Desired
from natsctl.testing.simulation.process import Division
from natsctl.testing.simulation.run import Checks, Ran, Schedule
from natsctl.testing.simulation.script import Put, Remove, Step, StepPause
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import ControllerClass, subject_of
from tests.support.controllers import faulty, fragile
from tests.support.controllers.faulty import DOCUMENTS, SHOPS


def put(key: str, image: str, pause: StepPause = StepPause.IDLE) -> Put:
    return Put(Desired(SHOPS, key, {"spec": {"image": image}}), pause=pause)


ONE_SHOP = (put("a", "one"),)
TWO_VERSIONS = (put("a", "one"), put("a", "two"))
THERE_AND_BACK = (*TWO_VERSIONS, put("a", "one"))
REPLACED = (put("a", "one"), Remove(SHOPS, "a", StepPause.IDLE), put("a", "two", StepPause.NONE))


class Case(msgspec.Struct, frozen=True):
    controller: ControllerClass
    fault: FaultType
    operation: str
    target: str
    script: tuple[Step, ...] = ONE_SHOP
    seconds: float = 3.0
    numbers: tuple[int, ...] = (1,)
    always: Callable[[StoredObjects], None] | None = None
    hint: str = ""

    @property
    def faults(self) -> tuple[Fault, ...]:
        calls = [SimulatedCall(self.operation, self.target, number) for number in self.numbers]
        return tuple(Fault(self.fault, call, self.seconds) for call in calls)

    def run(self, *faults: Fault) -> Ran:
        mode = Division.ELECTED if self.fault in CUTS else Division.ALONE
        schedule = Schedule(0, self.script, faults, hurried=True, mode=mode)
        checks = Checks(always=self.always)
        with Simulation(subject_of(self.controller), DOCUMENTS, checks) as simulation:
            return simulation.run(schedule)


CASES = [
    Case(
        faulty.DoneBeforeDoing,
        FaultType.CRASH_BEFORE,
        "create",
        "parts/a",
        hint="the process crashed between two steps",
    ),
    Case(
        faulty.CreatesUnnamed, FaultType.CRASH_AFTER, "create", "cloud", hint="choose a fixed name"
    ),
    Case(faulty.CreatesUnnamed, FaultType.LOST_ANSWER, "create", "cloud"),
    Case(
        faulty.SwallowsErrors, FaultType.TIMEOUT, "create", "parts/a", hint="an error was swallowed"
    ),
    Case(fragile.IgnoresConflicts, FaultType.CONFLICT, "update", "signs/a", TWO_VERSIONS),
    Case(fragile.TriesTwice, FaultType.AWAY, "create", "parts/a", seconds=20.0),
    Case(fragile.GivesUpAfterAMinute, FaultType.JUMP, "read", "cloud", seconds=600.0),
    Case(
        fragile.IgnoresUpdates,
        FaultType.BREAK,
        "event",
        "shops/a",
        REPLACED,
        numbers=(2,),
        hint="missed an event",
    ),
    Case(
        fragile.OneAfterTheOther,
        FaultType.LAG,
        "event",
        "parts/a",
        (put("a", "one"), put("b", "one", StepPause.SHORT)),
        always=faulty.ports_are_unique,
    ),
    Case(fragile.GivesUpSlowCalls, FaultType.SLOW, "read", "cloud", seconds=20.0),
    Case(
        fragile.CreatesUnlessListed,
        FaultType.OLD,
        "read",
        "cloud",
        TWO_VERSIONS,
        numbers=(2,),
        hint="an old read",
    ),
    Case(
        fragile.RemembersWrites,
        FaultType.CUT,
        "update",
        "parts/a",
        THERE_AND_BACK,
        seconds=60.0,
        numbers=(1, 3),
        hint="another process led",
    ),
    Case(
        fragile.ReplacesSigns,
        FaultType.LATE,
        "delete",
        "signs/a",
        TWO_VERSIONS,
        seconds=60.0,
        hint="another process led",
    ),
]


def _name(case: Case) -> str:
    return case.fault.value


def test_every_type_of_fault_has_a_case() -> None:
    assert {case.fault for case in CASES} == set(FaultType)


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_a_fault_shows_a_bug_that_needs_it(case: Case) -> None:
    ran = case.run(*case.faults)
    assert ran.faults == case.faults
    assert ran.violation is not None
    assert case.hint in hint_of(ran.violation, ran, subject_of(case.controller))
    assert case.run().violation is None


@pytest.mark.parametrize(
    "fault", [FaultType.CRASH_BEFORE, FaultType.TIMEOUT], ids=lambda fault_type: fault_type.value
)
def test_the_hint_to_a_second_resource_names_the_missing_record(fault: FaultType) -> None:
    case = Case(faulty.CreatesUnnamed, fault, "update", "shops/a", numbers=(2,))
    ran = case.run(*case.faults)
    assert ran.violation is not None
    assert "choose a fixed name" in hint_of(ran.violation, ran, subject_of(case.controller))


@pytest.mark.parametrize("fault", FaultType, ids=lambda fault: fault.value)
def test_seeds_draw_every_type_of_fault(fault: FaultType) -> None:
    call = SimulatedCall("update", "shops/a", 1)
    drawn = (Faults(Choices(seed), group=True).at(call, (fault,)) for seed in range(200))
    assert any(drawn)
