"""Describes the class that a simulation runs, and runs it as the program of a process."""

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
from natsctl.testing.simulation.world.process import Division, MakeProgram, life_of_task
from natsctl.testing.simulation.world.stores import SimulatedCluster, SimulatedStores

QUIET_S = 20.0  # without a call or an event, after which broken watches are open again


class HostedProgram:
    """A controller in a host, as the program of a process."""

    def __init__(self, hosted: Hosted) -> None:
        self.hosted = hosted
        self.run = hosted.run
        self.stop = hosted.stop
        self.synced = hosted.synced

    @property
    def idle(self) -> bool:
        return self.hosted.idle and self.hosted.host.failure is None

    def resync(self) -> None:
        """Sync every key again, if the controller has begun to work."""
        if self.hosted.synced.is_set() and not self.hosted.host.stopping:
            self.hosted.resync()

    def requested_s(self, keys: Sequence[str]) -> float | None:
        """Return the seconds until the last time that a sync of these keys asked for, if any."""
        if not self.hosted.host.informers:
            return None
        places = (self.hosted.explain(key).queued for key in keys)
        return max(
            (place.s for place in places if place and place.place == "waiting"), default=None
        )

    @property
    def failed_syncs(self) -> int:
        """The number of failed syncs since the start."""
        return self.hosted.status().failures if self.hosted.host.informers else 0

    @property
    def failing(self) -> dict[str, str]:
        """The error of each key whose last sync failed."""
        return self.hosted.status().failing if self.hosted.host.informers else {}


class GuestProgram:
    """A class of a user with a `Resource` or a `DynamicWatcher`, as the program of a process."""

    def __init__(self, guest: Guest) -> None:
        self.run = guest.run
        self.stop = guest.stop
        self.synced = guest.synced
        self._life = life_of_task()

    @property
    def idle(self) -> bool:
        """See `Program.idle`; also, nothing has passed the network for a while."""
        return (
            self.synced.is_set()
            and all(queue.settled for queue in self._life.queues)
            and self._life.network.quiet_s() > QUIET_S
        )


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
    _check_members(controller, METHODS)
    guest = make(controller, controller.__name__)
    _check_members(guest, FIELDS)
    return _subject_of_guest(controller, guest)


def _check_members(owner: object, names: Sequence[str]) -> None:
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        cls = owner if isinstance(owner, type) else type(owner)
        raise UsageError(
            f"{cls.__name__} cannot be simulated, since it has no {', '.join(missing)}: give a "
            "Controller, a ManagedController, an InformerController, or a class around a Resource "
            f"or a DynamicWatcher with {', '.join((*FIELDS, *METHODS))}"
        )


def _subject_of_controller(controller: type[Controller]) -> Subject:
    primary = only_primary(controller).kind
    declared = list(slots(controller))
    owned_slots = [slot for slot in declared if issubclass(slot.role, Owned)]
    return Subject(
        name=controller.name,
        make=lambda nats, kube: _controller(controller, nats, kube),
        primaries=(primary,),
        kinds=(primary, *(slot.kind for slot in declared if slot.kind is not primary)),
        made=tuple(slot.kind for slot in owned_slots),
        touched=tuple(slot.kind for slot in owned_slots if slot.predicate is None),
        cleans=controller.deletion_policy == "delete",
        module=sys.modules[controller.__module__],
    )


def _subject_of_guest(controller: type[Guest], guest: Guest) -> Subject:
    if not guest.kinds:
        raise UsageError(f"{controller.__name__} declares no kinds, so nothing would be synced")
    managed = isinstance(guest, ManagedController)
    return Subject(
        name=guest.name,
        make=lambda nats, kube: _guest(controller, nats, kube),
        primaries=tuple(guest.kinds),
        kinds=tuple(guest.kinds),
        made=() if managed else None,
        modes=(Division.ELECTED, Division.SHARED) if isinstance(guest, Hosted) else (),
        module=sys.modules[controller.__module__],
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


def _guest(
    cls: type[Guest], nats: SimulatedStores, kube: SimulatedCluster
) -> HostedProgram | GuestProgram:
    guest = cls()
    guest.use(nats=nats, kube=kube)
    return HostedProgram(guest) if isinstance(guest, Hosted) else GuestProgram(guest)
