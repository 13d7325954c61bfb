"""`natsctl health` names the key that blocks a daemon."""

from pathlib import Path

from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.plain_client import plain_jetstream
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

FROZEN = """
import time
from pathlib import Path

from natsctl import Controller, Object, kv, primary

class Frozen(Controller):
    jobs = primary(kv(Object, bucket="jobs"))

    async def sync_handler(self, key):
        while not Path("go").exists():
            time.sleep(0.02)
        print("done", key, flush=True)
"""


async def test_health_reports_the_key_that_blocks_the_event_loop(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "frozen.py").write_text(FROZEN)
    listen = f"127.0.0.1:{free_port()}"
    async with NatsServer(tmp_path / "nats") as server:
        natsctl = Natsctl(folder, server.url)
        async with (
            plain_jetstream(server.url) as jetstream,
            natsctl.running("run", "-c", "frozen:Frozen", "--listen", listen) as running,
        ):
            await running.logged("primaries listed, syncing")
            await (await jetstream.key_value("jobs")).put("shop", b"{}")
            await running.logged("event loop blocked  controller=")
            health = await natsctl("health", "--listen", listen)
            unready = await natsctl("health", "--listen", listen, "--ready")
            status = await natsctl("status", "-o", "json")
            (folder / "go").touch()
            await running.logged("done shop")
            await running.logged("event loop unblocked")
            await eventually(lambda: is_syncing(natsctl))
    for answer in (health, unready):
        assert "by key shop of frozen" in answer.out
        assert "frozen.py" in answer.out
    assert (health.status, unready.status) == (0, 1)
    assert "[+]event-loop ok: blocked for" in health.out
    assert "syncing" not in status.out  # unknown is not good


async def is_syncing(natsctl: Natsctl) -> bool:
    statuses = (await natsctl("status", "-o", "json")).json
    return [status["state"] for status in statuses] == ["syncing"]
