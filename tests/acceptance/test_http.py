"""`natsctl run --listen` serves health probes and metrics."""

import json
import signal
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import ClientError, ClientSession
from nats.js import JetStreamContext
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

GREETINGS = "controllers.greetings:Greetings"

Daemon = Callable[..., Awaitable[Running]]


class Probe:
    """A client that sends the requests of a kubelet and of Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.listen = ("--listen", f"127.0.0.1:{port}")

    async def get(self, path: str) -> tuple[int, str]:
        async with ClientSession() as session, session.get(self.url + path) as response:
            return response.status, await response.text()

    async def comes_to(self, path: str, status: int, text: str = "") -> str:
        """Wait for a response with this status and text, and return its body."""

        async def answered() -> str:
            try:
                received, body = await self.get(path)
            except ClientError as error:
                raise AssertionError(str(error)) from error
            assert (received, text in body) == (status, True), body
            return body or "nothing"

        return await eventually(answered)

    async def numbers(self) -> dict[tuple[str, str], float]:
        """Return the metrics by name and by slot, queue or result."""
        _, page = await self.get("/metrics")
        return {
            (sample.name, _label(sample.labels)): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }


def _label(labels: dict[str, str]) -> str:
    return next((labels[name] for name in ("slot", "result", "name") if name in labels), "")


@pytest.fixture
def probe() -> Probe:
    return Probe(free_port())


async def test_readiness_follows_the_connection_to_the_server(
    natsctl: Natsctl, nats_server: NatsServer, probe: Probe
) -> None:
    await nats_server.stop()
    async with natsctl.running("run", "-c", GREETINGS, *probe.listen) as running:
        await probe.comes_to(
            "/readyz", 503, "[-]nats failed: not connected: the process is starting"
        )
        await probe.comes_to("/livez", 200, "ok")
        await nats_server.start()
        body = await probe.comes_to("/readyz?verbose", 200, "readyz check passed")
        for slot in ("greetings", "routes", "defaults"):
            assert f"[+]cache/greetings/{slot} ok" in body
        nats_server.kill()
        await probe.comes_to("/readyz", 503, "[-]nats failed: not connected to ")
        await probe.comes_to("/livez?verbose", 200, "[+]nats ok")
        assert (await probe.numbers())["natsctl_connection_up", ""] == 0
        assert "livez check passed\n" in await natsctl.done("health", *probe.listen)
        unready = await natsctl("health", *probe.listen, "--ready")
        assert unready.status == 1
        assert "[-]nats failed: not connected to " in unready.out
        await nats_server.start()
        await probe.comes_to("/readyz", 200, "ok")
        # a server that is silent for 3 s on a busy machine is another loss
        assert (await probe.numbers())["natsctl_connection_losses_total", ""] >= 1
        assert await running.ends(signal.SIGTERM) == 0
    with pytest.raises(ClientError):
        await probe.get("/livez")


async def test_metrics_count_syncs_and_cached_objects(
    daemon: Daemon, jetstream: JetStreamContext, probe: Probe
) -> None:
    running = await daemon(GREETINGS, options=probe.listen)
    bucket = await jetstream.key_value("greetings")
    for number in range(20):
        await bucket.put(f"g{number}", json.dumps({"spec": {"text": "hi"}}).encode())
    await bucket.put("bad", b"no greeting")

    async def converged() -> bool:
        numbers = await probe.numbers()
        assert numbers["controller_runtime_reconcile_total", "success"] == 20
        assert numbers["natsctl_convergence_seconds_count", ""] == 20
        assert numbers["workqueue_adds_total", "greetings"] == 20
        assert numbers["natsctl_cache_objects", "routes"] == 20
        assert numbers["natsctl_invalid_objects", "greetings"] == 1
        for slot in ("greetings", "routes", "defaults"):
            assert numbers["natsctl_cache_lag_revisions", slot] == 0
            assert numbers["natsctl_watch_up", slot] == 1
        return True

    await eventually(converged)
    numbers = await probe.numbers()
    assert numbers["controller_runtime_reconcile_total", "error"] == 0
    assert numbers["natsctl_connection_up", ""] == 1
    assert numbers["process_resident_memory_bytes", ""] > 0
    assert await running.ends(signal.SIGTERM) == 0


async def test_metrics_show_a_handler_that_hangs_while_the_daemon_is_live(
    daemon: Daemon, natsctl: Natsctl, jetstream: JetStreamContext, probe: Probe
) -> None:
    (natsctl.folder / "hanging.py").write_text(
        """
import asyncio
from natsctl import Controller, Object, kv, primary

class Job(Object, frozen=True):
    pass

class Jobs(Controller):
    jobs = primary(kv(Job, bucket="jobs"))

    async def sync_handler(self, key):
        await asyncio.sleep(3600)
"""
    )
    running = await daemon("hanging:Jobs", options=(*probe.listen, "--stop-timeout", "0.1"))
    await (await jetstream.key_value("jobs")).put("a", b"{}")

    async def hangs() -> bool:
        numbers = await probe.numbers()
        assert numbers["controller_runtime_active_workers", ""] == 1
        return numbers["workqueue_longest_running_processor_seconds", "jobs"] > 0

    await eventually(hangs)
    assert await probe.get("/livez") == (200, "ok")
    assert await running.ends(signal.SIGTERM) == 0


async def test_a_standby_is_ready_and_its_metrics_show_that_it_does_not_lead(
    natsctl: Natsctl, nats_server: NatsServer
) -> None:
    words = ("run", "-c", GREETINGS, "--leader-elect", "--lease-ttl", "600")
    first, second = Probe(free_port()), Probe(free_port())

    async def leads(probe: Probe) -> tuple[float, float]:
        numbers = await probe.numbers()
        return (
            numbers["leader_election_master_status", "greetings"],
            numbers["natsctl_controller_synced", ""],
        )

    async with natsctl.running(*words, *first.listen) as leader:
        await leader.logged("primaries listed, syncing")
        async with natsctl.running(*words, *second.listen) as standby:
            body = await second.comes_to("/readyz?verbose", 200)
            assert "[+]lease/greetings ok" in body
            assert (await leads(first), await leads(second)) == ((1, 1), (0, 0))
            assert ("natsctl_lease_epoch", "greetings") not in await second.numbers()
            assert await leader.ends(signal.SIGTERM) == 0
            await standby.logged("primaries listed, syncing")

            async def has_taken_over() -> bool:
                assert await leads(second) == (1, 1)
                numbers = await second.numbers()
                assert numbers["natsctl_lease_epoch", "greetings"] > 0
                return numbers["natsctl_cache_lag_revisions", "routes"] == 0

            await eventually(has_taken_over)
            assert await standby.ends(signal.SIGTERM) == 0
