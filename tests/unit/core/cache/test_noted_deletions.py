"""A cache notes deleted keys until somebody takes them."""

from natsctl import Object, kv
from natsctl.core.table import DELETED_MAX, Cache
from natsctl.model.store import Applied, Deleted, Listed, Listing, Stored, WatchEvent

KIND = kv(Object, bucket="objects")


def cache_of(*events: WatchEvent, notes_deleted: bool = True) -> Cache[Object]:
    cache = Cache(KIND, notes_deleted=notes_deleted)
    for event in events:
        list(cache.apply(event))
    return cache


def test_the_markers_of_the_first_listing_and_later_deletions_are_noted() -> None:
    cache = cache_of(
        Listing("1"), Deleted("a", 1), Applied(Stored("b", 2, b"{}")), Listed(2), Deleted("b", 3)
    )
    assert set(cache.take_deleted() or ()) == {"a", "b"}


def test_deletions_are_taken_once() -> None:
    cache = cache_of(Listing("1"), Deleted("a", 1), Listed(1))
    cache.take_deleted()
    assert cache.take_deleted() is None


def test_deletions_are_not_known_after_another_listing() -> None:
    cache = cache_of(Listing("1"), Applied(Stored("a", 1, b"{}")), Listed(1))
    for event in (Listing("1"), Deleted("a", 2), Listed(2)):
        list(cache.apply(event))
    assert cache.take_deleted() is None


def test_too_many_deletions_are_not_noted() -> None:
    markers = (Deleted(f"k{number}", number) for number in range(DELETED_MAX + 1))
    cache = cache_of(Listing("1"), *markers, Listed(DELETED_MAX))
    assert cache.take_deleted() is None


def test_too_many_later_deletions_are_not_noted() -> None:
    markers = (Deleted(f"k{number}", number) for number in range(DELETED_MAX + 1))
    cache = cache_of(Listing("1"), Listed(0), *markers)
    assert cache.take_deleted() is None


def test_a_cache_notes_no_deletions_by_default() -> None:
    cache = cache_of(Listing("1"), Deleted("a", 1), Listed(1), notes_deleted=False)
    assert cache.take_deleted() is None
