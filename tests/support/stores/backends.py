"""The systems on which the contract suite runs, with what it has to know of each."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
import pytest

import natsctl
from natsctl.jetstream.stores import Nats
from natsctl.kubernetes.cluster import Kube
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind, KubeObject, kube
from natsctl.model.store import Listed, ManifestStores, Store, Stored, Stores, WatchEvent
from natsctl.testing.cluster import MemoryCluster
from natsctl.testing.kinds import MemoryResource
from natsctl.testing.memory import MemoryStores
from natsctl.testing.recorder import MemoryRecorder
from tests.support.stores.custom_resources import define, watches

PATIENCE_S = 20.0

BUCKETS = ["memory", "nats"]  # backends that number their own writes and can be made anew
of_buckets = pytest.mark.parametrize("backend", BUCKETS, indirect=True)


class NoteSpec(msgspec.Struct, frozen=True):
    text: str


class Note(natsctl.Object, frozen=True):
    spec: NoteSpec


class KubeNote(KubeObject, frozen=True, kw_only=True):
    spec: NoteSpec = NoteSpec("")


NOTES = kube("contract.test/v1", "Note", type=KubeNote)


class Backend(Protocol):
    """A system that keeps notes."""

    @property
    def stores(self) -> Stores: ...

    def kind(self) -> Kind[Any]:
        """Return the kind of the notes."""
        ...

    async def recreate(self) -> None:
        """Replace the store of the notes by an empty one of the same name, where that can be."""
        ...

    async def watches(self) -> int:
        """Count the watches that the system serves."""
        ...


class ManifestBackend(Protocol):
    """A system that keeps notes as manifests."""

    @property
    def stores(self) -> ManifestStores: ...

    def kind(self) -> KubeKind[Any]:
        """Return the kind of the notes, which have no namespaces."""
        ...

    def placed_kind(self) -> KubeKind[Any]:
        """Return a kind that has namespaces."""
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


class MemoryClusterBackend:
    def __init__(self) -> None:
        self.stores = MemoryCluster(MemoryRecorder())
        notes = MemoryResource("notes", namespaced=False)
        self.stores.kinds.define("contract.test/v1", "Note", notes)

    def kind(self) -> KubeKind[KubeNote]:
        return NOTES

    def placed_kind(self) -> KubeKind[Any]:
        return kube("v1", "ConfigMap")


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


class KubeBackend:
    """Notes are custom resources, cluster-scoped: so their keys are names."""

    def __init__(self, stores: Kube) -> None:
        self.stores = stores

    def kind(self) -> KubeKind[KubeNote]:
        return NOTES

    def placed_kind(self) -> KubeKind[Any]:
        return kube("v1", "ConfigMap")

    async def prepare(self) -> None:
        """Have the server know notes, and keep none."""
        await define(self.stores.transport, "contract.test", "Note")
        await self.stores.transport.call("DELETE", "/apis/contract.test/v1/notes", timeout_s=60)

    async def recreate(self) -> None:
        raise NotImplementedError  # a cluster is never made anew under the same name

    async def watches(self) -> int:
        return await watches(self.stores.transport, "notes")


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
