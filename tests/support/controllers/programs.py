"""Classes around a `Resource` and a `DynamicWatcher`, which fail for some objects."""

import asyncio
from typing import Any

import msgspec

from natsctl import (
    Event,
    EventKind,
    Kind,
    Object,
    ObjectIdentifier,
    Resource,
    Stores,
    kv,
)
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
