"""Controllers of watchers and of managed objects explain their keys as any other does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from natsctl import Kind, Object, kv
from natsctl.core.insight.tree import Branch
from natsctl.core.objects.primary import Primary
from natsctl.daemon.api.endpoints import ControllerEndpoints
from natsctl.daemon.api.messages import ControllerStatus, KeyExplanation, Process, Queuing
from natsctl.daemon.api.verbs import Verb
from natsctl.errors import NatsctlError
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.managed import Managed, ManagedController, ManagedReconciler
from natsctl.testing.memory import MemoryStore, MemoryStores
from natsctl.watchers import InformerController
from tests.support.controllers.disk_reconciler import DISKS, Cloud, CloudClient, Disk, clock
from tests.support.controllers.recording_watcher import SITES, Notes, put, running, site

PROCESS = Process(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")
TELLING = ["status", "explain", "tree", "resync"]


class Asked:
    """A desk, and what it answers."""

    def __init__(self, runnable: Any) -> None:
        self.desk = ControllerEndpoints(
            runnable, PROCESS, Connection(NatsOptions()), lambda _: True
        )

    async def __call__(self, verb: Verb, asked: str, of: type[Any]) -> Any:
        handlers = {each.metadata["verb"]: each.handler for each in self.desk.endpoints()}
        return msgspec.json.decode(await handlers[verb](asked.encode()), type=of)

    async def explain(self, key: str) -> KeyExplanation:
        found: KeyExplanation = await self(Verb.EXPLAIN, key, KeyExplanation)
        return found

    async def status(self) -> ControllerStatus:
        found: ControllerStatus = await self(Verb.STATUS, "", ControllerStatus)
        return found

    async def resync(self, *keys: str) -> Queuing:
        found: Queuing = await self(Verb.RESYNC, " ".join(keys), Queuing)
        return found


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


class TestWatchers:
    @pytest.fixture
    def sites(self, stores: MemoryStores) -> MemoryStore:
        return stores.store(SITES)

    @staticmethod
    def controller(*watchers: Notes, kinds: tuple[Kind[Any], ...] = (SITES,)) -> InformerController:
        made = InformerController(name="sites")
        for kind in kinds:
            made.add_informer(kind)
            for watcher in watchers:
                made.add_watcher(watcher, kind)
        return made

    async def test_before_they_have_begun_they_say_that(self) -> None:
        asked = Asked(self.controller(Notes()))
        assert [each.name for each in asked.desk.endpoints()] == TELLING
        assert (await asked.status()).state == "starting"
        with pytest.raises(NatsctlError, match="sites is starting: try again"):
            await asked.explain("athens")

    async def test_an_object_on_which_a_watcher_fails_is_explained_with_its_next_try(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        notes = Notes()
        notes.failures = 2
        controller = self.controller(notes)
        async with running(controller, stores):
            await put(sites, "athens", site("one"))
            await put(sites, "oslo", site("one"))
            await put(sites, "rome", b"5")
            await asyncio.sleep(6)  # the first retries come after five seconds
            asked = Asked(controller)
            found = await asked.explain("athens")
            assert (found.exists, found.revision, found.failures) == (True, 1, 0)
            assert [(each.operation, each.error) for each in found.syncs] == [
                ("create", "Notes: ValueError: told to"),
                ("create", ""),
            ]
            assert "not a valid Site" in (await asked.explain("rome")).invalid
            notes.failures = 1
            await put(sites, "athens", site("two"))
            await asyncio.sleep(1)
            found = await asked.explain("athens")
            assert found.failures == 1
            assert found.queued is not None
            assert (found.queued.place, found.queued.s) == ("waiting", pytest.approx(4, abs=0.1))  # type: ignore[comparison-overlap]
            status = await asked.status()
            assert (status.state, status.primaries, status.invalid_count) == ("syncing", 2, 1)
            assert status.failing == {"athens": "ValueError: told to"}
            assert (status.syncs, status.failures) == (5, 3)

    async def test_a_resync_tells_what_is_there_as_at_a_start(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        notes = Notes()
        controller = self.controller(notes)
        async with running(controller, stores):
            for key in ("athens", "oslo"):
                await put(sites, key, site("one"))
            await asyncio.sleep(1)
            asked = Asked(controller)
            found = await asked.resync("oslo", "nowhere")
            assert (found.queued, found.unknown) == (1, ["nowhere"])
            await asyncio.sleep(1)
            assert notes.told[2:] == ["add oslo one"]
            assert (await asked.resync()).queued == 2
            await asyncio.sleep(1)
            assert notes.told[3:] == ["add athens one", "add oslo one"]

    async def test_a_resync_tells_a_watcher_that_failed_at_once_what_it_has_not_taken(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        told: list[str] = []
        first, second = Notes("first", told), Notes("second", told)
        controller = self.controller(first, second)
        async with running(controller, stores):
            await put(sites, "athens", site("one"))
            await asyncio.sleep(1)
            first.failures = 1
            await put(sites, "athens", site("two"))
            await asyncio.sleep(1)
            del told[:]
            await Asked(controller).resync("athens")
            await asyncio.sleep(1)
            assert sorted(told) == ["first update athens one two", "second add athens two"]

    async def test_a_deletion_that_failed_can_be_told_again_though_the_object_is_gone(
        self, stores: MemoryStores, sites: MemoryStore
    ) -> None:
        notes = Notes()
        controller = self.controller(notes)
        async with running(controller, stores):
            await put(sites, "athens", site("one"))
            await asyncio.sleep(1)
            notes.failures = 1
            await sites.delete("athens")
            await asyncio.sleep(1)
            assert (await Asked(controller).resync("athens")).queued == 1
            await asyncio.sleep(1)
            assert notes.told[-2:] == ["delete athens one fails", "delete athens one"]

    async def test_several_resource_kinds_are_one_status(self, stores: MemoryStores) -> None:
        class Room(Object, frozen=True):
            pass

        rooms = kv(Room, bucket="rooms")
        controller = self.controller(Notes(), kinds=(SITES, rooms))
        async with running(controller, stores):
            await put(stores.store(SITES), "athens", site("one"))
            for key in ("hall", "attic"):
                await put(stores.store(rooms), key, site("x"))
            await asyncio.sleep(1)
            asked = Asked(controller)
            status = await asked.status()
            assert status.queue is not None
            assert (status.primaries, status.queue.adds, status.queue.latency_s.count) == (3, 3, 3)
            assert (await asked.explain("hall")).revision == 1
            top = await asked(Verb.TREE, "hall", Branch)
            assert (top.kind, top.key, top.revision) == ("Room.rooms", "hall", 1)
            assert (await asked(Verb.TREE, "nobody", Branch)).ready == "Missing"

    async def test_what_was_told_to_stop_takes_no_requests(self, stores: MemoryStores) -> None:
        notes = Notes()
        notes.takes_s = 10
        controller = self.controller(notes)
        async with running(controller, stores):
            await put(stores.store(SITES), "athens", site("one"))
            await asyncio.sleep(1)
            asked = Asked(controller)
            before = {each.metadata["verb"]: each.handler for each in asked.desk.endpoints()}
            controller.stop()
            assert (await asked.status()).state == "stopping"
            assert (await asked.explain("athens")).queued is not None
            assert "resync" not in {each.name for each in asked.desk.endpoints()}
            with pytest.raises(NatsctlError, match="sites is stopping: try again"):
                await before["resync"](b"athens")


class TestManaged:
    class Disks(ManagedController[Disk]):
        kind = DISKS

        def __init__(self, cloud: Cloud) -> None:
            super().__init__()
            self.cloud = cloud

        def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
            return ManagedReconciler(managed, connecter=self.connect, recorder=self, clock=clock)

        async def connect(self, _managed: Managed[Disk]) -> CloudClient:
            return CloudClient(self.cloud)

    @pytest.fixture
    def cloud(self) -> Cloud:
        return Cloud()

    @asynccontextmanager
    async def ran(self, cloud: Cloud, stores: MemoryStores) -> AsyncIterator["TestManaged.Disks"]:
        controller = self.Disks(cloud)
        controller.use(nats=stores)
        task = asyncio.create_task(controller.run())
        await controller.synced.wait()
        yield controller
        controller.stop()
        await task

    async def test_before_they_have_begun_they_say_that(self, cloud: Cloud) -> None:
        asked = Asked(self.Disks(cloud))
        assert [each.name for each in asked.desk.endpoints()] == TELLING
        assert (await asked.status()).state == "starting"

    async def test_an_object_is_explained_and_shown_with_what_is_outside(
        self, cloud: Cloud, stores: MemoryStores
    ) -> None:
        async with self.ran(cloud, stores) as controller:
            await stores.store(DISKS).create("data", b'{"spec": {"size": 5}}')
            await asyncio.sleep(30)
            asked = Asked(controller)
            found = await asked.explain("data")
            assert (found.exists, found.failures, found.invalid) == (True, 0, "")
            assert found.syncs
            assert {each.error for each in found.syncs} == {""}
            assert found.queued is not None
            assert found.queued.place == "waiting"  # it is looked at again
            top = await asked(Verb.TREE, "data", Branch)
            assert [(each.kind, each.key) for each in top.branches] == [("External", "disk-1")]
            status = await asked.status()
            assert (status.state, status.primaries, status.failing_count) == ("syncing", 1, 0)
            assert status.syncs >= len(found.syncs)

    async def test_a_resync_reconciles_and_says_so(
        self, cloud: Cloud, stores: MemoryStores
    ) -> None:
        async with self.ran(cloud, stores) as controller:
            await stores.store(DISKS).create("data", b'{"spec": {"size": 5}}')
            await asyncio.sleep(10)
            asked = Asked(controller)
            assert (await asked.resync("data", "nobody")).unknown == ["nobody"]
            await asyncio.sleep(1)
            assert (await asked.explain("data")).syncs[-1].operation == "manual"
            assert (await asked.resync()).queued == 1
            await asyncio.sleep(1)
            assert (await asked.explain("data")).syncs[-1].operation == "resync"
