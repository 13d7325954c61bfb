"""Garbage collection plans: orphaned secondaries, refusals and limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

import natsctl
from natsctl import GarbageLimits, GarbagePlan, Orphan, OwnerNames, Secondary
from natsctl.controller.garbage.collector import BEGIN_S, GarbageCollector
from natsctl.controller.garbage.evidence import MEMORY, Evidence
from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.controller.slots.owners import Owner
from natsctl.core.informer import Informer
from natsctl.core.sync import Sync
from natsctl.core.writes import Writes
from natsctl.errors import (
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.model.store import Listed, Listing, Stored
from natsctl.testing import MemoryStore, VirtualTimeLoop
from tests.support.stores.sample_objects import (
    THINGS,
    Thing,
    applied,
    caught_up,
    informed,
    thing,
    value,
)

APPS = natsctl.kv(Thing, bucket="apps")
PARTS = natsctl.kv(Thing, bucket="parts")
OWNER_KIND = APPS.name
NAMES = OwnerNames()
LIMITS = GarbageLimits(grace_s=60, count_max=20, share_max=0.5, share_from=4)


class RacingStore(MemoryStore):
    """A store in which another client changes an object just after a read, if `races` is set."""

    races = False

    async def get(self, key: str) -> Stored:
        stored = await super().get(key)
        if self.races:
            await self.update(key, stored.value + b" ", revision=stored.revision)
        return stored


class ReplacedStore(MemoryStore):
    """A store whose bucket is replaced by a copy during the next read, if `replaces` is set.

    The read ends after the watch has listed the new bucket.
    """

    replaces = False

    async def get(self, key: str) -> Stored:
        if self.replaces:
            self.replaces = False
            stored = self.stored()
            self.recreate()
            for kept in stored:
                await self.create(kept.key, kept.value)
            await asyncio.sleep(10)
        return await super().get(key)


class Yard:
    """Apps that own parts and things, and a collector."""

    def __init__(self) -> None:
        self.things, self.memory = (MemoryStore(kind) for kind in (THINGS, MEMORY))
        self.apps = ReplacedStore(APPS)
        self.parts = RacingStore(PARTS)
        self.primary = Informer(self.apps, APPS)
        self.secondaries = [self._secondary(store) for store in (self.parts, self.things)]
        self.collector = self.collect()

    def collect(self, limits: GarbageLimits = LIMITS, paused: str = "") -> GarbageCollector:
        """Return a collector that has just started."""
        evidence = Evidence(self.primary, self.memory, "apps")

        async def reason(_owner: str) -> str:
            return paused

        return GarbageCollector(self.primary, self.secondaries, evidence, limits, reason)

    def _secondary(self, store: MemoryStore) -> Secondary[Thing]:
        kind = store.kind
        indexes = {OWNER_INDEX: NAMES.index(kind, OWNER_KIND)}
        informer: Informer[Any] = Informer(store, kind, indexes=indexes)
        return Secondary(informer, Writes(), NAMES, OWNER_KIND)

    @property
    def informers(self) -> list[Informer[Any]]:
        return [self.primary, *(secondary.informer for secondary in self.secondaries)]

    async def app(self, *keys: str) -> None:
        """Create apps, each with one part."""
        for key in keys:
            await self.apps.create(key, value())
            await self.part(key)

    async def part(self, owner: str, key: str = "", kind: str = OWNER_KIND) -> None:
        """Create a part that names an app as its owner."""
        owner_ref = Owner(kind, owner)
        labels, annotations = NAMES.labels(owner_ref), NAMES.annotations(owner_ref)
        text = value(labels=labels, annotations=annotations)
        await self.parts.create(key or f"{owner}.part", text)

    async def synced(self) -> None:
        """Wait until every cache shows its store."""
        for informer, store in zip(
            self.informers, (self.apps, self.parts, self.things), strict=True
        ):
            await caught_up(informer, store)
        await asyncio.sleep(10)

    async def plan(self) -> GarbagePlan:
        """Return the plan after the grace period is over."""
        await self.synced()
        await self.collector.plan()
        await asyncio.sleep(LIMITS.grace_s)
        return await self.collector.plan()


@pytest.fixture
async def yard() -> AsyncIterator[Yard]:
    yard = Yard()
    async with AsyncExitStack() as stack:
        for informer in yard.informers:
            await stack.enter_async_context(informed(informer))
        await yard.synced()
        await yard.collector.begin()  # the buckets are still empty
        yield yard


def keys(plan: GarbagePlan) -> list[str]:
    return [orphan.key for orphan in plan.orphans]


class TestOrphans:
    async def test_a_secondary_with_an_owner_is_no_orphan(self, yard: Yard) -> None:
        await yard.app("shop")
        plan = await yard.plan()
        assert (plan.orphans, plan.refused) == ((), "")

    async def test_a_secondary_of_a_deleted_owner_is_a_proven_orphan(self, yard: Yard) -> None:
        await yard.app("shop", "bar")
        deleted_at = await yard.apps.delete("shop")
        plan = await yard.plan()
        assert plan.refused == ""
        assert plan.orphans == (
            Orphan(
                kind="Thing.parts",
                key="shop.part",
                revision=1,
                owner="shop",
                reason=f"owner shop was deleted at revision {deleted_at}",
                proven=True,
                suspected_s=60.0,
                due=True,
            ),
        )

    async def test_a_secondary_of_an_owner_that_never_existed_is_an_unproven_orphan(
        self, yard: Yard
    ) -> None:
        await yard.app("bar")
        await yard.part("shop")
        [orphan] = (await yard.plan()).orphans
        assert not orphan.proven
        assert "no delete marker proves its deletion" in orphan.reason

    async def test_an_orphan_is_due_after_the_grace_period(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        await yard.synced()
        due = []
        for _ in range(4):
            due += [orphan.due for orphan in (await yard.collector.plan()).orphans]
            await asyncio.sleep(30)
        assert due == [False, False, True, True]

    async def test_an_owner_that_returns_restarts_the_grace_period(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        assert [orphan.due for orphan in (await yard.plan()).orphans] == [True]
        created = await yard.apps.create("shop", value())
        await yard.synced()
        assert keys(await yard.collector.plan()) == []
        await yard.apps.delete("shop", revision=created.revision)
        await yard.synced()
        assert [orphan.due for orphan in (await yard.collector.plan()).orphans] == [False]

    async def test_orphans_of_all_kinds_are_listed_in_order(self, yard: Yard) -> None:
        await yard.app("bar")
        for key in ("z", "b"):
            await yard.part("shop", key)
        with Sync("shop"):
            await yard.secondaries[1].apply("a", thing("hi"))
        plan = await yard.plan()
        assert [(orphan.kind, orphan.key) for orphan in plan.orphans] == [
            ("Thing.parts", "b"),
            ("Thing.parts", "z"),
            ("Thing.things", "a"),
        ]

    async def test_a_secondary_of_another_primary_kind_is_no_orphan(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop", kind="Other.apps")
        assert keys(await yard.plan()) == []

    async def test_an_object_without_an_owner_is_no_orphan(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.parts.create("x", value())
        assert keys(await yard.plan()) == []

    async def test_an_invalid_owner_counts_as_existing(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.apps.create("shop", b"no JSON")
        await yard.part("shop")
        assert keys(await yard.plan()) == []

    async def test_an_invalid_owner_key_does_not_hide_other_orphans(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("no..key", "x")
        await yard.part("shop")
        plan = await yard.plan()
        assert plan.refused == ""
        assert keys(plan) == ["shop.part"]


class TestConfirmation:
    async def test_an_owner_missing_only_from_the_cache_counts_as_existing(
        self, yard: Yard
    ) -> None:
        await yard.app("shop", "bar")
        await yard.synced()
        stale = Informer(yard.apps, APPS)
        for event in (Listing("1"), applied("other", 1), Listed(1)):
            list(stale.cache.apply(event))
        evidence = Evidence(stale, MemoryStore(MEMORY), "x")
        collector = GarbageCollector(stale, yard.secondaries, evidence, LIMITS)
        plan = await collector.plan()
        assert (plan.orphans, plan.refused) == ((), "")

    async def test_an_unreadable_primary_store_yields_no_orphans(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        await yard.synced()
        yard.apps.fail(PermissionDeniedError("not you"))
        plan = await yard.collector.plan()
        assert (keys(plan), plan.refused) == ([], "the owners cannot be read: not you")

    async def test_an_unreadable_evidence_store_yields_no_orphans(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        await yard.synced()
        yard.memory.fail(StoreError("broken"))
        plan = await yard.collector.plan()
        assert (keys(plan), plan.refused) == ([], "the owners cannot be read: broken")


class TestRefusal:
    async def test_a_plan_is_refused_until_every_cache_is_synced(self) -> None:
        yard = Yard()
        async with AsyncExitStack() as stack:
            for informer in yard.informers:
                plan = await yard.collector.plan()
                assert "has not been listed completely yet" in plan.refused
                assert plan.orphans == ()
                await stack.enter_async_context(informed(informer))
            assert (await yard.collector.plan()).refused == ""

    @pytest.mark.parametrize("number", [0, 1])
    async def test_a_plan_is_refused_while_a_bucket_is_missing(
        self, yard: Yard, number: int
    ) -> None:
        await yard.app("bar")
        await yard.part("shop")
        await yard.synced()
        (yard.apps, yard.parts)[number].fail(StoreMissingError("bucket x does not exist"))
        await asyncio.sleep(1)
        assert await yard.collector.plan() == GarbagePlan((), "bucket x does not exist")

    async def test_a_plan_is_refused_if_the_bucket_is_found_missing_first(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        await yard.synced()
        yard.apps.fail(StoreMissingError("bucket x does not exist"))  # no watch has noticed it
        assert await yard.collector.plan() == GarbagePlan((), "bucket x does not exist")

    async def test_a_plan_is_refused_after_the_bucket_was_recreated(self, yard: Yard) -> None:
        await yard.app("shop", "bar")
        assert (await yard.plan()).refused == ""
        yard.apps.recreate()
        await yard.apps.create("bar", value())
        plan = await yard.plan()
        assert plan.refused == "the bucket of Thing.apps was recreated since it was last seen"
        assert keys(plan) == ["shop.part"]

    async def test_a_plan_is_refused_if_the_bucket_is_recreated_while_owners_are_read(
        self, yard: Yard
    ) -> None:
        await yard.app("shop", "bar", "pub")
        await yard.plan()
        await yard.apps.delete("shop")
        await yard.synced()
        yard.apps.replaces = True
        plan = await yard.collector.plan(at_once=True)
        assert keys(plan) == ["shop.part"]
        assert plan.refused == "the bucket of primaries was recreated just now"

    async def test_a_plan_is_refused_if_the_bucket_was_recreated_before_a_restart(
        self, yard: Yard
    ) -> None:
        await yard.app("shop", "bar")
        await yard.plan()
        yard.apps.recreate()
        await yard.apps.create("bar", value())
        yard.collector = yard.collect()
        assert "was recreated since it was last seen" in (await yard.plan()).refused

    async def test_a_plan_is_refused_if_a_bucket_that_had_owners_is_empty(self, yard: Yard) -> None:
        await yard.app("shop", "bar")
        await yard.plan()
        yard.apps.vanish("shop", "bar")
        yard.apps.break_watches()
        plan = await yard.plan()
        assert plan.refused == "the bucket of Thing.apps is empty, although owners were seen in it"
        assert keys(plan) == ["bar.part", "shop.part"]

    async def test_a_plan_is_refused_if_secondaries_exist_but_no_evidence(self, yard: Yard) -> None:
        await yard.part("shop")
        await yard.memory.delete("gc.apps")
        plan = await yard.plan()
        assert plan.refused == "nothing is remembered about the bucket of Thing.apps"
        assert keys(plan) == ["shop.part"]

    async def test_a_plan_is_accepted_if_every_orphan_is_proven(self, yard: Yard) -> None:
        await yard.app("shop", "bar")
        await yard.plan()
        for key in ("shop", "bar"):
            await yard.apps.delete(key)
        plan = await yard.plan()
        assert plan.refused == ""
        assert keys(plan) == ["bar.part", "shop.part"]

    async def test_a_plan_is_accepted_if_the_bucket_became_empty_under_watch(
        self, yard: Yard
    ) -> None:
        await yard.app("bar")
        await yard.plan()
        await yard.apps.delete("bar")
        await yard.plan()
        await yard.parts.delete("bar.part")
        await yard.part("shop")
        plan = await yard.plan()
        assert (plan.refused, keys(plan)) == ("", ["shop.part"])

    async def test_a_plan_without_orphans_is_accepted_after_the_bucket_was_recreated(
        self, yard: Yard
    ) -> None:
        await yard.app("shop")
        await yard.plan()
        yard.apps.recreate()
        await yard.apps.create("shop", value())
        assert (await yard.plan()).refused == ""

    async def test_a_refused_cycle_records_no_evidence(self, yard: Yard) -> None:
        await yard.app("shop", "bar")
        await yard.plan()
        yard.apps.recreate()
        await yard.apps.create("bar", value())
        for _ in range(3):
            assert "was recreated" in (await yard.plan()).refused

    async def test_vanished_owners_stay_refused_after_a_restart(self, yard: Yard) -> None:
        await yard.app("a", "b", "c", "d")
        await yard.plan()
        yard.apps.vanish("a", "b", "c")
        yard.apps.break_watches()
        refused = (await yard.plan()).refused
        assert "3 of 4 owners vanished" in refused
        yard.collector = yard.collect()
        assert (await yard.plan()).refused == refused


class TestBegin:
    """The bucket of primaries is compared with its remembered state before the first sync."""

    async def test_a_start_waits_until_the_store_answers(self, yard: Yard) -> None:
        collector = yard.collect()
        yard.memory.fail(StoreTimeoutError("no answer"))
        beginning = asyncio.create_task(collector.begin())
        await asyncio.sleep(BEGIN_S / 2)
        assert not beginning.done()
        yard.memory.fail(None)
        await beginning
        assert collector.evidence.remembered

    async def test_a_start_does_not_wait_longer_for_a_store_that_never_answers(
        self, yard: Yard
    ) -> None:
        collector, clock = yard.collect(), asyncio.get_running_loop().time
        yard.memory.fail(StoreTimeoutError("no answer"))
        began = clock()
        await collector.begin()
        assert BEGIN_S < clock() - began < BEGIN_S + 10
        assert not collector.evidence.remembered

    async def test_a_start_tries_again_after_the_machine_has_slept(self, yard: Yard) -> None:
        collector, loop = yard.collect(), asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        yard.memory.fail(StoreTimeoutError("no answer"))
        beginning = asyncio.create_task(collector.begin())
        await asyncio.sleep(0)
        loop.jump(10 * BEGIN_S)
        await asyncio.sleep(0.1)
        assert not beginning.done()
        yard.memory.fail(None)
        await beginning
        assert collector.evidence.remembered

    async def test_a_start_does_not_wait_for_a_store_that_refuses(self, yard: Yard) -> None:
        collector, clock = yard.collect(), asyncio.get_running_loop().time
        yard.memory.fail(PermissionDeniedError("no read"))
        began = clock()
        await collector.begin()
        assert clock() == began

    async def test_a_bucket_that_was_replaced_is_reviewed_at_the_next_start(
        self, yard: Yard
    ) -> None:
        await yard.app("shop")
        await yard.plan()
        yard.apps.recreate()
        await yard.synced()
        await yard.collector.begin()
        assert "was recreated" in yard.collector.evidence.held


class TestLimits:
    async def orphans(self, yard: Yard, alive: int, deleted: int) -> GarbagePlan:
        await yard.app(*(f"alive{number}" for number in range(alive)))
        for number in range(deleted):
            await yard.part("shop", f"part{number}")
        return await yard.plan()

    async def test_more_orphans_than_the_maximum_are_refused(self, yard: Yard) -> None:
        plan = await self.orphans(yard, 50, 21)
        assert plan.refused == "21 objects would go, more than 20 at once"
        assert len(plan.orphans) == 21

    async def test_exactly_the_maximum_of_orphans_is_accepted(self, yard: Yard) -> None:
        assert (await self.orphans(yard, 50, 20)).refused == ""

    async def test_a_larger_share_than_the_maximum_is_refused(self, yard: Yard) -> None:
        plan = await self.orphans(yard, 5, 6)
        assert plan.refused == "6 of 11 objects would go, more than 50%"

    async def test_exactly_the_maximum_share_is_accepted(self, yard: Yard) -> None:
        assert (await self.orphans(yard, 6, 6)).refused == ""

    async def test_the_share_is_not_limited_for_a_few_orphans(self, yard: Yard) -> None:
        assert (await self.orphans(yard, 1, 4)).refused == ""
        assert keys(await yard.plan()) != []

    async def test_proven_orphans_count_against_the_limits(self, yard: Yard) -> None:
        await yard.app(*(f"app{number}" for number in range(6)))
        for number in range(6):
            await yard.apps.delete(f"app{number}")
        assert "6 of 6 objects would go" in (await yard.plan()).refused

    async def test_orphans_that_are_not_due_do_not_count(self, yard: Yard) -> None:
        await yard.app("bar")
        for number in range(30):
            await yard.part("shop", f"part{number}")
        await yard.synced()
        assert (await yard.collector.plan()).refused == ""

    async def test_only_some_orphans_are_checked_and_the_others_are_counted(
        self, yard: Yard
    ) -> None:
        await yard.app("bar")
        for number in range(3):
            await yard.part("shop", f"part{number}")
        await yard.synced()
        plan = await yard.collector.plan(orphans_max=2)
        assert (keys(plan), plan.more) == (["part0", "part1"], 1)

    async def test_orphans_that_were_not_checked_count_against_the_limits(self, yard: Yard) -> None:
        await self.orphans(yard, 50, 21)
        plan = await yard.collector.plan(orphans_max=1)
        assert plan.refused == "21 objects would go, more than 20 at once"

    async def test_a_plan_at_once_ignores_the_grace_period(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        await yard.synced()
        assert [orphan.due for orphan in (await yard.collector.plan()).orphans] == [False]
        plan = await yard.collector.plan(at_once=True)
        assert [orphan.due for orphan in plan.orphans] == [True]

    async def test_orphans_of_paused_owners_do_not_count(self, yard: Yard) -> None:
        yard.collector = yard.collect(paused="shop is paused")
        plan = await self.orphans(yard, 50, 21)
        assert plan.refused == ""
        assert {orphan.held for orphan in plan.orphans} == {"shop is paused"}

    async def test_an_invalid_object_is_no_orphan(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        await yard.synced()
        stored = await yard.parts.get("shop.part")
        await yard.parts.update("shop.part", b"?", revision=stored.revision)
        assert keys(await yard.plan()) == []


class TestApply:
    async def test_apply_keeps_the_objects_of_paused_owners(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        removed = await yard.collect(paused="paused").apply(plan)
        assert [(kept.orphan.key, kept.reason) for kept in removed.kept] == [
            ("shop.part", "paused")
        ]
        assert yard.parts.keys() == ["bar.part", "shop.part"]

    async def test_a_bucket_is_not_accepted_while_other_orphans_remain(self, yard: Yard) -> None:
        await yard.app("shop", "inn", "bar")
        await yard.plan()
        yard.apps.recreate()
        await yard.apps.create("bar", value())
        plan = await yard.plan()
        assert keys(plan) == ["inn.part", "shop.part"]
        await yard.collector.apply(msgspec.structs.replace(plan, orphans=plan.orphans[:1]))
        await yard.synced()
        plan = await yard.plan()
        assert "was recreated" in plan.refused
        assert keys(plan) == ["shop.part"]

    async def test_apply_deletes_and_returns_the_planned_orphans(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        assert (await yard.collector.apply(plan)).orphans == plan.orphans
        assert yard.parts.keys() == ["bar.part"]

    async def test_a_refused_plan_can_be_applied_by_hand(self, yard: Yard) -> None:
        await yard.app("shop", "bar")
        await yard.plan()
        yard.apps.recreate()
        await yard.apps.create("bar", value())
        plan = await yard.plan()
        assert plan.refused
        await yard.collector.apply(plan)
        assert yard.parts.keys() == ["bar.part"]
        assert (await yard.plan()).refused == ""

    async def test_apply_deletes_only_planned_orphans(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        await yard.part("shop", "new")
        await yard.synced()
        await yard.collector.apply(plan)
        assert yard.parts.keys() == ["bar.part", "new"]

    async def test_apply_keeps_an_object_that_changed_after_the_plan(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        stored = await yard.parts.get("shop.part")
        await yard.parts.update("shop.part", stored.value + b" ", revision=stored.revision)
        removed = await yard.collector.apply(plan)
        assert removed.orphans == ()
        assert [kept.reason for kept in removed.kept] == [
            "it changed: it is at revision 3, not at 2"
        ]
        assert yard.parts.keys() == ["bar.part", "shop.part"]

    async def test_apply_keeps_an_object_that_changes_just_before_its_deletion(
        self, yard: Yard
    ) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        yard.parts.races = True
        [kept] = (await yard.collector.apply(plan)).kept
        assert kept.orphan.key == "shop.part"
        assert yard.parts.keys() == ["bar.part", "shop.part"]

    async def test_apply_does_not_return_an_object_that_was_deleted_after_the_plan(
        self, yard: Yard
    ) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        await yard.parts.delete("shop.part")
        assert (await yard.collector.apply(plan)).orphans == ()

    async def test_apply_keeps_an_object_whose_owner_returned(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        await yard.apps.create("shop", value())
        assert (await yard.collector.apply(plan)).orphans == ()
        assert yard.parts.keys() == ["bar.part", "shop.part"]

    async def test_apply_refuses_a_plan_of_a_recreated_store(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        yard.parts.recreate()
        await yard.part("bar", "other")
        await asyncio.sleep(10)
        with pytest.raises(UsageError, match=r"Thing\.parts was recreated"):
            await yard.collector.apply(plan)
        assert yard.parts.keys() == ["other"]

    async def test_apply_refuses_a_plan_of_other_kinds(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        evidence = Evidence(yard.primary, yard.memory, "x")
        other_collector = GarbageCollector(yard.primary, [], evidence, LIMITS)
        with pytest.raises(UsageError, match=r"Thing\.parts"):
            await other_collector.apply(plan)
        assert yard.parts.keys() == ["bar.part", "shop.part"]

    async def test_apply_fails_if_the_primary_store_cannot_be_read(self, yard: Yard) -> None:
        await yard.app("bar")
        await yard.part("shop")
        plan = await yard.plan()
        yard.apps.fail(StoreMissingError("bucket x does not exist"))
        with pytest.raises(StoreMissingError):
            await yard.collector.apply(plan)
        assert yard.parts.keys() == ["bar.part", "shop.part"]
