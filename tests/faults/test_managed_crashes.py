"""A process that reconciles is killed before and after each of its calls, and another goes on."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from natsctl import kube
from natsctl.errors import NotFoundError
from natsctl.managed import Managed, Observation
from natsctl.managed.creation.links import RECORDS
from natsctl.managed.creation.resolution import resolve, unresolved
from natsctl.model import documents
from natsctl.model.store import Deleted, Store
from natsctl.testing.cluster import MemoryCluster
from natsctl.testing.memory import MemoryStore
from natsctl.testing.recorder import MemoryRecorder
from tests.support.controllers.disk_reconciler import DISKS, Cloud, CloudClient, Play
from tests.support.stores.crashing_store import MortalStore

pytestmark = pytest.mark.virtual

CLUSTER_DISKS = kube("example.org/v1", "Disk")


class KilledError(BaseException):
    """What a killed process does after: nothing."""


class Fate:
    """Kills at the given point: each call has one before its effect and one after it."""

    def __init__(self, point: int | None = None) -> None:
        self.passed = 0
        self.dead = False
        self._point = point

    @contextmanager
    def call(self, _key: str = "") -> Iterator[None]:
        self._pass()
        yield
        self._pass()

    def _pass(self) -> None:
        self.dead = self.dead or self.passed == self._point
        self.passed += 1
        if self.dead:
            raise KilledError


class MortalClient(CloudClient):
    """A client, as a process that may be killed uses it."""

    def __init__(self, cloud: Cloud, fate: Fate, *, by_key: bool) -> None:
        super().__init__(cloud, by_key=by_key)
        self._fate = fate

    async def observe(self, managed: Managed[Any]) -> Observation:
        with self._fate.call():
            return await super().observe(managed)

    async def create(self, managed: Managed[Any]) -> None:
        with self._fate.call():
            await super().create(managed)

    async def update(self, managed: Managed[Any]) -> None:
        with self._fate.call():
            await super().update(managed)

    async def delete(self, managed: Managed[Any]) -> None:
        with self._fate.call():
            await super().delete(managed)


class World:
    """What outlives processes: a store, the cloud, a person; and the process that lives now."""

    def __init__(self, store: Store, *, by_key: bool, fate: Fate) -> None:
        self.store = store
        self.records = MemoryStore(RECORDS)
        self.cloud = Cloud()
        self.resolved = 0
        self._by_key = by_key
        self._next: Callable[[], Fate] = Fate
        self.person = Play(store=store, cloud=self.cloud, kind=store.kind)
        self._play = self._process(fate)

    def die_again(self, moments: Callable[[], int]) -> None:
        """Kill every process from now on, each after so many calls."""
        self._next = lambda: Fate(moments())

    def _process(self, fate: Fate) -> Play:
        def client(cloud: Cloud) -> MortalClient:
            return MortalClient(cloud, fate, by_key=self._by_key)

        store, kind = MortalStore(self.store, fate.call), self.store.kind
        return Play(
            store=store,
            records=MortalStore(self.records, fate.call),
            cloud=self.cloud,
            kind=kind,
            by_key=self._by_key,
            client=client,
        )

    async def rest(self) -> None:
        """Let the process, or the next one, come to rest; a person settles what is unknown."""
        for _ in range(1000):
            try:
                after_s = await self._play.reconcile()
            except KilledError:
                self._play = self._process(self._next())
                continue
            if after_s is not None and after_s < 60:
                await asyncio.sleep(after_s)
            elif not await self._settled():
                return
        raise AssertionError("it never came to rest")

    async def step(self) -> None:
        """Let the process reconcile once, or die while it does."""
        try:
            await self._play.reconcile()
        except KilledError:
            self._play = self._process(self._next())

    async def replace(self, **spec: int) -> None:
        """Write the object as `nats kv put` does: as a whole, without any metadata."""
        stored = await self.store.get("a")
        value = msgspec.json.encode({"spec": spec})
        await self.store.update("a", value, revision=stored.revision)

    async def _settled(self) -> bool:
        """Look into the cloud and say what came of a creation, where nobody knows."""
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

    async def says(self) -> dict[str, tuple[str, str]]:
        return await self.person.conditions()

    async def exists(self) -> bool:
        try:
            await self.store.get("a")
        except NotFoundError:
            return False
        return True


async def life(world: World) -> list[object]:
    """Create, change and delete a disk; return what the world is like in between."""
    seen: list[object] = []
    await world.person.put(size=1)
    await world.rest()
    seen.append((list(world.cloud.disks.values()), await world.says()))
    await world.person.edit("a", lambda document: document["spec"].update(size=2))
    await world.rest()
    seen.append((list(world.cloud.disks.values()), await world.says()))
    await world.delete()
    await world.rest()
    seen.append((world.cloud.disks, world.cloud.created, await world.exists()))
    return seen


def in_nats() -> Store:
    return MemoryStore(DISKS)


def in_a_cluster() -> Store:
    return MemoryCluster(MemoryRecorder()).store(CLUSTER_DISKS)


async def lives(store: Callable[[], Store], *, by_key: bool) -> list[tuple[list[object], World]]:
    """Return a life for each point at which its process is killed, the one without first."""
    fate = Fate()
    world = World(store(), by_key=by_key, fate=fate)
    found = [(await life(world), world)]
    for point in range(fate.passed):
        world = World(store(), by_key=by_key, fate=Fate(point))
        found.append((await life(world), world))
    return found


@pytest.mark.parametrize("store", [in_nats, in_a_cluster])
async def test_names_known_beforehand_make_every_crash_harmless(
    store: Callable[[], Store],
) -> None:
    (undisturbed, _), *crashed = await lives(store, by_key=True)
    assert undisturbed[-1] == ({}, ["a"], False)
    assert len(crashed) > 40
    for point, (seen, world) in enumerate(crashed):
        assert (point, seen, world.resolved) == (point, undisturbed, 0)


@pytest.mark.parametrize("store", [in_nats, in_a_cluster])
async def test_names_given_outside_need_a_person_at_the_moment_of_creation_only(
    store: Callable[[], Store],
) -> None:
    (undisturbed, _), *crashed = await lives(store, by_key=False)
    assert undisturbed[-1] == ({}, ["a"], False)
    for point, (seen, _) in enumerate(crashed):
        assert (point, seen) == (point, undisturbed)
    asked = [point for point, (_, world) in enumerate(crashed) if world.resolved]
    # after the intent, around the creation, and before its result
    assert asked == list(range(asked[0], asked[0] + len(asked)))
    assert 3 <= len(asked) <= 6


@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize("seed", range(100))
async def test_processes_that_are_killed_again_and_again_do_it_in_the_end(
    seed: int,
    by_key: bool,  # noqa: FBT001 - a parameter
) -> None:
    moments = random.Random(seed)
    world = World(in_nats(), by_key=by_key, fate=Fate(moments.randrange(12)))
    world.die_again(lambda: moments.randrange(1, 40))
    seen = await life(world)
    assert seen[0][0] == [1]  # type: ignore[index]  # the sizes of the disks
    assert seen[1][0] == [2]  # type: ignore[index]  # likewise
    assert seen[2] == ({}, ["a"], False)


@pytest.mark.parametrize("head_start", range(40))
@pytest.mark.parametrize("by_key", [True, False])
async def test_two_processes_at_once_create_one_disk(
    head_start: int,
    by_key: bool,  # noqa: FBT001 - a parameter
) -> None:
    """One does not know yet that another has taken over."""
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
    assert first.cloud.created == ["a"]
    assert (await first.conditions())["Ready"] == ("True", "Available")


async def test_one_that_is_removed_past_its_finalizer_is_cleaned_up_through_crashes() -> None:
    async def removed(world: World) -> tuple[object, ...]:
        await world.person.put(size=1)
        await world.rest()
        await world.store.delete("a")
        await world.rest()
        states = await world.store.history("a")
        return world.cloud.disks, world.cloud.created, [type(state) for state in states]

    fate = Fate()
    undisturbed = await removed(World(in_nats(), by_key=True, fate=fate))
    assert undisturbed == ({}, ["a"], [Deleted])
    for point in range(fate.passed):
        world = World(in_nats(), by_key=True, fate=Fate(point))
        assert (point, *await removed(world)) == (point, *undisturbed)


async def test_a_plain_put_at_any_moment_leads_to_no_second_disk() -> None:
    """A client that knows nothing of natsctl writes the object anew around a crash."""

    async def replaced(world: World) -> None:
        await world.person.put(size=1)
        await world.step()
        await world.replace(size=2)
        await world.rest()
        await world.replace(size=3)
        await world.rest()

    fate = Fate()
    undisturbed = World(in_nats(), by_key=False, fate=fate)
    await replaced(undisturbed)
    assert undisturbed.cloud.created == ["a"]
    for point in range(fate.passed):
        world = World(in_nats(), by_key=False, fate=Fate(point))
        await replaced(world)
        assert (point, world.cloud.created, world.cloud.disks) == (point, ["a"], {"disk-1": 3})
        await world.delete()
        await world.rest()
        assert (point, world.cloud.disks, world.records.keys()) == (point, {}, [])


async def test_an_object_that_is_deleted_after_a_plain_put_leaves_no_disk() -> None:
    world = World(in_nats(), by_key=False, fate=Fate())
    await world.person.put(size=1)
    await world.rest()
    await world.replace(size=2)
    await world.store.delete("a")
    await world.rest()
    assert (world.cloud.disks, world.records.keys()) == ({}, [])


async def test_a_cancelled_reconciliation_is_a_crash_like_any_other() -> None:
    """Cancel at every turn of the loop, as a stop that waits no longer does."""
    for turns in range(60):
        play = Play(by_key=True)
        await play.put(size=1)
        work = asyncio.create_task(play.reconcile())
        for _ in range(turns):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait({work})
        another = Play(store=play.store, records=play.records, cloud=play.cloud, by_key=True)
        await another.settle()
        assert (turns, play.cloud.created, play.cloud.disks) == (turns, ["a"], {"a": 1})
        document = documents.parse((await play.store.get("a")).value)
        assert documents.finalizers_of(document) == ("natsctl.io/managed",)
