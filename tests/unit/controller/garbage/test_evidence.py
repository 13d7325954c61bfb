"""The remembered state of the bucket of primaries decides what a missing owner proves."""

import asyncio
from typing import Any

import msgspec
import pytest

import natsctl
from natsctl.controller.garbage import MEMORY, SHOWN_S, Evidence, Remembered
from natsctl.core.informer import Informer
from natsctl.errors import ConflictError, StoreTimeoutError
from natsctl.model.store import Deleted, Listed, Listing, WatchEvent
from natsctl.testing import Backup, MemoryStore
from tests.support.stores.sample_objects import Thing, applied

APPS = natsctl.kv(Thing, bucket="apps")
UNKNOWN = "nothing is remembered about the bucket of Thing.apps"
RECREATED = "the bucket of Thing.apps was recreated since it was last seen"


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(MEMORY)


def show(informer: Informer[Any], *events: WatchEvent) -> None:
    for event in events:
        list(informer.table.apply(event))
    informer.store.restore(Backup({}, informer.table.revision))  # type: ignore[attr-defined]  # in memory


def listed(*keys: str, incarnation: str = "1", revision: int = 10) -> Informer[Any]:
    """Return an informer that has listed a bucket; the keys have the revisions from 1."""
    informer = Informer(MemoryStore(APPS), APPS)
    relist(informer, *keys, incarnation=incarnation, revision=revision)
    return informer


def relist(informer: Informer[Any], *keys: str, incarnation: str = "1", revision: int = 10) -> None:
    states = [applied(key, number) for number, key in enumerate(keys, 1)]
    show(informer, Listing(incarnation), *states, Listed(revision))


def started(informer: Informer[Any], memory: MemoryStore) -> Evidence:
    """Return the evidence of a process that has just started."""
    return Evidence(informer, memory, "apps")


async def behind_another_process(memory: MemoryStore) -> Informer[Any]:
    """Return an informer at revision 9 of a bucket that another process has seen at revision 10."""
    await started(listed("a"), memory).review(secondaries=False)
    late = listed("a", revision=9)
    for number in range(10):
        await late.store.create(f"new-{number}", b'{"spec": {}}')
    return late


async def remembered(memory: MemoryStore) -> Remembered:
    return MEMORY.decode((await memory.get("gc.apps")).value)


async def remember(memory: MemoryStore, state: Remembered) -> None:
    await memory.create("gc.apps", msgspec.json.encode(state))


class TestReview:
    async def test_the_bucket_of_a_new_controller_is_trusted_and_remembered(
        self, memory: MemoryStore
    ) -> None:
        evidence = started(listed("a", "b"), memory)
        assert not evidence.remembered
        assert await evidence.review(secondaries=False) == ""
        assert evidence.remembered
        assert await remembered(memory) == Remembered(
            incarnation="1", populated=True, revision=10, owners=2, owners_revision=10
        )

    async def test_an_empty_bucket_is_remembered_as_not_populated(
        self, memory: MemoryStore
    ) -> None:
        await started(listed(), memory).review(secondaries=False)
        state = await remembered(memory)
        assert (state.populated, state.owners) == (False, 0)

    async def test_secondaries_without_a_remembered_state_hold_collection(
        self, memory: MemoryStore
    ) -> None:
        evidence = started(listed("a"), memory)
        assert await evidence.review(secondaries=True) == evidence.held == UNKNOWN
        assert await remembered(memory) == Remembered(
            incarnation="1", populated=False, revision=10, held=UNKNOWN, since=10
        )

    async def test_collection_is_held_over_restarts(self, memory: MemoryStore) -> None:
        bucket = listed("a")
        await started(bucket, memory).review(secondaries=True)
        evidence = started(bucket, memory)
        assert await evidence.review(secondaries=False) == evidence.held == UNKNOWN

    async def test_a_recreated_bucket_holds_collection_and_keeps_the_number_of_owners(
        self, memory: MemoryStore
    ) -> None:
        await started(listed("a", "b"), memory).review(secondaries=False)
        before = await remembered(memory)
        evidence = started(listed("a", incarnation="2"), memory)
        assert await evidence.review(secondaries=False) == RECREATED
        assert await remembered(memory) == msgspec.structs.replace(
            before, incarnation="2", held=RECREATED, since=10
        )

    async def test_a_bucket_that_is_replaced_while_a_process_runs_holds_collection(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a", incarnation="1#x")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        relist(bucket, "a", incarnation="1#y")
        assert not evidence.remembered
        assert "was recreated or restored" in await evidence.review(secondaries=False)

    async def test_another_process_may_name_the_same_bucket_differently(
        self, memory: MemoryStore
    ) -> None:
        await started(listed("a", incarnation="1#x"), memory).review(secondaries=False)
        assert await started(listed("a", incarnation="1#y"), memory).review(secondaries=True) == ""

    async def test_a_watch_that_is_behind_another_process_does_not_hold_collection(
        self, memory: MemoryStore
    ) -> None:
        late = await behind_another_process(memory)
        review = asyncio.create_task(started(late, memory).review(secondaries=False))
        await asyncio.sleep(SHOWN_S / 2)
        assert not review.done()
        show(late, applied("a", 10))
        assert await review == ""

    async def test_a_watch_that_stays_behind_fails_the_review_and_holds_nothing(
        self, memory: MemoryStore
    ) -> None:
        late = await behind_another_process(memory)
        evidence = started(late, memory)
        with pytest.raises(StoreTimeoutError, match=r"is at revision 9, .* has seen revision 10"):
            await evidence.review(secondaries=False)
        assert evidence.held == (await remembered(memory)).held == ""

    @pytest.mark.parametrize(("revision", "older"), [(9, True), (10, False), (11, False)])
    async def test_an_older_copy_of_the_bucket_holds_collection(
        self, memory: MemoryStore, revision: int, *, older: bool
    ) -> None:
        await started(listed("a"), memory).review(secondaries=False)
        evidence = started(listed("a", revision=revision), memory)
        reason = await evidence.review(secondaries=False)
        assert ("an older copy was restored" in reason) is older

    async def test_a_watch_of_a_part_that_is_behind_the_whole_bucket_does_not_hold_collection(
        self, memory: MemoryStore
    ) -> None:
        part = listed("a", revision=10)
        await part.store.create("others", b"{}")  # at revision 11, and not of this part
        part.store.vanish("others")  # type: ignore[attr-defined]  # in memory
        await remember(memory, Remembered(incarnation="1", populated=True, revision=11))
        assert await started(part, memory).review(secondaries=True) == ""

    async def test_collection_resumes_in_a_bucket_that_another_process_accepts(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a")
        evidence, other_evidence = started(bucket, memory), started(bucket, memory)
        await evidence.review(secondaries=True)
        await other_evidence.review(secondaries=True)
        await other_evidence.accept()
        assert await evidence.review(secondaries=True) == evidence.held == ""


class TestProofs:
    async def test_a_deletion_since_an_older_copy_was_restored_is_proven_after_restarts_too(
        self, memory: MemoryStore
    ) -> None:
        await started(listed("a", revision=20), memory).review(secondaries=False)
        assert "older copy" in await started(listed("a", revision=15), memory).review(
            secondaries=True
        )
        evidence = started(listed("a", revision=18), memory)
        proven = [await evidence.proves(revision) for revision in (15, 16, 18)]
        assert (proven, bool(evidence.held)) == ([False, True, True], True)

    async def test_a_second_older_copy_proves_only_what_was_deleted_since(
        self, memory: MemoryStore
    ) -> None:
        await started(listed("a", revision=20), memory).review(secondaries=False)
        first = listed("a", revision=15)
        evidence = started(first, memory)
        await evidence.review(secondaries=True)
        show(first, applied("a", 19))
        await evidence.save()
        evidence = started(listed("a", revision=17), memory)
        assert [await evidence.proves(revision) for revision in (16, 17, 18)] == [
            False,
            False,
            True,
        ]

    async def test_a_record_without_the_revision_of_the_replacement_proves_only_later_deletions(
        self, memory: MemoryStore
    ) -> None:
        await remember(memory, Remembered(incarnation="1", populated=True, held="by 0.2.0"))
        evidence = started(listed("a", revision=10), memory)
        assert [await evidence.proves(revision) for revision in (10, 11)] == [False, True]

    async def test_only_a_deletion_after_the_listing_is_proven_while_collection_is_held(
        self, memory: MemoryStore
    ) -> None:
        evidence = started(listed("a", revision=10), memory)
        assert [await evidence.proves(revision) for revision in (9, 10, 11)] == [False, False, True]

    async def test_each_deletion_in_a_remembered_bucket_is_proven(
        self, memory: MemoryStore
    ) -> None:
        await started(listed("a"), memory).review(secondaries=False)
        assert await started(listed("a"), memory).proves(1)

    async def test_a_deletion_in_a_bucket_that_was_replaced_since_the_review_is_not_proven(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        assert await evidence.proves(1)
        relist(bucket, "a", incarnation="2")
        assert not await evidence.proves(1)


class TestVanished:
    """Owners that vanished without a delete marker."""

    async def test_owners_that_vanished_while_no_process_ran_are_counted(
        self, memory: MemoryStore
    ) -> None:
        await started(listed("a", "b", "c", "d"), memory).review(secondaries=False)
        evidence = started(listed("a"), memory)
        assert await evidence.review(secondaries=True) == ""
        assert evidence.vanished(3) == (
            "3 of 4 owners vanished from the bucket of Thing.apps without a delete marker"
        )

    async def test_no_more_owners_vanished_than_the_cache_lacks(self, memory: MemoryStore) -> None:
        await started(listed("a", "b", "c", "d"), memory).review(secondaries=False)
        evidence = started(listed("a", "b", "c"), memory)
        await evidence.review(secondaries=True)
        assert evidence.vanished(100) == ""

    @pytest.mark.parametrize(("changed", "refused"), [(False, False), (True, True)])
    async def test_half_of_the_owners_may_vanish_if_another_one_has_not_changed(
        self, memory: MemoryStore, *, changed: bool, refused: bool
    ) -> None:
        bucket = listed("a", "b", revision=10)
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, Deleted("b", 11))
        if changed:
            show(bucket, applied("a", 12))
        assert bool(evidence.vanished(1)) is refused

    @pytest.mark.parametrize("vanished", ["a", "b"])
    async def test_half_of_the_owners_may_vanish_if_the_last_listed_one_is_left(
        self, memory: MemoryStore, vanished: str
    ) -> None:
        bucket = listed("a", "b", revision=2)
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, Deleted(vanished, 3))
        assert evidence.vanished(1) == ""

    async def test_two_of_four_owners_may_not_vanish_if_the_others_have_changed(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a", "b", "c", "d")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, Deleted("a", 11), Deleted("b", 12), applied("c", 13), applied("d", 14))
        assert "2 of 4 owners vanished" in evidence.vanished(2)

    async def test_owners_that_were_seen_since_the_last_review_may_not_all_vanish(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed()
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, applied("a", 11), Deleted("a", 12))
        assert "is empty" in evidence.vanished(1)

    async def test_owners_that_a_later_listing_lacks_are_counted(self, memory: MemoryStore) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, applied("b", 11), applied("c", 12))
        relist(bucket, "a", revision=12)
        assert evidence.vanished(2) == (
            "2 of 3 owners vanished from the bucket of Thing.apps without a delete marker"
        )

    async def test_a_change_while_no_owner_is_missing_does_not_count(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a", "b", revision=10)
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, applied("a", 11), Deleted("b", 12))
        assert evidence.vanished(1) == ""

    async def test_no_owner_may_vanish_with_the_last_one(self, memory: MemoryStore) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, Deleted("a", 11))
        empty = "the bucket of Thing.apps is empty, although owners were seen in it"
        assert evidence.vanished(1) == empty

    async def test_a_bucket_that_was_populated_in_version_0_1_must_not_be_empty(
        self, memory: MemoryStore
    ) -> None:
        await remember(memory, Remembered(incarnation="1", populated=True, revision=5))
        evidence = started(listed(), memory)
        await evidence.review(secondaries=True)
        assert "is empty" in evidence.vanished(1)

    async def test_a_bucket_without_owners_from_the_start_may_be_empty(
        self, memory: MemoryStore
    ) -> None:
        await started(listed(), memory).review(secondaries=False)
        evidence = Evidence(listed(), memory, "apps")
        await evidence.review(secondaries=True)
        assert evidence.vanished(1) == ""

    async def test_no_missing_owner_is_no_reason(self, memory: MemoryStore) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, applied("a", 11))
        assert evidence.vanished(0) == ""


class TestAccepting:
    async def test_an_accepted_bucket_is_remembered_as_it_is(self, memory: MemoryStore) -> None:
        await started(listed("a", "b"), memory).review(secondaries=False)
        evidence = started(listed("a", incarnation="2", revision=3), memory)
        await evidence.review(secondaries=True)
        await evidence.accept()
        assert evidence.held == ""
        assert await remembered(memory) == Remembered(
            incarnation="2", populated=True, revision=3, owners=1, owners_revision=3
        )

    async def test_a_bucket_that_was_not_reviewed_cannot_be_accepted(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        relist(bucket, "a", incarnation="2")
        with pytest.raises(ConflictError, match="was replaced just now"):
            await evidence.accept()

    @pytest.mark.parametrize(
        ("keys", "orphans", "settled"),
        [("ab", False, True), ("abc", False, True), ("ab", True, False), ("a", False, False)],
    )
    async def test_a_held_bucket_is_accepted_once_every_owner_is_back(
        self, memory: MemoryStore, keys: str, *, orphans: bool, settled: bool
    ) -> None:
        await started(listed("a", "b"), memory).review(secondaries=False)
        evidence = started(listed(*keys, incarnation="2"), memory)
        await evidence.review(secondaries=True)
        await evidence.settle(orphans=orphans)
        assert (evidence.held == "") is settled

    async def test_a_trusted_bucket_is_accepted_with_fewer_owners(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a", "b")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, Deleted("b", 11))
        await evidence.settle(orphans=True)
        state = await remembered(memory)
        assert (state.owners, state.owners_revision, state.revision) == (1, 11, 11)

    async def test_a_bucket_that_was_replaced_since_the_review_is_not_settled(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        relist(bucket, "a", incarnation="2")
        await evidence.settle(orphans=False)
        assert (await remembered(memory)).incarnation == "1"

    async def test_a_saved_state_has_the_newest_revision_and_all_owners(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, applied("b", 11))
        await evidence.save()
        state = await remembered(memory)
        assert (state.owners, state.owners_revision, state.revision) == (2, 11, 11)

    async def test_the_first_reason_to_hold_collection_stays(self, memory: MemoryStore) -> None:
        bucket = listed("a")
        evidence, other_evidence = started(bucket, memory), started(bucket, memory)
        await evidence.review(secondaries=False)
        await other_evidence.review(secondaries=False)
        await evidence.hold("first")
        await other_evidence.hold("second")
        assert (evidence.held, other_evidence.held) == ("first", "first")
        assert (await remembered(memory)).held == "first"

    async def test_a_state_is_saved_only_for_a_trusted_and_reviewed_bucket(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.save()
        assert memory.keys() == []
        await evidence.review(secondaries=True)
        await evidence.save()
        assert (await remembered(memory)).held == UNKNOWN

    async def test_a_state_that_another_process_holds_is_not_replaced_by_a_saved_one(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a")
        evidence, other_evidence = started(bucket, memory), started(bucket, memory)
        await evidence.review(secondaries=False)
        await other_evidence.review(secondaries=False)
        await other_evidence.hold("stop")
        show(bucket, applied("b", 11))
        await evidence.save()
        assert (await remembered(memory)).held == "stop"
        assert await evidence.review(secondaries=True) == "stop"
        await evidence.accept()
        assert (await remembered(memory)).held == ""

    async def test_an_unchanged_state_is_not_written_again(self, memory: MemoryStore) -> None:
        evidence = started(listed("a"), memory)
        await evidence.review(secondaries=False)
        before = await memory.get("gc.apps")
        await evidence.save()
        await evidence.accept()
        assert await memory.get("gc.apps") == before

    async def test_fewer_owners_do_not_lower_the_number_until_they_are_accepted(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a", "b", "c", "d")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        show(bucket, Deleted("b", 11), Deleted("c", 12), Deleted("d", 13))
        assert "3 of 4 owners" in evidence.vanished(3)
        await evidence.accept()
        assert evidence.vanished(3) == ""
