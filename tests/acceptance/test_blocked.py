"""`natsctl status` and `natsctl health` report a daemon whose event loop is blocked."""

from pathlib import Path

import nats
from nats.js.api import KeyValueConfig

from tests.support.cli.natsctl_command import Natsctl
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
        client = await nats.connect(server.url)
        bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket="jobs", history=5))
        async with natsctl.running("run", "-c", "frozen:Frozen", "--listen", listen) as running:
            await running.logged("primaries listed, syncing")
            await bucket.put("shop", b"{}")
            await running.logged("event loop blocked  controller=")
            await running.logged("connected to", times=2)  # to report over NATS
            [status] = (await natsctl("status", "-o", "json")).json
            health = await natsctl("health", "--listen", listen)
            (folder / "go").touch()
            await running.logged("done shop")
            await running.logged("event loop unblocked")
            [after] = (await natsctl("status", "-o", "json")).json
        await client.close()
    assert status["state"] == "blocked"
    assert "by key shop of frozen" in status["failure"]
    assert "frozen.py" in status["failure"]
    assert health.status == 0
    assert "[+]event-loop ok: blocked for" in health.out
    assert "by key shop of frozen" in health.out
    assert after["state"] == "syncing"
