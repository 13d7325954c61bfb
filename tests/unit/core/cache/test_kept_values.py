"""A cache that keeps the values of some keys has only the keys and revisions of the others."""

import asyncio

import pytest

from natsctl import Object, kv
from natsctl.core.cache.cache import Cache
from natsctl.core.cache.informer import Informer
from natsctl.core.cache.keeping import Keeping
from natsctl.core.cache.read_values import SINGLE_MAX, read_values
from natsctl.core.cache.state import Invalid, Unread, is_read
from natsctl.model.store import Applied, Deleted, Listed, Listing, Stored, WatchEvent
from natsctl.testing.memory import MemoryStores
from tests.support.eventually import eventually

KIND = kv(Object, bucket="objects")
VALUE = b'{"metadata":{}}'


class Kept:
    """The keys whose values are kept."""

    def __init__(self, *keys: str) -> None:
        self.keys = set(keys)

    def __call__(self, key: str) -> bool:
        return key in self.keys


def cache_of(kept: Kept, *stored: Stored, rejected: list[Invalid] | None = None) -> Cache[Object]:
    cache = Cache(KIND, None, ([] if rejected is None else rejected).append, keeping=Keeping(kept))
    events: list[WatchEvent] = [Listing("one"), *map(Applied, stored), Listed(9)]
    for event in events:
        list(cache.apply(event))
    return cache


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
    changes = []
    for event in (Listing("one"), Applied(Stored("b", 2, VALUE)), Listed(9)):
        changes += [change for change in cache.apply(event) if change is not None]
    assert changes == []


def test_a_value_of_the_cached_revision_is_added() -> None:
    kept = Kept()
    cache = cache_of(kept, Stored("b", 2, VALUE))
    kept.keys = {"b"}
    cache.fill(Stored("b", 2, VALUE))
    assert cache.get("b") == Stored("b", 2, VALUE)


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
