"""`natsctl run` stops in every state, and leaves nothing behind."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError, NotFoundError

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.cli.process_tree import alive, descendants
from tests.support.clients.plain_client import PATIENCE_S, plain_client
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

GREETINGS = "controllers.greetings:Greetings"
ELECT = ("--leader-elect", "--lease-ttl", "600")  # the process leads, however slow it is
SLOW = """
import asyncio
import json
import time
from pathlib import Path

from natsctl import Controller, Object, kube, kv, primary, secondary

class Job(Object, frozen=True):
    spec: dict[str, object] = {}

class Jobs(Controller):
    workers = 1
    jobs = primary(kv(Job, bucket="jobs"))
    marks = secondary(kv(Job, bucket="marks"))

    async def sync_handler(self, key):
        print("begun", key, flush=True)
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        await self.marks.apply(key, Job())
        print("marked", key, flush=True)

    async def clean(self):
        print("cleaned", flush=True)

class Deaf(Jobs):
    name = "deaf"

    async def sync_handler(self, key):
        print("begun", key, flush=True)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

class Frozen(Jobs):
    name = "frozen"

    async def sync_handler(self, key):
        print("begun", key, flush=True)
        time.sleep(3600)

class Threaded(Jobs):
    name = "threaded"

    async def sync_handler(self, key):
        print("begun", key, flush=True)
        await self.blocking(time.sleep, 3600)

class Clustered(Jobs):
    name = "clustered"
    maps = secondary(kube("v1", "ConfigMap", namespace="default"))
"""


class Hub:
    """A server with a plain NATS client, which reads the resources that the server holds."""

    def __init__(self, server: NatsServer, monitor: int, client: Client) -> None:
        self.server = server
        self.client = client
        self._monitor = f"http://127.0.0.1:{monitor}"

    async def held(self) -> dict[str, Any]:
        """Return the connections, consumers and leases on the server."""
        jetstream = self.client.jetstream()
        streams = [info.config.name or "" for info in await jetstream.streams_info()]
        return {
            "connections": await self._count("/connz", "num_connections"),
            "consumers": [
                consumer.name
                for name in streams
                for consumer in await jetstream.consumers_info(name)
            ],
            "leases": await self.leases(),
        }

    async def subscriptions(self) -> int:
        """Return the number of subscriptions of all clients and of the server's streams."""
        return await self._count("/subsz", "num_subscriptions")

    async def holds(self, expected: dict[str, Any]) -> bool:
        """Assert that nothing else is held; the consumer of a one-time read may be gone."""
        held = await self.held()
        assert set(held["consumers"]) <= set(expected["consumers"])
        assert {**held, "consumers": []} == {**expected, "consumers": []}
        return True

    async def leases(self) -> list[str]:
        """Return the heartbeats of processes that haven't ended."""
        names = [name for name in await self.keys("natsctl_leases") if ".sessions." in name]
        return [name for name in names if await self._is_held(name)]

    async def _is_held(self, name: str) -> bool:
        claims = await self.client.jetstream().key_value("natsctl_leases")
        try:
            claim = json.loads((await claims.get(name)).value or b"{}")
        except KeyNotFoundError:  # it expired after the keys were listed
            return False
        return not claim.get("over")

    async def keys(self, bucket: str) -> list[str]:
        """Return the keys of a bucket without creating a consumer, unlike `KeyValue.keys`."""
        jetstream = self.client.jetstream()
        try:
            values = await jetstream.key_value(bucket)
            info = await jetstream.stream_info(f"KV_{bucket}", subjects_filter=">")
        except NotFoundError:
            return []
        keys = []
        for subject in info.state.subjects or {}:
            with suppress(KeyNotFoundError):
                keys.append((await values.get(subject.split(".", 2)[2])).key)
        return keys

    async def put(self, key: str) -> None:
        config = KeyValueConfig(bucket="jobs", history=5)
        await (await self.client.jetstream().create_key_value(config)).put(key, b"{}")

    async def _count(self, path: str, name: str) -> int:
        async with ClientSession() as session, session.get(self._monitor + path) as response:
            counts = await response.json()
        return int(counts[name])


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    monitor = free_port()
    async with (
        NatsServer(tmp_path / "nats", config=f"http: 127.0.0.1:{monitor}") as server,
        plain_client(server.url) as client,
    ):
        yield Hub(server, monitor, client)


@pytest.fixture
def natsctl(folder: Path, hub: Hub) -> Natsctl:
    (folder / "jobs.py").write_text(SLOW)
    return Natsctl(folder, hub.server.url)


@asynccontextmanager
async def at_work(natsctl: Natsctl, hub: Hub, *options: str) -> AsyncIterator[Running]:
    """Run the slow controller, and wait until its handler runs."""
    await hub.put("a")
    async with natsctl.running("run", "-c", "jobs:Jobs", *options) as running:
        await running.logged("begun a")
        yield running


async def fetch(port: int, path: str) -> tuple[int, str]:
    """Send the HTTP request of a probe."""
    async with (
        ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    return True


@pytest.mark.parametrize("options", [(), ELECT], ids=["alone", "elected"])
async def test_a_running_sync_finishes_and_no_new_sync_begins(
    natsctl: Natsctl, hub: Hub, options: tuple[str, ...]
) -> None:
    port = free_port()
    patient = ("--stop-timeout", "600", "--listen", f"127.0.0.1:{port}")
    async with at_work(natsctl, hub, *options, *patient) as running:
        assert (await fetch(port, "/readyz"))[0] == 200
        running.process.send_signal(signal.SIGTERM)
        await running.logged("stopping  signal=SIGTERM")
        status, body = await fetch(port, "/readyz")
        assert (status, body.splitlines()[0]) == (503, "[-]shutdown failed: stopping")
        assert await fetch(port, "/livez") == (200, "ok")
        await hub.put("b")
        reported = await natsctl("status", "-c", "jobs", "-o", "json")
        assert reported.json[0]["state"] == "stopping"
        refused = await natsctl("resync", "jobs/a")
        assert (refused.status, "jobs" in refused.err) == (1, True), refused

        async def is_withdrawn() -> bool:
            refused = await natsctl("resync", "jobs/a")
            return "no daemon leads it now" in refused.err

        await eventually(is_withdrawn)
        assert bool(await hub.leases()) == bool(options)
        assert await fetch(port, "/livez") == (200, "ok")
        (natsctl.folder / "go").touch()
        assert await running.ends() == 0
        assert is_free(port)
    assert running.log.index("marked a") < running.log.index("cleaned")
    assert "begun b" not in running.log
    assert await hub.keys("marks") == ["a"]


@pytest.mark.parametrize("options", [(), ELECT], ids=["alone", "elected"])
async def test_a_stopped_daemon_leaves_no_connection_consumer_or_lease(
    natsctl: Natsctl, hub: Hub, options: tuple[str, ...]
) -> None:
    words = ("run", "-c", GREETINGS, *options)
    async with natsctl.running(*words) as running:
        await running.logged("primaries listed, syncing")
        assert await running.ends(signal.SIGTERM) == 0
    before = {"connections": 1, "consumers": [], "leases": []}  # the connection of this test
    await eventually(lambda: hub.holds(before))
    subscriptions = await hub.subscriptions()
    async with natsctl.running(*words) as running:
        await running.logged("primaries listed, syncing")
        during = await hub.held()
        assert during["consumers"]
        assert bool(during["leases"]) == bool(options)
        assert await running.ends(signal.SIGINT) == 0
    assert "/livez" not in running.log  # without --listen it serves no HTTP
    await eventually(lambda: hub.holds(before))

    async def has_no_more_subscriptions() -> bool:
        return await hub.subscriptions() <= subscriptions

    await eventually(has_no_more_subscriptions)
    with pytest.raises(NoRespondersError):
        await hub.client.request("$SRV.PING.natsctl", timeout=PATIENCE_S)


@pytest.mark.parametrize("options", [(), ELECT], ids=["alone", "elected"])
async def test_a_sync_that_exceeds_the_stop_timeout_is_cancelled_and_repeated_by_the_next_process(
    natsctl: Natsctl, hub: Hub, options: tuple[str, ...]
) -> None:
    await hub.client.jetstream().create_key_value(KeyValueConfig(bucket="marks", history=5))
    before = await hub.held()
    async with at_work(natsctl, hub, *options, "--stop-timeout", "0.3") as running:
        assert await running.ends(signal.SIGTERM) == 0
        cut = ("syncs that did not end in time", "a controller that did not stop in time")
        assert any(f"cancelling {subject}" in running.log for subject in cut)
        assert "cleaned" in running.log
        assert "marked" not in running.log
    await eventually(lambda: hub.holds(before))
    async with at_work(natsctl, hub, *options) as running:
        (natsctl.folder / "go").touch()
        await running.logged("marked a")
        assert await running.ends(signal.SIGTERM) == 0


async def test_a_handler_that_ignores_cancellation_ends_with_the_process_and_status_1(
    natsctl: Natsctl, hub: Hub
) -> None:
    lines = {
        "Deaf": "await asyncio.sleep(3600)",
        "Frozen": "time.sleep(3600)",
        "Threaded": "await self.blocking(time.sleep, 3600)",
    }
    await hub.put("a")
    async with AsyncExitStack() as stack:
        started = {
            name: await stack.enter_async_context(
                natsctl.running("run", "-c", f"jobs:{name}", "--stop-timeout", "0.5")
            )
            for name in lines
        }
        for running in started.values():
            await running.logged("begun a")
        for running in started.values():
            running.process.send_signal(signal.SIGTERM)
        assert [await running.ends() for running in started.values()] == [1, 1, 1]
        for name, running in started.items():
            assert f"{name.lower()}: a" in running.log
            assert lines[name] in running.log
            assert "exiting because the stop took too long  limit_s=10.5" in running.log


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)]
)
async def test_a_second_signal_ends_the_process_at_once(
    natsctl: Natsctl, hub: Hub, first: signal.Signals, second: signal.Signals
) -> None:
    async with at_work(natsctl, hub) as running:
        running.process.send_signal(first)
        await running.logged(f"stopping  signal={first.name}")
        assert await running.ends(second) == -second


@pytest.mark.parametrize("options", [(), ELECT], ids=["alone", "elected"])
async def test_a_daemon_without_a_connection_ends_at_once(
    natsctl: Natsctl, hub: Hub, options: tuple[str, ...]
) -> None:
    port = free_port()
    await hub.client.close()
    await hub.server.stop()
    words = ("run", "-c", "jobs:Jobs", *options, "--listen", f"127.0.0.1:{port}")
    async with natsctl.running(*words) as running:
        await running.logged("no connection to NATS yet")
        assert (await fetch(port, "/readyz"))[0] == 503
        assert await running.ends(signal.SIGTERM) == 0
        assert is_free(port)


async def test_a_silent_cluster_does_not_delay_the_stop(natsctl: Natsctl, hub: Hub) -> None:
    silent = await asyncio.start_server(_hold, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    kubeconfig = natsctl.folder / "silent.yaml"
    kubeconfig.write_text(
        f"""
clusters: [{{name: it, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: it, context: {{cluster: it}}}}]
current-context: it
"""
    )
    before = await hub.held()
    words = ("run", "-c", "jobs:Clustered", "--kubeconfig", str(kubeconfig))
    async with natsctl.running(*words) as running, silent:
        await eventually(lambda: bool(silent.sockets) and bool(_holding))
        assert await running.ends(signal.SIGTERM) == 0
        for writer in _holding:
            writer.close()
        _holding.clear()
    await eventually(lambda: hub.holds(before))


_holding: list[asyncio.StreamWriter] = []


async def _hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Keep the connection open without a response."""
    _holding.append(writer)


async def test_an_embedded_server_runs_until_the_last_sync_ends(folder: Path) -> None:
    (folder / "jobs.py").write_text(SLOW)
    port = free_port()
    natsctl = Natsctl(folder, f"nats://127.0.0.1:{port}")
    words = ("run", "--embedded", "--port", str(port), "-c", "jobs:Jobs")
    async with Natsctl(folder).running(*words) as running:
        await running.logged("primaries listed, syncing")
        started = descendants(running.process.pid)
        await natsctl.done("put", "jobs", "a", "spec: {}")
        await running.logged("begun a")
        running.process.send_signal(signal.SIGTERM)
        await running.logged("stopping  signal=SIGTERM")
        (folder / "go").touch()
        assert await running.ends() == 0
    assert running.log.index("marked a") < running.log.index("cleaned")
    assert not any(map(alive, started))
    assert is_free(port)
