"""Schedules that once showed a bug of natsctl."""

import msgspec
import pytest

from natsctl.testing.simulation.objects import Desired
from natsctl.testing.simulation.run import Checks, Schedule
from natsctl.testing.simulation.script import Put, Remove, Step, StepPause, Wait
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import subject_of
from natsctl.testing.simulation.world.faults import Fault, FaultType, SimulatedCall
from tests.support.controllers.faulty import DOCUMENTS, SHOPS, DoneAfterDoing


def put(key: str, image: str, pause: StepPause = StepPause.IDLE) -> Put:
    return Put(Desired(SHOPS, key, {"spec": {"image": image}}), pause=pause)


class Found(msgspec.Struct, frozen=True):
    script: tuple[Step, ...]
    faults: tuple[Fault, ...]


RESTORED_SPEC = Found(
    (put("a", "one"), put("a", "two"), put("a", "one", StepPause.NONE)),
    (Fault(FaultType.BREAK, SimulatedCall("event", "shops/a", 3)),),
)
UNSAVED_RECORD = Found(
    (
        put("a", "one", StepPause.NONE),
        put("b", "one", StepPause.NONE),
        Wait(1.0),
        Remove(SHOPS, "a"),
    ),
    (
        Fault(FaultType.AWAY, SimulatedCall("create", "natsctl/gc.doneafterdoing", 1), 0.5),
        Fault(FaultType.CRASH_AFTER, SimulatedCall("create", "parts/b", 1), 3.0),
    ),
)


@pytest.mark.parametrize("found", [RESTORED_SPEC, UNSAVED_RECORD], ids=["spec", "record"])
def test_a_bug_that_was_found_before_stays_mended(found: Found) -> None:
    schedule = Schedule(0, found.script, found.faults, hurried=True)
    with Simulation(subject_of(DoneAfterDoing), DOCUMENTS, Checks()) as simulation:
        ran = simulation.run(schedule)
    assert ran.violation is None
    assert ran.faults == found.faults
