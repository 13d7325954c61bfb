"""What the plays share: every App becomes its Parts, over stores that can be made to misbehave."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import msgspec

from natsctl import (
    Controller,
    Kind,
    NotFoundError,
    Object,
    WatchBrokenError,
    kv,
    primary,
    secondary,
)
from natsctl.model.store import Stored, WatchEvent
from natsctl.testing.harness import Harness
from natsctl.testing.memory import MemoryStore, MemoryStores


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


class Apps(Controller):
    """An app called `shop` with the parts `a` and `b` becomes `shop.a` and `shop.b`."""

    apps = primary(APPS)
    parts = secondary(PARTS)

    def __init__(self) -> None:
        self.syncs: list[str] = []

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        app = self.apps.get(key)
        if app is None:
            return None
        wanted = parts_of(key, app.spec)
        for name, text in wanted.items():
            await self.parts.apply(name, Part(spec=PartSpec(text)))
        for name in self.parts.owned().keys() - wanted.keys():
            await self.parts.delete(name)
        await self.apps.update_status(key, {"parts": len(wanted)})
        return None


def parts_of(key: str, spec: AppSpec) -> dict[str, str]:
    """Return the parts that an app implies, with their texts."""
    return {f"{key}.{name}": spec.text for name in spec.parts}


class Stage:
    """The stores of a play, seen from outside: as people and plain programs read and write."""

    def __init__(self, stores: MemoryStores) -> None:
        self.stores = stores
        self.apps = stores.store(APPS)
        self.parts = stores.store(PARTS)

    async def app(self, key: str, text: str = "hi", parts: tuple[str, ...] = ("main",)) -> int:
        """Put an app as `nats kv put` does: without metadata, over whatever is there."""
        return await put(self.apps, key, {"spec": {"text": text, "parts": parts}})

    async def texts(self) -> dict[str, str]:
        """Return what the parts say, by key."""
        return {key: (await document(self.parts, key))["spec"]["text"] for key in self.part_keys}

    @property
    def part_keys(self) -> list[str]:
        """Which parts there are."""
        return self.parts.keys()

    @property
    def writes(self) -> int:
        """How many writes all stores took."""
        return self.apps.writes + self.parts.writes

    def events(self, key: str) -> list[tuple[str, str]]:
        """Return the reasons and messages of the key's events."""
        return [(at.reason, at.message) for at in self.stores.events.events if at.key == key]

    def reasons(self, key: str) -> list[str]:
        """Return the reasons of the key's events."""
        return [reason for reason, _ in self.events(key)]


async def put(store: MemoryStore, key: str, value: bytes | dict[str, Any]) -> int:
    """Write *value* and nothing else, over whatever is there."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    try:
        revision = (await store.get(key)).revision
    except NotFoundError:
        return (await store.create(key, body)).revision
    return (await store.update(key, body, revision=revision)).revision


async def edit(store: MemoryStore, key: str, *path: str, to: object) -> int:
    """Change one field of an object and leave the others as they are; None removes it."""
    whole = await document(store, key)
    inner = whole
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return await put(store, key, whole)


async def document(store: MemoryStore, key: str) -> dict[str, Any]:
    """Return the object as JSON."""
    value: dict[str, Any] = json.loads((await store.get(key)).value)
    return value


class SlowStore(MemoryStore):
    """A memory store that can be slow to answer, and whose watches can be late or break halfway."""

    def __init__(self, kind: Kind[Any]) -> None:
        super().__init__(kind)
        self.lag_s = 0.0
        self.answers_after_s = 0.0
        self.breaks_after: int | None = None  # events of the next watch, once
        self._cuts = 0
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def get(self, key: str) -> Stored:
        try:
            return await super().get(key)
        finally:
            if self.answers_after_s:
                await asyncio.sleep(self.answers_after_s)

    def cut(self) -> None:
        """Break every watch, and lose what was on its way."""
        self._cuts += 1
        self.break_watches()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Let no watch event through meanwhile."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async with super().watch() as events, aclosing(self._slowly(events)) as late:
            yield late

    async def _slowly(self, events: AsyncIterator[WatchEvent]) -> AsyncGenerator[WatchEvent, None]:
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
    """Memory stores that are `SlowStore`s."""

    def __init__(self) -> None:
        super().__init__()
        self._slow: dict[str, SlowStore] = {}

    def store(self, kind: Kind[Any]) -> SlowStore:
        return self._slow.setdefault(kind.name, SlowStore(kind))


def stage(harness: Harness) -> Stage:
    """Return the stage on which a running controller plays."""
    return Stage(harness.stores)
