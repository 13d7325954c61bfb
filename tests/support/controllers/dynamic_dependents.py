"""What the plays of dynamic watches share: a dynamic watcher that runs, and notes its calls."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from natsctl import Kind, NotFoundError, kube, kv
from natsctl.dynamic import (
    DynamicOptions,
    DynamicWatcher,
    GroupVersionKind,
    ObjectIdentifier,
    kv_kind,
)
from natsctl.model.documents import Document
from natsctl.testing.cluster import MemoryManifestStore
from natsctl.testing.memory import MemoryStore, MemoryStores
from tests.support.controllers.app_controller import put

SECRET = GroupVersionKind("", "v1", "Secret")
NODE = GroupVersionKind("", "v1", "Node")
LIMITS = kv_kind("limits")
CACHED = DynamicOptions(enable_cache=True)
QUIET = DynamicOptions(enable_cache=True, disable_initial_reconcile=True)

Reconcile = Callable[[ObjectIdentifier], Awaitable[float | None]]


def watcher_called(name: str) -> ObjectIdentifier:
    """Return who watches."""
    return ObjectIdentifier(version="v1", kind="ConfigMap", namespace="default", name=name)


def secret(name: str, namespace: str = "default") -> ObjectIdentifier:
    """Return a secret's identifier."""
    return ObjectIdentifier(version="v1", kind="Secret", namespace=namespace, name=name)


def secrets(selector: str = "", namespace: str = "default") -> ObjectIdentifier:
    """Return the identifier of the secrets that a selector means."""
    return ObjectIdentifier(
        version="v1",
        kind="Secret",
        namespace=namespace,
        selector=selector,
        everything=not selector,
    )


def limit(key: str = "", selector: str = "", namespace: str = "") -> ObjectIdentifier:
    """Return the identifier of an object in the bucket `limits`, or of several."""
    gvk = kv_kind("limits")
    return ObjectIdentifier(
        group=gvk.group,
        version=gvk.version,
        kind=gvk.kind,
        namespace=namespace,
        name=key,
        selector=selector,
        everything=not (key or selector),
    )


class HeldStores(MemoryStores):
    """Memory stores that can be held up: no bucket is opened meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def hold(self) -> None:
        """Let nobody through."""
        self._flowing.clear()

    def let_go(self) -> None:
        """Let everybody through again."""
        self._flowing.set()

    async def open(self, kind: Kind[Any]) -> MemoryStore:
        await self._flowing.wait()
        return await super().open(kind)


class Dependents:
    """A dynamic watcher at work over memory stores."""

    def __init__(self, stores: MemoryStores, options: DynamicOptions | None) -> None:
        self.stores = stores
        self.calls: list[str] = []  # for which watchers the reconciler was called
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
        """How many watches the stores serve."""
        return self.secrets.watches + self.nodes.watches + self.limits.watches

    async def put_secret(self, key: str, text: str = "hi", **labels: str) -> None:
        """Write a secret, over whatever is there."""
        store = self.secrets
        body = msgspec.json.encode({"metadata": {"labels": labels}, "data": {"text": text}})
        try:
            revision = (await store.get(key)).revision
        except NotFoundError:
            await store.create(key, body)
        else:
            await store.update(key, body, revision=revision)

    async def put_limit(self, key: str, most: int = 1, **labels: str) -> None:
        """Write a limit, over whatever is there."""
        await put(self.limits, key, {"metadata": {"labels": labels}, "spec": {"most": most}})

    async def taken(self) -> list[str]:
        """Wait until all is quiet, and return for whom the reconciler was called since last time.

        Each is told once, in the order of names.
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
async def dependents(
    options: DynamicOptions | None = CACHED, *, stores: MemoryStores | None = None
) -> AsyncIterator[Dependents]:
    """Run a dynamic watcher; leaving the context stops it."""
    play = Dependents(MemoryStores() if stores is None else stores, options)
    work = asyncio.create_task(play.watcher.start())
    await asyncio.wait(
        (work, waiting := asyncio.create_task(play.watcher.started.wait())),
        return_when=asyncio.FIRST_COMPLETED,
    )
    try:
        yield play
    finally:
        waiting.cancel()
        play.watcher.stop()
        await work


def said(document: Document | None) -> object:
    """Return what a document says, without its metadata; None where there is none."""
    if document is None:
        return None
    return json.loads(json.dumps(document.get("data") or document.get("spec")))
