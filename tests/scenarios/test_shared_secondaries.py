"""Processes that share keys write and read secondaries of each other's keys correctly."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from natsctl import Controller, ExistsError, KubeObject, Object, kube, kv, primary, secondary
from natsctl.core.table import Table, is_read
from natsctl.model.store import Change
from tests.support.controllers.sharing_group import TTL_S, SharingGroup
from tests.support.eventually import eventually

KEYS = [f"k{number}" for number in range(8)]


class Site(Object, frozen=True):
    spec: dict[str, str] = msgspec.field(default_factory=dict)


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


SITES, PARTS = kv(Site, bucket="sites"), kv(Site, bucket="parts")
MAPS = kube("v1", "ConfigMap", type=ConfigMap, namespace="default")


def texts(part: Site) -> Iterable[str]:
    return part.spec.values()


class Contenders(Controller):
    """Makes one object in NATS and one in a cluster, which only the first site gets."""

    name = "sites"
    sites = primary(SITES)
    parts = secondary(PARTS)
    maps = secondary(MAPS)

    def __init__(self) -> None:
        self.refused: dict[str, list[str]] = {}

    async def sync_handler(self, key: str) -> None:
        refused = []
        try:
            await self.parts.apply("common", Site())
        except ExistsError as error:
            refused.append(str(error))
        try:
            await self.maps.apply({"metadata": {"name": "common"}})
        except ExistsError as error:
            refused.append(str(error))
        self.refused[key] = refused


class Makers(Controller):
    """Makes an object for each site."""

    name = "sites"
    sites = primary(SITES)
    parts = secondary(PARTS)

    async def sync_handler(self, key: str) -> None:
        await self.parts.apply(f"{key}.main", Site(spec={"text": key}))


class Readers(Makers):
    """Counts the objects of all sites, too."""

    name = "sites"

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}

    async def sync_handler(self, key: str) -> None:
        await super().sync_handler(key)
        self.counted[key] = sum(len(self.parts.owned(owner_key)) for owner_key in KEYS)


class IndexedMakers(Makers):
    name = "sites"
    parts = secondary(PARTS, indexes={"text": texts})


class MappingMakers(Makers):
    name = "sites"

    def handle_secondary(self, change: Change[Any]) -> Iterable[str]:
        return super().handle_secondary(change)


@asynccontextmanager
async def sharing(make: Callable[[], Any]) -> AsyncIterator[SharingGroup[Any]]:
    group: SharingGroup[Any] = SharingGroup(make)
    sites = group.stores.store(SITES)
    for key in KEYS:
        await sites.create(key, b"{}")
    for _ in range(2):
        group.join()
    await eventually(lambda: shared(group), within_s=2 * TTL_S)
    yield group
    await group.close()


def shared(group: SharingGroup[Any]) -> bool:
    group.check_shared(KEYS)
    return True


def unread(reader: Any) -> set[str]:
    """Return the keys of the objects whose values are not kept."""
    cache = reader.informer.table
    states = ((key, cache.newest(key)) for key in cache.keys())  # noqa: SIM118 - a cache is no dict
    return {key for key, stored in states if stored is not None and not is_read(stored)}


async def test_an_object_of_another_process_is_not_taken_over() -> None:
    async with sharing(Contenders) as group:

        def refused() -> dict[str, list[str]]:
            members = group.living
            return {k: texts for m in members for k, texts in m.controller.refused.items()}

        await eventually(lambda: all(m.controller.runtime.idle for m in group.living))
        for member in group.living:
            member.controller.refused.clear()
            member.controller.runtime.resync(*KEYS)
        await eventually(lambda: sum(len(messages) == 2 for messages in refused().values()) >= 6)
        part, config = group.stores.store(PARTS), group.stores.kube.store(MAPS)
        owners = {
            PARTS.metadata((await part.get("common")).value).annotations["natsctl.io/owner-key"],
            MAPS.metadata((await config.get("default/common")).value).annotations[
                "natsctl.io/owner-key"
            ],
        }
        for texts_of_key in refused().values():
            for text in texts_of_key:
                assert any(f"owned by Site.sites {owner}" in text for owner in owners)


async def test_a_handler_that_reads_the_objects_of_another_key_gets_them() -> None:
    async with sharing(Readers) as group:

        def counted() -> list[int]:
            return [n for member in group.living for n in member.controller.counted.values()]

        for _ in range(3):
            for member in group.living:
                member.controller.runtime.resync(*KEYS)
            await eventually(lambda: all(m.controller.runtime.idle for m in group.living))
        await eventually(lambda: len(counted()) == len(KEYS))
        assert max(counted()) == len(KEYS)
        assert not any(unread(member.controller.parts) for member in group.living)


async def check_all_values_are_kept(group: SharingGroup[Any]) -> list[Table[Any]]:
    """Wait until all parts are cached; check that every process keeps their values."""
    parts = group.stores.store(PARTS)
    await eventually(lambda: len(parts.stored()) == len(KEYS))
    caches = [member.controller.parts.informer.table for member in group.living]
    await eventually(lambda: all(len(cache) == len(KEYS) for cache in caches))
    assert not any(unread(member.controller.parts) for member in group.living)
    return caches


async def test_a_declared_index_keeps_all_values() -> None:
    async with sharing(IndexedMakers) as group:
        caches = await check_all_values_are_kept(group)
        assert all(len(cache.by_index("text", key)) == 1 for cache in caches for key in KEYS)


async def test_a_controller_that_maps_changes_of_secondaries_keeps_all_values() -> None:
    async with sharing(MappingMakers) as group:
        await check_all_values_are_kept(group)
