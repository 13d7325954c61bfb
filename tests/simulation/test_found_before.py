"""Schedules that once showed a bug of natsctl."""

import msgspec
import pytest

from natsctl.testing.simulation.objects import Desired
from natsctl.testing.simulation.run import Checks, Schedule
from natsctl.testing.simulation.script import Pause, Put, Remove, Step, Wait
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import subject_of
from natsctl.testing.simulation.world.faults import Call, Fault, FaultType
from tests.support.controllers.faulty import DOCUMENTS, SHOPS, DoneAfterDoing


def put(key: str, image: str, pause: Pause = Pause.IDLE) -> Put:
    return Put(Desired(SHOPS, key, {"spec": {"image": image}}), pause=pause)


class Found(msgspec.Struct, frozen=True):
    script: tuple[Step, ...]
    faults: tuple[Fault, ...]


RESTORED_SPEC = Found(
    (put("a", "one"), put("a", "two"), put("a", "one", Pause.NONE)),
    (Fault(FaultType.BREAK, Call("event", "shops/a", 3)),),
)
UNSAVED_RECORD = Found(
    (
        put("a", "one", Pause.NONE),
        put("b", "one", Pause.NONE),
        Wait(1.0),
        Remove(SHOPS, "a"),
    ),
    (
        Fault(FaultType.AWAY, Call("create", "natsctl/gc.doneafterdoing", 1), 0.5),
        Fault(FaultType.CRASH_AFTER, Call("create", "parts/b", 1), 3.0),
    ),
)


@pytest.mark.parametrize("found", [RESTORED_SPEC, UNSAVED_RECORD], ids=["spec", "record"])
def test_a_bug_that_was_found_before_stays_mended(found: Found) -> None:
    schedule = Schedule(0, found.script, found.faults, hurried=True)
    with Simulation(subject_of(DoneAfterDoing), DOCUMENTS, Checks()) as simulation:
        ran = simulation.run(schedule)
    assert ran.violation is None
    assert ran.faults == found.faults
