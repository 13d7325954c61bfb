"""Schedules that once showed a bug of natsctl or of its simulation."""

import msgspec
import pytest

from natsctl.testing.simulation.faults import Fault, FaultType, SimulatedCall
from natsctl.testing.simulation.objects import Desired
from natsctl.testing.simulation.process import Division
from natsctl.testing.simulation.properties import Property
from natsctl.testing.simulation.run import Checks, Ran, Schedule
from natsctl.testing.simulation.script import Act, Put, Remove, Step, StepAction, StepPause
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import ControllerClass, subject_of
from tests.support.controllers.careful import WIDGETS, ManagedInACluster, ManagedShops, documents_of
from tests.support.controllers.faulty import CONFIGS, SHOPS, DoneAfterDoing, ReadsConfig
from tests.support.controllers.simulated_surfaces import SignsOfShops


def put(key: str, image: str, pause: StepPause = StepPause.IDLE) -> Put:
    return Put(Desired(SHOPS, key, {"spec": {"image": image}}), pause=pause)


def widget(image: str) -> Desired:
    manifest = {"apiVersion": WIDGETS.api_version, "kind": WIDGETS.kind}
    metadata = {"name": "c", "namespace": "default"}
    return Desired(
        WIDGETS, "default/c", {**manifest, "metadata": metadata, "spec": {"image": image}}
    )


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


APPLIED_DURING_A_STOP = Found(  # the object keeps its link, so its resource goes with it
    (
        Put(widget("httpd"), pause=StepPause.IDLE),
        Act(StepAction.STOP, pause=StepPause.IDLE),
        Put(widget("httpdx")),
        Remove(WIDGETS, "default/c", pause=StepPause.SHORT),
    ),
    (),
    ManagedInACluster,
)
LATE_WRITE = Found(
    (put("c", "one"), put("c", "two"), put("c", "one", StepPause.SHORT)),
    (Fault(FaultType.LATE, SimulatedCall("update", "signs/c", 1), 20.0),),
    SignsOfShops,
    seed=9280,
)


def run(found: Found, *, mode: Division = Division.ALONE, hurried: bool) -> Ran:
    schedule = Schedule(found.seed or 0, found.script, found.faults, hurried=hurried, mode=mode)
    subject = subject_of(found.controller)
    objects = documents_of(tuple(subject.primaries))
    with Simulation(subject, objects, Checks()) as simulation:
        return simulation.run(schedule)


@pytest.mark.parametrize(
    "found",
    [RESTORED_SPEC, UNSAVED_RECORD, RESYNC_AFTER_A_JUMP, PUT_DURING_A_STOP, APPLIED_DURING_A_STOP],
    ids=["spec", "record", "resync", "stop", "apply"],
)
def test_a_bug_that_was_found_before_stays_corrected(found: Found) -> None:
    ran = run(found, hurried=found.seed is None)
    assert ran.violation is None
    assert set(ran.faults) == set(found.faults)


def test_a_late_write_of_a_former_leader_stays_where_nobody_watches() -> None:
    """The known limit that docs/adr/0002 states: nothing compares a write with a lease."""
    violation = run(LATE_WRITE, mode=Division.ELECTED, hurried=True).violation
    assert violation is not None
    assert violation.property is Property.SAME_RESULT
    assert "signs/c: image is" in violation.detail
