"""The remembered state of the bucket of primaries decides what a missing owner proves."""

from typing import Any

import msgspec
import pytest

import natsctl
from natsctl.controller.garbage import MEMORY, Evidence, Remembered
from natsctl.core.informer import Informer
from natsctl.model.store import Deleted, Listed, Listing, WatchEvent
from natsctl.testing import Backup, MemoryStore
from tests.support.stores.sample_objects import Thing, applied

APPS = natsctl.kv(Thing, bucket="apps")


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


async def remembered(memory: MemoryStore) -> Remembered:
    return MEMORY.decode((await memory.get("gc.apps")).value)


async def remember(memory: MemoryStore, state: Remembered) -> None:
    await memory.create("gc.apps", msgspec.json.encode(state))


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


class TestAccepting:
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

    async def test_a_bucket_that_was_replaced_since_the_review_is_not_settled(
        self, memory: MemoryStore
    ) -> None:
        bucket = listed("a")
        evidence = started(bucket, memory)
        await evidence.review(secondaries=False)
        relist(bucket, "a", incarnation="2")
        await evidence.settle(orphans=False)
        assert (await remembered(memory)).incarnation == "1"

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
