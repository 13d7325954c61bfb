"""`natsctl plan` shows what a controller would do on real servers, and writes nothing there."""

import json
import signal
from pathlib import Path

import pytest

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import Natsctl
from tests.support.eventually import eventually
from tests.support.servers.contents import kube_contents, nats_contents
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer

GREETINGS = "controllers.greetings:Greetings"
WEBAPPS = "controllers.webapps:WebApps"


@pytest.fixture
def webapps(folder: Path, nats_server: NatsServer, kube_server: KubeCluster) -> Natsctl:
    return Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())


async def _pause(natsctl: Natsctl, controller: str) -> None:
    """Pause a controller, and wait until its daemon knows."""
    await natsctl.done("pause", "--all", "-c", controller)

    async def is_paused() -> bool:
        status = (await natsctl("status", "-c", controller, "-o", "json")).json[0]
        return status["paused_controller"] is not None

    await eventually(is_paused)


async def _has(natsctl: Natsctl, bucket: str, key: str) -> bool:
    assert (await natsctl("get", bucket, key)).status == 0
    return True


async def test_a_plan_stores_nothing_in_nats(natsctl: Natsctl, nats_server: NatsServer) -> None:
    for key in ("shop", "market"):
        await natsctl.done("put", "greetings", key, "spec: {text: hi}", "--create-bucket")
    before = await nats_contents(nats_server.url)
    result = await natsctl("plan", "-c", GREETINGS, "-o", "json", "--exit-code")
    assert (result.status, result.json["summary"]["create"]) == (10, 2)
    assert await nats_contents(nats_server.url) == before


async def test_a_plan_for_a_cluster_shows_defaults_and_stores_nothing(
    webapps: Natsctl, namespace: Namespace, nats_server: NatsServer, kube_server: KubeCluster
) -> None:
    await webapps.done("put", "webapps", "shop", namespace.app(), "--create-bucket")
    before = (
        await nats_contents(nats_server.url),
        await kube_contents(kube_server, namespace.name),
    )
    result = await webapps("plan", "-c", WEBAPPS, "-o", "json")
    assert result.status == 0, result
    actions = result.json["keys"]["shop"]["actions"]
    assert [(action["action"], action["kind"]) for action in actions] == [
        ("create", "ConfigMap"),
        ("create", "Deployment.apps"),
        ("create", "Service"),
        ("status", "WebApp.webapps"),
    ]
    paths = {difference["path"] for difference in actions[1]["diff"]}
    assert "spec.template.spec.terminationGracePeriodSeconds" in paths  # the server's default
    after = (
        await nats_contents(nats_server.url),
        await kube_contents(kube_server, namespace.name),
    )
    assert after == before


async def test_a_plan_for_a_cluster_equals_the_work_of_the_daemon(
    webapps: Natsctl, namespace: Namespace
) -> None:
    await webapps.done("put", "webapps", "shop", namespace.app(), "--create-bucket")
    async with webapps.running("run", "-c", WEBAPPS) as running:
        await running.logged("primaries listed, syncing")
        await eventually(lambda: namespace.has("shop"))
        await eventually(lambda: _nothing_to_do(webapps))
        await webapps.done("put", "webapps", "shop", namespace.app(env={"A": "b"}))
        await eventually(lambda: _nothing_to_do(webapps))
    await webapps.done("put", "webapps", "shop", namespace.app(env={"A": "c"}))
    changed = await webapps("plan", "-c", WEBAPPS, "-o", "json")
    assert json.dumps(changed.json).count('"before": "b", "after": "c"') == 1
    await webapps.done("delete", "webapps", "shop")
    deleted = await webapps("plan", "-c", WEBAPPS, "-o", "json")
    actions = deleted.json["keys"]["shop"]["actions"]
    assert {action["action"] for action in actions} == {"delete"}
    assert deleted.json["summary"]["delete"] == 3
    assert await namespace.has("shop")


async def test_a_daemon_plans_for_a_cluster_as_a_dry_run(
    webapps: Natsctl, namespace: Namespace
) -> None:
    await webapps.done("put", "webapps", "shop", namespace.app(), "--create-bucket")
    async with webapps.running("run", "-c", WEBAPPS) as running:
        await running.logged("primaries listed, syncing")
        await eventually(lambda: namespace.has("shop"))
        await _pause(webapps, "webapps")
        await webapps.done("put", "webapps", "shop", namespace.app(env={"A": "b"}))
        planned = await webapps("plan", "-c", "webapps", "webapps/shop", "-o", "json")
    assert planned.status == 0, planned
    actions = planned.json["keys"]["shop"]["actions"]
    assert ("update", "Deployment.apps") in {
        (action["action"], action["kind"]) for action in actions
    }


async def _nothing_to_do(natsctl: Natsctl) -> bool:
    assert (await natsctl("plan", "-c", WEBAPPS, "--exit-code")).status == 0
    return True


async def test_a_dry_run_beside_a_daemon_writes_nothing_and_neither_leads_nor_shares(
    natsctl: Natsctl, nats_server: NatsServer
) -> None:
    await natsctl.done("put", "greetings", "shop", "spec: {text: hi}", "--create-bucket")
    # nothing of a process may expire between the two readings of the server
    live = ("run", "-c", GREETINGS, "--leader-elect", "--lease-ttl", "600")
    async with natsctl.running("run", "-c", GREETINGS, "--dry-run") as first:
        await first.logged("planned a change", times=2)
        async with (
            natsctl.running(*live) as leader,
            natsctl.running("run", "-c", GREETINGS, "--dry-run") as second,
        ):
            await eventually(lambda: _has(natsctl, "routes", "shop"))
            await eventually(lambda: _modes(natsctl, ["dry-run", "dry-run", "leader"]))
            await eventually(lambda: _planned(natsctl, []))
            status = await natsctl("status")
            assert "more than once" not in status.out + status.err
            for ended in (leader, second):
                assert await ended.ends(signal.SIGTERM) == 0
        before = await nats_contents(nats_server.url)
        await natsctl.done("put", "greetings", "market", "spec: {text: ho}")
        await first.logged("object=market", times=2)
        await eventually(lambda: _planned(natsctl, ["create", "status"], "market"))
        after = await nats_contents(nats_server.url)
        del before["KV_greetings"], after["KV_greetings"]  # the user wrote there
        assert after == before


async def _modes(natsctl: Natsctl, modes: list[str]) -> bool:
    result = await natsctl("status", "-o", "json")
    assert sorted(status["mode"] for status in result.json) == modes
    return True


async def _planned(natsctl: Natsctl, planned: list[str], key: str = "shop") -> bool:
    """Check that the dry runs plan these actions for the key."""
    explained = await natsctl("describe", "greetings", key, "-o", "json")
    for answer in explained.json:
        if answer["planned"] is not None:
            assert [action["action"] for action in answer["planned"]["actions"]] == planned
    return True
