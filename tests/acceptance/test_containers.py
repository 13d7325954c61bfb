"""The stack of docker-compose.yml works on a machine with Docker only."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from aiohttp import ClientSession
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, NotFoundError

from tests.support.eventually import eventually
from tests.support.servers.docker import ROOT, Stack, fetched, inspected

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]  # the first one builds the image

SHOP = ("configmap/shop", "service/shop", "deployment.apps/shop")
BUCKETS = ("greetings", "routes", "defaults")

SLOW = """
import asyncio
from natsctl import Controller, Object, kv, primary

class Job(Object, frozen=True):
    spec: dict[str, str] = {}

class Jobs(Controller):
    jobs = primary(kv(Job, bucket="jobs"))

    async def sync_handler(self, key):
        print("begun", flush=True)
        await asyncio.sleep(3600)
"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Return a world-readable folder with a controller whose syncs take an hour."""
    (tmp_path / "slow.py").write_text(SLOW)
    tmp_path.chmod(0o755)
    return tmp_path


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[JetStreamContext]:
    """Connect a plain NATS client from the host after natsctl has begun to watch its buckets."""
    client = await nats.connect(stack.url, allow_reconnect=False)
    try:
        jetstream = client.jetstream()
        await eventually(lambda: _watched(jetstream))
        yield jetstream
    finally:
        await client.close()


@pytest.fixture
async def jetstream(stack: Stack) -> AsyncIterator[JetStreamContext]:
    async with connected(stack) as connection:
        yield connection


async def greet(jetstream: JetStreamContext, key: str, text: str) -> None:
    greetings = await jetstream.key_value("greetings")
    await greetings.put(key, json.dumps({"spec": {"text": text}}).encode())


def commands(*, about: str) -> list[str]:
    """Return the `docker compose exec` commands of a section of the page."""
    page = (ROOT / "docs" / "compose.md").read_text()
    section = page.partition(f"## {about}\n")[2].partition("\n## ")[0]
    return re.findall(r"^docker compose exec .*$", section, re.MULTILINE)


async def run(stack: Stack, command: str) -> str:
    """Run a command in a shell, check that it succeeds, and return its output."""
    status, output_text = await stack.tried("sh", "-c", command)
    assert status == 0, f"{command}: {output_text}"
    return output_text


async def payload(jetstream: JetStreamContext, key: str) -> str | None:
    """Return the payload of a route, or None if the route does not exist."""
    routes = await jetstream.key_value("routes")
    try:
        entry = await routes.get(key)
    except KeyNotFoundError:
        return None
    return str(json.loads(entry.value or b"")["spec"]["payload"])


async def test_an_object_put_through_the_published_port_gets_a_secondary(
    jetstream: JetStreamContext,
) -> None:
    await greet(jetstream, "shop", "hi")
    await eventually(lambda: _has_payload(jetstream, "shop", "hi!"))


async def test_a_restart_of_nats_loses_no_object_and_does_not_restart_natsctl(stack: Stack) -> None:
    async with connected(stack) as before:
        await greet(before, "shop", "hi")
        await eventually(lambda: _has_payload(before, "shop", "hi!"))
    started = (await stack.state("natsctl"))["StartedAt"]

    await stack.compose("restart", "nats")
    await stack.up()

    async with connected(stack) as after:
        await greet(after, "pier", "ho")
        await eventually(lambda: _has_payload(after, "pier", "ho!"))
        assert await payload(after, "shop") == "hi!"
    assert (await stack.state("natsctl"))["StartedAt"] == started


async def test_a_stopped_natsctl_exits_with_zero_and_leaves_no_consumer(
    stack: Stack, jetstream: JetStreamContext
) -> None:
    await stack.compose("stop", "natsctl")
    state = await stack.state("natsctl")
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)
    assert await _consumers(jetstream) == 0


async def test_the_container_has_a_user_without_root_and_a_read_only_file_system(
    image: str, stack: Stack
) -> None:
    output_text = (await stack.inside("id", "-u"))[1].strip()
    assert output_text == (await inspected(image))["Config"]["User"].partition(":")[0]
    assert int(output_text) > 0

    folders = ("/", "/app", "/app/controllers", "/home/natsctl", "/opt/natsctl", "/var/tmp")
    for folder in folders:
        status, output_text = await stack.inside("touch", f"{folder}/new")
        assert status != 0, folder
        assert "Read-only file system" in output_text
    assert await stack.inside("touch", "/tmp/new") == (0, "")


async def test_docker_init_forwards_signals_to_natsctl(stack: Stack) -> None:
    read = "cat /proc/1/comm; tr '\\0' ' ' </proc/1/cmdline"
    status, output_text = await stack.inside("sh", "-c", read)
    assert status == 0, output_text
    first, words = output_text.split("\n")
    assert first == "docker-init"
    assert words.startswith("/sbin/docker-init -- natsctl run ")
    await stack.compose("kill", "--signal=TERM", "natsctl")  # to the first process alone
    await eventually(lambda: _ended(stack, "natsctl"))
    assert (await stack.state("natsctl"))["ExitCode"] == 0


async def test_probes_and_metrics_are_served_through_the_published_port(
    stack: Stack, jetstream: JetStreamContext
) -> None:
    assert (await stack.state("natsctl"))["Health"]["Status"] == "healthy"
    assert await fetched(f"{stack.natsctl}/livez") == "ok"
    assert "[+]cache/greetings/routes ok" in await fetched(f"{stack.natsctl}/readyz?verbose")
    await greet(jetstream, "shop", "hi")
    await eventually(lambda: _has_payload(jetstream, "shop", "hi!"))
    page = await fetched(f"{stack.natsctl}/metrics")
    assert 'natsctl_cache_objects{controller="greetings",' in page

    await stack.compose("stop", "--timeout=1", "nats")
    await eventually(lambda: _unready(stack))
    assert await fetched(f"{stack.natsctl}/livez") == "ok"


async def test_orphaned_processes_are_reaped(stack: Stack) -> None:
    status, pid = await stack.inside("sh", "-c", "sleep 0.1 >/dev/null & echo $!")
    assert status == 0, pid
    await eventually(lambda: _has_ended(stack, int(pid)))


async def test_the_commands_of_the_compose_page_succeed(
    stack: Stack, jetstream: JetStreamContext
) -> None:
    put, *later_commands = commands(about="Use it")
    await run(stack, put)
    await eventually(lambda: _has_payload(jetstream, "shop", "hi!"))
    assert later_commands
    for command in later_commands:
        await run(stack, command)


async def test_the_shards_of_the_production_page_share_the_keys(
    tmp_path: Path, stack: Stack
) -> None:
    page, shards = (ROOT / "docs" / "production.md").read_text(), tmp_path / "shards.yml"
    text = page.partition("# shards.yml\n")[2].partition("```")[0]
    shards.write_text(text.replace("8080-8082:8080", ":8080"))  # any three ports
    stack.environ["COMPOSE_FILE"] += f":{shards}"
    await stack.up()
    await eventually(lambda: _share(stack, 3))
    await stack.compose("up", "--no-build", "--wait", "--scale", "natsctl=2")
    await eventually(lambda: _share(stack, 2))


@pytest.mark.long
async def test_webapps_run_in_the_cluster_of_the_stack(stack: Stack) -> None:
    put, get = commands(about="Kubernetes")
    await stack.compose("--profile", "kubernetes", "up", "--no-build", "--wait", "webapps")
    await eventually(lambda: _succeeds(stack, "natsctl", "get", "webapps"))
    await run(stack, put)
    await eventually(lambda: _in_cluster(stack, *SHOP))
    assert set(SHOP) <= set((await run(stack, get)).split())

    assert await _succeeds(stack, "kubectl", "delete", SHOP[1], service="k3s")
    await eventually(lambda: _in_cluster(stack, *SHOP))

    assert await _succeeds(stack, "natsctl", "delete", "webapps/shop")
    await eventually(lambda: _in_cluster(stack))
    await stack.compose("stop", "webapps")
    assert (await stack.state("webapps"))["ExitCode"] == 0


async def _share(stack: Stack, count: int) -> bool:
    """Return whether this many daemons have all 256 shares of the keys."""
    status, text = await stack.inside("natsctl", "status", "-o", "wide")
    shares = re.findall(rf" shard \d of {count}, (\d+) shares ", text)
    return status == 0 and len(shares) == count and sum(map(int, shares)) == 256


async def _unready(stack: Stack) -> bool:
    """Return whether the readiness probe fails and the engine reports the container unhealthy."""
    async with ClientSession() as session, session.get(f"{stack.natsctl}/readyz") as response:
        assert response.status == 503
    return (await stack.state("natsctl"))["Health"]["Status"] == "unhealthy"


async def _ended(stack: Stack, service: str) -> bool:
    return bool((await stack.state(service))["Status"] == "exited")


async def _has_payload(jetstream: JetStreamContext, key: str, text: str) -> bool:
    return await payload(jetstream, key) == text


async def _watched(jetstream: JetStreamContext) -> bool:
    try:
        return await _consumers(jetstream) >= len(BUCKETS)
    except NotFoundError:  # a bucket is still to be made
        return False


async def _consumers(jetstream: JetStreamContext) -> int:
    return sum([len(await jetstream.consumers_info(f"KV_{bucket}")) for bucket in BUCKETS])


async def _has_ended(stack: Stack, pid: int) -> bool:
    return (await stack.inside("test", "-e", f"/proc/{pid}"))[0] == 1


async def _succeeds(stack: Stack, *words: str, service: str = "natsctl") -> bool:
    return (await stack.inside(*words, service=service))[0] == 0


async def _in_cluster(stack: Stack, *wanted: str) -> bool:
    """Return whether exactly these objects of the app exist in the cluster."""
    words = ("kubectl", "get", *SHOP, "--ignore-not-found", "--output=name")
    status, output = await stack.inside(*words, service="k3s")
    return status == 0 and sorted(output.split()) == sorted(wanted)
