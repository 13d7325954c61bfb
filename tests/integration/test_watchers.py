"""Watchers on real servers miss no event, repeat none and leave nothing behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, NoKeysError
from nats.js.kv import KeyValue

from controllers.audit import Audit
from natsctl import (
    InformerController,
    Kind,
    KubeOptions,
    Operator,
    OpinionatedWatcher,
    Snapshot,
    Stores,
    connect,
    connect_kube,
    kube,
    kv,
)
from tests.support.clients.plain_client import plain_client
from tests.support.controllers.recording_watcher import FINALIZER, SITES, RecordingWatcher, site
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer


class Named(RecordingWatcher):
    """Records only the kind of event and the key."""

    async def record(self, event: str, seen: Snapshot[Any]) -> None:
        await super().record(" ".join(event.split()[:2]), seen)


@asynccontextmanager
async def plain(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with plain_client(server.url) as client:
        yield client.jetstream()


@asynccontextmanager
async def running(*controllers: InformerController, nats: Stores) -> AsyncIterator[None]:
    operator = Operator(controllers, nats=nats)
    task = asyncio.create_task(operator.run())
    await eventually(lambda: task.done() or operator.synced.is_set())
    try:
        yield
    finally:
        operator.stop()
        await task


def watching(notes: RecordingWatcher) -> InformerController:
    controller = InformerController(name="sites")
    controller.add_informer(SITES)
    watcher = OpinionatedWatcher(SITES, sync_func=notes.sync)
    watcher.add_func, watcher.update_func = notes.add, notes.update
    watcher.delete_func = notes.delete
    controller.add_watcher(watcher, SITES)
    return controller


async def document(bucket: KeyValue, key: str) -> dict[str, Any] | None:
    try:
        stored: dict[str, Any] = json.loads((await bucket.get(key)).value or b"")
    except KeyNotFoundError:
        return None
    return stored


async def is_held(bucket: KeyValue, key: str) -> bool:
    stored = await document(bucket, key)
    return stored is not None and stored["metadata"].get("finalizers") == [FINALIZER]


async def mark_deleted(bucket: KeyValue, key: str) -> None:
    stored = await document(bucket, key)
    assert stored is not None
    stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await bucket.put(key, json.dumps(stored).encode())


async def test_watchers_and_the_audit_survive_a_restart_of_the_server(
    nats_server: NatsServer,
) -> None:
    notes = Named()
    async with (
        connect(nats_server.url, verify_s=1.0) as stores,
        running(watching(notes), Audit(kv(bytes, bucket="sites")), nats=stores),
    ):
        async with plain(nats_server) as js:
            bucket = await js.key_value("sites")
            await bucket.put("athens", site("one"))
            await eventually(lambda: is_held(bucket, "athens"))
            trail = await js.key_value("audit")
            await eventually(lambda: has_entries(trail, "sites.athens", 3))
            nats_server.kill()
        await nats_server.start()
        async with plain(nats_server) as js:
            bucket, trail = await js.key_value("sites"), await js.key_value("audit")
            await bucket.put("berlin", site("one"))
            await eventually(lambda: is_held(bucket, "berlin"))
            await mark_deleted(bucket, "athens")
            await eventually(lambda: ends_deleted(trail, "sites.athens"))
            assert await document(bucket, "athens") is None
            # put, finalizer set, add recorded, marked deleted, finalizer removed, deleted
            assert await audit_of(trail, "sites.athens") == [
                "created",
                *["updated"] * 4,
                "deleted",
            ]
    assert notes.calls == ["add athens", "add berlin", "delete athens"]


async def has_entries(trail: KeyValue, key: str, count: int) -> bool:
    return len(await audit_of(trail, key)) == count


async def ends_deleted(trail: KeyValue, key: str) -> bool:
    return (await audit_of(trail, key))[-1:] == ["deleted"]


async def audit_of(bucket: KeyValue, key: str) -> list[str]:
    try:
        entries = await bucket.history(key)
    except NoKeysError:
        return []
    return [json.loads(entry.value or b"{}")["action"] for entry in entries]


async def test_a_watcher_sets_and_removes_its_finalizer_on_cluster_objects(
    kube_server: KubeCluster, kube_namespace: str
) -> None:
    path = f"/api/v1/namespaces/{kube_namespace}/configmaps"
    kind: Kind[Any] = kube("v1", "ConfigMap", namespace=kube_namespace, labels={"app": "mine"})
    held = "natsctl.io/operator.v1.ConfigMap"
    events: list[str] = []

    async def add(new: Snapshot[Any]) -> None:
        events.append(f"add {new.object['data']['text']}")

    async def update(_old: Snapshot[Any], new: Snapshot[Any]) -> None:
        events.append(f"update {new.object['data']['text']}")

    async def delete(last: Snapshot[Any]) -> None:
        events.append(f"delete {last.object['data']['text']}")

    def config(text: str) -> dict[str, Any]:
        metadata = {"name": "one", "labels": {"app": "mine"}, "finalizers": ["example.com/other"]}
        return {"metadata": metadata, "data": {"text": text}}

    async def finalizers_are(*names: str) -> None:
        async def are_equal() -> bool:
            metadata = (await kube_server.call("GET", f"{path}/one"))["metadata"]
            assert metadata.get("finalizers") == list(names)
            return True

        await eventually(are_equal)

    controller = InformerController()
    controller.add_informer(kind)
    controller.add_watcher(
        OpinionatedWatcher(kind, add_func=add, update_func=update, delete_func=delete), kind
    )
    options = KubeOptions(kubeconfig=str(kube_server.kubeconfig()))
    async with connect_kube(options) as cluster, asyncio.TaskGroup() as group:
        controller.use(kube=cluster)
        group.create_task(controller.run())
        await controller.synced.wait()
        await kube_server.call("POST", path, config("one"))
        await finalizers_are("example.com/other", held)
        patch = [{"op": "replace", "path": "/data/text", "value": "two"}]
        patched = {"content_type": "application/json-patch+json"}
        await kube_server.call("PATCH", f"{path}/one", patch, **patched)
        await eventually(lambda: events[-1:] == ["update two"])
        await kube_server.call("DELETE", f"{path}/one")
        await finalizers_are("example.com/other")
        patch = [{"op": "remove", "path": "/metadata/finalizers"}]
        await kube_server.call("PATCH", f"{path}/one", patch, **patched)
        await kube_server.call("POST", path, config("three"))
        await finalizers_are("example.com/other", held)
        await kube_server.call("DELETE", f"{path}/one")
        await finalizers_are("example.com/other")
        await eventually(lambda: controller.idle)
        controller.stop()
    assert events == ["add one", "update two", "delete two", "add three", "delete three"]
