"""Watchers, Kubernetes writes and events are restricted to the leader."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from natsctl import Controller, Object, kube, kv, primary, secondary
from natsctl.core.coordination.term import Leadership, TermGuard
from natsctl.errors import NotLeadingError
from natsctl.kubernetes.discovery import Discovery
from natsctl.kubernetes.store import KubeStore
from natsctl.kubernetes.transport import Reply, Transport
from natsctl.kubernetes.watch import Incarnation
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.controllers.recording_watcher import SITES, RecordingWatcher, site, watching
from tests.support.controllers.sharing_group import TTL_S, C, SharingMember
from tests.support.eventually import eventually
from tests.support.stores.documents import put

CONFIGS = kube("v1", "ConfigMap", namespace="default")


class Shop(Object, frozen=True):
    pass


class Shops(Controller):
    shops = primary(kv(Shop, bucket="shops"))
    configs = secondary(CONFIGS)

    async def sync_handler(self, key: str) -> float | None:
        await self.configs.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": key}, "data": {"a": "b"}}
        )
        return None


async def running(controller: C, stores: MemoryStores) -> SharingMember[C]:
    """Start a process that takes part in leader election."""
    process = SharingMember(stores, controller, count=1)
    await process.operator.synced.wait()
    return process


async def test_the_watchers_of_a_standby_are_called_once_it_leads() -> None:
    stores = MemoryStores()
    first_watcher, second_watcher = RecordingWatcher("one"), RecordingWatcher("two")
    await put(stores.store(SITES), "a", site())
    first = await running(watching(first_watcher), stores)
    second = await running(watching(second_watcher), stores)
    await eventually(lambda: first_watcher.calls)
    assert second_watcher.calls == []
    await first.stop()
    await eventually(lambda: second_watcher.calls)
    assert (first_watcher.calls, second_watcher.calls) == (["one add a hi"], ["two add a hi"])
    await second.stop()


async def test_a_watcher_call_interrupted_by_a_process_pause_is_repeated() -> None:
    stores, watcher = MemoryStores(), RecordingWatcher("one")
    watcher.takes_s = 2.0
    failures: list[Exception] = []
    controller = watching(watcher, error_handler=failures.append)
    await put(stores.store(SITES), "a", site())
    process = await running(controller, stores)
    await asyncio.sleep(1)
    asyncio.get_running_loop().jump(TTL_S)  # type: ignore[attr-defined]  # the loop has virtual time
    await eventually(lambda: watcher.calls, within_s=TTL_S)
    assert watcher.calls == ["one add a hi"]
    assert failures == []
    await process.stop()


async def test_only_the_leader_applies_to_a_cluster() -> None:
    stores = MemoryStores()
    first, second = await running(Shops(), stores), await running(Shops(), stores)
    await stores.store(Shops.shops.kind).create("a", b"{}")
    configs = stores.kube.store(CONFIGS)
    await eventually(configs.keys)
    await asyncio.sleep(1)
    assert configs.writes == 1
    await first.stop()
    await second.stop()


async def test_a_new_leader_sees_the_writes_of_the_previous_leader() -> None:
    key_counts: list[int] = []

    class Counts(Controller):
        shops = primary(kv(Shop, bucket="shops"))

        async def start(self) -> None:
            key_counts.append(len(self.shops.keys()))

        async def sync_handler(self, key: str) -> float | None:
            pass

    class Late(MemoryStore):
        """A store with a newest revision that its watches show later."""

        async def newest_revision(self) -> int:
            await self.create("late", b"{}")
            return await super().newest_revision()

    stores = MemoryStores()

    class LateStores(MemoryStores):
        async def open(self, kind: Any) -> MemoryStore:
            return Late(kind) if kind is Counts.shops.kind else await stores.open(kind)

    process = SharingMember(stores, Counts(), count=1, reached=LateStores())
    await eventually(lambda: key_counts)
    assert key_counts == [1]
    await process.stop()


async def test_a_waiting_write_is_not_sent_after_its_term() -> None:
    sent: list[str] = []

    async def busy(key: str) -> None:
        await asyncio.sleep(5)  # waits for its turn or for a retry
        sent.append(key)

    leadership = Leadership("sites", asyncio.get_running_loop().time)
    guard = TermGuard(leadership)
    leadership.begin(1, until=9)
    early = asyncio.create_task(guard.send(SITES, partial(busy, "early")))
    await asyncio.sleep(8)
    late = asyncio.create_task(guard.send(SITES, partial(busy, "late")))
    await asyncio.wait((early, late))
    assert (early.cancelled(), late.cancelled()) == (False, True)
    assert sent == ["early"]
    with pytest.raises(NotLeadingError):
        await guard.send(SITES, partial(busy, "later"))
    assert sent == ["early"]


async def test_a_waiting_kubernetes_request_is_not_sent_after_its_term() -> None:
    sent: list[str] = []

    class Busy(Transport):
        def __init__(self) -> None:
            pass

        async def call(self, method: str, path: str, **_options: Any) -> Reply:
            if path == "/api/v1":
                kind = {"name": "configmaps", "kind": "ConfigMap", "namespaced": True}
                return Reply(200, msgspec.json.encode({"resources": [kind]}))
            await asyncio.sleep(5)  # waits for other requests or for a retry
            sent.append(method)
            metadata = {"name": "a", "namespace": "default", "resourceVersion": "1"}
            return Reply(200, msgspec.json.encode({"metadata": metadata}))

    leadership = Leadership("sites", asyncio.get_running_loop().time)
    leadership.begin(1, until=4)
    guard, server = TermGuard(leadership), Busy()
    store = KubeStore(server, Discovery(server), CONFIGS, Incarnation("here"), guard=guard)
    calls = (store.get("default/a"), store.patch_status("default/a", {}))
    requests = [asyncio.create_task(call) for call in calls]
    await asyncio.wait(requests)
    assert [request.cancelled() for request in requests] == [False, True]
    assert sent == ["GET"]
