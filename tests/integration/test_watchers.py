"""Watchers on real servers miss no event, repeat none and leave nothing behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

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
from natsctl.errors import NotFoundError
from natsctl.model.store import Store, Stored
from tests.support.controllers.recording_watcher import FINALIZER, SITES, RecordingWatcher, site
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer
from tests.support.stores.documents import delete, parse


class Named(RecordingWatcher):
    """Records only the kind of event and the key."""

    async def record(self, event: str, seen: Snapshot[Any]) -> None:
        await super().record(" ".join(event.split()[:2]), seen)


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


async def is_held(store: Store, key: str) -> bool:
    return parse((await store.get(key)).value)["metadata"].get("finalizers") == [FINALIZER]


async def audited(trail: Store, key: str, *actions: str) -> bool:
    entries = [entry for entry in await trail.history(key) if isinstance(entry, Stored)]
    assert [parse(entry.value)["action"] for entry in entries] == list(actions)
    return True


async def test_watchers_and_the_audit_survive_a_restart_of_the_server(
    nats_server: NatsServer,
) -> None:
    notes = Named()
    async with (
        connect(nats_server.url, verify_s=1.0) as stores,
        running(watching(notes), Audit(kv(bytes, bucket="sites")), nats=stores),
    ):
        sites = await stores.open(kv(bytes, bucket="sites"))
        trail = await stores.open(kv(bytes, bucket="audit"))
        await sites.create("athens", site("one"))
        await eventually(lambda: is_held(sites, "athens"))
        added = ("created", "updated", "updated")  # put, finalizer set, add recorded
        await eventually(lambda: audited(trail, "sites.athens", *added))
        nats_server.kill()
        await eventually(lambda: not stores.connection.connected)
        await nats_server.start()
        await stores.connection.wait_connected()
        await sites.create("berlin", site("one"))
        await eventually(lambda: is_held(sites, "berlin"))
        await delete(sites, "athens")
        gone = (*added, "updated", "updated", "deleted")  # marked, finalizer removed, deleted
        await eventually(lambda: audited(trail, "sites.athens", *gone))
        with pytest.raises(NotFoundError):
            await sites.get("athens")
    assert notes.calls == ["add athens", "add berlin", "delete athens"]


async def test_a_watcher_sets_and_removes_its_finalizer_on_cluster_objects(
    kube_server: KubeCluster, kube_namespace: str
) -> None:
    path = f"/api/v1/namespaces/{kube_namespace}/configmaps"
    kind: Kind[Any] = kube("v1", "ConfigMap", namespace=kube_namespace, labels={"app": "mine"})
    held = "natsctl.io/operator.v1.ConfigMap"
    events: list[str] = []

    def noted(event: str) -> Any:
        async def note(*snapshots: Snapshot[Any]) -> None:
            events.append(f"{event} {snapshots[-1].object['data']['text']}")

        return note

    def config(text: str) -> dict[str, Any]:
        metadata = {"name": "one", "labels": {"app": "mine"}, "finalizers": ["example.com/other"]}
        return {"metadata": metadata, "data": {"text": text}}

    async def patch(op: str, place: str, **value: str) -> None:
        patched = {"content_type": "application/json-patch+json"}
        await kube_server.call(
            "PATCH", f"{path}/one", [{"op": op, "path": place, **value}], **patched
        )

    async def finalizers_are(*names: str) -> None:
        async def are_equal() -> bool:
            metadata = (await kube_server.call("GET", f"{path}/one"))["metadata"]
            assert metadata.get("finalizers") == list(names)
            return True

        await eventually(are_equal)

    controller = InformerController()
    controller.add_informer(kind)
    functions = {f"{event}_func": noted(event) for event in ("add", "update", "delete")}
    controller.add_watcher(OpinionatedWatcher(kind, **functions), kind)
    options = KubeOptions(kubeconfig=str(kube_server.kubeconfig()))
    async with connect_kube(options) as cluster, asyncio.TaskGroup() as group:
        controller.use(kube=cluster)
        group.create_task(controller.run())
        await controller.synced.wait()
        await kube_server.call("POST", path, config("one"))
        await finalizers_are("example.com/other", held)
        await patch("replace", "/data/text", value="two")
        await eventually(lambda: events[-1:] == ["update two"])
        await kube_server.call("DELETE", f"{path}/one")
        await finalizers_are("example.com/other")
        await patch("remove", "/metadata/finalizers")
        await kube_server.call("POST", path, config("three"))
        await finalizers_are("example.com/other", held)
        await kube_server.call("DELETE", f"{path}/one")
        await finalizers_are("example.com/other")
        await eventually(lambda: controller.idle)
        controller.stop()
    assert events == ["add one", "update two", "delete two", "add three", "delete three"]
