"""A reconciler survives a crash before and after each of its calls."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from natsctl import kube
from natsctl.errors import NotFoundError
from natsctl.managed.links import RECORDS, resolve, unresolved
from natsctl.model.store import Deleted, Store
from natsctl.testing import MemoryCluster, MemoryRecorder, MemoryStore
from tests.support.controllers.disk_reconciler import (
    DISKS,
    Cloud,
    CloudClient,
    MortalClient,
    MortalStore,
    Play,
)
from tests.support.stores import documents

pytestmark = pytest.mark.virtual

CLUSTER_DISKS = kube("example.org/v1", "Disk")


class KilledError(BaseException):
    """The process was killed, so it makes no more calls."""


class Fate:
    """Kills the process at the given point.

    Each call has one point before its effect and one point after it.
    """

    def __init__(self, point: int | None = None) -> None:
        self.passed = 0
        self.dead = False
        self._point = point

    @contextmanager
    def call(self, _call: str = "", _key: str = "") -> Iterator[None]:
        self._pass()
        yield
        self._pass()

    def _pass(self) -> None:
        self.dead = self.dead or self.passed == self._point
        self.passed += 1
        if self.dead:
            raise KilledError


class World:
    """A store, a cloud and a person, which outlive processes, and the current process.

    *later* returns the fates of the processes after the first.
    """

    def __init__(
        self, store: Store, *, by_key: bool, fate: Fate, later: Callable[[], Fate] = Fate
    ) -> None:
        self.store = store
        self.records = MemoryStore(RECORDS)
        self.cloud = Cloud()
        self.resolved = 0
        self._by_key = by_key
        self._later = later
        self.person = Play(store=store, cloud=self.cloud, kind=store.kind)
        self._play = self._process(fate)

    def _process(self, fate: Fate) -> Play:
        def client(cloud: Cloud) -> MortalClient:
            return MortalClient(CloudClient(cloud, by_key=self._by_key), fate.call)

        return Play(
            store=MortalStore(self.store, fate.call),
            records=MortalStore(self.records, fate.call),
            cloud=self.cloud,
            kind=self.store.kind,
            by_key=self._by_key,
            client=client,
        )

    async def rest(self) -> None:
        """Reconcile until no work is left. A person resolves unknown creations."""
        for _ in range(1000):
            after_s = await self.step()
            if after_s is not None and after_s < 60:
                await asyncio.sleep(after_s)
            elif not await self._settled():
                return
        raise AssertionError("the reconciler never became idle")

    async def step(self) -> float | None:
        """Reconcile once; another process takes over at once if that kills the process."""
        try:
            return await self._play.reconcile()
        except KilledError:
            self._play = self._process(self._later())
            return 0.0

    async def replace(self, **spec: int) -> None:
        """Replace the whole object without metadata, as `nats kv put` does."""
        stored = await self.store.get("a")
        value = msgspec.json.encode({"spec": spec})
        await self.store.update("a", value, revision=stored.revision)

    async def _settled(self) -> bool:
        """Resolve an unknown creation from the state of the cloud, as a person does."""
        try:
            stored = await self.store.get("a")
        except NotFoundError:
            return False
        if unresolved(self.store.kind.metadata(stored.value).annotations) is None:
            return False
        self.resolved += 1
        name = next(iter(self.cloud.disks), "")
        await resolve(self.store, "a", created=bool(name), external_name=name)
        return True

    async def delete(self) -> None:
        """Delete the object as a person does."""
        if isinstance(self.store, MemoryStore):
            await self.person.primary.delete("a")
        else:
            await self.store.delete("a")

    async def exists(self) -> bool:
        try:
            await self.store.get("a")
        except NotFoundError:
            return False
        return True


async def life(world: World) -> list[object]:
    """Create, change and delete a disk, and return the state after each step."""
    seen: list[object] = []
    await world.person.put(size=1)
    await world.rest()
    seen.append((list(world.cloud.disks.values()), await world.person.conditions()))
    await world.person.edit("a", lambda document: document["spec"].update(size=2))
    await world.rest()
    seen.append((list(world.cloud.disks.values()), await world.person.conditions()))
    await world.delete()
    await world.rest()
    seen.append((world.cloud.disks, world.cloud.created, await world.exists()))
    return seen


def in_nats() -> Store:
    return MemoryStore(DISKS)


def in_cluster() -> Store:
    return MemoryCluster(MemoryRecorder()).store(CLUSTER_DISKS)


async def lives(store: Callable[[], Store], *, by_key: bool) -> list[tuple[list[object], World]]:
    """Run one life without a crash and one for each crash point, and return them in this order."""
    fate = Fate()
    world = World(store(), by_key=by_key, fate=fate)
    results = [(await life(world), world)]
    for point in range(fate.passed):
        world = World(store(), by_key=by_key, fate=Fate(point))
        results.append((await life(world), world))
    return results


@pytest.mark.parametrize("store", [in_nats, in_cluster])
async def test_a_crash_at_any_call_is_harmless_if_the_name_is_known_before_creation(
    store: Callable[[], Store],
) -> None:
    (undisturbed, _), *crashed = await lives(store, by_key=True)
    assert undisturbed[-1] == ({}, ["a"], False)
    assert len(crashed) > 40
    for point, (seen, world) in enumerate(crashed):
        assert (point, seen, world.resolved) == (point, undisturbed, 0)


@pytest.mark.parametrize("store", [in_nats, in_cluster])
async def test_only_a_crash_during_creation_needs_a_person_if_the_cloud_gives_the_name(
    store: Callable[[], Store],
) -> None:
    (undisturbed, _), *crashed = await lives(store, by_key=False)
    assert undisturbed[-1] == ({}, ["a"], False)
    for point, (seen, _) in enumerate(crashed):
        assert (point, seen) == (point, undisturbed)
    points_with_person = [point for point, (_, world) in enumerate(crashed) if world.resolved]
    # crash points between the record of the intent and the record of the result
    assert points_with_person == list(
        range(points_with_person[0], points_with_person[0] + len(points_with_person))
    )
    assert 3 <= len(points_with_person) <= 6


@pytest.mark.parametrize("by_key", [True, False])
async def test_repeatedly_killed_processes_converge(*, by_key: bool) -> None:
    for seed in range(15):
        seen = await life(randomly_killed(random.Random(seed), by_key=by_key))
        assert (seed, seen[0][0]) == (seed, [1])  # type: ignore[index]  # the sizes of the disks
        assert (seed, seen[1][0]) == (seed, [2])  # type: ignore[index]  # likewise
        assert (seed, seen[2]) == (seed, ({}, ["a"], False))


def randomly_killed(chance: random.Random, *, by_key: bool) -> World:
    first = Fate(chance.randrange(12))
    return World(in_nats(), by_key=by_key, fate=first, later=lambda: Fate(chance.randrange(1, 40)))


@pytest.mark.parametrize("by_key", [True, False])
async def test_two_concurrent_processes_create_one_disk(*, by_key: bool) -> None:
    """Two processes that both believe to lead reconcile the same object."""
    for head_start in range(40):
        first = Play(by_key=by_key)
        first.cloud.takes_s = {"create": 5.0}
        second = Play(store=first.store, records=first.records, cloud=first.cloud, by_key=by_key)
        await first.put(size=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(first.settle())
            for _ in range(head_start):
                await asyncio.sleep(0)
            group.create_task(second.settle())
        await second.settle()
        assert (head_start, first.cloud.created) == (head_start, ["a"])
        assert (await first.conditions())["Ready"] == ("True", "Available")


async def test_a_disk_of_an_object_removed_despite_its_finalizer_is_deleted_despite_crashes() -> (
    None
):
    async def remove_object(world: World) -> tuple[object, ...]:
        await world.person.put(size=1)
        await world.rest()
        await world.store.delete("a")
        await world.rest()
        states = await world.store.history("a")
        return world.cloud.disks, world.cloud.created, [type(state) for state in states]

    fate = Fate()
    undisturbed = await remove_object(World(in_nats(), by_key=True, fate=fate))
    assert undisturbed == ({}, ["a"], [Deleted])
    for point in range(fate.passed):
        world = World(in_nats(), by_key=True, fate=Fate(point))
        assert (point, *await remove_object(world)) == (point, *undisturbed)


async def test_a_plain_put_at_any_moment_creates_no_second_disk() -> None:
    """A plain NATS client replaces the object around a crash."""

    async def replace_twice(world: World) -> None:
        await world.person.put(size=1)
        await world.step()
        await world.replace(size=2)
        await world.rest()
        await world.replace(size=3)
        await world.rest()

    fate = Fate()
    undisturbed = World(in_nats(), by_key=False, fate=fate)
    await replace_twice(undisturbed)
    assert undisturbed.cloud.created == ["a"]
    for point in range(fate.passed):
        world = World(in_nats(), by_key=False, fate=Fate(point))
        await replace_twice(world)
        assert (point, world.cloud.created, world.cloud.disks) == (point, ["a"], {"disk-1": 3})
        await world.delete()
        await world.rest()
        assert (point, world.cloud.disks, world.records.keys()) == (point, {}, [])


async def test_an_object_deleted_after_a_plain_put_leaves_no_disk() -> None:
    world = World(in_nats(), by_key=False, fate=Fate())
    await world.person.put(size=1)
    await world.rest()
    await world.replace(size=2)
    await world.store.delete("a")
    await world.rest()
    assert (world.cloud.disks, world.records.keys()) == ({}, [])


async def test_a_cancelled_reconciliation_is_handled_as_a_crash() -> None:
    """Cancel the reconciliation at every step of the event loop, as a stop does."""
    for steps in range(60):
        play = Play(by_key=True)
        await play.put(size=1)
        work = asyncio.create_task(play.reconcile())
        for _ in range(steps):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait({work})
        restarted = Play(store=play.store, records=play.records, cloud=play.cloud, by_key=True)
        await restarted.settle()
        assert (steps, play.cloud.created, play.cloud.disks) == (steps, ["a"], {"a": 1})
        document = documents.parse((await play.store.get("a")).value)
        assert documents.metadata_of(document)["finalizers"] == ["natsctl.io/managed"]
