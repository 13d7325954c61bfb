"""The backends of the contract tests, and helpers that read and write notes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import msgspec
import pytest

import natsctl
from natsctl import Kind, KubeKind, KubeObject, kube
from natsctl.core.plan.stores import planned
from natsctl.jetstream.store import Nats
from natsctl.kubernetes.cluster import Kube
from natsctl.model.store import Applied, Batch, Listed, Store, Stored, WatchEvent
from natsctl.testing import MemoryCluster, MemoryRecorder, MemoryResource, MemoryStores
from tests.support.stores import documents
from tests.support.stores.custom_resources import define, watches

PATIENCE_S = 60.0

BUCKETS = ["memory", "nats"]  # with one revision counter per bucket, which tests can recreate
of_buckets = pytest.mark.parametrize("backend", BUCKETS, indirect=True)


class NoteSpec(msgspec.Struct, frozen=True):
    text: str


class Note(natsctl.Object, frozen=True):
    spec: NoteSpec


class KubeNote(KubeObject, frozen=True, kw_only=True):
    spec: NoteSpec = NoteSpec("")


NOTES = kube("contract.test/v1", "Note", type=KubeNote)


class MemoryBackend:
    def __init__(self) -> None:
        self.stores = MemoryStores()

    def kind(self) -> Kind[Note]:
        return natsctl.kv(Note, bucket="notes")

    async def recreate(self) -> None:
        self.stores.store(self.kind()).recreate()

    async def watches(self) -> int:
        return self.stores.store(self.kind()).watches


class PlanningBackend:
    """A plan over a system in memory."""

    def __init__(self) -> None:
        self._below = MemoryStores()
        self.stores = planned(nats=self._below, kube=None).nats

    def kind(self) -> Kind[Note]:
        return natsctl.kv(Note, bucket="notes")

    async def recreate(self) -> None:
        raise NotImplementedError  # a plan recreates nothing

    async def watches(self) -> int:
        return self._below.store(self.kind()).watches


class MemoryClusterBackend:
    def __init__(self) -> None:
        self.stores = MemoryCluster(MemoryRecorder())
        notes = MemoryResource("notes", namespaced=False)
        self.stores.kinds.define("contract.test/v1", "Note", notes)

    def kind(self) -> KubeKind[KubeNote]:
        return NOTES

    def namespaced_kind(self) -> KubeKind[Any]:
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
    """A cluster that stores notes as cluster-scoped custom resources, whose keys are names."""

    def __init__(self, stores: Kube) -> None:
        self.stores = stores

    def kind(self) -> KubeKind[KubeNote]:
        return NOTES

    def namespaced_kind(self) -> KubeKind[Any]:
        return kube("v1", "ConfigMap")

    async def prepare(self) -> None:
        await define(self.stores.transport, "contract.test", "Note")
        await self.stores.transport.call("DELETE", "/apis/contract.test/v1/notes", timeout_s=60)

    async def recreate(self) -> None:
        raise NotImplementedError  # a test cannot recreate a cluster

    async def watches(self) -> int:
        return await watches(self.stores.transport, "notes")


Backend: TypeAlias = MemoryBackend | PlanningBackend | NatsBackend | KubeBackend
ManifestBackend: TypeAlias = MemoryClusterBackend | KubeBackend


def note(text: str) -> bytes:
    return msgspec.json.encode({"spec": {"text": text}})


def text(stored: Stored) -> str:
    spec = msgspec.json.decode(stored.value)["spec"]["text"]
    assert isinstance(spec, str)
    return spec


async def take(events: AsyncIterator[WatchEvent], count: int) -> list[WatchEvent]:
    """Return the next `count` events of a watch; a batch is several events."""
    taken: list[WatchEvent] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            event = await anext(events)
            taken += map(Applied, event.states) if isinstance(event, Batch) else [event]
    return taken


async def listing(events: AsyncIterator[WatchEvent]) -> list[WatchEvent]:
    """Return the events of a watch's listing, including its end."""
    taken = await take(events, 1)
    while not isinstance(taken[-1], Listed):
        taken += await take(events, 1)
    return taken


async def put(store: Store, key: str, content: str = "hi") -> Stored:
    return await documents.put(store, key, note(content))
