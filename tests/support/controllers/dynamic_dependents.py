"""A running dynamic watcher that records its calls, and identifiers for the tests of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from natsctl import Kind, kube, kv
from natsctl.dynamic import (
    DynamicOptions,
    DynamicWatcher,
    GroupVersionKind,
    ObjectIdentifier,
    kv_kind,
)
from natsctl.testing import MemoryManifestStore, MemoryStore, MemoryStores
from tests.support.stores.documents import Document, put

SECRET = GroupVersionKind("", "v1", "Secret")
NODE = GroupVersionKind("", "v1", "Node")
LIMITS = kv_kind("limits")
CACHED = DynamicOptions(enable_cache=True)
QUIET = DynamicOptions(enable_cache=True, disable_initial_reconcile=True)

Reconcile = Callable[[ObjectIdentifier], Awaitable[float | None]]


def watcher_called(name: str) -> ObjectIdentifier:
    return ObjectIdentifier(version="v1", kind="ConfigMap", namespace="default", name=name)


def secret(name: str, namespace: str = "default") -> ObjectIdentifier:
    return ObjectIdentifier(version="v1", kind="Secret", namespace=namespace, name=name)


def secrets(selector: str = "", namespace: str = "default") -> ObjectIdentifier:
    return ObjectIdentifier(
        version="v1", kind="Secret", namespace=namespace, selector=selector, everything=not selector
    )


def limit(key: str = "", selector: str = "", namespace: str = "") -> ObjectIdentifier:
    return ObjectIdentifier(
        group="nats",
        version="kv",
        kind="limits",
        namespace=namespace,
        name=key,
        selector=selector,
        everything=not (key or selector),
    )


class HeldStores(MemoryStores):
    """Memory stores whose buckets cannot be opened between `hold` and `release`."""

    def __init__(self) -> None:
        super().__init__()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def hold(self) -> None:
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    async def open(self, kind: Kind[Any]) -> MemoryStore:
        await self._flowing.wait()
        return await super().open(kind)


class DynamicHarness:
    """A dynamic watcher over memory stores."""

    def __init__(self, stores: MemoryStores, options: DynamicOptions | None) -> None:
        self.stores = stores
        self.calls: list[str] = []  # the watchers for which the reconciler was called
        self.reconcile: Reconcile = self._nothing
        self.watcher = DynamicWatcher(self._called, nats=stores, kube=stores.kube, options=options)

    @property
    def secrets(self) -> MemoryManifestStore:
        return self.stores.kube.store(kube("v1", "Secret"))

    @property
    def nodes(self) -> MemoryManifestStore:
        return self.stores.kube.store(kube("v1", "Node"))

    @property
    def limits(self) -> MemoryStore:
        return self.stores.store(kv(bytes, bucket="limits"))

    @property
    def watches(self) -> int:
        return self.secrets.watches + self.nodes.watches + self.limits.watches

    async def put_secret(self, key: str, text: str = "hi", **labels: str) -> None:
        await put(self.secrets, key, {"metadata": {"labels": labels}, "data": {"text": text}})

    async def put_limit(self, key: str, limit: int = 1, **labels: str) -> None:
        await put(self.limits, key, {"metadata": {"labels": labels}, "spec": {"most": limit}})

    async def taken(self) -> list[str]:
        """Wait a second, and return the watchers that were called after the last `taken`.

        Each watcher is listed once, in the order of names.
        """
        await asyncio.sleep(1)
        calls, self.calls = self.calls, []
        return sorted(set(calls))

    async def _called(self, watcher: ObjectIdentifier) -> float | None:
        self.calls.append(watcher.name)
        return await self.reconcile(watcher)

    async def _nothing(self, watcher: ObjectIdentifier) -> float | None:
        return None


@asynccontextmanager
async def dynamic_harness(
    options: DynamicOptions | None = CACHED, *, stores: MemoryStores | None = None
) -> AsyncIterator[DynamicHarness]:
    harness = DynamicHarness(MemoryStores() if stores is None else stores, options)
    work = asyncio.create_task(harness.watcher.start())
    await asyncio.wait(
        (work, waiting := asyncio.create_task(harness.watcher.started.wait())),
        return_when=asyncio.FIRST_COMPLETED,
    )
    try:
        yield harness
    finally:
        waiting.cancel()
        harness.watcher.stop()
        await work


def content_of(document: Document | None) -> object:
    if document is None:
        return None
    return json.loads(json.dumps(document.get("data") or document.get("spec")))
