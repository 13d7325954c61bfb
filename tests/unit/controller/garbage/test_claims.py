"""The history of a bucket names the owners of objects that were overwritten without labels."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import natsctl
from natsctl.controller.garbage.claims import READERS, Claims
from natsctl.controller.slots.own_writes import OwnWrites
from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.controller.slots.owners import Owner, OwnerNames
from natsctl.controller.slots.secondary import Secondary
from natsctl.core.cache.informer import Informer
from natsctl.core.objects.read_your_writes import Barrier
from natsctl.model.kinds import Kind
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


async def test_an_object_that_has_labels_again_is_claimed_no_more(parts: Parts) -> None:
    await parts.put("part", "shop")
    await parts.put("part")
    await parts.read()
    await parts.put("part", "shop")
    assert parts.claimed("shop") == []


async def test_a_deleted_object_is_claimed_no_more(parts: Parts) -> None:
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
