"""Watchers and classes around a Resource and a DynamicWatcher, right and with one bug each."""

import asyncio
from contextlib import suppress
from typing import Any

from natsctl import (
    DynamicOptions,
    DynamicWatcher,
    EventKind,
    InformerController,
    Kind,
    NotFoundError,
    ObjectIdentifier,
    OpinionatedWatcher,
    Resource,
    SimpleWatcher,
    Snapshot,
    StoppedError,
    Stores,
    kv,
    kv_kind,
)
from natsctl.model.store import Applied, Listed, Store
from tests.support.controllers.faulty import SHOPS
from tests.support.stores import documents

SIGNS = kv(dict, bucket="signs")


async def hang(signs: Store, key: str, image: str) -> None:
    """Store the sign of a shop, unless it is stored already."""
    value = SIGNS.encode(None, {"image": image})
    try:
        stored = await signs.get(key)
    except NotFoundError:
        await signs.create(key, value)
    else:
        if stored.value != value:
            await signs.update(key, value, revision=stored.revision)


async def take_down(signs: Store, key: str) -> None:
    with suppress(NotFoundError):
        await signs.delete(key, revision=(await signs.get(key)).revision)


class SignsOfShops(InformerController):
    """Hangs a sign for each shop, and holds each shop until its sign is taken down."""

    kind: Kind[Any] = SHOPS

    def __init__(self) -> None:
        super().__init__()
        self.add_informer(self.kind)
        self.add_watcher(self.watcher(), self.kind)

    def watcher(self) -> Any:
        return OpinionatedWatcher(
            self.kind,
            add_func=self.shown,
            update_func=self.changed,
            delete_func=self.gone,
            sync_func=self.shown,
        )

    async def start(self) -> None:
        self.signs = await self.open(SIGNS)

    async def shown(self, shop: Snapshot[Any]) -> None:
        await hang(self.signs, shop.key, shop.object.spec.image)

    async def changed(self, _old: Snapshot[Any], new: Snapshot[Any]) -> None:
        await self.shown(new)

    async def gone(self, shop: Snapshot[Any]) -> None:
        await take_down(self.signs, shop.key)


class MissesDeletions(SignsOfShops):
    """Does not notice a shop that is deleted while no process runs."""

    def watcher(self) -> SimpleWatcher:
        return SimpleWatcher(add_func=self.shown, update_func=self.changed, delete_func=self.gone)


class KeepsSigns(SignsOfShops):
    async def gone(self, shop: Snapshot[Any]) -> None:
        """Leave the sign."""


class _Guest:
    """A class that natsctl runs, around something that reads shops."""

    name = "signs"
    kinds: tuple[Kind[Any], ...] = (SHOPS,)

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.nats: Stores | None = None

    def use(self, *, nats: Stores | None = None, kube: Stores | None = None) -> None:
        self.nats = nats


class StreamedSigns(_Guest):
    """Hangs a sign for each shop of a `Resource`, and takes down signs without a shop."""

    sweeps = True

    def use(self, *, nats: Stores | None = None, kube: Stores | None = None) -> None:
        assert nats is not None
        self.nats, self.resource = nats, Resource(SHOPS, nats)

    def stop(self) -> None:
        self.resource.stop()

    async def run(self) -> None:
        assert self.nats is not None
        self.signs = await self.nats.open(SIGNS)
        with suppress(StoppedError):
            async with self.resource, self.resource.events() as events:
                async for event in events:
                    async with event:
                        await self._handle(event)

    async def _handle(self, event: Any) -> None:
        match event.kind:
            case EventKind.UPSERT:
                await hang(self.signs, event.key, event.object.spec.image)
            case EventKind.DELETE:
                await take_down(self.signs, event.key)
            case EventKind.SYNC:
                if self.sweeps:
                    await self._take_down_others()
                self.synced.set()

    async def _take_down_others(self) -> None:
        shops = set((await self.resource.store()).iter_keys())
        async with self.signs.watch() as events:
            async for event in events:
                match event:
                    case Applied(stored=stored) if stored.key not in shops:
                        await take_down(self.signs, stored.key)
                    case Listed():
                        return
                    case _:
                        pass


class StreamedWithoutSweep(StreamedSigns):
    """Leaves the signs of shops that are deleted while no process runs."""

    sweeps = False


class WatchedSigns(_Guest):
    """Hangs one sign for all shops of a `DynamicWatcher`."""

    watcher = ObjectIdentifier(group="nats", version="kv", kind="signs", name="all")

    def use(self, *, nats: Stores | None = None, kube: Stores | None = None) -> None:
        assert nats is not None
        self.nats = nats
        self._one_at_a_time = asyncio.Lock()
        options = DynamicOptions(enable_cache=True)
        self.dynamic = DynamicWatcher(self._reconcile, nats=nats, options=options)

    def stop(self) -> None:
        self.dynamic.stop()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.dynamic.start())
            await self.dynamic.started.wait()
            await self._reconcile(self.watcher)  # also if the last shop was deleted before
            self.synced.set()

    async def _reconcile(self, watcher: ObjectIdentifier) -> float | None:
        assert self.nats is not None
        async with self._one_at_a_time:  # the first call and one of an event
            async with self.dynamic.query_batch(watcher):
                shops = await self.dynamic.list(watcher, kv_kind("shops"), namespace="")
            await self._write(sorted(str(documents.metadata_of(shop)["name"]) for shop in shops))
        return None

    async def _write(self, names: list[str]) -> None:
        assert self.nats is not None
        signs = await self.nats.open(SIGNS)
        if names:
            await hang(signs, "all", " ".join(names))
        else:
            await take_down(signs, "all")


class WatchedWithoutRetry(WatchedSigns):
    async def _write(self, names: list[str]) -> None:
        with suppress(Exception):
            await super()._write(names)
