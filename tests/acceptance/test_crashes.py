"""A key that kills the daemon is quarantined, and no other key, with the shipped configurations."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli.natsctl_command import LIMIT_S, ROOT, Natsctl
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

DYING = """
import asyncio, os
import msgspec
from natsctl import Controller, Object, kv, primary

class Spec(msgspec.Struct, frozen=True):
    text: str = ""

class Thing(Object, frozen=True):
    spec: Spec

class Things(Controller):
    things = primary(kv(Thing, bucket="things"))
    workers = 8

    async def sync_handler(self, key):
        await asyncio.sleep(0.05)
        if key == "bad":
            os._exit(9)
        print("SYNCED", key, flush=True)
"""
GOOD = [f"good{number}" for number in range(12)]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["natsctl"]
(POD,) = [
    manifest["spec"]["template"]["spec"]
    for manifest in yaml.safe_load_all((ROOT / "docs/deploy/natsctl.yaml").read_text())
    if manifest["kind"] == "Deployment"
]
(CONTAINER,) = POD["containers"]
STATE = re.findall(r"NATSCTL_STATE_DIR=(\S+)", (ROOT / "Dockerfile").read_text())


def compose() -> tuple[list[str], list[str]]:
    """Return the command of the Compose service, and the folders that survive a restart."""
    volumes = [volume.split(":") for volume in COMPOSE["volumes"]]
    return list(COMPOSE["command"]), [inside for name, inside, *_ in volumes if "/" not in name]


def deployment() -> tuple[list[str], list[str]]:
    """Return the command of the Deployment, and the folders that survive a restart."""
    kept = [volume["name"] for volume in POD["volumes"] if _survives(volume)]
    mounts = [mount["mountPath"] for mount in CONTAINER["volumeMounts"] if mount["name"] in kept]
    return list(CONTAINER["args"]), mounts


def _survives(volume: dict[str, Any]) -> bool:
    return volume.get("emptyDir", {"medium": "Memory"}).get("medium") != "Memory"


@pytest.fixture(params=[compose, deployment, None], ids=["compose", "deployment", "no disk"])
def shipped(request: pytest.FixtureRequest, folder: Path) -> tuple[list[str], str]:
    """The words of `natsctl run` as shipped, and the state directory of the container."""
    if request.param is None:  # of a read-only file system
        return ["run", "--controller=things:Things", "--listen="], "/dev/null/natsctl"
    command, folders = request.param()
    assert [folder for folder in folders if folder == STATE[0]] == STATE
    words = " ".join(command)
    words = re.sub(r"--controller[ =](\S+|\$\{[^}]*\})", "--controller=things:Things", words)
    words = re.sub(r"--listen=\S+", "--listen=", words)
    words = words.replace("--lease-ttl=15", "--lease-ttl=4")  # a crash is taken over sooner
    return words.split(), str(folder / STATE[0].lstrip("/"))


@pytest.mark.timeout(600)
async def test_only_the_key_that_kills_the_daemon_is_quarantined(
    shipped: tuple[list[str], str], folder: Path, nats_server: NatsServer
) -> None:
    words, state = shipped
    (folder / "things.py").write_text(DYING)
    environ = {"NATSCTL_STATE_DIR": state, "NATSCTL_LISTEN": ""}
    natsctl = Natsctl(folder, nats_server.url, environ=environ)
    async with natsctl.running(*words) as daemon:
        await daemon.logged("primaries listed, syncing")
        assert await daemon.ends(signal.SIGTERM) == 0
    objects = [{"bucket": "things", "key": key, "spec": {}} for key in ("bad", *GOOD)]
    await natsctl.done("apply", "-f", "-", stdin=json.dumps(objects))
    # The first crash has eight suspects, or none without a disk. Then three count against one key.
    for _ in range(5 if state.startswith("/dev/null") else 4):
        async with natsctl.running(*words) as daemon:
            assert await daemon.ends() == 9
    async with natsctl.running(*words) as daemon:
        await daemon.logged("a key is quarantined")

        async def all_others_synced() -> bool:
            synced = {line.split()[1] for line in daemon.log.splitlines() if "SYNCED" in line}
            return synced == set(GOOD)

        await eventually(all_others_synced, within_s=LIMIT_S)
        (status,) = json.loads(await natsctl.done("status", "-o", "json"))
        assert list(status["quarantined"]) == ["bad"]
