"""What tests of watchers share: a watcher that notes what it is told, and how to run it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from natsctl import Object, kv
from natsctl.errors import NotFoundError
from natsctl.model.store import ManifestStores, Store
from natsctl.testing.memory import MemoryStores
from natsctl.watchers import InformerController, Snapshot

A_MOMENT = 0.01


class SiteSpec(msgspec.Struct, frozen=True):
    text: str = "hi"


class Site(Object, frozen=True):
    spec: SiteSpec = SiteSpec()


SITES = kv(Site, bucket="sites")
FINALIZER = "operator.v1.Site.sites"
IN_PROGRESS = "operator.v1.Site.sites-wip"


class Notes:
    """A watcher that notes what it is told, and fails as often as it is told to."""

    def __init__(self, name: str = "", told: list[str] | None = None) -> None:
        self.told: list[str] = [] if told is None else told
        self.seen: list[Snapshot[Any]] = []
        self.failures = 0
        self.takes_s = 0.0
        self.error: Callable[[], Exception] = lambda: ValueError("told to")
        self._name = f"{name} " if name else ""

    async def add(self, new: Snapshot[Any]) -> None:
        await self.note(f"add {new.key} {text(new)}", new)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        await self.note(f"update {new.key} {text(old)} {text(new)}", new)

    async def delete(self, last: Snapshot[Any]) -> None:
        await self.note(f"delete {last.key} {text(last)}", last)

    async def sync(self, new: Snapshot[Any]) -> None:
        await self.note(f"sync {new.key} {text(new)}", new)

    async def note(self, what: str, seen: Snapshot[Any]) -> None:
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        failing = self.failures > 0
        self.failures -= failing
        self.told.append(f"{self._name}{what}{' fails' if failing else ''}")
        self.seen.append(seen)
        if failing:
            raise self.error()


def text(snapshot: Snapshot[Any]) -> str:
    """Return what a site says."""
    value: str = json.loads(snapshot.value)["spec"]["text"]
    return value


def site(text: str = "hi", status: object = None, **metadata: Any) -> bytes:
    """Return a site as it is stored; metadata in the wire's names."""
    whole = {"metadata": metadata, "spec": {"text": text}}
    return json.dumps(whole if status is None else {**whole, "status": status}).encode()


async def put(store: Store, key: str, value: bytes) -> int:
    """Write *value* and nothing else, over whatever is there."""
    try:
        revision = (await store.get(key)).revision
    except NotFoundError:
        return (await store.create(key, value)).revision
    return (await store.update(key, value, revision=revision)).revision


async def change(store: Store, key: str, *path: str, to: object) -> None:
    """Change one field of an object, as a program that knows nothing else of it does."""
    current = await store.get(key)
    whole = json.loads(current.value)
    inner = whole
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = to
    await store.update(key, json.dumps(whole).encode(), revision=current.revision)


async def mark_deleted(store: Store, key: str) -> None:
    """Have the object wait for its finalizers."""
    await change(store, key, "metadata", "deletionTimestamp", to="2026-01-01T00:00:00Z")


async def finalizers(store: Store, key: str) -> list[str]:
    """Return what holds the object."""
    found: list[str] = json.loads((await store.get(key)).value)["metadata"].get("finalizers", [])
    return found


@asynccontextmanager
async def running(
    controller: InformerController, stores: MemoryStores, kube: ManifestStores | None = None
) -> AsyncIterator["asyncio.Task[None]"]:
    """Run the controller until the context is left; begins once what is there was told."""
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
