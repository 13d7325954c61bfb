"""A standby or a gaining member keeps only caches, and misses no change when it takes over."""

import asyncio
import gc
import math
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from natsctl import Controller, ControllerRuntime, Kind, Operator, finalized, primary
from natsctl.controller.garbage import MEMORY
from natsctl.core.coordination.shares import Participation
from natsctl.core.coordination.term import SHARES, Leadership, keys_in
from natsctl.core.environment import enter
from natsctl.core.history import SETTLE_S
from natsctl.errors import PermanentError, StoreError, UsageError
from natsctl.managed import Managed
from natsctl.managed.links import Memory
from natsctl.model.store import Stored, WatchEvent
from natsctl.testing import MemoryStore, MemoryStores
from natsctl.watchers import InformerController
from tests.support.controllers.app_controller import APPS, App, AppClient, Apps, Calm
from tests.support.controllers.disk_reconciler import DISKS, Cloud, CloudClient, Disk, ManagedDisks
from tests.support.controllers.quarantined_apps import failing_records
from tests.support.controllers.recording_watcher import SITES, RecordingWatcher, site, watching
from tests.support.controllers.sharing_group import TTL_S, C, SharingMember, Way, WayStore, sharing
from tests.support.eventually import eventually
from tests.support.stores import documents
from tests.support.stores.documents import put

MANY = 300


class WayStores(MemoryStores):
    """The stores as one process reaches them."""

    def __init__(self, base: MemoryStores, way: Way) -> None:
        super().__init__()
        self._base, self._way = base, way

    async def open(self, kind: Kind[Any]) -> MemoryStore:
        return WayStore(self._base, kind, self._way)


class Rents(Controller):
    """Rents a machine for each app, and holds the app until the machine is given back."""

    name = "rents"
    apps = primary(APPS)

    def __init__(self, machines: set[str]) -> None:
        self.machines = machines

    async def sync_handler(self, key: str) -> float | None:
        return await finalized(
            self.apps, key, "rents/machine", apply=self.rent, cleanup=self.give_back
        )

    async def rent(self, key: str, _app: App) -> None:
        self.machines.add(key)

    async def give_back(self, key: str, _app: App) -> None:
        self.machines.discard(key)


async def process(stores: MemoryStores, controller: C, way: Way | None = None) -> SharingMember[C]:
    """Start a process that takes part in leader election, and reaches the objects over the way."""
    reached = None if way is None else WayStores(stores, way)
    process = SharingMember(stores, controller, count=1, reached=reached)
    await process.operator.synced.wait()
    return process


class Idle(Calm):
    """A controller that writes nothing."""

    name = "apps"

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        return None


async def test_a_standby_holds_no_state_of_deleted_keys_and_misses_nothing_as_leader() -> None:
    stores = MemoryStores()
    client = AppClient(stores)
    leader = await process(stores, Apps())
    await client.app("shop")
    await eventually(lambda: client.part_keys == ["shop.main"])
    await leader.stop()
    leader = await process(stores, Idle())
    standby = await process(stores, Apps())
    await eventually(lambda: leader.runtime.idle)
    for number in range(MANY):
        await client.apps.create(f"k{number}", b'{"spec": {}}')
        await client.apps.delete(f"k{number}")
    await eventually(lambda: leader.runtime.idle and standby.controller.apps.keys() == ("shop",))
    assert len(set(leader.controller.syncs)) == MANY + 1
    (queue,) = standby.runtime.measures().queues
    assert (queue.stats.depth, queue.stats.waiting, queue.stats.held) == (0, 0, 0)
    assert standby.controller.apps.queue.works == {}
    counts = standby.runtime.measures().syncs
    assert counts is not None
    assert counts.unanswered == 0
    assert standby.controller.syncs == []

    await leader.kill()
    await client.apps.delete("shop")
    await client.app("market")
    assert not standby.runtime.holds("shop")
    await eventually(lambda: client.part_keys == ["market.main"], within_s=2 * TTL_S)
    await eventually(lambda: standby.runtime.idle)
    assert len(set(standby.controller.syncs)) == MANY + 2  # the new leader syncs every deleted key
    await standby.stop()


async def test_a_new_leader_whose_cache_is_late_makes_nothing_for_a_deleted_object() -> None:
    stores, machines, way = MemoryStores(), set[str](), Way()
    client = AppClient(stores)
    leader = await process(stores, Rents(machines))
    standby = await process(stores, Rents(machines), way)
    await client.app("shop")
    await eventually(lambda: machines == {"shop"} and standby.controller.apps.keys() == ("shop",))
    await asyncio.sleep(1)
    way.deaf = True
    await documents.delete(client.apps, "shop")
    await eventually(lambda: machines == set() and not client.apps.keys())
    await leader.stop()
    await asyncio.sleep(6 * TTL_S)
    assert machines == set()
    way.deaf = False
    await eventually(lambda: standby.runtime.synced.is_set() and standby.runtime.idle)
    assert machines == set()
    await standby.stop()


async def test_a_key_purged_while_no_leader_ran_is_synced_by_the_next_leader() -> None:
    stores = MemoryStores()
    client = AppClient(stores)
    leader, standby = await process(stores, Apps()), await process(stores, Idle())
    await client.app("shop")
    await eventually(lambda: "shop" in leader.controller.syncs)
    await leader.kill()
    await client.apps.delete("shop", purge=True)
    assert not standby.runtime.holds("shop")
    await eventually(lambda: "shop" in standby.controller.syncs, within_s=2 * TTL_S)
    await standby.stop()


async def test_an_owner_that_vanished_while_no_leader_ran_is_synced_by_the_next_leader() -> None:
    stores = MemoryStores()
    client = AppClient(stores)
    leader = await process(stores, Apps())
    await client.app("shop")
    await eventually(lambda: client.part_keys == ["shop.main"])
    await leader.kill()
    stores.store(APPS).vanish("shop")  # no marker, and no event of a watch
    next_leader = await process(stores, Idle())
    assert not next_leader.runtime.holds("shop")
    await eventually(lambda: "shop" in next_leader.controller.syncs, within_s=2 * TTL_S)
    await next_leader.stop()


@asynccontextmanager
async def led(
    stores: MemoryStores, controller: Controller, shares: int = 1
) -> AsyncIterator[Leadership]:
    """Run a controller whose terms the test begins."""
    leadership = Leadership(controller.name, asyncio.get_running_loop().time, shares)
    enter(leadership=leadership)
    runtime = ControllerRuntime(controller, nats=stores)
    running = asyncio.create_task(runtime.run())
    await leadership.sought.wait()
    yield leadership
    runtime.stop()
    await running


class Refusing(Idle):
    """Fails permanently in every sync."""

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        raise PermanentError("no such region")


@pytest.mark.parametrize(("fails_s", "counts"), [(1.0, [1, 1]), (10.0, [1, 2])])
async def test_a_key_that_failed_permanently_is_synced_again_in_the_next_term(
    fails_s: float, counts: list[int]
) -> None:
    stores, controller = MemoryStores(), Refusing()
    await AppClient(stores).app("shop")
    async with led(stores, controller) as leadership:
        leadership.begin(1, until=math.inf)
        await eventually(lambda: controller.syncs == ["shop"])
        await asyncio.sleep(fails_s)
        leadership.step_down()
        await leadership.quiet()
        await asyncio.sleep(10)
        recorded = bool(failing_records(stores))
        assert recorded is (fails_s > SETTLE_S)  # else the next leader may know better
        leadership.begin(2, until=math.inf)
        await eventually(lambda: controller.syncs == ["shop", "shop"])
        events = stores.events.events
        await eventually(lambda: [it.sync and it.sync.failures for it in events] == counts)


async def test_each_member_applies_its_part_of_a_garbage_plan() -> None:
    stores = MemoryStores()
    client, keys = AppClient(stores), [f"app{number}" for number in range(10)]
    for key in keys:
        await client.app(key)
    alone = await process(stores, Apps())
    await eventually(lambda: len(client.part_keys) == len(keys))
    await alone.stop()
    client.apps.vanish(*keys[1:])
    async with sharing(stores, Apps(), Apps()) as members:
        await eventually(lambda: all(sum(it.holds(key) for it in members) == 1 for key in keys))
        for runtime in (member.runtime for member in members):
            plan = await runtime.garbage_plan(at_once=True)
            removed = await runtime.garbage_apply(plan)
            assert len(removed.orphans) > 0
            assert all(runtime.holds(orphan.owner) for orphan in removed.orphans)
        assert client.part_keys == ["app0.main"]


class ForgetfulStore(MemoryStore):
    """Remembers nothing while it is away."""

    away = True

    async def create(self, key: str, value: bytes) -> Stored:
        if self.away:
            raise StoreError("away")
        return await super().create(key, value)


class ForgetfulStores(MemoryStores):
    """Memory stores that remember nothing about the bucket of primaries at first."""

    def __init__(self) -> None:
        super().__init__()
        self.remembered = ForgetfulStore(MEMORY)

    def store(self, kind: Kind[Any]) -> MemoryStore:
        return self.remembered if kind is MEMORY else super().store(kind)


async def test_a_later_term_remembers_the_bucket_if_the_first_term_could_not() -> None:
    stores = ForgetfulStores()
    client = AppClient(stores)
    controller = Apps()
    controller.garbage = msgspec.structs.replace(controller.garbage, interval_s=1000 * TTL_S)
    async with led(stores, controller) as leadership:
        leadership.begin(1, until=math.inf)
        await client.app("shop")
        await eventually(lambda: client.part_keys == ["shop.main"])
        stores.remembered.away = False
        leadership.lose()
        await leadership.quiet()
        assert stores.remembered.keys() == []
        leadership.begin(2, until=math.inf)
        await eventually(lambda: stores.remembered.keys() == ["gc.apps"], within_s=TTL_S)


class Pace(Way):
    """The delay and the number of listings."""

    listings = 0


class SlowStores(MemoryStores):
    def __init__(self) -> None:
        super().__init__()
        self.way = Pace()

    async def open(self, kind: Kind[Any]) -> "SlowStore":
        return SlowStore(self, kind, self.way)


class SlowStore(WayStore):
    _way: Pace

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self._way.listings += 1
        await asyncio.sleep(self._way.delay_s)
        async with super().watch(shown) as events:
            yield events


async def test_the_watchers_of_a_member_are_called_only_for_its_keys() -> None:
    stores, calls = MemoryStores(), list[str]()
    controllers = [watching(RecordingWatcher(name, calls)) for name in ("one", "two")]
    async with sharing(stores, *controllers) as (one, _):
        keys = [f"s{number}" for number in range(20)]
        for key in keys:
            await put(stores.store(SITES), key, site())
        await eventually(lambda: len(calls) == len(keys))
        await asyncio.sleep(TTL_S)
        assert sorted(line.split()[2] for line in calls) == sorted(keys)
        assert {line.split()[0] for line in calls} == {"one", "two"}
        first = {line.split()[2] for line in calls if line.startswith("one")}
        calls.clear()
        await one.stop()
        await eventually(lambda: len(calls) == len(first))
        assert sorted(calls) == sorted(f"two add {key} hi" for key in first)


async def test_deletions_are_listed_once_and_only_by_members_that_gain_keys() -> None:
    stores, calls, listings = SlowStores(), list[str](), list[int]()
    for number in range(20):
        await put(stores.store(SITES), f"s{number}", site())
    members = list[SharingMember[InformerController]]()
    for name in ("one", "two"):
        members.append(SharingMember(stores, watching(RecordingWatcher(name, calls))))
        await asyncio.sleep(TTL_S)
        listings.append(stores.way.listings)  # watches of sites and pauses, deletions
    assert {line.split()[0] for line in calls} == {"one", "two"}
    await members[0].stop()
    await asyncio.sleep(TTL_S)
    listings.append(stores.way.listings)
    assert listings == [3, 6, 7]
    await members[1].stop()


class Readers(Controller):
    """Reads an object for each of its keys and then waits."""

    apps = primary(APPS)
    name = "readers"
    workers = 100
    resync_s = 1e6

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    async def sync_handler(self, key: str) -> float | None:
        await self.reads.get(DISKS, key)
        await asyncio.sleep(self.pause_s)
        return None


@pytest.mark.parametrize("pause_s", [0.0, TTL_S])
async def test_objects_read_by_a_key_are_watched_only_by_the_member_of_the_key(
    pause_s: float,
) -> None:
    stores = MemoryStores()
    client, keys = AppClient(stores), [f"a{number}" for number in range(20)]
    for key in keys:
        await client.app(key)
    readers = Readers(pause_s), Readers(pause_s)
    first = SharingMember(stores, readers[0])
    await first.operator.synced.wait()
    await eventually(lambda: readers[0].reads.watch_count == len(keys))
    second = SharingMember(stores, readers[1])
    await asyncio.sleep(4 * TTL_S)
    for reader in readers:
        assert reader.reads.watch_count == sum(map(reader.runtime.holds, keys)) > 0
    assert sum(reader.reads.watch_count for reader in readers) == len(keys)
    for member in (first, second):
        await member.stop()


async def test_managed_objects_are_assigned_to_members_and_reassigned() -> None:
    stores, disks = MemoryStores(), (SharedDisks(), SharedDisks())
    async with sharing(stores, *disks) as (first, _):
        keys = {f"d{number}" for number in range(20)}
        for key in keys:
            await stores.store(DISKS).create(key, b'{"spec": {"size": 1}}')
        await eventually(lambda: disks[0].seen | disks[1].seen == keys, within_s=TTL_S)
        assert not disks[0].seen & disks[1].seen
        assert disks[0].seen
        assert disks[1].seen
        await first.stop()
        await eventually(lambda: disks[1].seen == keys, within_s=TTL_S)


class SharedDisks(ManagedDisks):
    """Notes the keys of the disks that are reconciled, each process in a cloud of its own."""

    name = "disks"

    def __init__(self) -> None:
        super().__init__(Cloud())
        self.seen = set[str]()

    async def connect(self, managed: Managed[Disk]) -> CloudClient:
        self.seen.add(managed.key)
        return await super().connect(managed)


async def test_a_managed_object_that_another_process_deletes_is_forgotten() -> None:
    stores, others = MemoryStores(), memories_of_links()
    leadership = Leadership("disks", asyncio.get_running_loop().time, SHARES)
    enter(leadership=leadership)
    controller = SharedDisks()
    controller.use(nats=stores)
    running = asyncio.create_task(controller.run())
    await leadership.sought.wait()
    every = (1 << SHARES) - 1
    leadership.begin(1, until=math.inf, mask=every)
    await stores.store(DISKS).create("a", b'{"spec": {"size": 1}}')
    await eventually(lambda: controller.idle and len(memories_of_links()) > len(others))
    leadership.step_down()
    await leadership.quiet()
    leadership.begin(2, until=math.inf, mask=every & ~(1 << leadership.share_of("a")))
    await eventually(lambda: controller.holds("b") and not controller.holds("a"))
    await stores.store(DISKS).delete("a", purge=True)
    await eventually(lambda: len(memories_of_links()) <= len(others))
    controller.stop()
    await running


def memories_of_links() -> list[Memory]:
    gc.collect()
    return [it for it in gc.get_objects() if isinstance(it, Memory)]


class Plain:
    name = "plain"


async def test_a_runnable_without_keys_cannot_be_sharded() -> None:
    stores = MemoryStores()
    make = partial(Participation, stores.store, count=SHARES, ttl_s=TTL_S)
    with pytest.raises(UsageError, match="plain cannot be sharded"):
        Operator([Plain()], nats=stores, participate=make)  # type: ignore[list-item]  # no runnable


async def test_a_later_term_with_other_shares_forgets_the_values_of_the_former_ones() -> None:
    stores, controller = MemoryStores(), Apps()
    client, names = AppClient(stores), {f"app{number}" for number in range(20)}
    for name in sorted(names):
        await client.app(name)
    half, every = (1 << SHARES // 2) - 1, (1 << SHARES) - 1
    kept, of_first = lambda: set(controller.apps.informer.table.read_keys()), keys_in(half)
    async with led(stores, controller, SHARES) as leadership:
        leadership.begin(1, until=math.inf, mask=half)
        await eventually(lambda: kept() == set(filter(of_first, names)))
        await eventually(lambda: controller.runtime.idle)
        leadership.step_down()
        await leadership.quiet()
        leadership.begin(2, until=math.inf, mask=every & ~half)
        await eventually(lambda: kept() == names - set(filter(of_first, names)))
