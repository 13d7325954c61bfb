"""Runs the controller of a recording over replaying stores, and calls its handler once."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import only_primary
from natsctl.controller.slots.owners import OwnerNames
from natsctl.core.coordination.installation import INSTALLATION, KEY, Installation
from natsctl.core.informer import Informer
from natsctl.core.readers import Primary
from natsctl.core.recording.document import Recording
from natsctl.errors import UsageError
from natsctl.managed.controller import ManagedController
from natsctl.testing.memory import MemoryStores
from natsctl.testing.replaying.stores import ReplayCluster, ReplayStores
from natsctl.testing.replaying.world import World
from natsctl.watchers.controller import InformerController

CLASSES: Mapping[str, type[Any]] = {
    "controller": Controller,
    "managed": ManagedController,
    "watchers": InformerController,
}
"""The class of the controllers of each surface that has one."""


_Hosted = ControllerRuntime | ManagedController[Any] | InformerController

Begin = Callable[[Mapping[str, Informer[Any]]], None]
"""Called with the informers of the controller by name, before the change is handled."""

Handle = Callable[[Begin], Awaitable[float | None]]
"""Calls the handler once, as in the recorded sync; returns the delay, or raises its error.

It calls `Begin` before the handler.
"""


@asynccontextmanager
async def opened(
    controller: type[object], recorded: Recording, world: World
) -> AsyncIterator[Handle]:
    """Make the controller of a recording, open its stores, and call `start` and `clean`.

    Raises `UsageError` if the controller is of another kind than the recorded one.
    """
    wanted = CLASSES[recorded.surface]
    if not issubclass(controller, wanted):
        raise UsageError(_other_kind(controller, recorded, wanted))
    stores = MemoryStores()
    nats, cluster = ReplayStores(world, stores), ReplayCluster(world, stores.kube)
    await _install(stores, recorded.settings)
    instance = controller()
    hosted: _Hosted
    match instance:
        case Controller():
            names = msgspec.convert(recorded.settings.get("owner_names", {}), OwnerNames)
            hosted = ControllerRuntime(instance, nats=nats, kube=cluster, owner_names=names)
        case ManagedController() | InformerController():
            instance.use(nats=nats, kube=cluster)
            hosted = instance
        case _:
            raise UsageError(_other_kind(controller, recorded, wanted))
    async with hosted.opened():
        await hosted.complete()
        call = _call_of(hosted, recorded, world)

        async def handle(begin: Begin) -> float | None:
            begin(hosted.informers)
            return await call()

        await instance.start()
        try:
            yield handle
        finally:
            await instance.clean()


def _call_of(
    hosted: _Hosted, recorded: Recording, world: World
) -> Callable[[], Awaitable[float | None]]:
    """Return the recorded call of a handler; raises `UsageError` if it is of another part."""
    match hosted:
        case ControllerRuntime():
            slot = only_primary(type(hosted.controller)).name
            if slot not in recorded.slots:
                raise UsageError(f"the recording of {recorded.controller} has no slot {slot}")
            if world.last is not None:
                primary: Primary[Any] = vars(hosted.controller)[slot]
                primary.deleted_states[recorded.key] = world.last
            return partial(hosted.sync, recorded.key)
        case ManagedController():
            return partial(hosted.sync, recorded.key, last=world.last)
        case InformerController():
            if world.delivery is None:
                raise UsageError(f"the recording of {recorded.controller} has no change")
            hosted.check_watcher(world.delivery)
            return partial(hosted.deliver, recorded.key, world.delivery)


def _other_kind(controller: type[object], recorded: Recording, wanted: type[Any]) -> str:
    return (
        f"{controller.__name__} is no {wanted.__name__}, and the recording of "
        f"{recorded.controller} is of one"
    )


async def _install(stores: MemoryStores, settings: Mapping[str, Any]) -> None:
    """Give the memory stores the installation of the recorded daemon."""
    known = settings.get("installation")
    if known:
        store = await stores.open(INSTALLATION)
        await store.create(KEY, msgspec.json.encode(msgspec.convert(known, Installation)))
