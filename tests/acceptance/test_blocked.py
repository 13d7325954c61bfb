"""`natsctl status` and `natsctl health` report a daemon whose event loop is blocked."""

from pathlib import Path
from typing import Any

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


async def test_status_and_health_report_the_key_that_blocks_the_event_loop(
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
            status = await eventually(lambda: reported(natsctl, "blocked"))
            health = await natsctl("health", "--listen", listen)
            (folder / "go").touch()
            await running.logged("done shop")
            await running.logged("event loop unblocked")
            await eventually(lambda: reported(natsctl, "syncing"))
    assert "by key shop of frozen" in status["failure"]
    assert "frozen.py" in status["failure"]
    assert health.status == 0
    assert "[+]event-loop ok: blocked for" in health.out
    assert "by key shop of frozen" in health.out


async def reported(natsctl: Natsctl, state: str) -> dict[str, Any]:
    """Return the status of the daemon, and check that it is in this state."""
    statuses: list[dict[str, Any]] = (await natsctl("status", "-o", "json")).json
    assert [status["state"] for status in statuses] == [state]
    return statuses[0]
