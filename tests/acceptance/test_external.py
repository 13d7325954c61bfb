"""`natsctl repair external` lists links to external resources and resolves unknown creations."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

DISKS = """
import pathlib
from natsctl import (
    Controller, ExternalClientFns, ManagedReconciler, Object, Observation, kv, primary
)

MADE = pathlib.Path("made")

class Disk(Object, frozen=True):
    spec: dict[str, int] = {}

class Disks(Controller):
    disks = primary(kv(Disk, bucket="disks"))

    async def start(self):
        client = ExternalClientFns(observe_fn=self.observe, create_fn=self.create)
        async def connect(managed):
            return client
        self.reconciler = ManagedReconciler(self.disks, connecter=connect, recorder=self.runtime)

    async def sync_handler(self, key):
        return await self.reconciler.reconcile(key)

    async def observe(self, managed):
        made = MADE.read_text().split() if MADE.exists() else []
        return Observation(exists=managed.external_name in made, up_to_date=True)

    async def create(self, managed):
        made = MADE.read_text().split() if MADE.exists() else []
        managed.external_name = f"disk-{len(made)}"
        MADE.write_text(" ".join([*made, managed.external_name]))
        if not made:
            raise TimeoutError("nobody answered")
"""


@pytest.fixture
async def disks(jetstream: JetStreamContext) -> KeyValue:
    return await jetstream.create_key_value(KeyValueConfig(bucket="disks", history=5))


async def annotations(bucket: KeyValue, key: str) -> dict[str, str]:
    document = json.loads((await bucket.get(key)).value or b"{}")
    stored: dict[str, str] = document["metadata"]["annotations"]
    return stored


async def test_a_daemon_continues_after_resolve(
    natsctl: Natsctl,
    folder: Path,
    disks: KeyValue,
    daemon: Callable[..., Awaitable[Running]],
) -> None:
    (folder / "storage.py").write_text(DISKS)
    running = await daemon("storage:Disks")
    await disks.put("a", b'{"spec": {}}')
    await running.logged("natsctl repair external resolve disks/a")
    await asyncio.to_thread((folder / "made").read_text)
    await natsctl.done("repair", "external", "resolve", "disks/a", "--created", "--name", "disk-0")

    async def ready() -> bool:
        status = json.loads((await disks.get("a")).value or b"{}").get("status", {})
        return ("Ready", "True") in {
            (entry["type"], entry["status"]) for entry in status.get("conditions", [])
        }

    await eventually(ready)
    assert (folder / "made").read_text() == "disk-0"
    listed = (await natsctl("repair", "external", "list", "-o", "json")).json
    assert [(entry["key"], entry["state"], entry["externalName"]) for entry in listed] == [
        ("a", "linked", "disk-0")
    ]


async def test_put_keeps_the_link_and_creates_no_second_resource(
    natsctl: Natsctl,
    folder: Path,
    disks: KeyValue,
    daemon: Callable[..., Awaitable[Running]],
) -> None:
    (folder / "storage.py").write_text(DISKS)
    (folder / "made").write_text("other")
    await daemon("storage:Disks")

    async def linked() -> bool:
        document = json.loads((await disks.get("a")).value or b"{}")
        named = document.get("metadata", {}).get("annotations", {})
        return named.get("natsctl.io/external-name") == "disk-1"

    await natsctl.done("put", "disks", "a", json.dumps({"spec": {"size": 1}}))
    await eventually(linked)
    for size in (1, 2):
        await natsctl.done("put", "disks", "a", json.dumps({"spec": {"size": size}}))
        assert (await annotations(disks, "a"))["natsctl.io/external-name"] == "disk-1"
    await disks.put("a", b'{"spec": {"size": 3}}')
    await eventually(linked)
    assert (folder / "made").read_text() == "other disk-1"


STREAMS = """
import nats
from nats.js.errors import NotFoundError
from natsctl import (
    ExternalClientFns, ManagedController, ManagedReconciler, Object, Observation, kv
)

class Stream(Object, frozen=True):
    spec: dict[str, list[str]] = {}

class Streams(ManagedController):
    kind = kv(Stream, bucket="streams")

    async def start(self):
        self.client = await nats.connect("SERVER")
        self.jetstream = self.client.jetstream()

    async def clean(self):
        await self.client.close()

    def reconciler(self, managed):
        client = ExternalClientFns(
            observe_fn=self.observe, create_fn=self.create, delete_fn=self.delete
        )
        async def connect(managed):
            return client
        return ManagedReconciler(
            managed, connecter=connect, external_name=lambda m: m.key, recorder=self,
            poll_interval_s=0.5, creation_grace_period_s=0.0,
        )

    async def observe(self, managed):
        try:
            await self.jetstream.stream_info(managed.external_name)
        except NotFoundError:
            return Observation()
        return Observation(exists=True, up_to_date=True)

    async def create(self, managed):
        await self.jetstream.add_stream(name=managed.external_name, **managed.spec)

    async def delete(self, managed):
        await self.jetstream.delete_stream(managed.external_name)
"""


async def test_a_strangers_stream_stays_until_somebody_adopts_it(
    natsctl: Natsctl,
    folder: Path,
    jetstream: JetStreamContext,
    nats_server: NatsServer,
    daemon: Callable[..., Awaitable[Running]],
) -> None:
    await jetstream.create_key_value(KeyValueConfig(bucket="streams", history=5))
    await jetstream.add_stream(name="EVENTS_legacy", subjects=["legacy.>"])
    await jetstream.publish("legacy.one", b"precious")
    (folder / "owners.py").write_text(STREAMS.replace("SERVER", nats_server.url))
    running = await daemon("owners:Streams")
    await natsctl.done("put", "streams", "EVENTS_legacy", '{"spec": {"subjects": ["legacy.>"]}}')
    command = "natsctl repair external adopt streams/EVENTS_legacy"
    await running.logged(command)
    explained = await natsctl.done("describe", "streams/EVENTS_legacy")
    assert "Ready=False NotOwned" in explained
    assert command in explained
    await natsctl.done("delete", "streams", "EVENTS_legacy")

    async def is_gone(key: str) -> bool:
        return (await natsctl("get", "streams", key)).status != 0

    await eventually(lambda: is_gone("EVENTS_legacy"))
    assert (await jetstream.stream_info("EVENTS_legacy")).state.messages == 1

    await natsctl.done("put", "streams", "EVENTS_legacy", '{"spec": {"subjects": ["legacy.>"]}}')
    await eventually(lambda: has(natsctl, "NotOwned"))
    await natsctl.done(*command.split()[1:])
    await eventually(lambda: has(natsctl, "Available"))
    assert "EVENTS_legacy, adopted" in await natsctl.done("describe", "streams/EVENTS_legacy")
    rows = (await natsctl("repair", "external", "list")).rows
    assert [(row[1], row[3]) for row in rows] == [("EVENTS_legacy", "adopted")]
    await natsctl.done("delete", "streams", "EVENTS_legacy")
    await eventually(lambda: is_gone("EVENTS_legacy"))
    with pytest.raises(NotFoundError):
        await jetstream.stream_info("EVENTS_legacy")


async def has(natsctl: Natsctl, reason: str) -> bool:
    """Return whether the object of the stream has a condition with this reason."""
    return reason in await natsctl.done("get", "streams", "EVENTS_legacy", "-o", "json")
