"""A user without the permission for unmasked recordings gets recordings without secrets only."""

from pathlib import Path

import msgspec

from tests.support.cli.natsctl_command import Natsctl
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

USERS = """
    authorization: { users: [
      { user: admin, password: a },
      { user: viewer, password: v, permissions: {
        publish: ["$SRV.>", "natsctl.api.explain.*", "natsctl.api.recording.*"]
        subscribe: ["_INBOX.>"]
      } }
    ] }
"""
VAULTS = """
from natsctl import Controller, Object, kv, primary

class Vault(Object, frozen=True):
    spec: dict[str, str]

class Vaults(Controller):
    vaults = primary(kv(Vault, bucket="vaults"))

    async def sync_handler(self, key):
        raise ValueError(self.vaults.get(key).spec["name"])
"""


async def test_unmasked_recordings_need_a_permission_of_their_own(folder: Path) -> None:
    (folder / "vaults.py").write_text(VAULTS)
    async with NatsServer(folder / "nats", config=USERS) as server:
        address = server.url.removeprefix("nats://")
        admin = Natsctl(folder, f"nats://admin:a@{address}")
        viewer = Natsctl(folder, f"nats://viewer:v@{address}")
        async with admin.running("run", "-c", "vaults:Vaults") as daemon:
            await daemon.logged("primaries listed, syncing")
            spec = msgspec.json.encode({"spec": {"name": "north", "password": "hunter2"}})
            await admin.done("put", "vaults", "a", spec.decode())
            await daemon.logged("sync failed")

            async def masked() -> bool:
                return (await viewer("replay", "vaults/a", "-o", "-")).status == 0

            await eventually(masked)
            recording = await viewer.done("replay", "vaults/a", "-o", "-")
            assert ("hunter2" in recording, "north" in recording) == (False, True)
            refused = await viewer("replay", "vaults/a", "--unmasked", "-o", "-")
            assert (refused.status, refused.out) == (1, "")
            assert "natsctl.api.recording.unmasked.vaults" in refused.err
            unmasked = await admin.done("replay", "vaults/a", "--unmasked", "-o", "-")
            assert "hunter2" in unmasked
