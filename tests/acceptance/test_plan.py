"""`natsctl plan` shows what a controller would do on real servers, and writes nothing there."""

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.contents import kube_contents, nats_contents
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer

GREETINGS = "controllers.greetings:Greetings"
WEBAPPS = "controllers.webapps:WebApps"
MOODY = """
from natsctl import Controller, Object, kv, primary

class Mood(Object, frozen=True):
    spec: dict[str, str] = {}

class Moody(Controller):
    moods = primary(kv(Mood, bucket="moods"))

    async def sync_handler(self, key):
        if self.moods.get(key) is not None and key == "bad":
            raise ValueError("a bad mood")
"""

Daemon = Callable[..., Awaitable[Running]]


@pytest.fixture
def namespace(kube_server: KubeCluster, kube_namespace: str) -> Namespace:
    return Namespace(kube_server, kube_namespace)


@pytest.fixture
def webapps(folder: Path, nats_server: NatsServer, kube_server: KubeCluster) -> Natsctl:
    return Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())


async def test_a_plan_shows_what_a_daemon_does_afterwards(natsctl: Natsctl, daemon: Daemon) -> None:
    await natsctl.done("put", "greetings", "shop", "spec: {text: hi}", "--create-bucket")
    assert await natsctl.done("plan", "-c", GREETINGS) == (
        "shop\n"
        "  + Route.routes/shop\n"
        '      spec.subject: "hello.shop"\n'
        '      spec.payload: "hi!"\n'
        "  ~ Greeting.greetings/shop (status)\n"
        "      status.observedGeneration: 1\n"
        "      status.ready: true\n"
        "Plan: 1 to create, 1 to change, 0 to delete, 0 failed, 0 unchanged\n"
    )
    await daemon(GREETINGS)
    unchanged = "Plan: 0 to create, 0 to change, 0 to delete, 0 failed, 1 unchanged\n"

    async def has_nothing_to_do() -> bool:
        assert await natsctl("plan", "-c", GREETINGS, "--exit-code") == (0, unchanged, "")
        return True

    await eventually(has_nothing_to_do)


async def test_a_daemon_plans_keys_that_are_sent_to_it_by_the_name_of_the_controller(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    await natsctl.done("put", "greetings", "shop", "spec: {text: hi}", "--create-bucket")
    await daemon(GREETINGS)
    await eventually(lambda: _has(natsctl, "routes", "shop"))
    await _pause(natsctl, "greetings")
    await natsctl.done("put", "greetings", "shop", "spec: {text: ho}")
    planned = (await natsctl("plan", "-c", "greetings", "greetings/shop")).out
    assert '  ~ Route.routes/shop\n      spec.payload: "hi!" -> "ho!"\n' in planned
    refused = await natsctl("plan", "-c", "greetings", "greetings/shop", "-o", "diff")
    assert refused.status == 2
    assert "-o diff needs the controller's class" in refused.err
    unselected = await natsctl("plan", "-c", "greetings")
    assert "name 1 to 20 keys: a daemon makes no larger plan; run natsctl plan -c" in unselected.err


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


async def test_keys_that_newly_fail_differ_from_keys_that_failed_before(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    (folder / "moody.py").write_text(MOODY)
    for key in ("good", "bad"):
        await natsctl.done("put", "moods", key, "spec: {}", "--create-bucket")
    await natsctl.done("put", "moods", "odd", "--raw", "[")
    planning = ("plan", "-c", "moody:Moody")
    newly = await natsctl(*planning, "--exit-code")
    assert (newly.status, "  ! ValueError: a bad mood" in newly.out) == (11, True)
    assert newly.out.count("  ! ") == 2
    running = await daemon("moody:Moody")

    async def failed_before() -> str:
        planned = await natsctl(*planning, "--exit-code")
        assert planned.status == 0, planned
        return planned.out

    shown = await eventually_text(failed_before)
    assert "  ! as before: ValueError: a bad mood" in shown
    assert "  ! as before: not a valid Mood" in shown
    assert ", 2 failed (2 as before), 1 unchanged" in shown
    in_daemon = await natsctl("plan", "-c", "moody", "moods/bad", "--exit-code")
    assert (in_daemon.status, "! as before: ValueError" in in_daemon.out) == (0, True)
    (folder / "moody.py").write_text(MOODY.replace('key == "bad"', 'key in {"bad", "good"}'))
    worse = await natsctl(*planning, "--exit-code")
    assert (worse.status, ", 3 failed (2 as before), 0 unchanged" in worse.out) == (11, True), worse
    await eventually(lambda: _is_recorded(natsctl))
    assert await running.ends(signal.SIGTERM) == 0
    alone = await natsctl(*planning, "moods/bad")
    assert (alone.status, "! as before: ValueError" in alone.out) == (0, True), alone


async def _is_recorded(natsctl: Natsctl) -> bool:
    """Check that the daemon has noted the failure in NATS, where it outlives the daemon."""
    assert "controllers.moody.failing.bad" in await natsctl.done("get", "natsctl", "-o", "name")
    return True


async def eventually_text(read: Callable[[], Awaitable[str]]) -> str:
    """Return the first non-empty text that *read* returns without a failure."""
    texts: list[str] = []

    async def has_text() -> bool:
        texts.append(await read())
        return bool(texts[-1])

    await eventually(has_text)
    return texts[-1]


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
