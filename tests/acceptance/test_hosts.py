"""`natsctl run` with the Hosts controller leaves nothing behind when it ends."""

import signal
from pathlib import Path

from nats.js import JetStreamContext

from tests.support.cli.natsctl_command import Natsctl
from tests.support.eventually import eventually


async def test_a_hosts_file_follows_its_bucket_until_the_daemon_ends(
    natsctl: Natsctl, jetstream: JetStreamContext, folder: Path
) -> None:
    file = folder / "hosts"
    async with natsctl.running("run", "--controller", "controllers.hosts:Hosts") as daemon:
        await eventually(lambda: daemon.process.returncode is not None or file.exists())
        assert daemon.process.returncode is None, daemon.log
        await natsctl.done("put", "hosts", "gw.berlin", "spec: {address: 10.0.0.1, aliases: [gw]}")
        await eventually(lambda: "\n10.0.0.1\tgw.berlin gw\n" in file.read_text())
        await natsctl.done("delete", "hosts", "gw.berlin")
        await eventually(lambda: "gw.berlin" not in file.read_text())
        assert await daemon.ends(signal.SIGTERM) == 0
    assert await jetstream.consumers_info("KV_hosts") == []
