"""Property tests of sharding: a process keeps the values of the keys that it syncs.

Members join, leave and crash while objects are written, deleted and made invalid, and while watches
break and buckets are recreated. Handlers read objects of other members.
"""

import asyncio

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from natsctl import Controller, NotFoundError, Object, kv, primary
from natsctl.core.table import is_read
from natsctl.testing import in_virtual_time
from tests.support.controllers.sharing_group import SharingGroup, SharingMember, Step

KEYS = [f"k{number}" for number in range(12)]

keys = st.sampled_from(KEYS)
events = st.one_of(
    st.tuples(st.just("put"), keys),
    st.tuples(st.just("put"), keys),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("garbage"), keys),
    st.tuples(st.sampled_from(["break", "recreate", "join"]), st.just("")),
    st.tuples(st.sampled_from(["leave", "kill", "read all"]), st.sampled_from("0123")),
)
pauses = st.sampled_from([0.0, 0.001, 0.05, 0.5, 3.0, 12.0])


class Item(Object, frozen=True):
    spec: dict[str, str] = msgspec.field(default_factory=dict)


class Items(Controller):
    """Logs the text of each object that it syncs; reads all objects if it is asked to."""

    name = "items"
    items = primary(kv(Item, bucket="items"))
    resync_s = 1e6

    def __init__(self, seen: dict[str, str | None], syncing: set[str]) -> None:
        self.seen = seen
        self.syncing = syncing
        self.reads_all = False
        self.overlaps: list[str] = []

    async def sync_handler(self, key: str) -> None:
        if key in self.syncing:
            self.overlaps.append(key)
        self.syncing.add(key)
        try:
            item = self.items.get(key)
            await asyncio.sleep(0.01)
            if self.reads_all:
                assert set(self.items.items()) <= set(KEYS)
            self.seen[key] = None if item is None else item.spec.get("text", "")
        finally:
            self.syncing.discard(key)


class Group:
    def __init__(self) -> None:
        self.seen: dict[str, str | None] = {}
        self.syncing: set[str] = set()
        self.processes = SharingGroup(lambda: Items(self.seen, self.syncing))
        self.items = self.processes.stores.store(Items.items.kind)
        self.writes = 0

    async def write(self, key: str, value: bytes) -> None:
        try:
            await self.items.update(key, value, revision=(await self.items.get(key)).revision)
        except NotFoundError:
            await self.items.create(key, value)

    async def apply_step(self, action: str, argument: str) -> None:
        living = self.processes.living
        match action:
            case "put":
                self.writes += 1
                await self.write(argument, text_value(f"text {self.writes}"))
            case "garbage":
                await self.write(argument, b"?")
            case "delete" if argument in self.items.keys():  # noqa: SIM118 - a store is not a dict
                await self.items.delete(argument)
            case "break":
                self.items.break_watches()
            case "recreate":
                self.items.recreate()
            case "read all" if living:
                living[int(argument) % len(living)].controller.reads_all = True
            case _:
                await self.processes.change(action, argument)
                if action == "kill":
                    self.syncing.clear()

    def settled(self) -> bool:
        """Check that each object was synced in its newest state, and that caches are right."""
        self.processes.check_shared(KEYS)
        for stored in self.items.stored():
            if stored.value != b"?":
                text = Items.items.kind.decode(stored.value).spec.get("text", "")
                assert self.seen.get(stored.key) == text, stored.key
        for member in self.processes.living:
            self.check_cache(member)
        return True

    def check_cache(self, member: SharingMember[Items]) -> None:
        """Check each object in the cache against the store."""
        cache = member.controller.items.informer.table
        newest = {stored.key: stored for stored in self.items.stored()}
        assert {*cache.keys(), *cache.invalid} == set(newest)
        for key, stored in newest.items():
            cached = cache.newest(key)
            assert cached is not None
            assert cached.revision == stored.revision
            if member.holds(key):
                assert is_read(cached)
                assert cached.value == stored.value
            elif not cache.wants_all.is_set():
                assert not is_read(cached)


def text_value(text: str) -> bytes:
    return msgspec.json.encode({"spec": {"text": text}})


READ_ALL: list[Step] = [
    (("put", "k0"), 12.0),
    (("read all", "0"), 0.0),
    (("read all", "1"), 0.0),
    *((("put", key), 0.5) for key in KEYS),
]


@example(size=2, steps=READ_ALL)
@given(
    size=st.integers(1, 3),
    steps=st.lists(st.tuples(events, pauses), max_size=20),
)
@in_virtual_time
async def test_a_member_has_the_newest_values_of_its_keys_and_no_others(
    size: int, steps: list[Step]
) -> None:
    group = Group()
    for key in KEYS[:8]:
        await group.write(key, text_value("first"))
    group.processes.start(size)
    await group.processes.play(steps, group.apply_step, group.settled)
    assert not any(member.controller.overlaps for member in group.processes.members)
