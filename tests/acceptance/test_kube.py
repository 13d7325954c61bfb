"""`natsctl run` keeps objects in a real cluster equal to their primaries in NATS."""

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.clients.plain_client import PATIENCE_S, plain_client
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.kube_proxy import through_proxy
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

WEBAPPS = "controllers.webapps:WebApps"
SYNCING = "primaries listed, syncing"

Daemon = Callable[..., Awaitable[Running]]


@pytest.fixture
def natsctl(folder: Path, nats_server: NatsServer, kube_server: KubeCluster) -> Natsctl:
    return Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())


@pytest.mark.usefixtures("kube_assets")  # only this controller reports the state of pods
async def test_a_web_app_is_created_repaired_and_deleted_with_its_object(
    folder: Path, kube_server: KubeCluster, namespace: Namespace
) -> None:
    port = free_port()
    natsctl = Natsctl(folder, f"nats://127.0.0.1:{port}")
    kubeconfig = str(kube_server.kubeconfig())
    words = ("dev", "--port", str(port), "--controller", WEBAPPS, "--kubeconfig", kubeconfig)
    async with natsctl.running(*words) as running:
        await running.logged(SYNCING)
        await natsctl.done("put", "webapps", "shop", namespace.app(replicas=2, env={"A": "b"}))
        await eventually(lambda: namespace.has("shop"))
        data = (await namespace.read("configmaps", "shop"))["data"]
        assert data == {"PORT": "8080", "A": "b"}

        await namespace.runs("shop", ready=2)
        await eventually(lambda: _ready(natsctl, 2))

        await namespace.delete("services", "shop")
        await eventually(lambda: namespace.has("shop"))
        await namespace.edit("deployments", "shop", spec={"replicas": 7})
        await eventually(lambda: _replicas(namespace, 2))
        await eventually(lambda: _has_synced_events(namespace))

        await natsctl.done("delete", "webapps", "shop")
        await eventually(namespace.has)
        assert await running.ends(signal.SIGTERM) == 0


async def _ready(natsctl: Natsctl, ready: int) -> bool:
    document = json.loads(await natsctl.done("get", "webapps", "shop", "-o", "json"))
    status = document.get("status", {})
    assert (status.get("ready"), status.get("readyReplicas")) == (True, ready)
    return True


async def _replicas(namespace: Namespace, wanted: int) -> bool:
    return (await namespace.read("deployments", "shop"))["spec"]["replicas"] == wanted


async def _has_synced_events(namespace: Namespace) -> bool:
    assert await namespace.events("Synced") >= {
        ("ConfigMap", "shop"),
        ("Deployment", "shop"),
        ("Service", "shop"),
    }
    return True


async def test_the_manifest_of_an_object_of_the_tree_is_answered(
    natsctl: Natsctl, nats_server: NatsServer, daemon: Daemon, namespace: Namespace
) -> None:
    await daemon(WEBAPPS)
    await natsctl.done("put", "webapps", "shop", namespace.app(env={"API_TOKEN": "s3cret-s3cret"}))
    await eventually(lambda: namespace.has("shop"))

    async def answers() -> bool:
        async with plain_client(nats_server.url) as client:
            reply = await client.request("natsctl.api.tree.webapps", b"shop", timeout=PATIENCE_S)
            branches = {one["kind"]: one for one in json.loads(reply.data)["branches"]}
            assert branches.keys() >= {"ConfigMap", "Service"}
            config = branches["ConfigMap"]
            wanted = json.dumps({"kind": config["kind"], "key": config["key"]}).encode()
            subject = "natsctl.api.manifest.webapps"
            reply = await client.request(subject, wanted, timeout=PATIENCE_S)
        manifest = json.loads(json.loads(reply.data)["text"])
        assert (manifest["kind"], manifest["metadata"]["name"]) == ("ConfigMap", "shop")
        assert manifest["data"] == {"PORT": "8080", "API_TOKEN": "***"}
        assert "managedFields" not in manifest["metadata"]
        return True

    await eventually(answers)


async def test_a_daemon_waits_for_its_cluster_at_the_start_and_after_an_outage(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster, namespace: Namespace
) -> None:
    natsctl = Natsctl(folder, nats_server.url)
    async with through_proxy(kube_server) as (proxy, kubeconfig):
        proxy.cut()
        words = ("run", "-c", WEBAPPS, "--kubeconfig", str(kubeconfig))
        async with natsctl.running(*words) as running:
            await running.logged("cannot reach Kubernetes yet")
            await proxy.heal()
            await running.logged(SYNCING)
            await natsctl.done("put", "webapps", "shop", namespace.app())
            await eventually(lambda: namespace.has("shop"))

            proxy.cut()
            await natsctl.done("put", "webapps", "pier", namespace.app())
            await natsctl.done("delete", "webapps", "shop")
            await proxy.heal()
            await eventually(lambda: namespace.has("pier"))
            assert await running.ends(signal.SIGTERM) == 0


async def test_a_sync_writes_only_changes_and_garbage_of_the_cluster_is_collected(
    natsctl: Natsctl, jetstream: JetStreamContext, daemon: Daemon, namespace: Namespace
) -> None:
    running = await daemon(WEBAPPS)
    await natsctl.done("put", "webapps", "shop", namespace.app())
    await eventually(lambda: namespace.has("shop"))
    since = namespace.server.mark()
    await natsctl.done("resync", "webapps/shop")
    await natsctl.done("put", "webapps", "pier", namespace.app())  # synced behind the other
    await eventually(lambda: namespace.has("pier", "shop"))
    written = namespace.server.writes(since, namespace=namespace.name)
    written = [one for one in written if one.resource != "events"]
    assert [one for one in written if one.name.startswith("shop")] == []
    assert await running.ends(signal.SIGTERM) == 0

    await jetstream.purge_stream("KV_webapps", subject="$KV.webapps.shop")
    await daemon(WEBAPPS)
    plan = await natsctl("gc", "plan", "-o", "json")
    mine = [orphan for orphan in plan.json["orphans"] if orphan["key"].startswith(namespace.name)]
    assert sorted(orphan["kind"] for orphan in mine) == ["ConfigMap", "Deployment.apps", "Service"]
    assert {orphan["owner"] for orphan in mine} == {"shop"}
    await natsctl.done("gc", "apply", "--yes", "--force")
    assert await namespace.has("pier")
    await natsctl.done("delete", "webapps", "pier")


NOTES = """
from natsctl import Controller, Object, kube, kv, primary, secondary

class Note(Object, frozen=True):
    spec: dict[str, str] = {{}}

class Notes(Controller):
    notes = primary(kv(Note, bucket="notes"))
    configs = secondary(kube("v1", "ConfigMap", namespace="{namespace}"))

    async def sync_handler(self, key):
        note = self.notes.get(key)
        if note is not None:
            await self.configs.apply({{"metadata": {{"name": key}}, "data": note.spec}})
"""


@pytest.mark.parametrize("option", ["--shard", "--leader-elect"])
async def test_daemons_of_two_clusters_are_not_mixed(
    natsctl: Natsctl,
    namespace: Namespace,
    nats_server: NatsServer,
    own_kube_server: KubeServer,
    option: str,
) -> None:
    (natsctl.folder / "notes.py").write_text(NOTES.format(namespace=namespace.name))
    other = Natsctl(natsctl.folder, nats_server.url, kubeconfig=own_kube_server.kubeconfig())
    words = ("run", "-c", "notes:Notes", option, "--lease-ttl", "600")
    async with natsctl.running(*words) as daemon:
        await daemon.logged(SYNCING)
        async with other.running(*words) as stranger:
            await stranger.logged("in another Kubernetes cluster: it works in the cluster")
            names = [f"note-{number}" for number in range(10)]
            objects = [{"bucket": "notes", "key": name, "spec": {}} for name in names]
            await natsctl.done("apply", "-f", "-", stdin=json.dumps(objects))

            async def all_are_here() -> bool:
                return await namespace.names("configmaps") == names

            await eventually(all_are_here)
            status = await natsctl.done("status")
            assert "notes: daemons work in different Kubernetes clusters" in status
            assert "in another Kubernetes cluster: it works in the cluster" in status
            for command in (natsctl, other):
                doctor = await command("doctor", "-c", "notes:Notes", option)
                assert "daemons work in different Kubernetes clusters" in doctor.out
            assert "failed  lease notes" in doctor.out  # of the one that works elsewhere
            await stranger.ends(signal.SIGTERM)
        await daemon.ends(signal.SIGTERM)
