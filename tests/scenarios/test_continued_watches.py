"""A watch of a store in memory continues, and lists again, for the same reasons as on NATS."""

import pytest

from natsctl import ConflictError, kv
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.stores.reader import Reader

KEYS = [f"k.{number}" for number in range(60)]
THINGS = kv(bytes, bucket="things", history=1)


class Bed:
    """A store of things that a reader has seen, and its watch broke."""

    def __init__(self) -> None:
        self.store: MemoryStore = MemoryStores().store(THINGS)
        self.reader = Reader(self.store)

    async def put(self, *keys: str) -> None:
        for key in keys:
            try:
                await self.store.create(key, key.encode())
            except ConflictError:
                revision = (await self.store.get(key)).revision
                await self.store.update(key, key.encode(), revision=revision)

    async def continues(self, events: int) -> None:
        lists = len(self.reader.incarnations)
        await self.reader.catch_up()
        assert (len(self.reader.incarnations), self.reader.events) == (lists, events)
        assert sorted(self.reader.objects) == self.store.keys()

    async def lists(self, *, anew: bool = False) -> None:
        lists = len(self.reader.incarnations)
        await self.reader.catch_up()
        assert len(self.reader.incarnations) == lists + 1
        assert (self.reader.incarnations[-1] != self.reader.incarnations[-2]) is anew
        assert sorted(self.reader.objects) == self.store.keys()


@pytest.fixture
async def bed() -> Bed:
    bed = Bed()
    await bed.put(*KEYS)
    await bed.reader.catch_up()
    return bed


async def test_a_watch_continues_after_its_connection_was_lost(bed: Bed) -> None:
    await bed.put("k.3", "k.new")
    await bed.store.delete("k.5")
    await bed.continues(3)
    bed.store.break_watches()
    await bed.continues(0)


async def test_a_few_busy_keys_replace_no_proof(bed: Bed) -> None:
    for _ in range(20):
        await bed.put("k.1", "k.2")
        await bed.continues(2)


async def test_it_lists_after_a_purge(bed: Bed) -> None:
    bed.store.vanish("k.7")
    await bed.lists()
    bed.store.vanish("k.8")
    await bed.put("k.new")  # as many keys as before
    await bed.lists()
    bed.store.vanish(*bed.store.keys())
    await bed.lists()


async def test_it_lists_after_the_oldest_keys_were_evicted(bed: Bed) -> None:
    bed.store.vanish(*(stored.key for stored in bed.store.stored()[:20]))
    await bed.lists()


async def test_it_lists_after_all_that_was_seen_last_was_replaced(bed: Bed) -> None:
    await bed.put(*KEYS)
    await bed.lists()


async def test_it_lists_a_recreated_bucket(bed: Bed) -> None:
    bed.store.recreate()
    await bed.put(*KEYS)
    await bed.lists(anew=True)


@pytest.mark.parametrize(
    "written",
    [[], ["k.a", "k.b", "k.c", "k.d"], ["k.new", "k.1"], ["k.1", "k.2"], ["k.other", "k.1"]],
    ids=["nothing", "more keys", "the same keys", "fewer keys", "as many keys"],
)
async def test_it_lists_a_bucket_restored_to_an_older_state(bed: Bed, written: list[str]) -> None:
    backup = bed.store.backup()
    await bed.put("k.new", "k.1")
    await bed.reader.catch_up()
    bed.store.restore(backup)
    await bed.put(*written)
    await bed.lists(anew=True)


async def test_it_lists_a_bucket_whose_subjects_were_renamed(bed: Bed) -> None:
    bed.store.rename()
    await bed.lists()
    await bed.put("k.1")
    await bed.continues(1)


async def test_a_clock_that_was_set_back_changes_nothing(bed: Bed) -> None:
    for _ in range(2):
        bed.store.turn_back_clock()
        await bed.put("k.1", "k.2", "k.new")
        await bed.continues(3)
    bed.store.vanish("k.3")
    await bed.lists()


async def test_it_lists_a_restored_bucket_although_its_clock_was_set_back(bed: Bed) -> None:
    backup = bed.store.backup()
    bed.store.turn_back_clock()
    await bed.put("k.new", "k.1")
    await bed.reader.catch_up()
    bed.store.restore(backup)
    bed.store.turn_back_clock()
    await bed.put("k.new", "k.1")
    await bed.lists(anew=True)
