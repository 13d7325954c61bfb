"""Classes around a `Resource` and a `DynamicWatcher`, which fail for some objects."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any

import msgspec
from msgspec import convert

from natsctl import (
    DynamicOptions,
    DynamicWatcher,
    Event,
    EventKind,
    Kind,
    Object,
    ObjectIdentifier,
    Resource,
    Stores,
    kv,
    kv_kind,
)
from natsctl.model.documents import Document
from natsctl.model.store import Store


class SiteSpec(msgspec.Struct, frozen=True):
    """The text of a site."""

    text: str
    password: str = ""


class Site(Object, frozen=True):
    """A site, or the sign of one."""

    spec: SiteSpec


SITES = kv(Site, bucket="sites")
SIGNS = kv(bytes, bucket="signs")
HOME = ObjectIdentifier(group="nats", version="kv", kind="signs", name="home")


class Program:
    """A class that natsctl runs; `bad` is the text for which it fails."""

    kinds: tuple[Kind[Any], ...] = (SITES,)
    name = "program"
    bad = "bad"

    def __init__(self) -> None:
        self.synced = asyncio.Event()

    def use(self, *, nats: Stores | None = None, kube: Any = None) -> None:
        """Set where objects are."""
        assert nats is not None
        self.nats, self.kube = nats, kube
        self.prepare()

    def prepare(self) -> None:
        """Make what reads the sites."""

    def check(self, text: str) -> None:
        """Raise `ValueError` for the bad text."""
        if text == self.bad:
            raise ValueError(f"cannot show {text!r}")


class Streamed(Program):
    """Hangs a sign for each site of a `Resource`."""

    name = "streamed"

    def prepare(self) -> None:
        self.resource = Resource(SITES, self.nats)

    def stop(self) -> None:
        """End `run`."""
        self.resource.stop()

    async def run(self) -> None:
        """Handle events until `stop`."""
        self.signs: Store = await self.nats.open(SIGNS)
        async with self.resource, self.resource.events() as events:
            async for event in events:
                async with event:
                    await self.handle(event)
                self.synced.set()

    async def handle(self, event: Event[Site]) -> None:
        """Hang or take down a sign."""
        match event.kind:
            case EventKind.UPSERT:
                self.check(event.object.spec.text)
                await self.signs.create(event.key, event.object.spec.text.encode())
            case EventKind.DELETE:
                self.check(event.object.spec.text)
                await self.signs.delete(event.key)
            case EventKind.SYNC:
                await self.listed()

    async def listed(self) -> None:
        """Check all sites, since the list is complete."""
        for site in (await self.resource.store()).list():
            self.check(site.spec.text)


class Watching(Program, ABC):
    """Calls `reconcile` of a subclass for a watcher, which `watch` adds."""

    watcher = HOME

    def prepare(self) -> None:
        options = DynamicOptions(enable_cache=True)
        self.dynamic = DynamicWatcher(
            self.reconcile, nats=self.nats, kube=self.kube, options=options
        )

    def stop(self) -> None:
        """End `run`."""
        self.dynamic.stop()

    async def run(self) -> None:
        """Reconcile until `stop`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.dynamic.start())
            await self.dynamic.started.wait()
            await self.watch()
            self.synced.set()

    @abstractmethod
    async def watch(self) -> None:
        """Add the watcher."""

    @abstractmethod
    async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
        """Reconcile the watcher."""


class Watched(Watching):
    """Hangs one sign with the texts of all sites, which a `DynamicWatcher` reads."""

    name = "watched"

    async def watch(self) -> None:
        all_sites = ObjectIdentifier(group="nats", version="kv", kind="sites", everything=True)
        await self.dynamic.add_watcher(self.watcher, all_sites)

    async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
        """Hang the sign."""
        specs = [convert(site["spec"], SiteSpec) for site in await self.sites(watcher)]
        texts = [spec.text for spec in specs]
        for text in texts:
            self.check(text)
        signs = await self.nats.open(SIGNS)
        await signs.create(watcher.key, " ".join(texts).encode())
        return 30.0

    async def sites(self, watcher: ObjectIdentifier) -> list[Document]:
        """Return all sites."""
        async with self.dynamic.query_batch(watcher):
            return await self.dynamic.list(watcher, kv_kind("sites"), namespace="")
