"""`natsctl plan` shows what a controller would do on real servers, and writes nothing there."""

import json
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
        await _pause(webapps, "webapps")
        await webapps.done("put", "webapps", "shop", namespace.app(env={"A": "c"}))
        planned = await webapps("plan", "-c", "webapps", "webapps/shop", "-o", "json")
        assert planned.status == 0, planned  # the daemon plans as a dry run
        actions = planned.json["keys"]["shop"]["actions"]
        assert ("update", "Deployment.apps") in {
            (action["action"], action["kind"]) for action in actions
        }
    changed = await webapps("plan", "-c", WEBAPPS, "-o", "json")
    assert json.dumps(changed.json).count('"before": "b", "after": "c"') == 1
    await webapps.done("delete", "webapps", "shop")
    deleted = await webapps("plan", "-c", WEBAPPS, "-o", "json")
    actions = deleted.json["keys"]["shop"]["actions"]
    assert {action["action"] for action in actions} == {"delete"}
    assert deleted.json["summary"]["delete"] == 3
    assert await namespace.has("shop")


async def _nothing_to_do(natsctl: Natsctl) -> bool:
    assert (await natsctl("plan", "-c", WEBAPPS, "--exit-code")).status == 0
    return True
