"""No log line, event or response of a daemon contains a secret of an exception."""

import signal
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.plain_client import plain_jetstream
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

PASSWORD = "kept-for-us"
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.dGhlIHNpZ25hdHVyZQ"
KEY = "MHcCAQEEIIKz"
SECRETS = (PASSWORD, SEED, JWT, KEY, "YW5uOmh1c2g=", "db-hush")
RAISED = f"""
we are ann with {PASSWORD}, or with
-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------
-----BEGIN EC PRIVATE KEY-----
{KEY}
-----END EC PRIVATE KEY-----
Authorization: Basic YW5uOmh1c2g=
postgres://ann:db-hush@db, and that is all
"""

LEAKING = """
from pathlib import Path
from natsctl import Controller, Object, kv, primary

class Thing(Object, frozen=True):
    spec: dict[str, object] = {}

    def __post_init__(self):
        if "invalid" in self.spec:
            raise ValueError(Path("raised.txt").read_text())

class Leaks(Controller):
    things = primary(kv(Thing, bucket="things"))

    async def sync_handler(self, key):
        raise ValueError(Path("raised.txt").read_text())
"""


@pytest.mark.parametrize("style", ["text", "json"])
async def test_no_output_of_a_daemon_contains_a_secret(
    style: str, folder: Path, tmp_path: Path
) -> None:
    (folder / "leaks.py").write_text(LEAKING)
    (folder / "raised.txt").write_text(RAISED)
    login = f'authorization {{ user: ann, password: "{PASSWORD}" }}'
    async with NatsServer(tmp_path / "nats", config=login) as server:
        url = server.url.replace("://", f"://ann:{PASSWORD}@")
        natsctl, listen = Natsctl(folder, url), f"127.0.0.1:{free_port()}"
        words = ("run", "-c", "leaks:Leaks", "--log-format", style, "--listen", listen)
        async with natsctl.running(*words) as running, plain_jetstream(url) as jetstream:
            await running.logged("primaries listed, syncing")
            await natsctl.done("put", "things", "failing", "spec: {}")
            bucket = await jetstream.key_value("things")
            await bucket.put("bad", b'{"spec": {"invalid": true}}')
            with_message = [
                await eventually(partial(event, jetstream, "failing")),
                await eventually(partial(event, jetstream, "bad")),
                await natsctl.done("describe", "things/failing", "-o", "json"),
                await natsctl.done("describe", "things/bad", "-o", "json"),
                await natsctl.done("status", "-o", "json"),
            ]
            without_message = [
                await natsctl.done("describe", "things/failing"),
                await natsctl.done("status"),
                await natsctl.done("config"),
                await fetch(f"http://{listen}/readyz?verbose"),
                await fetch(f"http://{listen}/metrics"),
            ]
            assert await running.ends(signal.SIGTERM) == 0
            with_message.append(running.log)
    for text in with_message:
        assert "postgres://***@db, and that is all" in text
    for text in (*with_message, *without_message):
        assert [secret for secret in SECRETS if secret in text] == []


async def event(jetstream: JetStreamContext, key: str) -> str:
    try:
        message = await jetstream.get_last_msg("natsctl_events", f"natsctl.events.leaks.{key}")
    except NotFoundError:
        return ""
    return (message.data or b"").decode()


async def fetch(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()
