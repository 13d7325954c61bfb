"""Schedules that once showed a bug of natsctl or of its simulation."""

import msgspec
import pytest

from natsctl.testing.simulation.faults import Fault, FaultType, SimulatedCall
from natsctl.testing.simulation.objects import Desired
from natsctl.testing.simulation.run import Checks, Schedule
from natsctl.testing.simulation.script import Act, Put, Remove, Step, StepAction, StepPause
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import ControllerClass, subject_of
from tests.support.controllers.careful import ManagedShops
from tests.support.controllers.faulty import (
    CONFIGS,
    DOCUMENTS,
    SHOPS,
    DoneAfterDoing,
    ReadsConfig,
)


def put(key: str, image: str, pause: StepPause = StepPause.IDLE) -> Put:
    return Put(Desired(SHOPS, key, {"spec": {"image": image}}), pause=pause)


class Found(msgspec.Struct, frozen=True):
    script: tuple[Step, ...]
    faults: tuple[Fault, ...]
    controller: ControllerClass = DoneAfterDoing
    seed: int | None = None  # decides how long calls take; by default they take no time


RESTORED_SPEC = Found(
    (put("a", "one"), put("a", "two"), put("a", "one", StepPause.NONE)),
    (Fault(FaultType.BREAK, SimulatedCall("event", "shops/a", 3)),),
)
UNSAVED_RECORD = Found(
    (
        put("a", "one", StepPause.NONE),
        put("b", "one", StepPause.NONE),
        Act(StepAction.WAIT, seconds=1.0),
        Remove(SHOPS, "a"),
    ),
    (
        Fault(FaultType.AWAY, SimulatedCall("create", "natsctl/gc.doneafterdoing", 1), 0.5),
        Fault(FaultType.CRASH_AFTER, SimulatedCall("create", "parts/b", 1), 3.0),
    ),
)

RESYNC_AFTER_A_JUMP = Found(
    (
        put("b", "one"),
        Put(Desired(CONFIGS, "all", {"spec": {"registry": "one"}}), pause=StepPause.SHORT),
        Act(StepAction.RESYNC, pause=StepPause.SHORT),
    ),
    (
        Fault(FaultType.JUMP, SimulatedCall("get", "natsctl/gc.readsconfig", 1), 600.0),
        Fault(FaultType.BREAK, SimulatedCall("event", "configs/all", 1)),
        Fault(FaultType.JUMP, SimulatedCall("create", "parts/b", 1), 600.0),
    ),
    ReadsConfig,
    seed=9004548,
)

PUT_DURING_A_STOP = Found(  # a process that stops isn't idle, although its queue is empty
    (
        Act(StepAction.STOP, pause=StepPause.IDLE),
        Remove(SHOPS, "c", pause=StepPause.IDLE),
        put("a", "one", StepPause.NONE),
    ),
    (),
    ManagedShops,
)


@pytest.mark.parametrize(
    "found",
    [RESTORED_SPEC, UNSAVED_RECORD, RESYNC_AFTER_A_JUMP, PUT_DURING_A_STOP],
    ids=["spec", "record", "resync", "stop"],
)
def test_a_bug_that_was_found_before_stays_corrected(found: Found) -> None:
    schedule = Schedule(found.seed or 0, found.script, found.faults, hurried=found.seed is None)
    with Simulation(subject_of(found.controller), DOCUMENTS, Checks()) as simulation:
        ran = simulation.run(schedule)
    assert ran.violation is None
    assert set(ran.faults) == set(found.faults)
