"""Runs one handler on each surface: controller, watchers, managed, dynamic and resource."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from natsctl import (
    Controller,
    DynamicOptions,
    DynamicWatcher,
    EventKind,
    ManagedController,
    ManagedReconciler,
    ObjectIdentifier,
    Primary,
    Resource,
    Retry,
    SimpleWatcher,
    Snapshot,
    kv_kind,
    primary,
)
from natsctl.testing import MemoryStores
from natsctl.testing import running as running_controller
from natsctl.watchers import InformerController
from tests.support.stores.sample_objects import THINGS, Thing, value

Handle = Callable[[str], Awaitable[Any]]
"""A handler that is called with a key."""

Open = Callable[[Handle], AbstractAsyncContextManager[MemoryStores]]
"""A function that runs a surface, which calls the handler for every key of `things`."""

LIMIT_S = 10.0  # the time limit of a call, on each surface that has a limit


@asynccontextmanager
async def _controller(handle: Handle) -> AsyncIterator[MemoryStores]:
    class Things(Controller):
        things = primary(THINGS)
        sync_timeout_s = LIMIT_S

        async def sync_handler(self, key: str) -> float | None:
            return await handle(key)

    async with running_controller(Things()) as harness:
        yield harness.stores


@asynccontextmanager
async def _running(
    stop: Callable[[], None], work: Awaitable[None], ready: asyncio.Event
) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    await ready.wait()
    try:
        yield
    finally:
        stop()
        await task


@asynccontextmanager
async def _watchers(handle: Handle) -> AsyncIterator[MemoryStores]:
    async def add(new: Snapshot[Any]) -> None:
        await handle(new.key)

    stores = MemoryStores()
    controller = InformerController(
        name="things", nats=stores, timeout_s=LIMIT_S, retry_policy=lambda *_: Retry(1.0)
    )
    controller.add_informer(THINGS)
    controller.add_watcher(SimpleWatcher(add_func=add), THINGS)
    async with _running(controller.stop, controller.run(), controller.synced):
        yield stores


@asynccontextmanager
async def _managed(handle: Handle) -> AsyncIterator[MemoryStores]:
    class Reconciler(ManagedReconciler[Thing]):
        async def reconcile(self, key: str) -> float | None:
            return await handle(key)

    class Things(ManagedController[Thing]):
        kind = THINGS

        def reconciler(self, managed: Primary[Thing]) -> ManagedReconciler[Thing]:
            return Reconciler(managed)

    stores = MemoryStores()
    controller = Things(nats=stores)
    async with _running(controller.stop, controller.run(), controller.synced):
        yield stores


@asynccontextmanager
async def _dynamic(handle: Handle) -> AsyncIterator[MemoryStores]:
    async def reconcile(watcher: ObjectIdentifier) -> float | None:
        return await handle(watcher.name)

    stores = MemoryStores()
    options = DynamicOptions(reconcile_timeout_s=LIMIT_S, workers=4)
    controller = DynamicWatcher(reconcile, nats=stores, options=options)
    bucket = kv_kind("things")
    async with _running(controller.stop, controller.start(), controller.started):
        for name in ("bad", "good"):
            watcher = ObjectIdentifier(
                version="v1", kind="ConfigMap", namespace="default", name=name
            )
            watched = ObjectIdentifier(
                group=bucket.group, version=bucket.version, kind=bucket.kind, name=name
            )
            await controller.add_watcher(watcher, watched)
        yield stores


@asynccontextmanager
async def _resource(handle: Handle) -> AsyncIterator[MemoryStores]:
    async def read(resource: Resource[Thing]) -> None:
        async with resource.events() as events:
            async for event in events:
                async with event:
                    if event.kind is EventKind.UPSERT:
                        await handle(event.key)

    stores = MemoryStores()
    async with Resource(THINGS, stores) as resource:
        readers = [asyncio.create_task(read(resource))]
        await asyncio.sleep(0)
        yield stores
        resource.stop()
        await asyncio.gather(*readers)


SURFACES: dict[str, Open] = {
    "controller": _controller,
    "watchers": _watchers,
    "managed": _managed,
    "dynamic": _dynamic,
    "resource": _resource,
}


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on these surfaces; on all of them if none is named."""
    chosen = names or tuple(SURFACES)
    return pytest.mark.parametrize("surface", [SURFACES[name] for name in chosen], ids=chosen)


async def put(stores: MemoryStores, *keys: str) -> None:
    for key in keys:
        await stores.store(THINGS).create(key, value("hi"))
