"""`natsctl rbac` prints exactly the permissions that controllers need."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig

from tests.support.cli.kube_namespace import Namespace, without
from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster, cluster_role
from tests.support.servers.nats_server import NatsServer

WEBAPPS = "controllers.webapps:WebApps"
SYNCING = "primaries listed, syncing"
GUEST = [{"kind": "User", "name": "guest", "apiGroup": "rbac.authorization.k8s.io"}]

LOCAL = """
from controllers.webapps import WebApps
from natsctl import kube, secondary

class LocalApps(WebApps):
    configs = secondary(kube("v1", "ConfigMap", namespace="{namespace}"))
    deployments = secondary(kube("apps/v1", "Deployment", namespace="{namespace}"))
    services = secondary(kube("v1", "Service", namespace="{namespace}"))
"""
LOCALS = "local:LocalApps"

NAMED = """
from natsctl import Controller, Object, kube, kv, primary, secondary

class Note(Object, frozen=True):
    spec: dict[str, str] = {{}}

class Notes(Controller):
    notes = primary(kv(Note, bucket="notes"))
    board = secondary(kube("v1", "ConfigMap", namespace="{namespace}", name="board"))

    async def sync_handler(self, key):
        note = self.notes.get(key)
        if note is not None:
            await self.board.apply({{"metadata": {{"name": "board"}}, "data": note.spec}})
"""

HERD = """
from natsctl import Controller, Object, kube, kv, primary, tertiary

class Cat(Object, frozen=True):
    pass

class Cats(Controller):
    cats = primary(kv(Cat, bucket="cats"))
    mice = tertiary(kube("zoo.example.com/v1", "Mouse"))
    dogs = tertiary(kube("zoo.example.com/v1", "Dog"))

    async def sync_handler(self, key):
        pass
"""


@pytest.fixture
def natsctl(folder: Path, nats_server: NatsServer, kube_server: KubeCluster) -> Natsctl:
    return Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig("guest"))


async def test_the_printed_permissions_suffice_for_syncs_and_garbage_collection(
    natsctl: Natsctl, jetstream: JetStreamContext, kube_server: KubeCluster, namespace: Namespace
) -> None:
    text = await natsctl.done("rbac", "-c", WEBAPPS, "--service-account", "nobody")
    role, binding = yaml.safe_load_all(text)
    async with cluster_role(kube_server, role, {**binding, "subjects": GUEST}):
        async with natsctl.running("run", "-c", WEBAPPS) as running:
            await running.logged(SYNCING)
            await natsctl.done("put", "webapps", "shop", namespace.app())
            await natsctl.done("put", "webapps", "pier", namespace.app())
            await eventually(lambda: namespace.has("pier", "shop"))
            await namespace.delete("services", "shop")
            await eventually(lambda: namespace.has("pier", "shop"))
            await namespace.edit("deployments", "shop", spec={"replicas": 7})
            await eventually(lambda: _replicas(namespace, 1))
            await eventually(lambda: _has_synced_event(namespace))
            assert await running.ends(signal.SIGTERM) == 0
            assert "may not" not in running.log
        await jetstream.purge_stream("KV_webapps", subject="$KV.webapps.shop")
        async with natsctl.running("run", "-c", WEBAPPS) as running:
            await running.logged(SYNCING)
            await natsctl.done("gc", "apply", "--yes", "--force")
            assert await namespace.has("pier")
            await natsctl.done("delete", "webapps", "pier")
            await eventually(namespace.has)
            assert "may not" not in running.log


async def _replicas(namespace: Namespace, wanted: int) -> bool:
    return (await namespace.read("deployments", "shop"))["spec"]["replicas"] == wanted


async def _has_synced_event(namespace: Namespace) -> bool:
    assert ("Service", "shop") in await namespace.events("Synced")
    return True


@asynccontextmanager
async def missing(
    natsctl: Natsctl, namespace: Namespace, verb: str, *, resource: str = "services"
) -> AsyncIterator[Running]:
    """Run web apps of one namespace without one verb, and grant the verb at the end.

    The daemon must converge after the grant.
    """
    (natsctl.folder / "local.py").write_text(LOCAL.format(namespace=namespace.name))
    printed = json.loads(await natsctl.done("rbac", "-c", LOCALS, "-o", "json", "--no-kube"))
    about_cluster, role = printed["items"]
    namespace.server.allow("guest", about_cluster["rules"], namespace="kube-system")
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", namespace.name)
    reduced = without(role["rules"], verb, resource=resource)
    assert reduced != role["rules"]
    namespace.server.allow("guest", reduced, namespace=namespace.name)
    async with natsctl.running("run", "-c", LOCALS) as running:
        yield running
        namespace.server.allow("guest", role["rules"], namespace=namespace.name)
        await eventually(lambda: namespace.has("shop"))
        await running.logged(SYNCING)
        await natsctl.done("delete", "webapps", "shop")
        await eventually(namespace.has)
        assert await running.ends(signal.SIGTERM) == 0


async def denied(running: Running, verb: str, resource: str, namespace: Namespace) -> None:
    """Wait until the log names the missing permission and gives advice."""
    expected = f"may not {verb} {resource}"
    await running.logged(expected)
    line = next(line for line in running.log.splitlines() if expected in line)
    line = line.replace("\\'", "'")  # the value of a field is quoted
    assert f"in namespace '{namespace.name}'" in line
    assert "`natsctl rbac` prints the permissions that are needed" in line


@pytest.mark.parametrize("verb", ["list", "watch", "create", "patch"])
async def test_a_missing_permission_is_logged_and_heals_when_granted(
    natsctl: Natsctl, jetstream: JetStreamContext, namespace: Namespace, verb: str
) -> None:
    if verb == "list" and namespace.server.lists_within_watches():
        pytest.skip("this server lists within a watch, which needs no permission to list")
    await put_app(jetstream, namespace)
    async with missing(natsctl, namespace, verb) as running:
        resource = "services" if verb in {"list", "watch"} else "configmaps"
        await denied(running, verb, resource, namespace)
        assert await namespace.names("services") == []


async def test_a_missing_get_permission_is_logged_instead_of_an_ownership_conflict(
    natsctl: Natsctl, jetstream: JetStreamContext, namespace: Namespace
) -> None:
    await namespace.create("configmaps", "shop")
    await put_app(jetstream, namespace)
    async with missing(natsctl, namespace, "get") as running:
        await denied(running, "get", "configmaps", namespace)
        assert "already exists and is not managed by this controller" not in running.log
        await namespace.delete("configmaps", "shop")


async def test_a_declared_object_name_limits_the_rules_to_that_object(
    natsctl: Natsctl, folder: Path, namespace: Namespace
) -> None:
    (folder / "named.py").write_text(NAMED.format(namespace=namespace.name))
    printed = json.loads(await natsctl.done("rbac", "-c", "named:Notes", "-o", "json"))
    about_cluster, own = printed["items"]
    assert own["rules"][0]["resourceNames"] == ["board"]
    namespace.server.allow("guest", about_cluster["rules"], namespace="kube-system")
    namespace.server.allow("guest", own["rules"], namespace=namespace.name)
    async with natsctl.running("run", "-c", "named:Notes") as running:
        await running.logged(SYNCING)
        await natsctl.done("put", "notes", "a", "spec: {text: hi}")
        await eventually(lambda: _written(namespace, "hi"))
        await natsctl.done("put", "notes", "a", "spec: {text: ho}")
        await eventually(lambda: _written(namespace, "ho"))
        await natsctl.done("delete", "notes", "a")
        await eventually(lambda: _has_no_configmap(namespace))
        assert await running.ends(signal.SIGTERM) == 0
        assert "may not" not in running.log


async def test_a_daemon_that_may_not_read_the_id_of_the_cluster_says_what_it_costs(
    natsctl: Natsctl, folder: Path, kube_server: KubeCluster, namespace: Namespace
) -> None:
    config = yaml.safe_load(kube_server.kubeconfig("admin").read_text())
    config["users"][0]["user"]["as"] = "stranger"
    (folder / "stranger.yaml").write_text(yaml.safe_dump(config))
    (folder / "named.py").write_text(NAMED.format(namespace=namespace.name))
    options = ("-c", "named:Notes", "--kubeconfig", "stranger.yaml")
    async with natsctl.running("run", *options) as running:
        await running.logged("two clusters would not be told apart")


async def _written(namespace: Namespace, text: str) -> bool:
    assert await namespace.names("configmaps") == ["board"]
    return (await namespace.read("configmaps", "board"))["data"] == {"text": text}


async def _has_no_configmap(namespace: Namespace) -> bool:
    return await namespace.names("configmaps") == []


async def put_app(jetstream: JetStreamContext, namespace: Namespace) -> None:
    apps = await jetstream.create_key_value(KeyValueConfig(bucket="webapps", history=5))
    await apps.put("shop", namespace.app().encode())


async def test_rbac_uses_the_resource_name_that_the_cluster_serves(
    natsctl: Natsctl, folder: Path, kube_server: KubeCluster
) -> None:
    (folder / "herd.py").write_text(HERD)
    await kube_server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", MICE)
    await eventually(lambda: _served(kube_server))
    printed = (await natsctl.done("rbac", "-c", "herd:Cats")).splitlines()
    assert printed[0] == (
        "# dogs is a guess for the resource name of Dog in zoo.example.com: "
        "the cluster does not have it"
    )
    assert [line for line in printed if line in {"  - mice", "  - dogs"}] == [
        "  - dogs",
        "  - mice",
    ]

    alone = await natsctl("rbac", "-c", "herd:Cats", "-o", "json", "--no-kube")
    assert alone.json["items"][0]["rules"][-1]["resources"] == ["dogs", "mouses"]
    assert alone.err.splitlines() == [
        "dogs is a guess for the resource name of Dog in zoo.example.com: no cluster was asked",
        "mouses is a guess for the resource name of Mouse in zoo.example.com: no cluster was asked",
    ]


MICE = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "mice.zoo.example.com"},
    "spec": {
        "group": "zoo.example.com",
        "names": {"kind": "Mouse", "plural": "mice", "singular": "mouse", "listKind": "MouseList"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


async def _served(server: KubeCluster) -> bool:
    groups = (await server.call("GET", "/apis"))["groups"]
    assert "zoo.example.com" in [group["name"] for group in groups]
    printed = await server.call("GET", "/apis/zoo.example.com/v1")
    return [resource_info["kind"] for resource_info in printed["resources"]] == ["Mouse"]
