"""A controller that creates Parts for each App, and stores that can be slow or break."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import msgspec

from natsctl import (
    Controller,
    Kind,
    Object,
    StoreTimeoutError,
    WatchBrokenError,
    kv,
    primary,
    secondary,
)
from natsctl.model.store import Store, Stored, WatchEvent
from natsctl.testing import Harness, MemoryStore, MemoryStores, running
from tests.support.stores.documents import parse, put


class AppSpec(msgspec.Struct, frozen=True):
    text: str = "hi"
    parts: tuple[str, ...] = ("main",)


class App(Object, frozen=True):
    spec: AppSpec


class PartSpec(msgspec.Struct, frozen=True):
    text: str


class Part(Object, frozen=True):
    spec: PartSpec


APPS = kv(App, bucket="apps")
PARTS = kv(Part, bucket="parts")
PAUSED = ("metadata", "annotations", "natsctl.io/paused")


class Apps(Controller):
    """A controller that creates the part `shop.a` for an app `shop` with the part `a`."""

    apps = primary(APPS)
    parts = secondary(PARTS)

    def __init__(self) -> None:
        self.syncs: list[str] = []

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        app = self.apps.get(key)
        if app is None:
            return None
        desired = parts_of(key, app.spec)
        for name, text in desired.items():
            await self.parts.apply(name, Part(spec=PartSpec(text)))
        for name in self.parts.owned().keys() - desired.keys():
            await self.parts.delete(name)
        await self.apps.update_status(key, {"parts": len(desired)})
        return None


class Calm(Apps):
    """A controller that resyncs no key during a test."""

    name = "apps"
    resync_s = 1e6


class Fallible(Calm):
    """A controller that takes `delay_s`, and raises `failure` after its work, if one is set."""

    name = "apps"
    delay_s = 0.0
    failure: BaseException | None = None

    async def sync_handler(self, key: str) -> float | None:
        await super().sync_handler(key)
        await asyncio.sleep(self.delay_s)
        if self.failure is not None:
            raise self.failure
        return None


def parts_of(key: str, spec: AppSpec) -> dict[str, str]:
    return {f"{key}.{name}": spec.text for name in spec.parts}


class AppClient:
    """Reads and writes the buckets of apps and parts as users and other programs do."""

    def __init__(self, stores: MemoryStores) -> None:
        self.stores = stores
        self.apps = stores.store(APPS)
        self.parts = stores.store(PARTS)

    async def app(self, key: str, text: str = "hi", parts: tuple[str, ...] = ("main",)) -> int:
        """Put an app as `nats kv put` does: without metadata, whether or not it exists."""
        stored = await put(self.apps, key, {"spec": {"text": text, "parts": parts}})
        return stored.revision

    async def texts(self) -> dict[str, str]:
        return {key: (await document(self.parts, key))["spec"]["text"] for key in self.part_keys}

    @property
    def part_keys(self) -> list[str]:
        return self.parts.keys()

    @property
    def writes(self) -> int:
        return self.apps.writes + self.parts.writes

    def events(self, key: str) -> list[tuple[str, str]]:
        events = self.stores.events.events
        return [(event.reason, event.message) for event in events if event.key == key]

    def reasons(self, key: str) -> list[str]:
        return [reason for reason, _ in self.events(key)]


async def edit(store: Store, key: str, *path: str, to: object) -> int:
    """Change one field of an object and keep the others; None removes the field."""
    changed = await document(store, key)
    parent = changed
    for name in path[:-1]:
        parent = parent.setdefault(name, {})
    if to is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = to
    return (await put(store, key, changed)).revision


async def document(store: Store, key: str) -> dict[str, Any]:
    return parse((await store.get(key)).value)


class SlowStore(MemoryStore):
    """A memory store whose answers can be slow or lost, and whose watches can lag or break."""

    def __init__(self, kind: Kind[Any]) -> None:
        super().__init__(kind)
        self.answers_lost = 0  # how many of the next updates take effect without an answer
        self.lag_s = 0.0
        self.answers_after_s = 0.0
        self.breaks_after: int | None = None  # so many events the next watch breaks
        self._cuts = 0
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def get(self, key: str) -> Stored:
        try:
            return await super().get(key)
        finally:
            if self.answers_after_s:
                await asyncio.sleep(self.answers_after_s)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        stored = await super().update(key, value, revision=revision)
        if self.answers_lost:
            self.answers_lost -= 1
            raise StoreTimeoutError("the answer was lost")
        return stored

    def cut(self) -> None:
        """Break every watch and drop its pending events."""
        self._cuts += 1
        self.break_watches()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Hold back all watch events within the context."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async with super().watch(shown) as events, aclosing(self._with_lag(events)) as delayed:
            yield delayed

    async def _with_lag(
        self, events: AsyncIterator[WatchEvent]
    ) -> AsyncGenerator[WatchEvent, None]:
        breaks_after, self.breaks_after = self.breaks_after, None
        seen, cuts = 0, self._cuts
        async for event in events:
            await self._flowing.wait()
            if self.lag_s:
                await asyncio.sleep(self.lag_s)
            if seen == breaks_after or cuts != self._cuts:
                raise WatchBrokenError("cut on purpose")
            seen += 1
            yield event


class SlowStores(MemoryStores):
    def __init__(self) -> None:
        super().__init__()
        self._slow: dict[str, SlowStore] = {}

    def store(self, kind: Kind[Any]) -> SlowStore:
        return self._slow.setdefault(kind.name, SlowStore(kind))


def app_client(harness: Harness) -> AppClient:
    return AppClient(harness.stores)


class RunningApps(AppClient):
    """The buckets of a running controller of apps, and its runtime."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(harness.stores)
        self.harness = harness
        self.runtime = harness.runtime
        self.idle = harness.run_until_idle

    async def synced(self, *apps: str) -> None:
        """Put these apps, and return once no key is due."""
        for app in apps:
            await self.app(app)
        await self.idle()


@asynccontextmanager
async def running_apps(
    controller: Controller, *apps: str, stores: MemoryStores | None = None
) -> AsyncIterator[RunningApps]:
    """Run *controller* with these apps, and yield once they're synced."""
    async with running(controller, stores=stores) as harness:
        client = RunningApps(harness)
        if apps:
            await client.synced(*apps)
        yield client
