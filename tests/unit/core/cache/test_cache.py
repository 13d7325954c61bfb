"""A cache applies watch events of its store and returns the changes."""

import asyncio
from collections.abc import Iterable

import pytest

from natsctl import Invalid
from natsctl.core.table import Keeping, Table, Unread
from natsctl.model.store import (
    Applied,
    Change,
    ChangeType,
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

    def test_an_empty_listing_completes_the_cache(self, cache: Table[Thing]) -> None:
        assert listed(cache, revision=0) == []
        assert cache.synced.is_set()

    def test_changes_of_the_first_listing_are_marked_initial(self, cache: Table[Thing]) -> None:
        [change] = listed(cache, applied("a", 1))
        assert change.initial
        [change] = fold(cache, applied("a", 101))
        assert not change.initial

    def test_an_object_written_during_a_listing_is_one_change(self, cache: Table[Thing]) -> None:
        changes = listed(cache, applied("a", 1, "old"), applied("a", 3, "new"))
        assert [(change.before, change.after) for change in changes] == [
            (None, stored("a", 3, "new"))
        ]

    def test_an_object_deleted_during_a_listing_is_not_in_the_cache(
        self, cache: Table[Thing]
    ) -> None:
        changes = listed(cache, applied("a", 1), Deleted("a", 2), applied("b", 3))
        assert "a" not in cache
        assert actions(changes) == [("b", "added"), ("a", "deleted")]

    def test_an_object_recreated_during_a_listing_is_added(self, cache: Table[Thing]) -> None:
        assert actions(listed(cache, Deleted("a", 1), applied("a", 2))) == [("a", "added")]


class TestRelisting:
    def test_known_objects_are_no_change(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1), applied("b", 2))
        assert listed(cache, applied("a", 1), applied("b", 2)) == []

    def test_only_differences_are_changes(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1, "a"), applied("b", 2), applied("c", 3))
        changes = listed(cache, applied("a", 7, "A"), applied("b", 2), applied("d", 8))
        assert actions(changes) == [("a", "updated"), ("d", "added"), ("c", "deleted")]
        assert changes[0].before == stored("a", 1, "a")
        assert changes[0].after == stored("a", 7, "A")
        assert changes[2].before == stored("c", 3)

    def test_the_former_state_is_readable_until_the_end(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1, "old"))
        fold(cache, Listing("1"), applied("a", 5, "new"), applied("b", 6))
        assert cache.get("a") == stored("a", 1, "old")
        assert list(cache.keys()) == ["a"]
        fold(cache, Listed(6))
        assert cache.get("a") == stored("a", 5, "new")

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

    def test_a_known_object_with_a_delete_marker_is_deleted_once(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1))
        [change] = listed(cache, Deleted("a", 2), revision=2)
        assert change.before == stored("a", 1)

    def test_a_relisting_of_an_empty_store_deletes_everything(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1), applied("b", 2))
        assert actions(listed(cache)) == [("a", "deleted"), ("b", "deleted")]
        assert len(cache) == 0


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

    def test_known_invalid_objects_are_steps(self, cache: Table[Thing]) -> None:
        listed(cache, *(broken(f"k{number}", 100 + number) for number in range(10)))
        fold(cache, Listing("1"), *(broken(f"k{number}", 100 + number) for number in range(10)))
        assert len(list(cache.apply(Listed(200)))) >= 10


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

    def test_the_first_listing_returns_every_marker(self, cache: Table[Thing]) -> None:
        changes = listed(cache, Deleted("a", 1), Deleted("b", 2))
        assert changes == [
            Change(THINGS, "a", None, None, initial=True),
            Change(THINGS, "b", None, None, initial=True),
        ]

    def test_a_relisting_returns_only_new_markers(self, cache: Table[Thing]) -> None:
        listed(cache, Deleted("a", 1), Deleted("b", 2), revision=2)
        changes = listed(cache, Deleted("a", 1), Deleted("b", 2), Deleted("c", 3), revision=3)
        assert [change.key for change in changes] == ["c"]

    def test_a_relisting_does_not_repeat_markers_of_live_changes(self, cache: Table[Thing]) -> None:
        listed(cache, revision=0)
        fold(cache, applied("a", 1), Deleted("a", 2))
        assert listed(cache, Deleted("a", 2), revision=2) == []

    def test_an_object_created_and_deleted_during_a_gap_is_a_change(
        self, cache: Table[Thing]
    ) -> None:
        listed(cache, applied("a", 1), revision=1)
        changes = listed(cache, applied("a", 1), Deleted("b", 3), revision=3)
        assert changes == [Change(THINGS, "b", None, None, initial=True)]

    def test_all_markers_of_another_incarnation_are_new(self, cache: Table[Thing]) -> None:
        listed(cache, Deleted("a", 5), revision=5)
        changes = listed(cache, Deleted("a", 2), incarnation="2", revision=2)
        assert [change.key for change in changes] == ["a"]

    def test_a_live_marker_of_an_unknown_object_is_a_change(self, cache: Table[Thing]) -> None:
        listed(cache, revision=0)
        assert fold(cache, Deleted("a", 2)) == [Change(THINGS, "a", None, None)]

    @pytest.mark.parametrize("purged", [True, False])
    def test_a_live_deletion_is_purged_if_its_marker_is(
        self, cache: Table[Thing], *, purged: bool
    ) -> None:
        listed(cache, applied("a", 1))
        [change] = fold(cache, Deleted("a", 101, purged))
        assert change.purged == purged

    @pytest.mark.parametrize("purged", [True, False])
    def test_a_listed_deletion_is_purged_if_its_marker_is(
        self, cache: Table[Thing], *, purged: bool
    ) -> None:
        listed(cache, applied("a", 1), revision=1)
        changes = listed(cache, Deleted("a", 2, purged), Deleted("b", 3, purged), revision=3)
        assert [change.purged for change in changes] == [purged, purged]

    def test_a_marker_of_a_rewritten_object_is_no_change(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1, "old"), revision=1)
        changes = listed(cache, applied("a", 2), Deleted("a", 3), revision=3)
        assert actions(changes) == [("a", "deleted")]

    def test_a_marker_is_a_deletion(self, cache: Table[Thing]) -> None:
        [change] = listed(cache, Deleted("a", 1))
        assert change.action is ChangeType.DELETED
        assert (change.old, change.new) == (None, None)


class TestLiveEvents:
    @pytest.fixture
    def cache(self) -> Table[Thing]:
        cache = Table(THINGS)
        listed(cache, revision=0)
        return cache

    def test_a_change_has_the_states_before_and_after(self, cache: Table[Thing]) -> None:
        first, second = stored("a", 1, "one"), stored("a", 2, "two")
        changes = fold(cache, Applied(first), Applied(second), Deleted("a", 3))
        assert [(change.before, change.after) for change in changes] == [
            (None, first),
            (first, second),
            (second, None),
        ]
        assert [change.action for change in changes] == [
            ChangeType.ADDED,
            ChangeType.UPDATED,
            ChangeType.DELETED,
        ]

    def test_objects_are_decoded_on_access(self, cache: Table[Thing]) -> None:
        change = fold(cache, applied("a", 1, "one"), applied("a", 2, "two"))[1]
        assert change.old is not None
        assert change.new is not None
        assert (change.old.spec.text, change.new.spec.text) == ("one", "two")

    def test_a_change_is_readable_immediately(self, cache: Table[Thing]) -> None:
        fold(cache, applied("a", 1))
        assert cache.get("a") == stored("a", 1)
        fold(cache, Deleted("a", 2))
        assert cache.get("a") is None

    def test_a_repeated_state_is_no_change(self, cache: Table[Thing]) -> None:
        assert actions(fold(cache, applied("a", 1), applied("a", 1))) == [("a", "added")]

    def test_a_repeated_state_makes_an_invalid_object_valid(self, cache: Table[Thing]) -> None:
        fold(cache, applied("a", 1), broken("a", 2), applied("a", 1))
        assert not cache.invalid

    def test_other_bytes_at_the_same_revision_are_a_change(self, cache: Table[Thing]) -> None:
        changes = fold(cache, applied("a", 1, "old"), applied("a", 1, "new"))
        assert actions(changes) == [("a", "added"), ("a", "updated")]


class TestIncarnation:
    def test_a_new_cache_has_seen_no_revision(self, cache: Table[Thing]) -> None:
        assert (cache.revision, cache.since) == (0, 0)

    def test_since_is_the_revision_of_the_first_listing(self, cache: Table[Thing]) -> None:
        listed(cache, revision=5)
        listed(cache, revision=9)
        assert cache.since == 5

    def test_another_incarnation_replaces_everything(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 7, "old"), applied("b", 8), revision=8)
        changes = listed(cache, applied("a", 1, "new"), incarnation="2", revision=1)
        assert actions(changes) == [("a", "updated"), ("b", "deleted")]
        assert (cache.incarnation, cache.revision) == ("2", 1)

    def test_a_lower_revision_of_another_incarnation_is_accepted(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 7, "old"), revision=7)
        listed(cache, applied("a", 1, "new"), incarnation="2", revision=1)
        assert cache.get("a") == stored("a", 1, "new")

    def test_the_same_bytes_at_the_same_revision_are_no_change(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1))
        assert listed(cache, applied("a", 1), incarnation="2", revision=1) == []

    def test_other_bytes_at_the_same_revision_are_a_change(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1, "old"))
        [change] = listed(cache, applied("a", 1, "new"), incarnation="2", revision=1)
        assert change.action is ChangeType.UPDATED


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

    def test_an_object_restored_to_its_last_valid_revision_is_valid(
        self, cache: Table[Thing]
    ) -> None:
        listed(cache, applied("a", 1))
        fold(cache, broken("a", 101))
        assert listed(cache, applied("a", 1), incarnation="restored") == []
        assert cache.invalid == {}

    def test_a_deletion_has_the_last_valid_state(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1))
        [change] = fold(cache, broken("a", 101), Deleted("a", 102))
        assert (change.before, change.after) == (stored("a", 1), None)
        assert "a" not in cache

    def test_a_relisting_without_the_object_deletes_it_once(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1))
        fold(cache, broken("a", 101))
        [change] = listed(cache)
        assert change.before == stored("a", 1)
        assert "a" not in cache

    def test_a_relisting_without_a_never_valid_object_deletes_it(self, cache: Table[Thing]) -> None:
        listed(cache, broken("a", 1))
        assert listed(cache) == [Change(THINGS, "a", None, None)]
        assert "a" not in cache

    def test_an_invalid_state_within_a_relisting_ends_no_object(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1))
        assert listed(cache, broken("a", 101)) == []
        assert cache.get("a") == stored("a", 1)

    def test_a_valid_state_before_an_invalid_one_in_a_relisting_is_no_change(
        self, cache: Table[Thing]
    ) -> None:
        listed(cache, applied("a", 1))
        assert listed(cache, applied("a", 101, "new"), broken("a", 102)) == []

    def test_an_invalid_object_without_a_valid_state_stays_in_a_relisting(
        self, cache: Table[Thing]
    ) -> None:
        listed(cache, broken("a", 1))
        assert listed(cache, broken("a", 1)) == []
        assert "a" in cache

    def test_other_invalid_bytes_at_the_same_revision_are_reported(
        self, cache: Table[Thing], invalids: list[Invalid]
    ) -> None:
        listed(cache, Applied(Stored("a", 1, b"one")))
        listed(cache, Applied(Stored("a", 1, b"two")), incarnation="2")
        assert [invalid.stored.value for invalid in invalids] == [b"one", b"two"]

    def test_a_repeated_invalid_state_is_reported_once(
        self, cache: Table[Thing], invalids: list[Invalid]
    ) -> None:
        fold(cache, broken("a", 1), broken("a", 1))
        assert len(invalids) == 1

    def test_an_invalid_object_does_not_affect_others(self, cache: Table[Thing]) -> None:
        changes = listed(cache, applied("a", 1), broken("b", 2), applied("c", 3))
        assert actions(changes) == [("a", "added"), ("c", "added")]

    def test_newest_returns_invalid_states_too(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1), broken("b", 2))
        fold(cache, broken("a", 101))
        newest = cache.newest("a")
        assert newest is not None
        assert newest.revision == 101
        assert cache.newest("c") is None


class TestIndexes:
    @pytest.fixture
    def cache(self) -> Table[Thing]:
        cache = Table(THINGS, {"group": lambda stored_thing: stored_thing.spec.groups})
        listed(cache, applied("b", 1, "", "x"), applied("a", 2, "", "x", "y"), applied("c", 3))
        return cache

    def keys(self, cache: Table[Thing], group: str) -> list[str]:
        return [entry.key for entry in cache.by_index("group", group)]

    def test_objects_are_found_by_each_value_in_key_order(self, cache: Table[Thing]) -> None:
        assert self.keys(cache, "x") == ["a", "b"]
        assert self.keys(cache, "y") == ["a"]
        assert self.keys(cache, "z") == []

    def test_a_changed_object_is_found_by_its_new_values_only(self, cache: Table[Thing]) -> None:
        fold(cache, applied("a", 101, "", "z"))
        assert [self.keys(cache, group) for group in ("x", "y", "z")] == [["b"], [], ["a"]]

    def test_a_deleted_object_is_not_found(self, cache: Table[Thing]) -> None:
        fold(cache, Deleted("a", 101))
        listed(cache, applied("c", 3))
        assert list(cache.index_values("group")) == []

    def test_an_invalid_object_is_found_by_its_last_valid_state(self, cache: Table[Thing]) -> None:
        fold(cache, broken("a", 101))
        assert self.keys(cache, "y") == ["a"]

    def test_index_values_are_those_of_existing_objects(self, cache: Table[Thing]) -> None:
        assert sorted(cache.index_values("group")) == ["x", "y"]
        fold(cache, Deleted("a", 101))
        assert sorted(cache.index_values("group")) == ["x"]

    def test_objects_with_at_least_one_value_are_counted(self, cache: Table[Thing]) -> None:
        assert cache.indexed("group") == 2
        fold(cache, applied("a", 101), Deleted("b", 102))
        assert cache.indexed("group") == 0

    def test_a_duplicate_value_counts_once(self, cache: Table[Thing]) -> None:
        fold(cache, applied("d", 101, "", "z", "z"))
        assert self.keys(cache, "z") == ["d"]
        fold(cache, Deleted("d", 102))
        assert self.keys(cache, "z") == []

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

    def test_a_relisted_object_keeps_its_values(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 2, "", "x", "y"))
        assert self.keys(cache, "y") == ["a"]


class TestIllegalKeys(ReportsInvalid):
    def test_a_live_message_is_invalid(self, cache: Table[Thing]) -> None:
        listed(cache)
        fold(cache, IllegalKey("?", 101))
        assert cache.invalid["?"].illegal

    def test_a_listed_message_is_invalid(self, cache: Table[Thing]) -> None:
        listed(cache, IllegalKey("?", 1))
        assert cache.invalid["?"].illegal

    def test_a_delete_marker_ends_the_message(self, cache: Table[Thing]) -> None:
        listed(cache, IllegalKey("?", 1))
        fold(cache, IllegalKey("?", 101, exists=False))
        assert not cache.invalid

    def test_a_delete_marker_of_an_unknown_message_is_nothing(
        self, cache: Table[Thing], invalids: list[Invalid]
    ) -> None:
        listed(cache, IllegalKey("?", 1, exists=False))
        fold(cache, IllegalKey("?", 101, exists=False))
        assert (invalids, dict(cache.invalid)) == ([], {})

    def test_a_message_is_reported_once(self, cache: Table[Thing], invalids: list[Invalid]) -> None:
        listed(cache)
        fold(cache, IllegalKey("?", 101), IllegalKey("?", 102))
        listed(cache, IllegalKey("?", 102))
        assert [invalid.stored for invalid in invalids] == [Stored("?", 101, b"")]

    def test_a_message_moves_the_revision(self, cache: Table[Thing]) -> None:
        listed(cache)
        fold(cache, IllegalKey("?", 101))
        assert cache.revision == 101

    def test_a_message_that_a_relisting_does_not_contain_is_no_deletion(
        self, cache: Table[Thing]
    ) -> None:
        listed(cache, IllegalKey("?", 1))
        assert listed(cache) == []


class TestWaitingForARevision:
    async def test_a_revision_in_the_cache_does_not_wait(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1), revision=5)
        await cache.passed(5)

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

    async def test_each_caller_waits_for_its_own_revision(self, cache: Table[Thing]) -> None:
        passed: list[int] = []

        async def wait(revision: int) -> None:
            await cache.passed(revision)
            passed.append(revision)

        listed(cache, revision=0)
        async with asyncio.TaskGroup() as group:
            for revision in (3, 1, 2):
                group.create_task(wait(revision))
            for revision in (1, 2, 3):
                await asyncio.sleep(1)
                fold(cache, applied("a", revision))
        assert passed == [1, 2, 3]

    async def test_a_cancelled_wait_does_not_affect_others(self, cache: Table[Thing]) -> None:
        listed(cache, revision=0)
        cancelled = asyncio.create_task(cache.passed(1))
        waiting = asyncio.create_task(cache.passed(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        fold(cache, applied("a", 2))
        await waiting

    async def test_a_later_revision_is_not_passed_early(self, cache: Table[Thing]) -> None:
        listed(cache, revision=0)
        later = asyncio.create_task(cache.passed(3))
        await asyncio.sleep(0)
        fold(cache, applied("a", 2))
        await asyncio.sleep(0)
        assert not later.done()
        fold(cache, applied("a", 3))
        await later


class TestStoredObjects:
    def test_valid_and_invalid_objects_are_contained(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1), broken("b", 2))
        assert [key in cache for key in "abc"] == [True, True, False]

    def test_a_cache_is_not_partial(self, cache: Table[Thing]) -> None:
        assert not cache.partial

    def test_a_listed_end_without_a_listing_is_nothing(self, cache: Table[Thing]) -> None:
        assert fold(cache, Listed(5)) == []
        assert not cache.synced.is_set()

    def test_the_length_counts_valid_objects(self, cache: Table[Thing]) -> None:
        listed(cache, applied("a", 1), broken("b", 2))
        assert len(cache) == 1

    def test_a_stored_object_is_returned_unchanged(self, cache: Table[Thing]) -> None:
        unformatted = Stored("a", 1, b'{ "spec": {"text": "hi"},\n "unknown": [1.10] }')
        listed(cache, Applied(unformatted))
        assert cache.get("a") is unformatted


class TestWaitingForANewerState:
    async def test_a_deletion_ends_the_wait(self, cache: Table[Thing]) -> None:
        cache.apply(applied("a", 1))
        cache.apply(applied("b", 7))
        waiting = asyncio.create_task(cache.left_behind("a", 1))
        await asyncio.sleep(0)
        assert not waiting.done()
        cache.apply(Deleted("a", 8))
        await waiting

    async def test_a_newer_state_ends_the_wait(self, cache: Table[Thing]) -> None:
        cache.apply(applied("a", 1))
        waiting = asyncio.create_task(cache.left_behind("a", 1))
        await asyncio.sleep(0)
        cache.apply(applied("a", 2))
        await waiting

    async def test_a_revision_that_is_not_in_the_cache_yet_is_waited_for(
        self, cache: Table[Thing]
    ) -> None:
        cache.apply(applied("b", 1))
        waiting = asyncio.create_task(cache.left_behind("a", 2))
        await asyncio.sleep(0)
        assert not waiting.done()
        cache.apply(applied("a", 2))
        await asyncio.sleep(0)
        assert not waiting.done()
        cache.apply(Deleted("a", 3))
        await waiting

    async def test_a_listing_without_the_object_ends_the_wait(self, cache: Table[Thing]) -> None:
        cache.apply(applied("a", 1))
        waiting = asyncio.create_task(cache.left_behind("a", 1))
        await asyncio.sleep(0)
        cache.apply(Listing())
        cache.apply(Listed(5))
        await waiting

    async def test_an_invalid_state_ends_the_wait(self, cache: Table[Thing]) -> None:
        cache.apply(applied("a", 1))
        waiting = asyncio.create_task(cache.left_behind("a", 1))
        await asyncio.sleep(0)
        cache.apply(broken("a", 2))
        await waiting
