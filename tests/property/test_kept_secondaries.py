"""Property tests of sharding: a process keeps the values of its keys and their secondaries.

Members join, leave and crash while primaries are written and deleted, and while secondaries in NATS
and in a cluster are edited, deleted, assigned to another owner, relabelled and made invalid.
"""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from natsctl import ConflictError, Controller, KubeObject, Object, kube, kv, primary, secondary
from natsctl.core.table import is_read
from natsctl.model.store import Stored
from natsctl.testing import in_virtual_time
from tests.support.controllers.sharing_group import MEMBERS_MAX, TTL_S, SharingGroup, SharingMember
from tests.support.eventually import eventually
from tests.support.stores import documents
from tests.support.stores.documents import Document, put

Step = tuple[tuple[str, Any], float]  # and the seconds until the next one

KEYS = [f"k{number}" for number in range(8)]
SLOTS = ("parts", "maps")
GARBAGE = b"?"
NAMED = ("labels", "annotations")

keys = st.sampled_from(KEYS)
objects = st.tuples(st.sampled_from(SLOTS), keys)
events = st.one_of(
    st.tuples(st.sampled_from(["put", "put", "delete"]), keys),
    st.tuples(st.sampled_from(["edit", "edit", "remove"]), objects),
    st.tuples(st.just("assign"), st.tuples(st.sampled_from(SLOTS), keys, keys)),
    st.tuples(st.sampled_from(["relabel", "garbage"]), keys),
    st.tuples(st.sampled_from(["break", "read all"]), st.sampled_from(["sites", *SLOTS])),
    st.tuples(st.sampled_from(["join", "leave", "kill"]), st.integers(0, 3)),
)
pauses = st.sampled_from([0.0, 0.001, 0.05, 0.5, 3.0, 12.0])


class Site(Object, frozen=True):
    spec: dict[str, str] = msgspec.field(default_factory=dict)


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


MAPS = kube("v1", "ConfigMap", type=ConfigMap, namespace="default")


class Sites(Controller):
    """Makes an object in NATS and one in a cluster, each with the text of the site."""

    name = "sites"
    sites = primary(kv(Site, bucket="sites"))
    parts = secondary(kv(Site, bucket="parts"))
    maps = secondary(MAPS)
    resync_s = 1e6

    def __init__(self, reads_all: set[str]) -> None:
        self.reads_all = reads_all
        self.errors: list[str] = []

    async def sync_handler(self, key: str) -> None:
        site = self.sites.get(key)
        wanted = set() if site is None else {f"{key}.main", f"default/{key}"}
        for slot in (self.parts, self.maps):
            for name in slot.owned().keys() - wanted:
                await slot.delete(name)
        if site is None:
            return
        await self.parts.apply(f"{key}.main", Site(spec=site.spec))
        await self.maps.apply({"metadata": {"name": key}, "data": site.spec})
        if "parts" in self.reads_all and not set(self.parts.items()) <= set(map(name_of, KEYS)):
            self.errors.append("an object has an unknown name")
        if "maps" in self.reads_all:
            self.maps.items()
        if "sites" in self.reads_all:
            self.sites.items()


def name_of(key: str) -> str:
    return f"{key}.main"


class Town:
    def __init__(self) -> None:
        self.reads_all: set[str] = set()
        self.group = SharingGroup(lambda: Sites(self.reads_all))
        self.sites = self.group.stores.store(Sites.sites.kind)
        self.parts = self.group.stores.store(Sites.parts.kind)
        self.maps = self.group.stores.kube.store(MAPS)
        self.writes = 0
        self.unwatched = False  # whether some keys had no process for a while

    # ---- steps

    async def put(self, key: str) -> None:
        self.writes += 1
        await put(self.sites, key, {"spec": {"text": f"text {self.writes}"}})

    async def apply_step(self, action: str, argument: Any) -> None:
        with suppress(ConflictError):  # a sync wrote the object in between
            await self._apply_step(action, argument)

    async def _apply_step(self, action: str, argument: Any) -> None:
        match action, argument:
            case "put", key:
                await self.put(key)
            case "delete", key if key in self.sites.keys():  # noqa: SIM118 - a store is not a dict
                await self.sites.delete(key)
            case "break", slot:
                self._store(slot).break_watches()
            case "read all", slot:
                self.reads_all.add(slot)
            case "join", _:
                if len(self.group.living) < MEMBERS_MAX:
                    self.group.join()
            case "leave" | "kill", number:
                await self._end(action, number)
            case _, (slot, key, *owner):
                await self._tamper(action, slot, key, *owner)
            case _, key:
                await self._tamper(action, "parts", key, "k7")

    async def _end(self, action: str, number: int) -> None:
        self.unwatched = True
        living = self.group.living
        member = living[number % len(living)]
        if len(living) > 1:
            member.leave() if action == "leave" else await member.kill()

    async def _tamper(self, action: str, slot: str, key: str, owner: str = "") -> None:
        """Change or delete a secondary, as another client does."""
        stored, store = self._stored(slot, key), self._store(slot)
        names = {"natsctl.io/owner-key": owner}
        match action:
            case "edit":
                await self._change(slot, stored, {"spec": {"text": "?"}, "data": {"text": "?"}})
            case "assign":
                metadata = {"labels": names, "annotations": names}
                await self._change(slot, stored, {"metadata": metadata})
            case "relabel":  # the annotation names another owner than the label
                await self._change(slot, stored, {"metadata": {"labels": names}})
            case "garbage" if stored is not None:
                await store.update(stored.key, GARBAGE, revision=stored.revision)
            case "remove" if stored is not None:
                await store.delete(stored.key, revision=stored.revision)

    async def _change(self, slot: str, stored: Stored | None, patch: Document) -> None:
        if stored is not None and stored.value != GARBAGE:
            patch.pop("data" if slot == "parts" else "spec", None)
            document = documents.merge_patch(documents.parse(stored.value), patch)
            value = documents.render(document)
            await self._store(slot).update(stored.key, value, revision=stored.revision)

    def _store(self, slot: str) -> Any:
        return {"sites": self.sites, "parts": self.parts, "maps": self.maps}[slot]

    def _stored(self, slot: str, key: str) -> Stored | None:
        name = name_of(key) if slot == "parts" else f"default/{key}"
        states = self._store(slot).stored()
        return next((stored for stored in states if stored.key == name), None)

    # ---- checks

    def settled(self) -> bool:
        """Check that each site has its objects, and that the caches are right."""
        self.group.check_shared(KEYS)
        texts = {
            stored.key: Sites.sites.kind.decode(stored.value).spec for stored in self.sites.stored()
        }
        parts = self.parts.stored()
        for stored in tuple(parts):
            if stored.value == GARBAGE:  # no process has seen a valid state that names its owner
                continue
            site, owner = Sites.parts.kind.decode(stored.value), stored.key.removesuffix(".main")
            if owner not in texts and self._names_nobody(stored):
                parts.remove(stored)
                continue
            assert texts.get(owner) == site.spec
        for stored in self.maps.stored():
            data = documents.parse(stored.value).get("data")
            assert texts.get(stored.key.removeprefix("default/")) == data
        assert len(parts) == len(self.maps.stored()) == len(texts)
        for member in self.group.living:
            assert not member.controller.errors
            self.check_cache(member, "sites", member.controller.sites)
            self.check_cache(member, "parts", member.controller.parts)
            self.check_cache(member, "maps", member.controller.maps)
        return True

    def _names_nobody(self, stored: Stored) -> bool:
        """Return whether nobody can tell the owner: it stays, and `gc plan` lists it.

        Its label changed and its owner was deleted while the owner's key had no process.
        """
        metadata = documents.parse(stored.value).get("metadata", {})
        names = [metadata.get(field, {}).get("natsctl.io/owner-key") for field in NAMED]
        return self.unwatched and names[0] != names[1]

    def check_cache(self, member: SharingMember[Sites], slot: str, reader: Any) -> None:
        """Check each object in the cache against the store; its key has the owner's."""
        cache = reader.informer.table
        newest = {stored.key: stored for stored in self._store(slot).stored()}
        assert {*cache.keys(), *cache.invalid} == set(newest)
        assert slot in self.reads_all or not cache.wants_all.is_set()
        for key, stored in newest.items():
            cached, owner = cache.newest(key), key.removesuffix(".main").removeprefix("default/")
            assert cached is not None
            assert cached.revision == stored.revision
            if stored.value == GARBAGE:
                continue
            if slot == "parts" and self._names_nobody(stored):
                continue
            if slot != "sites":
                assert [kept.key for kept in cache.by_index("natsctl/owner", owner)] == [key]
            if member.holds(owner):
                assert is_read(cached)
                assert cached.value == stored.value
            elif not cache.wants_all.is_set():
                assert not is_read(cached)


EDITED: list[Step] = [
    (("join", 0), 12.0),
    *((("edit", (slot, key)), 0.0) for key in KEYS for slot in SLOTS),
    (("leave", 0), 0.05),
    *((("remove", (slot, key)), 0.001) for key in KEYS for slot in SLOTS),
    (("join", 0), 12.0),
    *((("delete", key), 0.0) for key in KEYS[:3]),
    (("kill", 1), 3.0),
]
ASSIGNED: list[Step] = [
    (("put", "k0"), 12.0),
    *((("assign", (slot, key, "k0")), 0.05) for key in KEYS[1:] for slot in SLOTS),
    (("leave", 1), 0.0),
    *((("relabel", key), 0.0) for key in KEYS),
]
READ_ALL: list[Step] = [(("read all", "parts"), 0.0), *((("put", key), 0.5) for key in KEYS)]
UNWATCHED: list[Step] = [
    (("put", "k0"), 0.05),
    (("kill", 0), 0.0),
    *((("delete", key), 0.0) for key in KEYS[:6]),
    *((("relabel", key), 0.0) for key in KEYS[:6]),
]


@example(size=2, steps=EDITED)
@example(size=3, steps=ASSIGNED)
@example(size=2, steps=READ_ALL)
@example(size=2, steps=UNWATCHED)
@given(size=st.integers(1, 3), steps=st.lists(st.tuples(events, pauses), max_size=20))
@in_virtual_time
async def test_a_member_has_the_newest_values_of_its_keys_and_their_secondaries_and_no_others(
    size: int, steps: list[Step]
) -> None:
    town = Town()
    for key in KEYS[:6]:
        await town.put(key)
    for _ in range(size):
        town.group.join()
    for (action, argument), then_s in steps:
        await town.apply_step(action, argument)
        await asyncio.sleep(then_s)
    await eventually(town.settled, within_s=20 * TTL_S, every_s=0.5)
    await town.group.close()
