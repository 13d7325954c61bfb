"""Runs the controller of a recording over replaying stores, and calls its handler once."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import only_primary
from natsctl.controller.slots.owners import OwnerNames
from natsctl.core.coordination.installation import INSTALLATION, KEY, Installation
from natsctl.core.insight.hosted import Hosted
from natsctl.core.objects.primary import Primary
from natsctl.core.recording.document import Recording
from natsctl.core.recording.noted_stores import NotedManifestStores, NotedStores
from natsctl.core.recording.recordings import Delivery
from natsctl.core.recording.redelivery import Begin
from natsctl.daemon.operator import Guest
from natsctl.errors import UsageError
from natsctl.managed.controller import ManagedController
from natsctl.testing.memory import MemoryStores
from natsctl.testing.replaying.program_subject import ProgramSubject
from natsctl.testing.replaying.stores import ReplayCluster, ReplayStores
from natsctl.testing.replaying.world import World
from natsctl.watchers.controller import InformerController

C = TypeVar("C", bound=Hosted)

CLASSES: Mapping[str, type[Any]] = {
    "controller": Controller,
    "managed": ManagedController,
    "watchers": InformerController,
}
"""The class of the controllers of each surface that has one."""


class ReplaySubject(Protocol):
    """A controller whose stores are open."""

    async def sync(self, begin: Begin) -> float | None:
        """Call the handler once, as in the recorded sync; return the delay, or raise its error.

        Calls *begin* before the handler.
        """
        ...


@asynccontextmanager
async def opened(
    controller: type[object], recorded: Recording, world: World
) -> AsyncIterator[ReplaySubject]:
    """Make the controller of a recording, open its stores, and call `start` and `clean`.

    Raises `UsageError` if the controller is of another kind than the recorded one.
    """
    wanted = CLASSES.get(recorded.surface)
    if not (_is_program(controller) if wanted is None else issubclass(controller, wanted)):
        raise UsageError(_other_kind(controller, recorded, wanted))
    stores = MemoryStores()
    nats, cluster = ReplayStores(world, stores), ReplayCluster(world, stores.kube)
    await _install(stores, recorded.settings)
    instance = controller()
    hosted: Hosted
    subject: _ControllerSubject | _ManagedSubject | _WatcherSubject
    match instance:
        case Controller():
            names = msgspec.convert(recorded.settings.get("owner_names", {}), OwnerNames)
            hosted = ControllerRuntime(instance, nats=nats, kube=cluster, owner_names=names)
            subject = _ControllerSubject(hosted, recorded, world)
        case ManagedController():
            instance.use(nats=nats, kube=cluster)
            hosted, subject = instance, _ManagedSubject(instance, recorded, world)
        case InformerController():
            instance.use(nats=nats, kube=cluster)
            hosted, subject = instance, _WatcherSubject(instance, recorded, world)
        case Guest():
            instance.use(nats=NotedStores(nats), kube=NotedManifestStores(cluster))
            yield ProgramSubject(instance, recorded, world)
            return
        case _:
            raise UsageError(_other_kind(controller, recorded, wanted))
    async with hosted.opened():
        await hosted.complete()
        subject.check()
        await instance.start()
        try:
            yield subject
        finally:
            await instance.clean()


class _Subject(ABC, Generic[C]):
    """A controller of one surface, with its recording."""

    def __init__(self, controller: C, recorded: Recording, world: World) -> None:
        self._controller = controller
        self._recorded = recorded
        self._world = world

    async def sync(self, begin: Begin) -> float | None:
        """See `ReplaySubject.sync`."""
        begin(self._controller.informers)
        return await self._sync()

    @abstractmethod
    async def _sync(self) -> float | None:
        """Call the handler."""


class _ControllerSubject(_Subject[ControllerRuntime]):
    @property
    def _slot(self) -> str:
        return only_primary(type(self._controller.controller)).name

    def check(self) -> None:
        if self._slot not in self._recorded.slots:
            name = self._recorded.controller
            raise UsageError(f"the recording of {name} has no slot {self._slot}")

    async def _sync(self) -> float | None:
        recorded, runtime = self._recorded, self._controller
        if self._world.last is not None:
            primary: Primary[Any] = vars(runtime.controller)[self._slot]
            primary.deleted_states[recorded.key] = self._world.last
        return await runtime.sync(recorded.key)


class _ManagedSubject(_Subject[ManagedController[Any]]):
    def check(self) -> None:
        """The controller has one handler."""

    async def _sync(self) -> float | None:
        return await self._controller.sync(self._recorded.key, last=self._world.last)


class _WatcherSubject(_Subject[InformerController]):
    def check(self) -> None:
        self._controller.check_watcher(self._delivery)

    async def _sync(self) -> float | None:
        await self._controller.deliver(self._recorded.key, self._delivery)
        return None

    @property
    def _delivery(self) -> Delivery:
        delivery = self._world.delivery
        if delivery is None:
            raise UsageError(f"the recording of {self._recorded.controller} has no change")
        return delivery


def _is_program(controller: type[object]) -> bool:
    """Return whether this may be a class of a user around a resource or a dynamic watcher."""
    return not issubclass(controller, Controller | Hosted)


def _other_kind(controller: type[object], recorded: Recording, wanted: type[Any] | None) -> str:
    name = controller.__name__
    if wanted is not None:
        return (
            f"{name} is no {wanted.__name__}, and the recording of {recorded.controller} is of one"
        )
    around = "Resource" if recorded.surface == "resource" else "DynamicWatcher"
    return (
        f"the recording of {recorded.controller} is of a class around a {around}: give a class "
        f"with name, kinds, synced, use, run and stop; {name} is none"
    )


async def _install(stores: MemoryStores, settings: Mapping[str, Any]) -> None:
    """Give the memory stores the installation of the recorded daemon."""
    known = settings.get("installation")
    if known:
        store = await stores.open(INSTALLATION)
        await store.create(KEY, msgspec.json.encode(msgspec.convert(known, Installation)))
