"""A controller on a real kube-apiserver applies an object only if it differs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from natsctl import (
    Controller,
    ControllerRuntime,
    KubeKind,
    Manifest,
    Object,
    kube,
    kv,
    primary,
    secondary,
)
from natsctl.errors import NotFoundError
from natsctl.testing import MemoryStores
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_webhook import webhook
from tests.support.stores.custom_resources import cluster

POD = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "nodeSelector": {},
        "containers": [
            {
                "name": "web",
                "image": "web:1",
                "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}},
                "ports": [{"containerPort": 80}],
            }
        ],
    },
}
ONCE = {**POD, "spec": {**POD["spec"], "restartPolicy": "Never"}}  # type: ignore[dict-item]  # it is one
SELECTED = {"selector": {"matchLabels": {"a": "b"}}, "template": POD}

NORMALISED: dict[str, tuple[str, Manifest]] = {
    "Deployment": ("apps/v1", {"spec": {**SELECTED, "replicas": 1, "minReadySeconds": 0}}),
    "DaemonSet": ("apps/v1", {"spec": SELECTED}),
    "StatefulSet": ("apps/v1", {"spec": {**SELECTED, "serviceName": "a"}}),
    "Job": ("batch/v1", {"spec": {"template": ONCE}}),
    "Service": ("v1", {"spec": {"clusterIP": "", "ports": [{"port": 80, "protocol": "TCP"}]}}),
    "ResourceQuota": ("v1", {"spec": {"hard": {"cpu": "1000m", "memory": "1024Mi"}}}),
    "LimitRange": ("v1", {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2000m"}}]}}),
    "PersistentVolumeClaim": (
        "v1",
        {
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1024Mi"}},
            }
        },
    ),
    "ConfigMap": ("v1", {"data": {"text": "hi"}}),
    "Secret": ("v1", {"stringData": {"text": "hi"}}),
    "NetworkPolicy": ("networking.k8s.io/v1", {"spec": {"podSelector": {}, "ingress": []}}),
    "Role": ("rbac.authorization.k8s.io/v1", {"rules": []}),
}


class Site(Object, frozen=True):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


SITES = kv(Site, bucket="sites")


class Sites(Controller):
    """Applies each manifest in the spec of a site to the slot that has the name of its kind."""

    sites = primary(SITES)

    async def sync_handler(self, key: str) -> float | None:
        site = self.sites.get(key)
        for slot, manifest in site.spec.items() if site else ():
            await getattr(self, slot).apply({"metadata": {"name": key}, **manifest})
        return None


def controller_of(
    *kinds: KubeKind[Any], name: str = "sites", on_immutable: Any = "fail"
) -> Controller:
    slots = {kind.kind: secondary(kind, on_immutable=on_immutable) for kind in kinds}
    controller: Controller = type("Sites", (Sites,), {**slots, "name": name})()
    return controller


@asynccontextmanager
async def working(
    server: KubeServer, controller: Controller, nats: MemoryStores
) -> AsyncIterator[ControllerRuntime]:
    """Run the controller as admin during the context."""
    async with cluster(server) as stores:
        runtime = ControllerRuntime(controller, nats=nats, kube=stores)
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.run())
            await runtime.synced.wait()
            try:
                yield runtime
            finally:
                runtime.stop()


async def put(nats: MemoryStores, **manifests: Manifest) -> None:
    """Put the site `shop` with these manifests."""
    store, value = nats.store(SITES), msgspec.json.encode({"spec": manifests})
    try:
        revision = (await store.get("shop")).revision
    except NotFoundError:
        await store.create("shop", value)
    else:
        await store.update("shop", value, revision=revision)


def path(kind: str, namespace: str, name: str = "shop") -> str:
    """Return the path of an object."""
    version = NORMALISED[kind][0]
    prefix = "/api/v1" if version == "v1" else f"/apis/{version}"
    plural = "networkpolicies" if kind == "NetworkPolicy" else f"{kind.lower()}s"
    return f"{prefix}/namespaces/{namespace}/{plural}/{name}"


@pytest.mark.parametrize("metadata_only", [False, True])
async def test_a_restart_writes_nothing(
    kube_server: KubeServer, kube_namespace: str, *, metadata_only: bool
) -> None:
    kinds = [
        kube(version, kind, namespace=kube_namespace, metadata_only=metadata_only)
        for kind, (version, _) in NORMALISED.items()
    ]
    nats = MemoryStores()
    await put(nats, **{kind: manifest for kind, (_, manifest) in NORMALISED.items()})
    applied = {kind.name: [f"{kube_namespace}/shop"] for kind in kinds}
    async with working(kube_server, controller_of(*kinds), nats) as runtime:
        await eventually(lambda: runtime.idle and runtime.explain("shop").owned == applied)
        assert runtime.status().failing == {}
    since = kube_server.mark()
    async with working(kube_server, controller_of(*kinds), nats) as runtime:
        await eventually(lambda: runtime.idle)
        assert runtime.status().syncs >= 1
        assert runtime.status().failing == {}
    writes = kube_server.writes(since, namespace=kube_namespace)
    assert [write for write in writes if write.resource != "events"] == []


async def test_an_object_that_somebody_scaled_is_scaled_back(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    """At once, or at the next start."""
    kind, nats = kube("apps/v1", "Deployment", namespace=kube_namespace), MemoryStores()
    await put(nats, Deployment=NORMALISED["Deployment"][1])
    object_path = path("Deployment", kube_namespace)

    async def scale() -> None:
        merge = "application/merge-patch+json"
        scaled = {"spec": {"replicas": 5}}
        await kube_server.call("PATCH", f"{object_path}/scale", scaled, content_type=merge)

    async def is_scaled_back() -> bool:
        return int((await kube_server.call("GET", object_path))["spec"]["replicas"]) == 1

    async with working(kube_server, controller_of(kind), nats) as runtime:
        await eventually(lambda: runtime.idle and runtime.status().syncs > 0)
        await scale()
        await eventually(is_scaled_back)
    await scale()
    async with working(kube_server, controller_of(kind), nats) as runtime:
        await eventually(is_scaled_back)
        assert runtime.status().contested == {}


async def test_a_renamed_controller_takes_over_fields_and_removes_obsolete_ones(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    kind = kube("v1", "ConfigMap", namespace=kube_namespace)
    nats = MemoryStores()
    await put(nats, ConfigMap={"data": {"text": "1", "gone": "1"}})
    async with working(kube_server, controller_of(kind, name="former"), nats) as runtime:
        await eventually(lambda: runtime.idle)
    await put(nats, ConfigMap={"data": {"text": "2"}})
    async with working(kube_server, controller_of(kind, name="renamed"), nats) as runtime:
        await eventually(lambda: runtime.idle)
        assert runtime.status().failing == {}
    stored_object = await kube_server.call("GET", path("ConfigMap", kube_namespace))
    assert stored_object["data"] == {"text": "2"}
    managers = [entry["manager"] for entry in stored_object["metadata"]["managedFields"]]
    assert managers == ["natsctl/renamed"]


async def test_a_job_is_recreated_if_its_template_changes(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    kind = kube("batch/v1", "Job", namespace=kube_namespace)
    image = {**ONCE, "spec": {**ONCE["spec"], "containers": [{"name": "web", "image": "web:2"}]}}  # type: ignore[dict-item]  # it is one
    nats = MemoryStores()
    await put(nats, Job=NORMALISED["Job"][1])
    controller = controller_of(kind, on_immutable="recreate")
    async with working(kube_server, controller, nats) as runtime:
        await eventually(lambda: runtime.idle)
        before = await kube_server.call("GET", path("Job", kube_namespace))
        await put(nats, Job={"spec": {"template": image}})

        async def is_recreated() -> bool:
            job = await kube_server.call("GET", path("Job", kube_namespace))
            return job["metadata"]["uid"] != before["metadata"]["uid"]

        await eventually(is_recreated)
        await eventually(lambda: runtime.idle)
        assert runtime.status().failing == {}
    after = await kube_server.call("GET", path("Job", kube_namespace))
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["template"]["spec"]["containers"][0]["image"] == "web:2"
    assert any(event.reason == "Recreated" for event in nats.events.events)


def fixed(text: str) -> Manifest:
    """Return a ConfigMap that cannot be changed."""
    return {"immutable": True, "data": {"text": text}}


async def test_an_object_is_kept_if_a_webhook_refuses_the_new_one(
    own_kube_server: KubeServer,
) -> None:
    namespace, nats = own_kube_server.new_namespace(), MemoryStores()
    kind = kube("v1", "ConfigMap", namespace=namespace)
    await put(nats, ConfigMap=fixed("one"))

    def denies(asked: dict[str, Any]) -> str:
        return "no second text" if asked["object"]["data"] == {"text": "two"} else ""

    async with working(
        own_kube_server, controller_of(kind, on_immutable="recreate"), nats
    ) as runtime:
        await eventually(lambda: runtime.idle)
        before = await own_kube_server.call("GET", path("ConfigMap", namespace))
        async with webhook(own_kube_server, namespace, denies):
            await put(nats, ConfigMap=fixed("two"))
            refusal = "refuses the new object"
            await eventually(lambda: refusal in runtime.status().failing.get("shop", ""))
            assert "no second text" in runtime.status().failing["shop"]
            runtime.resync("shop")
            assert await own_kube_server.call("GET", path("ConfigMap", namespace)) == before

        async def is_recreated() -> bool:
            stored = await own_kube_server.call("GET", path("ConfigMap", namespace))
            return bool(stored["data"] == {"text": "two"})

        await eventually(is_recreated)
    listed = await own_kube_server.call("GET", f"/api/v1/namespaces/{namespace}/configmaps")
    names = {item["metadata"]["name"] for item in listed["items"]}
    assert names - {"kube-root-ca.crt"} == {"shop"}


async def test_a_service_with_an_empty_address_can_be_changed_after_a_restart(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    kind, nats = kube("v1", "Service", namespace=kube_namespace), MemoryStores()
    for port in (80, 81):
        ports = [{"port": port, "protocol": "TCP"}]
        await put(nats, Service={"spec": {"clusterIP": "", "ports": ports}})
        async with working(kube_server, controller_of(kind), nats) as runtime:
            await eventually(lambda: runtime.idle and runtime.status().syncs > 0)
            assert runtime.status().failing == {}
    stored_object = await kube_server.call("GET", path("Service", kube_namespace))
    assert [port["port"] for port in stored_object["spec"]["ports"]] == [81]
