"""Managed objects in a real bucket that plain NATS clients write too."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

import natsctl
from natsctl import Primary, kv
from natsctl.managed import Managed, ManagedController, ManagedReconciler
from tests.support.clients.nats import Nats
from tests.support.clients.patient_client import patient_client
from tests.support.controllers.disk_reconciler import DISKS, Cloud, CloudClient, Disk
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer


class Disks(ManagedController[Disk]):
    """Creates, changes and deletes the disks of a cloud from the objects of a bucket."""

    kind = DISKS

    def __init__(self, cloud: Cloud, nats: Nats) -> None:
        super().__init__(nats=nats)
        self.cloud = cloud

    def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
        return ManagedReconciler(managed, connecter=self.connect, poll_interval_s=0.5)

    async def connect(self, _managed: Managed[Disk]) -> CloudClient:
        return CloudClient(self.cloud)


class ShortDisks(Disks):
    """The same with a bucket that keeps no earlier revisions."""

    kind = kv(Disk, bucket="disks", history=1)


class Stage:
    """The bucket of a plain NATS client, and the cloud."""

    def __init__(
        self, controller: type[Disks], nats: Nats, bucket: KeyValue, records: KeyValue
    ) -> None:
        self.controller = controller
        self.nats = nats
        self.bucket = bucket
        self.records = records
        self.cloud = Cloud()

    async def put(self, size: int) -> int:
        return await self.bucket.put("a", json.dumps({"spec": {"size": size}}).encode())

    async def document(self) -> dict[str, Any]:
        return dict(json.loads((await self.bucket.get("a")).value or b"{}"))

    async def ready(self) -> bool:
        conditions = (await self.document()).get("status", {}).get("conditions", ())
        return ("Ready", "True") in {
            (condition["type"], condition["status"]) for condition in conditions
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        controller = self.controller(self.cloud, self.nats)
        async with asyncio.TaskGroup() as group:
            group.create_task(controller.run())
            await eventually(controller.synced.is_set)
            yield
            controller.stop()


RECORDS = kv(dict, bucket="natsctl", keys="links.>", history=1, replicas=None)


@pytest.fixture(params=[ShortDisks, Disks], ids=["history 1", "history 5"])
async def stage(request: pytest.FixtureRequest, nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with natsctl.connect(nats_server.url) as nats, patient_client(nats_server.url) as client:
        js = client.jetstream()
        for kind in (request.param.kind, RECORDS):
            await nats.open(kind)
        bucket, records = await js.key_value("disks"), await js.key_value("natsctl")
        yield Stage(request.param, nats, bucket, records)


async def test_an_object_becomes_ready_within_three_revisions(stage: Stage) -> None:
    async with stage.running():
        first = await stage.put(size=1)
        await eventually(stage.ready)
        assert (await stage.bucket.get("a")).revision - first + 1 <= 3  # type: ignore[operator]
        await asyncio.sleep(1.5)  # several polls
        assert (await stage.bucket.get("a")).revision - first + 1 <= 3  # type: ignore[operator]


async def test_a_plain_put_creates_no_second_resource(stage: Stage) -> None:
    async with stage.running():
        await stage.put(size=1)
        await eventually(stage.ready)
        await stage.put(size=1)
        await eventually(stage.ready)
        await stage.put(size=2)
        await eventually(lambda: stage.cloud.disks == {"disk-1": 2})
        await eventually(stage.ready)
    assert stage.cloud.created == ["a"]
    assert (await stage.document())["metadata"]["annotations"]["natsctl.io/external-name"]


async def test_a_put_while_no_daemon_runs_creates_no_second_resource(stage: Stage) -> None:
    async with stage.running():
        await stage.put(size=1)
        await eventually(stage.ready)
    await stage.put(size=2)
    async with stage.running():
        await eventually(lambda: stage.cloud.disks == {"disk-1": 2})
    assert stage.cloud.created == ["a"]


async def test_deleting_the_object_removes_resource_and_record(stage: Stage) -> None:
    async with stage.running():
        await stage.put(size=1)
        await eventually(stage.ready)
        assert await stage.records.get("links.natsctl_io.disks.a")
        await stage.put(size=1)
        await stage.bucket.delete("a")
        await eventually(lambda: stage.cloud.disks == {})

        async def has_no_record() -> bool:
            try:
                await stage.records.get("links.natsctl_io.disks.a")
            except KeyNotFoundError:
                return True
            return False

        await eventually(has_no_record)
