"""`natsctl run --processes` runs several processes as if they were one."""

import json
import os
import signal
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.support.cli.natsctl_command import Natsctl
from tests.support.cli.process_tree import alive, descendants
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

GREETINGS = ("-c", "controllers.greetings:Greetings")
TWO = (*GREETINGS, "--processes", "2", "--lease-ttl", "600")  # no process leaves for being slow
SHARED = "sharing keys  process={} controller=greetings members=2"


@pytest.fixture
def natsctl(nats_server: NatsServer, tmp_path: Path) -> Natsctl:
    return Natsctl(tmp_path, nats_server.url)


async def fetch(port: int, path: str) -> str:
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as page:
        return await page.text()


async def test_two_processes_share_the_keys_and_stop_at_one_signal(natsctl: Natsctl) -> None:
    async with natsctl.running("run", *TWO) as daemon:
        for number in (1, 2):
            await daemon.logged(SHARED.format(number))
        for number in range(12):
            await natsctl.done("put", "greetings", f"g{number}", '{"spec": {"text": "hi"}}')

        async def are_synced() -> bool:
            routes = json.loads(await natsctl.done("list", "routes", "-o", "json"))
            return len(routes) == 12

        await eventually(are_synced)

        async def are_shared() -> bool:
            rows = json.loads(await natsctl.done("status", "-o", "json"))
            assert sorted(row["mode"] for row in rows) == ["shard 1 of 2", "shard 2 of 2"]
            return sum(row["keys"] for row in rows) == 12

        await eventually(are_shared)
        processes = descendants(daemon.process.pid)
        assert await daemon.ends(signal.SIGTERM) == 0
        assert not any(map(alive, processes))


async def test_one_address_serves_the_probes_and_metrics_of_all(natsctl: Natsctl) -> None:
    port = free_port()
    async with natsctl.running("run", *TWO, "--listen", f"127.0.0.1:{port}") as daemon:
        for number in (1, 2):
            await daemon.logged(SHARED.format(number))

        async def are_ready() -> bool:
            assert await fetch(port, "/readyz") == "ok"
            checks = await fetch(port, "/readyz?verbose")
            assert "[+]process-1/shard/greetings ok" in checks
            return "[+]process-2/shard/greetings ok" in checks

        await eventually(are_ready)
        await natsctl.done("put", "greetings", "a", '{"spec": {"text": "hi"}}')
        synced = 'controller_runtime_reconcile_total{controller="greetings",result="success"} 1.0'

        async def are_counted() -> bool:
            metrics = await fetch(port, "/metrics")
            for process in ("1", "2", "supervisor"):
                assert f'process_resident_memory_bytes{{process="{process}"}}' in metrics
            assert (
                'workqueue_depth{controller="greetings",name="greetings",process="2"} 0.0'
                in metrics
            )
            return synced in metrics

        await eventually(are_counted)


async def test_logs_in_json_are_json_with_the_process(natsctl: Natsctl) -> None:
    async with natsctl.running("run", *TWO, "--log-format", "json") as daemon:
        await daemon.logged('"members":2', times=2)
        assert await daemon.ends(signal.SIGTERM) == 0
        events = [json.loads(line) for line in daemon.log.splitlines()]
    assert {event.get("process") for event in events} == {None, 1, 2}


async def test_an_error_of_a_controller_ends_all_and_is_written_once(natsctl: Natsctl) -> None:
    result = await natsctl("run", "-c", "nothing:Missing", "--processes", "3")
    assert result.status == 2
    assert result.err.count("natsctl: error: there is no module nothing") == 1


async def test_an_error_at_the_start_ends_all_and_is_written_once(natsctl: Natsctl) -> None:
    source = """
from natsctl import Controller, Object, kv, primary
class Thing(Object, frozen=True):
    spec: dict[str, object] = {}
class Things(Controller):
    things = primary(kv(Thing, bucket="things"))
    async def start(self):
        raise RuntimeError("no license")
    async def sync_handler(self, key): ...
"""
    (natsctl.folder / "things.py").write_text(source)
    result = await natsctl("run", "-c", "things:Things", "--processes", "2")
    assert result.status == 1
    assert result.err.count("natsctl: error: things: start() failed") == 1


async def test_leader_election_is_refused(natsctl: Natsctl) -> None:
    result = await natsctl("run", *TWO, "--leader-elect")
    assert result.status == 2
    assert "leader_elect and processes exclude each other" in result.err


async def test_no_process_outlives_a_killed_supervisor(natsctl: Natsctl) -> None:
    async with natsctl.running("run", *TWO) as daemon:
        for number in (1, 2):
            await daemon.logged(SHARED.format(number))
        processes = descendants(daemon.process.pid)
        assert len(processes) >= 2
        await daemon.ends(signal.SIGKILL)
        await eventually(lambda: not any(map(alive, processes)))


async def test_the_second_signal_ends_all_at_once(natsctl: Natsctl) -> None:
    source = """
import asyncio
from natsctl import Controller, Object, kv, primary
class Thing(Object, frozen=True):
    spec: dict[str, object] = {}
class Slow(Controller):
    things = primary(kv(Thing, bucket="things"))
    async def sync_handler(self, key):
        print("begun", flush=True)
        await asyncio.sleep(3600)
"""
    (natsctl.folder / "slow.py").write_text(source)
    async with natsctl.running("run", "-c", "slow:Slow", "--processes", "2") as daemon:
        await daemon.logged("members=2", times=2)
        await natsctl.done("put", "things", "a", "{}")
        await daemon.logged("begun")
        processes = descendants(daemon.process.pid)
        os.kill(daemon.process.pid, signal.SIGTERM)
        await daemon.logged("stopping", times=3)
        assert await daemon.ends(signal.SIGTERM) == -signal.SIGTERM
        await eventually(lambda: not any(map(alive, processes)))


async def test_a_private_server_belongs_to_the_supervisor(tmp_path: Path) -> None:
    natsctl = Natsctl(tmp_path, fresh=True)
    words = ("run", *TWO, "--embedded", "--port", str(free_port()))
    async with natsctl.running(*words) as daemon:
        for number in (1, 2):
            await daemon.logged(SHARED.format(number))
        assert daemon.log.count("private nats-server listens") == 1
        assert await daemon.ends(signal.SIGINT) == 0
