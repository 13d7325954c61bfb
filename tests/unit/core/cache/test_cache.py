"""A cache applies watch events of its store and returns the changes.

tests/property/test_cache.py compares it with a model; here is what the model leaves out.
"""

import asyncio
from collections.abc import Iterable

import pytest

from natsctl import Invalid
from natsctl.core.table import Keeping, Table, Unread
from natsctl.model.store import Change, Deleted, IllegalKey, Listed, Listing, Stored, WatchEvent
from tests.support.stores.sample_objects import THINGS, Thing, applied, broken, stored


@pytest.fixture
def cache() -> Table[Thing]:
    return Table(THINGS)


def fold(cache: Table[Thing], *events: WatchEvent) -> list[Change[Thing]]:
    return [change for event in events for change in cache.apply(event) if change is not None]


def listed(
    cache: Table[Thing], *events: WatchEvent, incarnation: str = "1", revision: int = 100
) -> list[Change[Thing]]:
    return fold(cache, Listing(incarnation), *events, Listed(revision))


def actions(changes: Iterable[Change[Thing]]) -> list[tuple[str, str]]:
    return [(change.key, change.action.value) for change in changes]


class TestListing:
    def test_a_listing_takes_effect_at_its_end(self, cache: Table[Thing]) -> None:
        assert fold(cache, Listed(5)) == []
        assert fold(cache, Listing("1"), applied("a", 1), applied("b", 2), Deleted("b", 3)) == []
        assert not cache.synced.is_set()
        initial = fold(cache, Listed(3))
        assert actions(initial) == [("a", "added"), ("b", "deleted")]
        assert [change.initial for change in initial] == [True, True]
        assert cache.synced.is_set()
        [change] = fold(cache, applied("a", 101))
        assert not change.initial

    def test_a_relisting_shows_only_new_markers(self, cache: Table[Thing]) -> None:
        listed(cache, Deleted("a", 1), Deleted("b", 2), revision=2)
        changes = listed(cache, Deleted("a", 1), Deleted("b", 2), Deleted("c", 3), revision=3)
        assert changes == [Change(THINGS, "c", None, None, initial=True)]

    def test_another_incarnation_replaces_everything(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 7, "old"), applied("b", 8), revision=8)
        changes = listed(cache, applied("a", 1, "new"), incarnation="2", revision=1)
        assert actions(changes) == [("a", "updated"), ("b", "deleted")]

    def test_a_state_is_emptied_in_steps(self) -> None:
        cache = Table(THINGS, {"text": lambda stored_thing: (stored_thing.spec.text,)})
        listed(cache, *(applied(f"k{number}", number, f"text {number}") for number in range(10)))
        cache.apply(Listing("1"))
        steps = list(cache.apply(Listed(100)))
        assert len(steps) >= 10 * len(["object", "deletion", "value of a key", "key of a value"])
        fold(cache, Listing("1"), *(applied(f"n{number}", number) for number in range(10)))
        assert len(list(cache.apply(Listing("1")))) >= 10  # of a broken listing


class TestForeignObjects:
    """Objects whose values another process keeps: the table has only their revisions."""

    def test_a_later_listing_shows_only_what_is_kept_or_was(self) -> None:
        kept = {"own", "gone"}
        cache = Table(THINGS, keeping=Keeping(kept.__contains__))
        events = [applied(key, 1) for key in ("own", "gone", "foreign")]
        assert actions(listed(cache, *events)) == [("own", "added"), ("gone", "added")]
        kept.remove("gone")
        events = [applied("own", 1), applied("gone", 2), applied("foreign", 2)]
        (change,) = listed(cache, *events)
        assert (change.key, change.after) == ("gone", Unread("gone", 2, b""))
        assert listed(cache, *events) == []
        assert (len(cache), len(cache.read_keys())) == (3, 1)


def test_an_invalid_object_and_an_illegal_key_are_reported_once_per_revision() -> None:
    reported = list[Invalid]()
    cache = Table(THINGS, on_invalid=reported.append)
    listed(cache, broken("a", 1))
    listed(cache, broken("a", 1))
    fold(cache, broken("a", 101))
    listed(cache, broken("a", 101))
    fold(cache, IllegalKey("?", 101), IllegalKey("?", 102))
    listed(cache, broken("a", 101), IllegalKey("?", 102))
    assert [(invalid.stored.key, invalid.stored.revision) for invalid in reported] == [
        ("a", 1),
        ("a", 101),
        ("?", 101),
    ]
    assert "not a valid Thing" in str(reported[0].error)
    assert "$.spec.text" in str(reported[0].error)
    assert reported[-1].stored == Stored("?", 101, b"")


def test_a_message_with_an_illegal_key_that_a_relisting_lacks_is_no_deletion(
    cache: Table[Thing],
) -> None:
    listed(cache, IllegalKey("?", 1))
    assert listed(cache) == []


class TestIndexes:
    @pytest.fixture
    def cache(self) -> Table[Thing]:
        cache = Table(THINGS, {"group": lambda stored_thing: stored_thing.spec.groups})
        listed(cache, applied("b", 1, "", "x"), applied("a", 2, "", "x", "y"), applied("c", 3))
        return cache

    def test_an_index_of_an_object_that_is_not_cached_has_its_values(
        self, cache: Table[Thing]
    ) -> None:
        assert cache.index_of("group", THINGS.decode(stored("d", 1, "", "w").value)) == ("w",)

    def test_objects_without_a_value_are_found_valid_or_not(self, cache: Table[Thing]) -> None:
        fold(cache, broken("d", 101))
        assert [key for key in cache.unindexed("group") if key is not None] == ["c", "d"]


class TestWaiting:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (applied("a", 1), applied("b", 2)),
            (applied("a", 1), Deleted("other", 9)),
            (Listing("1"), Listed(2)),
        ],
    )
    async def test_passed_waits_until_the_cache_has_the_revision(
        self, cache: Table[Thing], before: WatchEvent, after: WatchEvent
    ) -> None:
        listed(cache, revision=0)
        waiting = asyncio.create_task(cache.passed(2))
        fold(cache, before)
        await asyncio.sleep(1)
        assert not waiting.done()
        fold(cache, after)
        await waiting

    @pytest.mark.parametrize("after", [applied("a", 2), broken("a", 2)], ids=["valid", "invalid"])
    async def test_a_newer_state_ends_the_wait(
        self, cache: Table[Thing], after: WatchEvent
    ) -> None:
        cache.apply(applied("a", 1))
        waiting = asyncio.create_task(cache.left_behind("a", 1))
        await asyncio.sleep(0)
        cache.apply(after)
        await waiting
