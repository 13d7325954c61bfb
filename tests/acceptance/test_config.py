"""`natsctl config` shows the settings of files, variables and flags, and `run` uses them."""

import json
import signal
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from tests.support.cli.natsctl_command import Natsctl
from tests.support.servers.nats_server import NatsServer

SETTINGS = """
[nats]
token = "hush-in-file"

[kube]
enabled = false
token = "hush-of-kube"

[controllers]
workers = 2
owner_domain = "example.com"

[logs]
format = "json"
level = "info,natsctl.core=debug"
"""

SHOPS = """
import os
from natsctl import Controller, Object, kv, primary, secondary

class Shop(Object, frozen=True):
    spec: dict[str, object] = {}

class Shops(Controller):
    shops = primary(kv(Shop, bucket="shops"))
    signs = secondary(kv(Shop, bucket="signs"))

    async def sync_handler(self, key):
        await self.signs.apply(key, Shop(spec={"workers": self.workers}))
        if key == "leaky":
            raise RuntimeError(f"{os.environ['NATSCTL_TOKEN']} at nats://ann:hush-url@hub")
"""

ENVIRON = {"NATSCTL_TOKEN": "hush-in-variable", "NATSCTL_WORKERS": "3"}


@pytest.fixture
def shops(folder: Path, nats_server: NatsServer) -> Natsctl:
    """Return natsctl in a folder with a settings file and a controller, and with variables."""
    (folder / "natsctl.toml").write_text(SETTINGS)
    (folder / "shops.py").write_text(SHOPS)
    return Natsctl(folder, nats_server.url, environ=ENVIRON)


async def test_run_uses_the_settings_and_logs_no_secret(
    shops: Natsctl, jetstream: JetStreamContext
) -> None:
    async with shops.running("run", "-c", "shops:Shops") as running:
        await running.logged("primaries listed, syncing")
        bucket = await jetstream.key_value("shops")
        await bucket.put("leaky", b'{"spec": {}}')
        await running.logged('"attempt":2')
        assert await running.ends(signal.SIGTERM) == 0
    sign = json.loads((await (await jetstream.key_value("signs")).get("leaky")).value or b"")
    assert sign["spec"] == {"workers": 3}
    assert sign["metadata"]["labels"]["example.com/owner-key"] == "leaky"
    records = [json.loads(line) for line in running.log.splitlines()]
    failed = next(
        record
        for record in records
        if (record["message"], record.get("key")) == ("sync failed", "leaky")
    )
    fields = [failed[name] for name in ("controller", "key", "operation", "attempt", "level")]
    assert fields == ["shops", "leaky", "put", 1, "error"]
    assert "RuntimeError: *** at nats://***@hub" in failed["exception"]
    assert "hush" not in running.log


async def test_the_error_about_an_unreachable_server_has_no_password(shops: Natsctl) -> None:
    words = ("-s", "nats://ann:hush@127.0.0.1:1", "--log-level", "debug")
    async with shops.running("run", "-c", "shops:Shops", *words) as running:
        await running.logged("no connection to NATS yet")
        assert await running.ends(signal.SIGTERM) == 0
    assert "hush" not in running.log
    result = await shops("get", "shops", "a", "-s", "nats://ann:hush@127.0.0.1:1")
    assert (result.status, "hush" in result.err) == (1, False)
