"""A cache applies watch events of its store and returns the changes."""

import asyncio
from collections.abc import Iterable

import pytest

from natsctl import Invalid
from natsctl.core.table import Keeping, Table, Unread
from natsctl.model.store import (
    Change,
    Deleted,
    IllegalKey,
    Listed,
    Listing,
    Stored,
    WatchEvent,
)
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
        assert fold(cache, Listing("1"), applied("a", 1), applied("b", 2)) == []
        assert not cache.synced.is_set()
        assert len(cache) == 0
        assert actions(fold(cache, Listed(2))) == [("a", "added"), ("b", "added")]
        assert cache.synced.is_set()
        assert sorted(cache.keys()) == ["a", "b"]

    def test_changes_of_the_first_listing_are_marked_initial(self, cache: Table[Thing]) -> None:
        [change] = listed(cache, applied("a", 1))
        assert change.initial
        [change] = fold(cache, applied("a", 101))
        assert not change.initial

    def test_an_object_deleted_during_a_listing_is_not_in_the_cache(
        self, cache: Table[Thing]
    ) -> None:
        changes = listed(cache, applied("a", 1), Deleted("a", 2), applied("b", 3))
        assert "a" not in cache
        assert actions(changes) == [("b", "added"), ("a", "deleted")]


class TestRelisting:
    def test_a_broken_relisting_changes_nothing(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1), applied("b", 2))
        fold(cache, Listing("1"), applied("a", 9, "new"))  # the watch broke
        changes = listed(cache, applied("a", 1), applied("b", 2))
        assert changes == []
        assert cache.get("a") == stored("a", 1)

    def test_missed_deletions_are_found(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1), applied("b", 2))
        [change] = listed(cache, applied("b", 2))
        assert (change.key, change.before, change.after) == ("a", stored("a", 1), None)
        assert "a" not in cache


class TestSteps:
    """Work that grows with the number of objects is divided into steps."""

    @pytest.fixture
    def cache(self) -> Table[Thing]:
        cache = Table(THINGS, {"text": lambda stored_thing: (stored_thing.spec.text,)})
        listed(cache, *(applied(f"k{number}", number, f"text {number}") for number in range(10)))
        return cache

    def test_the_state_before_a_listing_is_emptied_in_steps(self, cache: Table[Thing]) -> None:
        cache.apply(Listing("1"))
        steps = list(cache.apply(Listed(100)))
        assert len(steps) >= 10 * len(["object", "deletion", "value of a key", "key of a value"])

    def test_a_broken_listing_is_emptied_in_steps(self, cache: Table[Thing]) -> None:
        fold(cache, Listing("1"), *(applied(f"n{number}", number) for number in range(10)))
        assert len(list(cache.apply(Listing("1")))) >= 10


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


class TestMarkers:
    """The delete marker of an unknown object is a change from None to None, once."""

    def test_a_relisting_returns_only_new_markers(self, cache: Table[Thing]) -> None:
        listed(cache, Deleted("a", 1), Deleted("b", 2), revision=2)
        changes = listed(cache, Deleted("a", 1), Deleted("b", 2), Deleted("c", 3), revision=3)
        assert [change.key for change in changes] == ["c"]

    def test_an_object_created_and_deleted_during_a_gap_is_a_change(
        self, cache: Table[Thing]
    ) -> None:
        listed(cache, applied("a", 1), revision=1)
        changes = listed(cache, applied("a", 1), Deleted("b", 3), revision=3)
        assert changes == [Change(THINGS, "b", None, None, initial=True)]


class TestIncarnation:
    def test_another_incarnation_replaces_everything(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 7, "old"), applied("b", 8), revision=8)
        changes = listed(cache, applied("a", 1, "new"), incarnation="2", revision=1)
        assert actions(changes) == [("a", "updated"), ("b", "deleted")]
        assert (cache.incarnation, cache.revision) == ("2", 1)


class ReportsInvalid:
    """A cache that reports invalid objects to a list."""

    @pytest.fixture
    def invalids(self) -> list[Invalid]:
        return []

    @pytest.fixture
    def cache(self, invalids: list[Invalid]) -> Table[Thing]:
        return Table(THINGS, on_invalid=invalids.append)


class TestInvalid(ReportsInvalid):
    def test_the_last_valid_state_is_kept_without_a_change(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1))
        assert fold(cache, broken("a", 2)) == []
        assert cache.get("a") == stored("a", 1)
        assert cache.invalid["a"].stored.revision == 2

    def test_an_object_that_was_never_valid_exists_but_is_not_readable(
        self, cache: Table[Thing]
    ) -> None:
        assert listed(cache, broken("a", 1)) == []
        assert cache.get("a") is None
        assert "a" in cache
        assert list(cache.keys()) == []

    def test_an_invalid_object_is_reported_once_per_revision(
        self, cache: Table[Thing], invalids: list[Invalid]
    ) -> None:
        listed(cache, broken("a", 1))
        listed(cache, broken("a", 1))
        fold(cache, broken("a", 101))
        listed(cache, broken("a", 101))
        assert [invalid.stored.revision for invalid in invalids] == [1, 101]

    def test_the_error_names_the_type_and_the_field(
        self, cache: Table[Thing], invalids: list[Invalid]
    ) -> None:
        listed(cache, broken("a", 1))
        assert "not a valid Thing" in str(invalids[0].error)
        assert "$.spec.text" in str(invalids[0].error)

    def test_the_next_valid_state_is_a_change_from_the_last_valid_one(
        self, cache: Table[Thing]
    ) -> None:
        listed(cache, applied("a", 1, "one"), broken("b", 2))
        changes = fold(cache, broken("a", 101), applied("a", 102, "two"), applied("b", 103))
        assert [(change.before, change.after) for change in changes] == [
            (stored("a", 1, "one"), stored("a", 102, "two")),
            (None, stored("b", 103)),
        ]
        assert cache.invalid == {}

    def test_a_deletion_has_the_last_valid_state(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1))
        [change] = fold(cache, broken("a", 101), Deleted("a", 102))
        assert (change.before, change.after) == (stored("a", 1), None)
        assert "a" not in cache


class TestIndexes:
    @pytest.fixture
    def cache(self) -> Table[Thing]:
        cache = Table(THINGS, {"group": lambda stored_thing: stored_thing.spec.groups})
        listed(cache, applied("b", 1, "", "x"), applied("a", 2, "", "x", "y"), applied("c", 3))
        return cache

    def keys(self, cache: Table[Thing], group: str) -> list[str]:
        return [entry.key for entry in cache.by_index("group", group)]

    def test_a_changed_object_is_found_by_its_new_values_only(self, cache: Table[Thing]) -> None:
        fold(cache, applied("a", 101, "", "z"))
        assert [self.keys(cache, group) for group in ("x", "y", "z")] == [["b"], [], ["a"]]

    def test_a_deleted_object_is_not_found(self, cache: Table[Thing]) -> None:
        fold(cache, Deleted("a", 101))
        listed(cache, applied("c", 3))
        assert list(cache.index_values("group")) == []

    def test_objects_with_at_least_one_value_are_counted(self, cache: Table[Thing]) -> None:
        assert cache.indexed("group") == 2
        fold(cache, applied("a", 101), Deleted("b", 102))
        assert cache.indexed("group") == 0

    def test_an_object_for_which_the_index_function_fails_is_invalid(self) -> None:
        cache = Table(THINGS, {"first": lambda stored_thing: [stored_thing.spec.groups[0]]})
        changes = listed(cache, applied("a", 1), applied("b", 2, "", "x"))
        assert actions(changes) == [("b", "added")]
        assert "index first" in str(cache.invalid["a"].error)

    def test_an_index_of_an_object_that_is_not_cached_has_its_values(
        self, cache: Table[Thing]
    ) -> None:
        assert cache.index_of("group", THINGS.decode(stored("d", 1, "", "w").value)) == ("w",)

    def test_objects_without_a_value_are_found_valid_or_not(self, cache: Table[Thing]) -> None:
        fold(cache, broken("d", 101))
        assert [key for key in cache.unindexed("group") if key is not None] == ["c", "d"]


class TestIllegalKeys(ReportsInvalid):
    def test_a_message_is_reported_once(self, cache: Table[Thing], invalids: list[Invalid]) -> None:
        listed(cache)
        fold(cache, IllegalKey("?", 101), IllegalKey("?", 102))
        listed(cache, IllegalKey("?", 102))
        assert [invalid.stored for invalid in invalids] == [Stored("?", 101, b"")]

    def test_a_message_that_a_relisting_does_not_contain_is_no_deletion(
        self, cache: Table[Thing]
    ) -> None:
        listed(cache, IllegalKey("?", 1))
        assert listed(cache) == []


class TestWaitingForARevision:
    async def test_passed_waits_until_the_cache_has_the_revision(self, cache: Table[Thing]) -> None:
        listed(cache, revision=0)
        waiting = asyncio.create_task(cache.passed(2))
        fold(cache, applied("a", 1))
        await asyncio.sleep(1)
        assert not waiting.done()
        fold(cache, applied("b", 2))
        await waiting

    async def test_any_later_write_to_the_store_ends_the_wait(self, cache: Table[Thing]) -> None:
        listed(cache, revision=0)
        waiting = asyncio.create_task(cache.passed(2))
        await asyncio.sleep(0)
        fold(cache, Deleted("other", 9))
        await waiting

    async def test_the_end_of_a_listing_ends_the_wait(self, cache: Table[Thing]) -> None:
        waiting = asyncio.create_task(cache.passed(2))
        fold(cache, Listing("1"), applied("a", 2))
        await asyncio.sleep(1)
        assert not waiting.done()
        fold(cache, Listed(2))
        await waiting


class TestStoredObjects:
    def test_a_listed_end_without_a_listing_is_nothing(self, cache: Table[Thing]) -> None:
        assert fold(cache, Listed(5)) == []
        assert not cache.synced.is_set()


class TestWaitingForANewerState:
    async def test_a_newer_state_ends_the_wait(self, cache: Table[Thing]) -> None:
        cache.apply(applied("a", 1))
        waiting = asyncio.create_task(cache.left_behind("a", 1))
        await asyncio.sleep(0)
        cache.apply(applied("a", 2))
        await waiting

    async def test_an_invalid_state_ends_the_wait(self, cache: Table[Thing]) -> None:
        cache.apply(applied("a", 1))
        waiting = asyncio.create_task(cache.left_behind("a", 1))
        await asyncio.sleep(0)
        cache.apply(broken("a", 2))
        await waiting
