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

from tests.support.cli.natsctl_command import InProcess, Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

PENDING = "natsctl.io/external-create-pending"
INTENT = "2026-01-01T00:00:00Z revision 7"

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


async def put_interrupted(bucket: KeyValue, key: str, **more_annotations: str) -> None:
    """Put an object whose creation was interrupted."""
    annotations = {PENDING: INTENT, **more_annotations}
    await bucket.put(
        key, json.dumps({"spec": {}, "metadata": {"annotations": annotations}}).encode()
    )


async def annotations(bucket: KeyValue, key: str) -> dict[str, str]:
    document = json.loads((await bucket.get(key)).value or b"{}")
    stored: dict[str, str] = document["metadata"]["annotations"]
    return stored


async def test_list_without_links_prints_a_note(natsctl: Natsctl, disks: KeyValue) -> None:
    await disks.put("a", b'{"spec": {}}')
    await disks.put("raw", b"\xff")
    result = await natsctl("repair", "external", "list")
    assert (result.status, result.out) == (0, "")
    assert result.err == "there are no links to external resources\n"


async def test_list_shows_the_links_of_all_buckets(
    natsctl: Natsctl, disks: KeyValue, jetstream: JetStreamContext
) -> None:
    nets = await jetstream.create_key_value(KeyValueConfig(bucket="nets"))
    await put_interrupted(disks, "a")
    await put_interrupted(disks, "done", **{"natsctl.io/external-create-failed": INTENT})
    await put_interrupted(nets, "b", **{"natsctl.io/external-name": "net-1"})
    result = await natsctl("repair", "external", "list")
    assert [[row[0], row[1], row[-1]] for row in result.rows] == [
        ["disks", "a", "-"],
        ["nets", "b", "net-1"],
    ]
    assert (
        await natsctl.done("repair", "external", "list", "--bucket", "nets", "-o", "name")
        == "nets/b\n"
    )
    links = (await natsctl("repair", "external", "list", "-o", "json")).json
    assert links[0]["since"] == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize("outcome", ["created", "failed"])
async def test_resolve_records_the_result_of_a_creation(
    natsctl: Natsctl, disks: KeyValue, outcome: str
) -> None:
    await put_interrupted(disks, "a", mine="1")
    words = ("--created", "--name", "disk-9") if outcome == "created" else ("--not-created",)
    await natsctl.done("repair", "external", "resolve", "disks/a", *words)
    recorded = await annotations(disks, "a")
    result = "succeeded" if outcome == "created" else "failed"
    assert recorded[f"natsctl.io/external-create-{result}"].endswith("Z revision 7")
    assert recorded.get("natsctl.io/external-name") == ("disk-9" if outcome == "created" else None)
    assert recorded["mine"] == "1"
    assert (await natsctl("repair", "external", "list")).rows == []


async def test_resolve_refuses_an_object_without_an_unknown_creation(
    natsctl: Natsctl, disks: KeyValue
) -> None:
    await disks.put("a", b'{"spec": {}}')
    result = await natsctl("repair", "external", "resolve", "disks/b", "--created")
    assert (result.status, "disks has no b" in result.err) == (3, True)
    result = await natsctl("repair", "external", "resolve", "disks", "a", "--created")
    assert (result.status, "no creation with an unknown result" in result.err) == (2, True)


async def test_the_old_form_with_a_bucket_still_resolves(natsctl: Natsctl, disks: KeyValue) -> None:
    await put_interrupted(disks, "a")
    alone = await natsctl("external", "resolve", "a", "--created")
    assert (alone.status, "'a' alone names no object" in alone.err) == (2, True)
    await natsctl.done("external", "resolve", "a", "--created", "--bucket", "disks")
    assert PENDING in await annotations(disks, "a")


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


async def test_list_shows_the_links_of_an_object_with_several_reconcilers(
    in_process: InProcess, disks: KeyValue, jetstream: JetStreamContext
) -> None:
    records = await jetstream.create_key_value(KeyValueConfig(bucket="natsctl"))
    await records.put("links.acme_io.disks.a", b'{"externalName": "backup-1"}')
    await records.put("links.natsctl_io.disks.a", b'{"externalName": "disk-1"}')
    names = {"acme.io/external-name": "backup-1", "natsctl.io/external-name": "disk-1"}
    interrupted = {"other.io/external-create-pending": INTENT}
    await disks.put("a", json.dumps({"metadata": {"annotations": names | interrupted}}).encode())
    links = (await in_process("repair", "external", "list", "-o", "json")).json
    assert [(link["domain"], link["state"], link["externalName"]) for link in links] == [
        ("acme.io", "linked", "backup-1"),
        ("natsctl.io", "linked", "disk-1"),
        ("other.io", "unknown", ""),
    ]


async def test_list_shows_lost_links_and_forget_removes_them(
    in_process: InProcess, disks: KeyValue, jetstream: JetStreamContext
) -> None:
    records = await jetstream.create_key_value(KeyValueConfig(bucket="natsctl"))
    for key in ("a", "gone", "other"):
        record = {"externalName": f"disk-{key}", "succeeded": INTENT}
        await records.put(f"links.natsctl_io.disks.{key}", json.dumps(record).encode())
    await records.put("links.natsctl_io.nowhere.b", b'{"externalName": "disk-b"}')
    await disks.put("a", b'{"spec": {}}')
    lost_link = {"natsctl.io/external-name": "another"}
    await disks.put("other", json.dumps({"metadata": {"annotations": lost_link}}).encode())
    result = await in_process("repair", "external", "list")
    assert [[row[0], row[1], row[3], row[-1]] for row in result.rows] == [
        ["disks", "a", "linked", "disk-a"],
        ["disks", "gone", "lost", "disk-gone"],
        ["disks", "other", "lost", "disk-other"],
        ["nowhere", "b", "lost", "disk-b"],
    ]
    for name in ("disks/gone", "disks/other", "nowhere/b"):
        await in_process.done("repair", "external", "forget", name)
    assert [row[1] for row in (await in_process("repair", "external", "list")).rows] == ["a"]
    recorded = await annotations(disks, "other")
    assert [name.rpartition("/")[2] for name in recorded] == ["external-create-failed"]
    result = await in_process("repair", "external", "forget", "disks/gone")
    assert (result.status, "disks/gone has no link to an external" in result.err) == (3, True)


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


async def test_adopt_refuses_a_key_that_is_no_object(natsctl: Natsctl, disks: KeyValue) -> None:
    await disks.put("raw", b"\xff")
    assert (await natsctl("repair", "external", "adopt", "disks/raw")).status != 0
    result = await natsctl("repair", "external", "adopt", "disks", "a")
    assert (result.status, "disks has no a" in result.err) == (3, True)
