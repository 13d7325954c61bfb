"""The API of informer controllers and managed controllers: status, explain, tree, resync."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from natsctl import Kind, NatsOptions, Object, kv
from natsctl.core.tree import Branch
from natsctl.daemon.messages import ControllerStatus, DaemonProcess, KeyExplanation, Queuing, Verb
from natsctl.daemon.service import ControllerEndpoints
from natsctl.errors import NatsctlError
from natsctl.jetstream.connection import Connection
from natsctl.testing import MemoryStore, MemoryStores
from natsctl.watchers import InformerController
from tests.support.controllers.disk_reconciler import (
    DISKS,
    Cloud,
    ManagedDisks,
)
from tests.support.controllers.recording_watcher import SITES, RecordingWatcher, put, running, site

PROCESS = DaemonProcess(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")
VERBS = ["status", "explain", "tree", "manifest", "resync"]
VERBS += ["record", "recording", "recording-unmasked"]


class Client:
    """Calls the endpoints of one runnable and decodes the responses."""

    def __init__(self, runnable: Any) -> None:
        self.endpoints = ControllerEndpoints(runnable, PROCESS, Connection(NatsOptions()))

    async def __call__(self, verb: Verb, request: str, response_type: type[Any]) -> Any:
        handlers = {
            endpoint.metadata["verb"]: endpoint.handler for endpoint in self.endpoints.endpoints()
        }
        return msgspec.json.decode(await handlers[verb](request.encode()), type=response_type)

    async def explain(self, key: str) -> KeyExplanation:
        explanation: KeyExplanation = await self(Verb.EXPLAIN, key, KeyExplanation)
        return explanation

    async def status(self) -> ControllerStatus:
        status: ControllerStatus = await self(Verb.STATUS, "", ControllerStatus)
        return status

    async def resync(self, *keys: str) -> Queuing:
        response: Queuing = await self(Verb.RESYNC, " ".join(keys), Queuing)
        return response


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


class TestWatchers:
    @pytest.fixture
    def sites(self, stores: MemoryStores) -> MemoryStore:
        return stores.store(SITES)

    @staticmethod
    def controller(
        *watchers: RecordingWatcher, kinds: tuple[Kind[Any], ...] = (SITES,)
    ) -> InformerController:
        controller = InformerController(name="sites")
        for kind in kinds:
            controller.add_informer(kind)
            for watcher in watchers:
                controller.add_watcher(watcher, kind)
        return controller

    async def test_a_controller_that_has_not_synced_is_starting(self) -> None:
        client = Client(self.controller(RecordingWatcher()))
        assert [endpoint.name for endpoint in client.endpoints.endpoints()] == VERBS
        assert (await client.status()).state == "starting"
        with pytest.raises(NatsctlError, match="sites is starting: try again"):
            await client.explain("athens")

    async def test_an_explanation_has_the_next_retry_of_a_failed_watcher(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        notes = RecordingWatcher()
        notes.failures = 2
        controller = self.controller(notes)
        async with running(controller, stores):
            await put(sites, "athens", site("one"))
            await put(sites, "oslo", site("one"))
            await put(sites, "rome", b"5")
            await asyncio.sleep(6)  # the first retries come after five seconds
            client = Client(controller)
            explanation = await client.explain("athens")
            assert (explanation.exists, explanation.revision, explanation.failures) == (True, 1, 0)
            assert [(sync.operation, sync.error) for sync in explanation.syncs] == [
                ("create", "RecordingWatcher: ValueError: on purpose"),
                ("create", ""),
            ]
            assert "not a valid Site" in (await client.explain("rome")).invalid
            notes.failures = 1
            await put(sites, "athens", site("two"))
            await asyncio.sleep(1)
            explanation = await client.explain("athens")
            assert explanation.failures == 1
            assert explanation.queued is not None
            assert (explanation.queued.place, explanation.queued.s) == (
                "waiting",
                pytest.approx(4, abs=0.1),
            )  # type: ignore[comparison-overlap]
            status = await client.status()
            assert (status.state, status.primaries, status.invalid_count) == ("syncing", 2, 1)
            assert status.failing == {"athens": "ValueError: on purpose"}
            assert (status.syncs, status.failures) == (5, 3)

    async def test_a_resync_notifies_watchers_of_existing_objects_as_at_a_start(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        notes = RecordingWatcher()
        controller = self.controller(notes)
        async with running(controller, stores):
            for key in ("athens", "oslo"):
                await put(sites, key, site("one"))
            await asyncio.sleep(1)
            client = Client(controller)
            response = await client.resync("oslo", "nowhere")
            assert (response.queued, response.unknown) == (1, ["nowhere"])
            await asyncio.sleep(1)
            assert notes.calls[2:] == ["add oslo one"]
            assert (await client.resync()).queued == 2
            await asyncio.sleep(1)
            assert notes.calls[3:] == ["add athens one", "add oslo one"]

    async def test_a_resync_of_all_objects_delivers_a_few_at_a_time(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        for number in range(1000):
            await put(sites, f"site-{number}", site())
        notes = RecordingWatcher()
        controller = self.controller(notes)
        async with running(controller, stores):
            await asyncio.sleep(1)
            assert controller.resync() == 1000
            assert 0 < (controller.status().unanswered or 0) < 200
            await asyncio.sleep(1)
            assert sorted(notes.calls[1000:]) == sorted(notes.calls[:1000])

    async def test_a_resync_retries_a_failed_watcher_immediately(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        calls: list[str] = []
        first, second = RecordingWatcher("first", calls), RecordingWatcher("second", calls)
        controller = self.controller(first, second)
        async with running(controller, stores):
            await put(sites, "athens", site("one"))
            await asyncio.sleep(1)
            first.failures = 1
            await put(sites, "athens", site("two"))
            await asyncio.sleep(1)
            del calls[:]
            await Client(controller).resync("athens")
            await asyncio.sleep(1)
            assert sorted(calls) == ["first update athens one two", "second add athens two"]

    async def test_a_resync_retries_a_failed_deletion_of_a_deleted_object(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        notes = RecordingWatcher()
        controller = self.controller(notes)
        async with running(controller, stores):
            await put(sites, "athens", site("one"))
            await asyncio.sleep(1)
            notes.failures = 1
            await sites.delete("athens")
            await asyncio.sleep(1)
            assert (await Client(controller).resync("athens")).queued == 1
            await asyncio.sleep(1)
            assert notes.calls[-2:] == ["delete athens one fails", "delete athens one"]

    async def test_a_status_covers_all_kinds_of_a_controller(self, stores: MemoryStores) -> None:
        class Room(Object, frozen=True):
            pass

        rooms = kv(Room, bucket="rooms")
        controller = self.controller(RecordingWatcher(), kinds=(SITES, rooms))
        async with running(controller, stores):
            await put(stores.store(SITES), "athens", site("one"))
            for key in ("hall", "attic"):
                await put(stores.store(rooms), key, site("x"))
            await asyncio.sleep(1)
            client = Client(controller)
            status = await client.status()
            assert status.queue is not None
            assert (status.primaries, status.queue.adds, status.queue.latency_s.count) == (3, 3, 3)
            assert (await client.explain("hall")).revision == 1
            top = await client(Verb.TREE, "hall", Branch)
            assert (top.kind, top.key, top.revision) == ("Room.rooms", "hall", 1)
            assert (await client(Verb.TREE, "nobody", Branch)).ready == "Missing"

    async def test_a_stopping_controller_rejects_a_resync(self, stores: MemoryStores) -> None:
        notes = RecordingWatcher()
        notes.takes_s = 10
        controller = self.controller(notes)
        async with running(controller, stores):
            await put(stores.store(SITES), "athens", site("one"))
            await asyncio.sleep(1)
            client = Client(controller)
            before = {
                endpoint.metadata["verb"]: endpoint.handler
                for endpoint in client.endpoints.endpoints()
            }
            controller.stop()
            assert (await client.status()).state == "stopping"
            assert (await client.explain("athens")).queued is not None
            assert "resync" not in {endpoint.name for endpoint in client.endpoints.endpoints()}
            with pytest.raises(NatsctlError, match="sites is stopping: try again"):
                await before["resync"](b"athens")


class TestManaged:
    class Disks(ManagedDisks):
        def __init__(self, cloud: Cloud) -> None:
            super().__init__()
            self.cloud = cloud

    @pytest.fixture
    def cloud(self) -> Cloud:
        return Cloud()

    @asynccontextmanager
    async def running_disks(
        self, cloud: Cloud, stores: MemoryStores
    ) -> AsyncIterator["TestManaged.Disks"]:
        controller = self.Disks(cloud)
        controller.use(nats=stores)
        task = asyncio.create_task(controller.run())
        await controller.synced.wait()
        yield controller
        controller.stop()
        await task

    async def test_a_controller_that_has_not_synced_is_starting(self, cloud: Cloud) -> None:
        client = Client(self.Disks(cloud))
        assert [endpoint.name for endpoint in client.endpoints.endpoints()] == VERBS
        assert (await client.status()).state == "starting"

    async def test_explain_and_tree_show_the_external_resource(
        self, cloud: Cloud, stores: MemoryStores
    ) -> None:
        async with self.running_disks(cloud, stores) as controller:
            await stores.store(DISKS).create("data", b'{"spec": {"size": 5}}')
            await asyncio.sleep(30)
            client = Client(controller)
            explanation = await client.explain("data")
            assert (explanation.exists, explanation.failures, explanation.invalid) == (True, 0, "")
            assert explanation.syncs
            assert {sync.error for sync in explanation.syncs} == {""}
            assert explanation.queued is not None
            assert (
                explanation.queued.place == "waiting"
            )  # the reconciler polls the external resource
            top = await client(Verb.TREE, "data", Branch)
            assert [(branch.kind, branch.key) for branch in top.branches] == [
                ("External", "disk-1")
            ]
            status = await client.status()
            assert (status.state, status.primaries, status.failing_count) == ("syncing", 1, 0)
            assert status.syncs >= len(explanation.syncs)

    async def test_a_resync_reconciles_with_the_operation_of_its_cause(
        self, cloud: Cloud, stores: MemoryStores
    ) -> None:
        async with self.running_disks(cloud, stores) as controller:
            await stores.store(DISKS).create("data", b'{"spec": {"size": 5}}')
            await asyncio.sleep(10)
            client = Client(controller)
            assert (await client.resync("data", "nobody")).unknown == ["nobody"]
            await asyncio.sleep(1)
            assert (await client.explain("data")).syncs[-1].operation == "manual"
            assert (await client.resync()).queued == 1
            await asyncio.sleep(1)
            assert (await client.explain("data")).syncs[-1].operation == "resync"
