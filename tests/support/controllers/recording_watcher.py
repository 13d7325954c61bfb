"""A watcher that records its calls, and helpers that write sites and run a controller."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from natsctl import Kind, Object, kv
from natsctl.model.store import ManifestStores, Store
from natsctl.testing import MemoryStore, MemoryStores
from natsctl.watchers import InformerController, OpinionatedWatcher, Snapshot
from tests.support.controllers.app_controller import edit

A_MOMENT = 0.01


class SiteSpec(msgspec.Struct, frozen=True):
    text: str = "hi"


class Site(Object, frozen=True):
    spec: SiteSpec = SiteSpec()


SITES = kv(Site, bucket="sites")
FINALIZER = "operator.v1.Site.sites"
IN_PROGRESS = "operator.v1.Site.sites-wip"


class Sites(MemoryStore):
    """The bucket of sites, with the stores that have it."""

    def __init__(self) -> None:
        super().__init__(SITES)
        self.stores = SiteStores(self)


class SiteStores(MemoryStores):
    """Memory stores whose bucket of sites is this one."""

    def __init__(self, sites: Sites) -> None:
        super().__init__()
        self._sites = sites

    def store(self, kind: Kind[Any]) -> MemoryStore:
        return self._sites if kind is SITES else super().store(kind)


class RecordingWatcher:
    """A watcher that records its calls, each of which takes `takes_s`, and fails the next ones."""

    def __init__(
        self,
        name: str = "",
        calls: list[str] | None = None,
        *,
        failures: int = 0,
        takes_s: float = 0.0,
    ) -> None:
        self.calls: list[str] = [] if calls is None else calls
        self.seen: list[Snapshot[Any]] = []
        self.failures = failures
        self.takes_s = takes_s
        self.error: Callable[[], Exception] = lambda: ValueError("on purpose")
        self._name = f"{name} " if name else ""

    async def add(self, new: Snapshot[Any]) -> None:
        await self.record(f"add {new.key} {text(new)}", new)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        await self.record(f"update {new.key} {text(old)} {text(new)}", new)

    async def delete(self, last: Snapshot[Any]) -> None:
        await self.record(f"delete {last.key} {text(last)}", last)

    async def sync(self, new: Snapshot[Any]) -> None:
        await self.record(f"sync {new.key} {text(new)}", new)

    async def record(self, call: str, seen: Snapshot[Any]) -> None:
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        failing = self.failures > 0
        self.failures -= failing
        self.calls.append(f"{self._name}{call}{' fails' if failing else ''}")
        self.seen.append(seen)
        if failing:
            raise self.error()


def watching(
    *watchers: RecordingWatcher | OpinionatedWatcher, **options: Any
) -> InformerController:
    """Return a controller with these watchers of sites."""
    controller = InformerController(name="sites", **options)
    controller.add_informer(SITES)
    for watcher in watchers:
        controller.add_watcher(watcher, SITES)
    return controller


def text(snapshot: Snapshot[Any]) -> str:
    value: str = json.loads(snapshot.value)["spec"]["text"]
    return value


def site(text: str = "hi", status: object = None, **metadata: Any) -> bytes:
    """Return the bytes of a site; metadata has the field names of the stored JSON."""
    changed = {"metadata": metadata, "spec": {"text": text}}
    return json.dumps(changed if status is None else {**changed, "status": status}).encode()


async def mark_deleted(store: Store, key: str) -> None:
    await edit(store, key, "metadata", "deletionTimestamp", to="2026-01-01T00:00:00Z")


async def finalizers(store: Store, key: str) -> list[str]:
    names: list[str] = json.loads((await store.get(key)).value)["metadata"].get("finalizers", [])
    return names


@asynccontextmanager
async def running(
    controller: InformerController, stores: MemoryStores, kube: ManifestStores | None = None
) -> AsyncIterator["asyncio.Task[None]"]:
    """Run a controller within the context, which begins after the calls for existing objects."""
    controller.use(nats=stores, kube=kube)
    task = asyncio.create_task(controller.run())
    synced = asyncio.create_task(controller.synced.wait())
    await asyncio.wait((task, synced), return_when=asyncio.FIRST_COMPLETED)
    synced.cancel()
    await asyncio.sleep(A_MOMENT)
    try:
        yield task
    finally:
        controller.stop()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
