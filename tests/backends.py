"""The systems on which the contract suite runs, with what it has to know of each."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

import natsctl
from natsctl.kv.stores import Nats
from natsctl.model.kinds import Kind
from natsctl.model.store import Listed, Store, Stored, Stores, WatchEvent
from natsctl.testing.memory import MemoryStores

PATIENCE_S = 20.0


class NoteSpec(msgspec.Struct, frozen=True):
    text: str


class Note(natsctl.Object, frozen=True):
    spec: NoteSpec


class Backend(Protocol):
    """A system that keeps notes."""

    @property
    def stores(self) -> Stores: ...

    def kind(self) -> Kind[Any]:
        """Return the kind of the notes."""
        ...

    async def recreate(self) -> None:
        """Replace the store of the notes by an empty one of the same name."""
        ...

    async def watches(self) -> int:
        """Count the watches that the system serves."""
        ...


class MemoryBackend:
    def __init__(self) -> None:
        self.stores = MemoryStores()

    def kind(self) -> Kind[Note]:
        return natsctl.kv(Note, bucket="notes")

    async def recreate(self) -> None:
        self.stores.store(self.kind()).recreate()

    async def watches(self) -> int:
        return self.stores.store(self.kind()).watches


class NatsBackend:
    def __init__(self, stores: Nats) -> None:
        self.stores = stores

    def kind(self) -> Kind[Note]:
        return natsctl.kv(Note, bucket="notes", storage="memory")

    async def recreate(self) -> None:
        await self.stores.connection.api("STREAM.DELETE.KV_notes")
        await self.stores.open(self.kind())

    async def watches(self) -> int:
        info = await self.stores.connection.api("STREAM.INFO.KV_notes")
        return int(info["state"]["consumer_count"])


def note(text: str) -> bytes:
    """Return a note as bytes."""
    return msgspec.json.encode({"spec": {"text": text}})


def text(stored: Stored) -> str:
    """Return what a note says; a system may add fields of its own to what was written."""
    spec = msgspec.json.decode(stored.value)["spec"]["text"]
    assert isinstance(spec, str)
    return spec


async def take(events: AsyncIterator[WatchEvent], count: int) -> list[WatchEvent]:
    """Take so many events from a watch."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(events) for _ in range(count)]


async def listing(events: AsyncIterator[WatchEvent]) -> list[WatchEvent]:
    """Take a watch's listing, to its end."""
    taken = await take(events, 1)
    while not isinstance(taken[-1], Listed):
        taken += await take(events, 1)
    return taken


async def put(store: Store, key: str, says: str = "hi") -> Stored:
    """Create a note, or rewrite it."""
    try:
        revision = (await store.get(key)).revision
    except natsctl.NotFoundError:
        return await store.create(key, note(says))
    return await store.update(key, note(says), revision=revision)
