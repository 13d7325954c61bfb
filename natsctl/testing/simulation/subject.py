"""Describes the class that a simulation runs."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.owned import Owned
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots import only_primary, slots
from natsctl.core.hosted import Hosted
from natsctl.daemon.loader import make
from natsctl.daemon.operator import Guest
from natsctl.errors import UsageError
from natsctl.managed.controller import ManagedController
from natsctl.model.kinds import Kind
from natsctl.testing.simulation.network import SimulatedCluster, SimulatedStores
from natsctl.testing.simulation.process import Division, MakeProgram

NEVER_S = 1e9  # the script decides when keys are synced again
ORPHANS_MAX = 1_000_000
METHODS = ("use", "run", "stop")  # of a `Guest`
FIELDS = ("name", "kinds", "synced")

ControllerClass: TypeAlias = type[Controller] | type[Guest]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The controller of a simulation.

    Attributes:
        make: makes a new instance over the stores of a process.
        primaries: the kinds whose objects are synced; documents without a bucket are of the first.
        kinds: all kinds that the controller declares, with the primaries first.
        made: the kinds of the objects that the controller makes; None if it declares none, and
            makes objects of the other kinds that it opens.
        touched: those that persons may change by hand, since each change enqueues the owner.
        cleans: whether the objects of a deleted primary are removed.
        modes: how three processes may divide the work; none if natsctl doesn't queue the keys.
    """

    name: str
    make: MakeProgram
    primaries: Sequence[Kind[Any]]
    kinds: Sequence[Kind[Any]]
    made: Sequence[Kind[Any]] | None = ()
    touched: Sequence[Kind[Any]] = ()
    cleans: bool = True
    modes: Sequence[Division] = (Division.ELECTED, Division.SHARED)
    module: ModuleType


def subject_of(controller: ControllerClass) -> Subject:
    """Return the subject for the class of a controller on any surface.

    Raises `UsageError` for another object, and for a class that cannot be created.
    """
    if not isinstance(controller, type):
        raise UsageError(f"{controller!r} is not a class: give the class of a controller")
    if issubclass(controller, Controller):
        return _subject_of_controller(controller)
    _check_members(controller, controller, METHODS)
    guest = make(controller, controller.__name__)
    _check_members(controller, guest, FIELDS)
    if not guest.kinds:
        raise UsageError(f"{controller.__name__} declares no kinds, so nothing would be synced")

    def make_guest(nats: SimulatedStores, kube: SimulatedCluster) -> Guest:
        made = controller()
        made.use(nats=nats, kube=kube)
        return made

    return Subject(
        name=guest.name,
        make=make_guest,
        primaries=tuple(guest.kinds),
        kinds=tuple(guest.kinds),
        made=() if isinstance(guest, ManagedController) else None,
        modes=(Division.ELECTED, Division.SHARED) if isinstance(guest, Hosted) else (),
        module=sys.modules[controller.__module__],
    )


def _check_members(controller: type[object], owner: object, names: Sequence[str]) -> None:
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        raise UsageError(
            f"{controller.__name__} cannot be simulated, since it has no {', '.join(missing)}: give"
            " a Controller, a ManagedController, an InformerController, or a class around a "
            f"Resource or a DynamicWatcher with {', '.join((*FIELDS, *METHODS))}"
        )


def _subject_of_controller(cls: type[Controller]) -> Subject:
    primary, declared = only_primary(cls).kind, list(slots(cls))
    owned_slots = [slot for slot in declared if issubclass(slot.role, Owned)]

    def make_runtime(nats: SimulatedStores, kube: SimulatedCluster) -> ControllerRuntime:
        controller = cls()
        controller.resync_s = NEVER_S
        controller.garbage = msgspec.structs.replace(
            controller.garbage, share_max=1.0, count_max=ORPHANS_MAX
        )
        return ControllerRuntime(controller, nats=nats, kube=kube)

    return Subject(
        name=cls.name,
        make=make_runtime,
        primaries=(primary,),
        kinds=(primary, *(slot.kind for slot in declared if slot.kind is not primary)),
        made=tuple(slot.kind for slot in owned_slots),
        touched=tuple(slot.kind for slot in owned_slots if slot.predicate is None),
        cleans=cls.deletion_policy == "delete",
        module=sys.modules[cls.__module__],
    )
