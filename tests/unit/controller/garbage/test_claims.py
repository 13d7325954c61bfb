"""The history of a bucket names the owners of objects that were overwritten without labels."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import natsctl
from natsctl.controller.garbage import claims
from natsctl.controller.garbage.claims import READERS, Claims
from natsctl.controller.slots.own_writes import OwnWrites
from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.controller.slots.owners import Owner, OwnerNames
from natsctl.controller.slots.secondary import Secondary
from natsctl.core.cache.informer import Informer
from natsctl.core.objects.read_your_writes import Barrier
from natsctl.model.kinds import Kind
from natsctl.model.store import Deleted
from natsctl.testing.memory import MemoryStore
from tests.support.stores.sample_objects import Thing, caught_up, informed, value

PARTS = natsctl.kv(Thing, bucket="parts")
OWNER_KIND = "Thing.apps"
NAMES = OwnerNames()


class Parts:
    """The parts of apps, some of which were overwritten."""

    def __init__(self, kind: Kind[Any] = PARTS) -> None:
        self.store = MemoryStore(kind)
        indexes = {OWNER_INDEX: NAMES.index(kind, OWNER_KIND)}
        self.informer: Informer[Any] = Informer(self.store, kind, indexes=indexes)
        own = OwnWrites(lambda _change, _writer: None)
        self.claims = Claims(Secondary(self.informer, Barrier(), own, NAMES, OWNER_KIND))

    async def put(self, key: str, owner: str = "", kind: str = OWNER_KIND) -> None:
        """Write a part with the labels of its owner, or without labels."""
        owner_ref = Owner(kind, owner)
        named: dict[str, Any] = {
            "labels": NAMES.labels(owner_ref),
            "annotations": NAMES.annotations(owner_ref),
        }
        text = value(**named) if owner else value()
        if key in self.store.keys():  # noqa: SIM118 - a store is no dict
            newest = await self.store.get(key)
            await self.store.update(key, text, revision=newest.revision)
        else:
            await self.store.create(key, text)
        await caught_up(self.informer, self.store)

    async def read(self) -> dict[str, list[str]]:
        """Read the histories, and return the claimed keys of each owner."""
        await asyncio.sleep(1)
        await self.claims.read_histories()
        return {owner: self.claimed(owner) for owner in self.claims.owners}

    def claimed(self, owner: str) -> list[str]:
        return sorted(stored.key for stored in self.claims.claimed(owner))


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    parts = Parts()
    async with informed(parts.informer):
        yield parts


async def test_the_history_names_the_owner_of_an_overwritten_object(parts: Parts) -> None:
    await parts.put("part", "shop")
    await parts.put("part")
    assert await parts.read() == {"shop": ["part"]}


async def test_all_objects_of_an_owner_are_claimed(parts: Parts) -> None:
    keys = [f"part{number}" for number in range(10, 12 + READERS)]
    for key in keys:
        await parts.put(key, "shop")
        await parts.put(key)
    assert await parts.read() == {"shop": keys}


async def test_an_object_with_labels_is_not_claimed(parts: Parts) -> None:
    await parts.put("part", "shop")
    assert await parts.read() == {}


async def test_an_object_that_never_had_an_owner_is_not_claimed(parts: Parts) -> None:
    await parts.put("part")
    assert await parts.read() == {}


async def test_an_object_of_another_kind_of_owner_is_not_claimed(parts: Parts) -> None:
    await parts.put("part", "shop", "Thing.sites")
    await parts.put("part")
    assert await parts.read() == {}


async def test_an_object_that_has_labels_again_is_not_claimed(parts: Parts) -> None:
    await parts.put("part", "shop")
    await parts.put("part")
    await parts.read()
    await parts.put("part", "shop")
    assert parts.claimed("shop") == []


async def test_a_deleted_object_is_not_claimed(parts: Parts) -> None:
    await parts.put("part", "shop")
    await parts.put("part")
    await parts.read()
    await parts.store.delete("part")
    await asyncio.sleep(1)
    assert parts.claimed("shop") == []


async def test_an_unknown_owner_claims_nothing(parts: Parts) -> None:
    await parts.read()
    assert parts.claimed("shop") == []


async def test_a_kind_without_a_history_is_not_read() -> None:
    parts = Parts(natsctl.kv(Thing, bucket="parts", history=1))
    async with informed(parts.informer):
        await parts.put("part", "shop")
        await parts.put("part")
        parts.store.fail(natsctl.StoreError("no request is expected"))
        assert await parts.read() == {}


async def test_a_kind_of_a_cluster_has_no_history_to_read() -> None:
    parts = Parts(natsctl.kube("v1", "ConfigMap"))
    async with informed(parts.informer):
        parts.store.fail(natsctl.StoreError("no request is expected"))
        await parts.claims.read_histories()
    assert parts.claims.owners == []


async def test_an_object_that_is_deleted_before_its_history_is_read_is_not_claimed(
    parts: Parts,
) -> None:
    await parts.put("part", "shop")
    await parts.put("part")
    await asyncio.sleep(1)
    reading = asyncio.create_task(parts.claims.read_histories())
    await asyncio.sleep(0)
    newest = parts.informer.cache.newest("part")
    assert newest is not None
    list(parts.informer.cache.apply(Deleted("part", newest.revision + 1)))
    await reading
    assert parts.claims.owners == []


async def test_other_tasks_run_between_objects_whose_annotations_name_the_owner(
    parts: Parts,
) -> None:
    text = value(annotations=NAMES.annotations(Owner(OWNER_KIND, "shop")))
    for number in range(10 * READERS):
        await parts.store.create(f"part{number}", text)
    await caught_up(parts.informer, parts.store)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    clock = asyncio.get_running_loop().time
    other_task = asyncio.create_task(take_turns())
    began = clock()
    await parts.claims.read_histories()
    other_task.cancel()
    assert len(parts.claimed("shop")) == 10 * READERS
    assert turns >= 10
    assert clock() == began


class TestLimit:
    @pytest.fixture(autouse=True)
    def _two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claims, "READ_MAX", 2)

    @staticmethod
    async def overwritten(parts: Parts, count: int) -> None:
        for number in range(count):
            await parts.put(f"part{number}", "shop")
            await parts.put(f"part{number}")

    async def test_no_more_histories_are_read_than_the_limit(
        self, parts: Parts, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.overwritten(parts, 4)
        assert await parts.read() == {"shop": ["part0", "part1"]}
        assert "too many objects without an owner" in caplog.text

    async def test_a_history_of_each_object_at_the_limit_is_read_without_a_warning(
        self, parts: Parts, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.overwritten(parts, 2)
        assert await parts.read() == {"shop": ["part0", "part1"]}
        assert caplog.text == ""

    async def test_objects_with_labels_do_not_count(
        self, parts: Parts, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(4):
            await parts.put(f"a{number}", "shop")
        await self.overwritten(parts, 1)
        assert await parts.read() == {"shop": ["part0"]}
        assert caplog.text == ""
