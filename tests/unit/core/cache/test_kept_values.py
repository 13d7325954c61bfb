"""A cache that keeps the values of some keys has only the keys and revisions of the others."""

import asyncio

import pytest

from natsctl import Invalid, Object, kv
from natsctl.core.informer import FILLED_MAX, SINGLE_MAX, Informer, read_values
from natsctl.core.table import Cache, Keeping, Unread, is_read
from natsctl.errors import StoreError
from natsctl.model.store import (
    Applied,
    Change,
    Deleted,
    IllegalKey,
    Listed,
    Listing,
    Stored,
    WatchEvent,
)
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.eventually import eventually
from tests.support.stores.sample_objects import informed

KIND = kv(Object, bucket="objects")
VALUE = b'{"metadata":{}}'


class Kept:
    """The keys whose values are kept."""

    def __init__(self, *keys: str) -> None:
        self.keys = set(keys)

    def __call__(self, key: str) -> bool:
        return key in self.keys


def cache_of(
    kept: Kept, *stored: Stored, rejected: list[Invalid] | None = None, quiet: bool = False
) -> Cache[Object]:
    keeping = Keeping(kept, quiet=quiet)
    cache = Cache(KIND, None, ([] if rejected is None else rejected).append, keeping=keeping)
    listed(cache, *stored)
    return cache


def fold(cache: Cache[Object], *events: WatchEvent) -> list[Change[Object]]:
    return [change for event in events for change in cache.apply(event) if change is not None]


def listed(cache: Cache[Object], *stored: Stored) -> list[Change[Object]]:
    return fold(cache, Listing("one"), *map(Applied, stored), Listed(9))


def test_another_object_has_its_revision_and_no_value() -> None:
    cache = cache_of(Kept("a"), Stored("a", 1, VALUE), Stored("b", 2, VALUE))
    assert cache.get("a") == Stored("a", 1, VALUE)
    assert cache.get("b") == Unread("b", 2, b"")
    assert set(cache.keys()) == {"a", "b"}


def test_another_object_is_not_decoded() -> None:
    rejected: list[Invalid] = []
    cache = cache_of(Kept(), Stored("b", 2, b"?"), rejected=rejected)
    assert not rejected
    assert "b" not in cache.invalid


def test_a_repeated_listing_of_another_object_is_no_change() -> None:
    cache = cache_of(Kept(), Stored("b", 2, VALUE))
    assert listed(cache, Stored("b", 2, VALUE)) == []


def test_a_value_of_the_cached_revision_is_added() -> None:
    kept = Kept()
    cache = cache_of(kept, Stored("b", 2, VALUE))
    kept.keys = {"b"}
    change = cache.fill(Stored("b", 2, VALUE))
    assert cache.get("b") == Stored("b", 2, VALUE)
    assert change == Change(KIND, "b", None, Stored("b", 2, VALUE), initial=True)


def test_a_value_that_is_cached_is_not_added_again() -> None:
    cache = cache_of(Kept("b"), Stored("b", 2, VALUE))
    assert cache.fill(Stored("b", 2, VALUE)) is None


def test_the_value_of_an_object_that_is_not_cached_is_not_added() -> None:
    cache = cache_of(Kept("b"))
    assert cache.fill(Stored("b", 2, VALUE)) is None
    assert "b" not in cache


def test_a_value_that_is_not_kept_any_more_is_not_added() -> None:
    cache = cache_of(Kept(), Stored("b", 2, VALUE))
    assert cache.fill(Stored("b", 2, VALUE)) is None


@pytest.mark.parametrize("revision", [1, 3])
def test_a_value_of_another_revision_is_not_added(revision: int) -> None:
    kept = Kept()
    cache = cache_of(kept, Stored("b", 2, VALUE))
    kept.keys = {"b"}
    cache.fill(Stored("b", revision, VALUE))
    assert cache.get("b") == Unread("b", 2, b"")


def test_an_invalid_value_is_reported_when_it_is_added() -> None:
    rejected: list[Invalid] = []
    kept = Kept()
    cache = cache_of(kept, Stored("b", 2, b"?"), rejected=rejected)
    kept.keys = {"b"}
    cache.fill(Stored("b", 2, b"?"))
    assert [invalid.stored for invalid in rejected] == [Stored("b", 2, b"?")]
    assert cache.get("b") is None
    assert "b" in cache


def test_a_value_that_is_read_during_a_listing_stays() -> None:
    kept = Kept()
    cache = cache_of(kept, Stored("b", 2, VALUE))
    list(cache.apply(Listing("one")))
    list(cache.apply(Applied(Stored("b", 2, VALUE))))
    kept.keys = {"b"}
    assert [key for key in cache.unread(kept) if key] == ["b", "b"]
    cache.fill(Stored("b", 2, VALUE))
    list(cache.apply(Listed(9)))
    assert cache.get("b") == Stored("b", 2, VALUE)


def test_a_value_is_forgotten_unless_it_is_kept() -> None:
    kept = Kept("a", "b")
    cache = cache_of(kept, Stored("a", 1, VALUE), Stored("b", 2, b"?"))
    cache.release("a")
    assert cache.get("a") == Stored("a", 1, VALUE)
    kept.keys = set()
    for key in ("a", "b"):
        cache.release(key)
    assert cache.get("a") == Unread("a", 1, b"")
    assert cache.get("b") == Unread("b", 2, b"")
    assert not cache.invalid


def test_a_key_without_an_object_has_no_value_to_forget() -> None:
    cache = cache_of(Kept())
    cache.release("b")
    assert "b" not in cache


def test_a_cache_that_keeps_every_value_forgets_none() -> None:
    cache = Cache(KIND)
    listed(cache, Stored("b", 2, VALUE))
    cache.release("b")
    assert cache.get("b") == Stored("b", 2, VALUE)


def test_an_object_that_no_rule_gives_a_primary_keeps_its_value() -> None:
    keeping = Keeping(Kept(), lambda _: None)
    cache = Cache(KIND, keeping=keeping)
    listed(cache, Stored("b", 2, VALUE))
    cache.release("b")
    assert cache.get("b") == Stored("b", 2, VALUE)


def test_an_illegal_key_stays_invalid_when_values_are_forgotten() -> None:
    cache = cache_of(Kept())
    fold(cache, IllegalKey("?", 10))
    cache.release("?")
    assert list(cache.invalid) == ["?"]


def test_every_value_is_kept_once_a_reader_wants_all_values() -> None:
    cache = cache_of(Kept())
    cache.want_all()
    fold(cache, Applied(Stored("b", 10, VALUE)))
    assert cache.get("b") == Stored("b", 10, VALUE)


def test_a_wish_for_all_values_is_noticed() -> None:
    cache = cache_of(Kept())
    assert not cache.wants_all.is_set()
    cache.want_all()
    assert cache.wants_all.is_set()


def test_a_cache_whose_values_can_be_missing_is_partial() -> None:
    assert cache_of(Kept()).partial


def test_a_key_that_comes_to_this_process_has_its_next_value() -> None:
    kept = Kept()
    cache = cache_of(kept, Stored("b", 2, VALUE))
    kept.keys = {"b"}
    fold(cache, Applied(Stored("b", 10, VALUE)))
    assert cache.get("b") == Stored("b", 10, VALUE)


def test_an_object_that_was_not_kept_stays_so_without_a_question_once_values_are_read() -> None:
    questions: list[str] = []

    def keeps(key: str) -> bool:
        questions.append(key)
        return False

    cache = Cache(KIND, keeping=Keeping(keeps))
    listed(cache, Stored("b", 2, VALUE))
    cache.settle_kept(settled=True)
    questions.clear()
    fold(cache, Applied(Stored("b", 10, VALUE)))
    assert (questions, cache.get("b")) == ([], Unread("b", 10, b""))


def test_every_value_is_kept_after_the_values_have_been_read_too() -> None:
    cache = cache_of(Kept(), Stored("b", 2, VALUE))
    cache.settle_kept(settled=True)
    cache.want_all()
    fold(cache, Applied(Stored("b", 10, VALUE)))
    assert cache.get("b") == Stored("b", 10, VALUE)


def test_a_new_object_is_kept_after_the_values_have_been_read() -> None:
    cache = cache_of(Kept("c"), Stored("b", 2, VALUE))
    cache.settle_kept(settled=True)
    fold(cache, Applied(Stored("c", 10, VALUE)))
    assert cache.get("c") == Stored("c", 10, VALUE)


def test_a_primary_belongs_to_itself() -> None:
    cache = cache_of(Kept(), Stored("b", 2, VALUE))
    assert cache.belongs_to("b", "b")
    assert not cache.belongs_to("a", "b")
    assert list(cache.of_primary("b")) == ["b"]


class TestQuiet:
    """A quiet cache reports no change of an object whose value is kept neither before nor after."""

    @pytest.mark.parametrize(("quiet", "reported"), [(True, []), (False, ["b"])])
    def test_a_live_change_of_another_object(self, *, quiet: bool, reported: list[str]) -> None:
        cache = cache_of(Kept(), Stored("b", 2, VALUE), quiet=quiet)
        changes = fold(cache, Applied(Stored("b", 10, VALUE)))
        assert [change.key for change in changes] == reported

    @pytest.mark.parametrize(("quiet", "reported"), [(True, []), (False, ["b"])])
    def test_a_relisted_change_of_another_object(self, *, quiet: bool, reported: list[str]) -> None:
        cache = cache_of(Kept(), Stored("b", 2, VALUE), quiet=quiet)
        assert [change.key for change in listed(cache, Stored("b", 8, VALUE))] == reported

    def test_a_new_object_of_a_relisting_is_not_reported(self) -> None:
        cache = cache_of(Kept(), Stored("b", 2, VALUE), quiet=True)
        assert listed(cache, Stored("b", 2, VALUE), Stored("c", 8, VALUE)) == []

    def test_a_new_object_of_the_watch_is_reported(self) -> None:
        cache = cache_of(Kept(), quiet=True)
        assert [change.key for change in fold(cache, Applied(Stored("c", 10, VALUE)))] == ["c"]

    def test_a_change_of_a_kept_object_is_reported(self) -> None:
        cache = cache_of(Kept("b"), Stored("b", 2, VALUE), quiet=True)
        assert [change.key for change in fold(cache, Applied(Stored("b", 10, VALUE)))] == ["b"]
        assert [change.key for change in listed(cache, Stored("b", 11, VALUE))] == ["b"]

    @pytest.mark.parametrize("relists", [True, False])
    def test_an_object_that_goes_to_another_process_is_reported(self, *, relists: bool) -> None:
        kept = Kept("b")
        cache = cache_of(kept, Stored("b", 2, VALUE), quiet=True)
        kept.keys = set()
        newer = Stored("b", 10, VALUE)
        changes = listed(cache, newer) if relists else fold(cache, Applied(newer))
        assert [change.before for change in changes] == [Stored("b", 2, VALUE)]

    @pytest.mark.parametrize("relists", [True, False])
    def test_an_object_that_comes_to_this_process_is_reported(self, *, relists: bool) -> None:
        kept = Kept()
        cache = cache_of(kept, Stored("b", 2, VALUE), quiet=True)
        kept.keys = {"b"}
        newer = Stored("b", 10, VALUE)
        changes = listed(cache, newer) if relists else fold(cache, Applied(newer))
        assert [change.after for change in changes] == [newer]


def test_another_object_can_be_deleted() -> None:
    cache = cache_of(Kept(), Stored("b", 2, VALUE))
    list(cache.apply(Deleted("b", 10)))
    assert "b" not in cache


def test_a_cache_with_indexes_keeps_every_value() -> None:
    cache = Cache(KIND, {"by name": lambda _: ("x",)}, keeping=Keeping(Kept()))
    list(cache.apply(Applied(Stored("b", 2, VALUE))))
    assert cache.by_index("by name", "x") == [Stored("b", 2, VALUE)]


@pytest.mark.parametrize("count", [10, SINGLE_MAX + 1])
async def test_all_wanted_values_are_read_from_the_store(count: int) -> None:
    kept = Kept()
    store = MemoryStores().store(KIND)
    for number in range(count):
        await store.create(f"k{number}", VALUE)
    informer = Informer(store, KIND, keeping=Keeping(kept))
    task = asyncio.create_task(informer.run())
    await informer.cache.synced.wait()
    kept.keys = {f"k{number}" for number in range(count)} - {"k1"}
    await read_values(informer, kept)
    unread = [key for key in informer.cache.unread(lambda _: True) if key]
    assert unread == ["k1"]
    task.cancel()


async def test_values_whose_reads_fail_all_at_once_are_read_again() -> None:
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Lost(MemoryStore):
        """A store whose connection is lost while the values are read."""

        async def get(self, key: str) -> Stored:
            await asyncio.shield(lost)
            return await super().get(key)

    kept = Kept()
    store = Lost(KIND)
    for number in range(10):
        await store.create(f"k{number}", VALUE)
    informer = Informer(store, KIND, keeping=Keeping(kept))
    task = asyncio.create_task(informer.run())
    await informer.cache.synced.wait()
    kept.keys = {f"k{number}" for number in range(10)}
    reading = asyncio.create_task(read_values(informer, kept))
    await asyncio.sleep(1)
    lost.set_exception(StoreError("the connection was lost"))
    await asyncio.sleep(1)
    lost = asyncio.get_running_loop().create_future()
    lost.set_result(None)
    await reading
    assert not [key for key in informer.cache.unread(lambda _: True) if key]
    task.cancel()


async def test_a_value_that_changes_while_it_is_read_comes_through_the_watch() -> None:
    kept = Kept()
    store = MemoryStores().store(KIND)
    first = await store.create("k", VALUE)
    informer = Informer(store, KIND, keeping=Keeping(kept))
    task = asyncio.create_task(informer.run())
    await informer.cache.synced.wait()
    kept.keys = {"k"}
    newer = await store.update("k", b'{"metadata":{"labels":{"a":"b"}}}', revision=first.revision)
    await read_values(informer, kept)
    await eventually(lambda: informer.cache.get("k") == newer)
    cached = informer.cache.get("k")
    assert cached is not None
    assert is_read(cached)
    task.cancel()


async def test_subscribers_are_notified_of_the_values_that_are_added() -> None:
    kept = Kept()
    store = MemoryStores().store(KIND)
    stored = {key: await store.create(key, VALUE) for key in "ab"}
    informer = Informer(store, KIND, keeping=Keeping(kept))
    changes: list[Change[Object]] = []
    async with informed(informer), informer.subscribe(changes.append):
        changes.clear()
        kept.keys = {"a"}
        await informer.fill(stored.values())
    assert changes == [Change(KIND, "a", None, stored["a"], initial=True)]


async def test_values_that_are_not_kept_are_released() -> None:
    kept = Kept("a", "b")
    store = MemoryStores().store(KIND)
    for key in "ab":
        await store.create(key, VALUE)
    informer = Informer(store, KIND, keeping=Keeping(kept))
    async with informed(informer):
        kept.keys = {"a"}
        await informer.release("ab")
        unread = [key for key in informer.cache.unread(lambda _: True) if key]
    assert unread == ["b"]


async def test_other_tasks_run_while_values_are_added_and_forgotten() -> None:
    kept = Kept()
    informer = Informer(MemoryStores().store(KIND), KIND, keeping=Keeping(kept))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    stored = [Stored(f"k{number}", number, VALUE) for number in range(4 * FILLED_MAX)]
    await informer.fill(stored)
    added, turns = turns, 0
    await informer.release([state.key for state in stored])
    counting.cancel()
    assert min(added, turns) >= 4
