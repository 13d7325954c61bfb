"""Describes the controller of a simulation, and runs it as the program of a process."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import only_primary, slots
from natsctl.controller.slots.owned import Owned
from natsctl.core.insight.hosted import Hosted
from natsctl.errors import UsageError
from natsctl.managed.controller import ManagedController
from natsctl.model.kinds import Kind
from natsctl.testing.simulation.process import MakeProgram
from natsctl.testing.simulation.stores import SimulatedCluster, SimulatedStores

NEVER_S = 1e9  # the script decides when keys are synced again
ORPHANS_MAX = 1_000_000

ControllerClass: TypeAlias = type[Controller] | type[ManagedController[Any]]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The controller of a simulation.

    Attributes:
        name: the controller's name.
        make: makes a new instance over the stores of a process.
        primary: the kind whose keys are synced.
        kinds: all kinds that the controller declares, with the primary first.
        made: the kinds of the objects that the controller makes.
        touched: those that persons may change by hand, since each change enqueues the owner.
        cleans: whether the objects of a deleted primary are removed.
        module: the module of the controller.
    """

    name: str
    make: MakeProgram
    primary: Kind[Any]
    kinds: Sequence[Kind[Any]]
    made: Sequence[Kind[Any]] = ()
    touched: Sequence[Kind[Any]] = ()
    cleans: bool = True
    module: ModuleType


class HostedProgram:
    """A controller in a host, as the program of a process."""

    def __init__(self, hosted: ControllerRuntime | ManagedController[Any]) -> None:
        self.hosted: Hosted = hosted
        self.run = hosted.run
        self.stop = hosted.stop

    @property
    def idle(self) -> bool:
        """See `Program.idle`."""
        return self.hosted.idle and self.hosted.failure is None

    def resync(self) -> None:
        """Sync every key again, if the controller has begun to work."""
        if self.hosted.synced.is_set() and not self.hosted.stopping:
            self.hosted.resync()

    def requested_s(self, keys: Sequence[str]) -> float:
        """Return the seconds until the last time that a sync of these keys asked for; 0 if none."""
        if not self.hosted.prepared:
            return 0.0
        places = (self.hosted.explain(key).queued for key in keys)
        return max((place.s for place in places if place and place.place == "waiting"), default=0.0)

    @property
    def failing(self) -> dict[str, str]:
        """The error of each key whose last sync failed."""
        return self.hosted.status().failing if self.hosted.prepared else {}


def subject_of(controller: ControllerClass) -> Subject:
    """Return the subject for a controller class; raises `UsageError` for another class."""
    module = sys.modules[controller.__module__]
    if issubclass(controller, Controller):
        return _subject_of_controller(controller, module)
    if issubclass(controller, ManagedController):
        return Subject(
            name=controller.name,
            make=lambda nats, kube: _managed(controller, nats, kube),
            primary=controller.kind,
            kinds=(controller.kind,),
            module=module,
        )
    raise UsageError(f"{controller!r} is neither a Controller nor a ManagedController")


def _subject_of_controller(controller: type[Controller], module: ModuleType) -> Subject:
    primary = only_primary(controller).kind
    declared = list(slots(controller))
    made = [slot for slot in declared if issubclass(slot.role, Owned)]
    return Subject(
        name=controller.name,
        make=lambda nats, kube: _controller(controller, nats, kube),
        primary=primary,
        kinds=(primary, *(slot.kind for slot in declared if slot.kind is not primary)),
        made=tuple(slot.kind for slot in made),
        touched=tuple(slot.kind for slot in made if slot.predicate is None),
        cleans=controller.deletion_policy == "delete",
        module=module,
    )


def _controller(
    cls: type[Controller], nats: SimulatedStores, kube: SimulatedCluster
) -> HostedProgram:
    controller = cls()
    controller.resync_s = NEVER_S
    controller.garbage = msgspec.structs.replace(
        controller.garbage, share_max=1.0, count_max=ORPHANS_MAX
    )
    return HostedProgram(ControllerRuntime(controller, nats=nats, kube=kube))


def _managed(
    cls: type[ManagedController[Any]], nats: SimulatedStores, kube: SimulatedCluster
) -> HostedProgram:
    controller = cls()
    controller.use(nats=nats, kube=kube)
    return HostedProgram(controller)
