"""A daemon on a leaf node works with the buckets of the hub's domain."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from nats.js.errors import NotFoundError

from natsctl import NatsOptions
from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.console_client import console_on
from tests.support.clients.plain_client import plain_jetstream
from tests.support.eventually import eventually
from tests.support.servers.leaf_node import hub_server, leaf_server
from tests.support.servers.nats_server import NatsServer

CONTROLLER = """
import msgspec
from natsctl import Controller, Object, kv, primary, secondary

class Spec(msgspec.Struct, frozen=True):
    text: str = ""

class Thing(Object, frozen=True):
    spec: Spec

class Things(Controller):
    things = primary(kv(Thing, bucket="things"))
    copies = secondary(kv(Thing, bucket="copies"))

    async def sync_handler(self, key):
        thing = self.things.get(key)
        if key == "bad":
            raise ValueError("broken")
        if thing is not None:
            await self.copies.apply(key, Thing(spec=thing.spec))
"""


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with hub_server(tmp_path / "hub") as server:
        yield server


@pytest.fixture
async def leaf(
    request: pytest.FixtureRequest, tmp_path: Path, hub: NatsServer
) -> AsyncIterator[NatsServer]:
    """A leaf node of the hub, with or without streams of its own."""
    domain = "leaf" if request.param == "own domain" else ""
    async with leaf_server(tmp_path / "leaf", hub, domain=domain) as server:
        yield server


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("leaf", "mode"),
    [("own domain", "--leader-elect"), ("no JetStream", "--shard")],
    indirect=["leaf"],
)
async def test_leases_shards_events_requests_and_console_work_over_a_leaf_node(
    hub: NatsServer, leaf: NatsServer, folder: Path, mode: str
) -> None:
    (folder / "things.py").write_text(CONTROLLER)
    natsctl = Natsctl(folder, leaf.url, environ={"NATSCTL_DOMAIN": "hub"})
    words = ("run", "-c", "things:Things", mode, "--lease-ttl=600", "--listen=")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(natsctl.running(*words))
        await first.logged("primaries listed, syncing")
        for key in ("good", "bad"):
            await natsctl.done("put", "things", key, '{"spec": {"text": "hi"}}')

        async with plain_jetstream(hub.url) as jetstream:

            async def has_event() -> bool:
                with suppress(NotFoundError):
                    subject = "natsctl.events.things.bad"
                    event = await jetstream.get_last_msg("natsctl_events", subject)
                    return b"broken" in (event.data or b"")
                return False

            await eventually(has_event, within_s=60)
        (status,) = json.loads(await natsctl.done("status", "-o", "json"))
        assert status["failing"] == {"bad": "ValueError: broken"}
        async with console_on(NatsOptions(servers=(leaf.url,), domain="hub")) as console:
            (row,) = (await console.read("home"))["controllers"]
            assert (row["name"], row["keys"], row["failing"]) == ("things", 2, 1)
            view = await console.read("key", controller="things", key="bad")
            assert "broken" in json.dumps(view["explain"])
            assert (view["errors"], len(view["revisions"])) == ({}, 1)
        second = await stack.enter_async_context(natsctl.running(*words))
        assert await first.ends(signal.SIGTERM) == 0
        await second.logged("primaries listed, syncing")
        await natsctl.done("put", "things", "later", '{"spec": {"text": "hi"}}')

        async def is_copied_in_the_hub() -> bool:
            async with plain_jetstream(hub.url) as jetstream:
                copies = await jetstream.key_value("copies")
                return {"good", "later"} <= set(await copies.keys())

        await eventually(is_copied_in_the_hub, within_s=60)
