"""`natsctl run` with a real cluster: what is in NATS is in the cluster, whatever happens."""

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from tests.support.cli.kube_namespace import KINDS, Namespace, unreachable
from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

WEBAPPS = "controllers.webapps:WebApps"
GREETINGS = "controllers.greetings:Greetings"
SYNCING = "primaries listed, syncing"

Daemon = Callable[..., Awaitable[Running]]


@pytest.fixture
def namespace(kube_server: KubeCluster, kube_namespace: str) -> Namespace:
    return Namespace(kube_server, kube_namespace)


@pytest.fixture
def natsctl(folder: Path, nats_server: NatsServer, kube_server: KubeCluster) -> Natsctl:
    return Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())


@pytest.mark.usefixtures("kube_assets")  # it reports what runs, as no other controller does
async def test_a_web_app_runs_in_the_cluster_and_goes_with_its_object(
    folder: Path, kube_server: KubeCluster, namespace: Namespace
) -> None:
    port = free_port()
    url = f"nats://127.0.0.1:{port}"
    natsctl = Natsctl(folder, url, kubeconfig=kube_server.kubeconfig())
    operator = Natsctl(folder, kubeconfig=kube_server.kubeconfig())
    words = ("run", "--embedded", "--port", str(port), "--controller", WEBAPPS)
    async with operator.running(*words) as running:
        await running.says(SYNCING)
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
        await eventually(lambda: _told(namespace))

        await natsctl.done("delete", "webapps", "shop")
        await eventually(namespace.has)
        assert await running.ends(signal.SIGTERM) == 0


async def _ready(natsctl: Natsctl, ready: int) -> bool:
    status = json.loads(await natsctl.done("get", "webapps", "shop", "-o", "json"))["status"]
    assert (status["ready"], status["readyReplicas"]) == (True, ready)
    return True


async def _replicas(namespace: Namespace, wanted: int) -> bool:
    return (await namespace.read("deployments", "shop"))["spec"]["replicas"] == wanted


async def _told(namespace: Namespace) -> bool:
    assert await namespace.events("Synced") >= {
        ("ConfigMap", "shop"),
        ("Deployment", "shop"),
        ("Service", "shop"),
    }
    return True


async def test_what_was_deleted_while_no_daemon_ran_goes_when_one_does(
    natsctl: Natsctl, daemon: Daemon, jetstream: JetStreamContext, namespace: Namespace
) -> None:
    first = await daemon(WEBAPPS)
    for key in ("shop", "team-a.shop"):
        await natsctl.done("put", "webapps", key, namespace.app())

    async def both_run() -> bool:
        assert [len(await namespace.names(kind)) for kind in KINDS] == [2, 2, 2]
        return True

    await eventually(both_run)
    assert await first.ends(signal.SIGTERM) == 0
    apps = await jetstream.key_value("webapps")
    await apps.delete("team-a.shop")
    second = await daemon(WEBAPPS)
    await eventually(lambda: namespace.has("shop"))
    await apps.delete("shop")
    await eventually(namespace.has)
    assert await second.ends(signal.SIGTERM) == 0


async def test_what_the_cluster_refuses_is_told_and_not_tried_again(
    natsctl: Natsctl, daemon: Daemon, namespace: Namespace
) -> None:
    running = await daemon(WEBAPPS)
    await natsctl.done("put", "webapps", "shop", namespace.app(env={"A" * 254: "x"}))

    async def told() -> bool:
        text = await natsctl.done("get", "webapps", "shop", "-o", "json")
        status = json.loads(text).get("status", {})
        assert status.get("ready") is False
        accepted = status["conditions"][0]
        assert accepted["reason"] == "InvalidSpec"
        assert "data[AAA" in accepted["message"]
        return True

    await eventually(told)
    await natsctl.done("put", "webapps", "shop", namespace.app())
    await eventually(lambda: namespace.has("shop"))
    await natsctl.done("delete", "webapps", "shop")
    await eventually(namespace.has)
    assert running.log.count("PermanentError") == 1


async def test_an_object_of_somebody_else_is_left_alone(
    natsctl: Natsctl, daemon: Daemon, namespace: Namespace
) -> None:
    await namespace.create("configmaps", "shop", data={"of": "theirs"})
    running = await daemon(WEBAPPS)
    await natsctl.done("put", "webapps", "shop", namespace.app())
    at = f'"{namespace.name}/shop"'
    await running.says(f"Resource {at} already exists and is not managed by this controller")
    assert (await namespace.read("configmaps", "shop"))["data"] == {"of": "theirs"}
    await namespace.delete("configmaps", "shop")
    await eventually(lambda: namespace.has("shop"))
    await natsctl.done("delete", "webapps", "shop")
    await eventually(namespace.has)


async def test_a_cluster_that_is_not_there_is_waited_for_at_the_start_and_later(
    folder: Path, nats_server: NatsServer, own_kube_server: KubeCluster
) -> None:
    namespace = Namespace(own_kube_server, own_kube_server.new_namespace())
    kubeconfig = own_kube_server.kubeconfig()
    natsctl = Natsctl(folder, nats_server.url)
    await own_kube_server.stop()  # type: ignore[attr-defined]
    words = ("run", "-c", WEBAPPS, "--kubeconfig", str(kubeconfig))
    async with natsctl.running(*words) as running:
        await running.says("cannot reach Kubernetes yet")
        await own_kube_server.start()  # type: ignore[attr-defined]
        await running.says(SYNCING)
        await natsctl.done("put", "webapps", "shop", namespace.app())
        await eventually(lambda: namespace.has("shop"))

        own_kube_server.kill()  # type: ignore[attr-defined]
        await natsctl.done("put", "webapps", "pier", namespace.app())
        await natsctl.done("delete", "webapps", "shop")
        await own_kube_server.start()  # type: ignore[attr-defined]
        await eventually(lambda: namespace.has("pier"))
        assert await running.ends(signal.SIGTERM) == 0


async def test_a_daemon_that_waits_for_a_cluster_ends_when_told_to(
    folder: Path, nats_server: NatsServer
) -> None:
    natsctl = Natsctl(folder, nats_server.url, kubeconfig=unreachable(folder))
    async with natsctl.running("run", "-c", WEBAPPS) as running:
        await running.says("cannot reach Kubernetes yet")
        assert await running.ends(signal.SIGTERM) == 0


async def test_without_kinds_of_a_cluster_none_is_looked_for(
    folder: Path, nats_server: NatsServer
) -> None:
    natsctl = Natsctl(folder, nats_server.url, kubeconfig=folder / "missing.yaml")
    async with natsctl.running("run", "-c", GREETINGS) as running:
        await running.says(SYNCING)
        assert await running.ends(signal.SIGTERM) == 0
    wanted = await natsctl("run", "-c", WEBAPPS)
    assert (wanted.status, wanted.err.count("missing.yaml")) == (2, 1)
    refused = await natsctl("run", "-c", GREETINGS, "-c", WEBAPPS, "--no-kube")
    assert refused.status == 2
    assert (
        "WebApps.configs is kept in Kubernetes, and --no-kube forbids a connection" in refused.err
    )


async def test_dev_speaks_to_the_cluster_that_it_was_told_of(
    folder: Path, kube_server: KubeCluster, namespace: Namespace
) -> None:
    port = free_port()
    natsctl = Natsctl(folder, f"nats://127.0.0.1:{port}")
    kubeconfig = str(kube_server.kubeconfig())
    words = ("dev", "-c", WEBAPPS, "--port", str(port), "--kubeconfig", kubeconfig)
    async with natsctl.running(*words) as running:
        await running.says(SYNCING)
        await natsctl.done("put", "webapps", "shop", namespace.app())
        await eventually(lambda: namespace.has("shop"))
        await natsctl.done("delete", "webapps", "shop")
        await eventually(namespace.has)
        assert await running.ends(signal.SIGTERM) == 0


async def test_upkeep_works_without_a_daemon_and_writes_no_more_than_it_must(
    natsctl: Natsctl, jetstream: JetStreamContext, daemon: Daemon, namespace: Namespace
) -> None:
    running = await daemon(WEBAPPS)  # makes the buckets
    assert await running.ends(signal.SIGTERM) == 0
    await natsctl.done("put", "webapps", "shop", namespace.app())
    assert await natsctl.done("resync", "--local", "-c", WEBAPPS) == "1 of 1 synced\n"
    assert await namespace.has("shop")
    since = namespace.server.mark()
    assert await natsctl.done("resync", "--local", "-c", WEBAPPS) == "1 of 1 synced\n"
    assert namespace.server.writes(since, namespace=namespace.name) == []
    await (await jetstream.key_value("webapps")).purge("shop")
    await natsctl.done("put", "webapps", "pier", namespace.app())

    plan = await natsctl("gc", "plan", "--local", "-c", WEBAPPS, "-o", "json")
    mine = [each for each in plan.json["orphans"] if each["key"].startswith(namespace.name)]
    assert sorted(each["kind"] for each in mine) == ["ConfigMap", "Deployment.apps", "Service"]
    assert {each["owner"] for each in mine} == {"shop"}
    refused = await natsctl("gc", "plan", "--local", "-c", WEBAPPS, "--no-kube")
    assert (refused.status, "--no-kube" in refused.err) == (2, True)
    await natsctl.done("gc", "apply", "--local", "-c", WEBAPPS, "--yes", "--force")
    assert await namespace.has()
    await natsctl.done("delete", "webapps", "pier")
