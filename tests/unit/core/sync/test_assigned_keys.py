"""A sync loop syncs the keys that are assigned to its process, and keeps no other values."""

import asyncio
from collections.abc import AsyncIterator, Collection, Hashable
from contextlib import asynccontextmanager

import pytest

from natsctl.core import assigned_keys
from natsctl.core.assigned_keys import KeyFilter
from natsctl.core.coordination.assignment import ALL, NONE, Assignment, OnlyKeys
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.informer import Informer, read_values, release_values
from natsctl.core.loop import KeyQueue, SyncLoop
from natsctl.core.table import Keeping, is_read
from natsctl.model.pause import Pause
from natsctl.model.store import Change, Listed, Stored, WatchEvent
from natsctl.testing import MemoryStore
from tests.support.eventually import eventually
from tests.support.places import place, take_nowait
from tests.support.stores.sample_objects import THINGS, Thing, caught_up, informed, value

TERM_S = 1e6
SYNC_S = 10.0
LATE_S = 1.0
KEYS = ("a", "b", "c")


class LateStore(MemoryStore):
    """A store whose watches show each change late."""

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async with super().watch(shown) as events:
            yield self._late(events)

    async def _late(self, events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
        is_listed = False
        async for event in events:
            if is_listed:
                await asyncio.sleep(LATE_S)
            is_listed = is_listed or isinstance(event, Listed)
            yield event


class Member:
    """A process that syncs the keys of a bucket with others."""

    def __init__(self, store: MemoryStore) -> None:
        clock = asyncio.get_running_loop().time
        self.leadership = Leadership("things", clock)
        self.store = store
        self.began: list[str] = []
        self.ended: list[str] = []
        self.kept: list[str] = [*KEYS]  # keys that this process held when keys were lost
        self.ready_with: list[set[str]] = []  # the values when a term was ready
        self.error: Exception | None = None  # raised by each sync
        self.sync_s = 0.0
        self.loop = SyncLoop(self.sync)
        self.keeping = Keeping(self.loop.assigned.keeps)
        self.informer = Informer(store, THINGS, keeping=self.keeping)
        self.parts = Informer(LateStore(THINGS), THINGS)  # every process keeps all of these
        self.seen: list[int] = []  # the revisions of the parts at the beginning of each sync
        self.loop.watch(self.informer, self.changed)
        self.loop.watch(self.parts, lambda _change: None)

    async def sync(self, key: str) -> None:
        self.began.append(key)
        self.seen.append(self.parts.cache.revision)
        if self.sync_s:
            await asyncio.sleep(self.sync_s)
        self.ended.append(key)
        if self.error is not None:
            raise self.error

    def changed(self, change: Change[Thing]) -> None:
        if self.loop.holdings.has(change.key):
            self.loop.queue.offer(change.key)

    async def lost(self, holds: KeyFilter) -> None:
        self.kept = [key for key in KEYS if holds(key)]

    async def gained(self, gained: KeyFilter) -> None:
        for key in self.informer.cache.keys():  # noqa: SIM118 - a cache is no dict
            if gained(key):
                self.loop.queue.offer(key)

    async def ready(self) -> None:
        self.ready_with.append(self.values())

    async def run(self) -> None:
        current_leadership.set(self.leadership)
        watching = [asyncio.create_task(informer.run()) for informer in (self.informer, self.parts)]
        try:
            await self.loop.run(self.ready, self, workers=2)
        finally:
            for task in watching:
                task.cancel()

    def begin(self, assignment: Assignment) -> None:
        self.leadership.begin(1, TERM_S, assignment)

    def values(self) -> set[str]:
        """Return the keys whose values this process keeps."""
        cache = self.informer.cache
        return {key for key in KEYS if (stored := cache.get(key)) is not None and is_read(stored)}


async def _at_once() -> None:
    """Return at once."""


@pytest.fixture
async def member() -> AsyncIterator[Member]:
    store = LateStore(THINGS)
    for key in KEYS:
        await store.create(key, value())
    member = Member(store)
    member.leadership.expected = OnlyKeys(())
    async with _running(member):
        yield member


@asynccontextmanager
async def _running(member: Member) -> AsyncIterator[None]:
    task = asyncio.create_task(member.run())
    await member.informer.cache.synced.wait()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def idle(member: Member) -> None:
    await asyncio.sleep(60)
    await eventually(lambda: member.loop.queue.idle)


async def test_a_process_without_a_term_keeps_no_value(member: Member) -> None:
    assert member.values() == set()


async def test_a_change_at_the_start_of_a_term_is_synced() -> None:
    store = LateStore(THINGS)
    member = Member(store)
    member.leadership.expected = ALL
    async with _running(member):
        member.begin(OnlyKeys(["a"]))
        member.informer.cache.put([Stored("a", 1, value())])  # before the loop runs again
        await idle(member)
        assert member.began == ["a"]
        assert member.values() == {"a"}


async def test_a_change_between_two_assignments_at_the_start_of_a_term_is_synced() -> None:
    store = LateStore(THINGS)
    member = Member(store)
    member.leadership.expected = ALL
    async with _running(member):
        member.begin(OnlyKeys(["a"]))
        member.informer.cache.put([Stored("b", 1, value())])
        member.leadership.move(OnlyKeys(["a", "b"]))
        await idle(member)
        assert member.began == ["b"]
        assert member.values() == {"b"}


async def test_no_key_is_synced_before_a_term(member: Member) -> None:
    await idle(member)
    assert member.began == []


async def test_the_assigned_keys_are_synced(member: Member) -> None:
    member.begin(OnlyKeys(["a", "b"]))
    await idle(member)
    assert sorted(member.began) == ["a", "b"]


async def test_only_values_of_assigned_keys_are_kept(member: Member) -> None:
    member.begin(OnlyKeys(["a"]))
    await idle(member)
    assert member.values() == {"a"}


async def test_a_term_is_ready_once_the_values_of_its_keys_are_read(member: Member) -> None:
    member.begin(OnlyKeys(["a"]))
    await idle(member)
    assert member.ready_with == [{"a"}]


async def test_a_key_on_the_queue_that_is_not_assigned_is_dropped(member: Member) -> None:
    member.begin(OnlyKeys(["a"]))
    await idle(member)
    member.loop.queue.offer("b")
    await idle(member)
    assert (member.began, place(member.loop.queue, "b")) == (["a"], None)


async def test_a_change_of_an_assigned_key_is_synced(member: Member) -> None:
    member.begin(OnlyKeys(["a"]))
    await idle(member)
    for key in KEYS:
        stored = await member.store.get(key)
        await member.store.update(key, value("new"), revision=stored.revision)
    await idle(member)
    assert member.began == ["a", "a"]


class TestMoves:
    async def test_a_key_that_arrives_is_synced_and_the_others_are_not(
        self, member: Member
    ) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.leadership.move(OnlyKeys(["a", "b"]))
        await idle(member)
        assert member.began == ["a", "b"]

    async def test_a_key_that_leaves_is_not_synced_again(self, member: Member) -> None:
        member.begin(OnlyKeys(["a", "b"]))
        await idle(member)
        member.leadership.move(OnlyKeys(["b"]))
        await idle(member)
        stored = await member.store.get("a")
        await member.store.update("a", value("new"), revision=stored.revision)
        await idle(member)
        assert sorted(member.began) == ["a", "b"]

    async def test_the_value_of_a_key_that_leaves_is_forgotten(self, member: Member) -> None:
        member.begin(OnlyKeys(["a", "b"]))
        await idle(member)
        member.leadership.move(OnlyKeys(["b"]))
        await idle(member)
        assert member.values() == {"b"}

    async def test_the_queue_has_no_key_that_left(self, member: Member) -> None:
        member.begin(OnlyKeys(["a", "b"]))
        await idle(member)
        for key in ("a", "b"):
            member.loop.queue.offer(key, after=1e5)
        member.leadership.move(OnlyKeys(["b"]))
        await asyncio.sleep(60)
        places = [place(member.loop.queue, key) for key in ("a", "b")]
        assert [place is None for place in places] == [True, False]

    async def test_changes_and_held_back_syncs_of_keys_that_left_are_forgotten(
        self, member: Member
    ) -> None:
        member.begin(OnlyKeys(["a", "b"]))
        await idle(member)
        for key in ("a", "b"):
            member.loop.paused.recover(key, Pause())
            member.loop.paused.holds_back(key)
            member.loop.queue.offer(key, after=3600)
            member.loop.queue.offer(key, changed=True)
        member.leadership.move(OnlyKeys(["b"]))
        await asyncio.sleep(60)
        assert [member.loop.paused.is_pending(key) for key in ("a", "b")] == [False, True]
        assert [member.loop.queue.work(key) is None for key in ("a", "b")] == [True, False]

    async def test_the_listener_is_notified_of_lost_keys(self, member: Member) -> None:
        member.begin(OnlyKeys(["a", "b"]))
        await idle(member)
        member.leadership.move(OnlyKeys(["b"]))
        await idle(member)
        assert member.kept == ["b"]

    async def test_a_retry_of_a_key_that_leaves_is_dropped(self, member: Member) -> None:
        member.error = OSError()
        member.begin(OnlyKeys(["a"]))
        await asyncio.sleep(1)
        member.leadership.move(OnlyKeys(["b"]))
        await asyncio.sleep(1)
        syncs = member.began.count("a")
        await asyncio.sleep(3600)
        assert member.began.count("a") == syncs

    async def test_a_key_is_synced_once_the_cache_has_the_newest_writes(
        self, member: Member
    ) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        stored = await member.store.get("b")
        newest = await member.store.update("b", value("new"), revision=stored.revision)
        member.leadership.move(OnlyKeys(["a", "b"]))
        await eventually(lambda: "b" in member.began)
        assert member.informer.cache.get("b") == newest

    async def test_a_key_is_synced_once_other_caches_have_the_newest_writes(
        self, member: Member
    ) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        newest = await member.parts.store.create("part", value())
        member.leadership.move(OnlyKeys(["a", "b"]))
        await idle(member)
        assert member.seen == [0, newest.revision]


class TestKeyThatLeavesDuringItsSync:
    @pytest.fixture
    async def member(self, member: Member) -> Member:
        """A member whose key `a` leaves while it is synced."""
        member.sync_s = SYNC_S
        member.begin(OnlyKeys(["a", "b"]))
        await eventually(lambda: "a" in member.began)
        member.leadership.move(OnlyKeys(["b"]))
        await asyncio.sleep(SYNC_S / 2)
        return member

    async def test_the_sync_of_a_key_that_leaves_ends(self, member: Member) -> None:
        await idle(member)
        assert "a" in member.ended

    async def test_the_value_of_a_key_that_leaves_is_kept_until_its_sync_ends(
        self, member: Member
    ) -> None:
        assert member.values() == {"a", "b"}

    async def test_only_the_value_of_the_key_that_left_is_forgotten_after_its_sync(
        self, member: Member
    ) -> None:
        await idle(member)
        assert member.values() == {"b"}

    async def test_a_key_that_left_is_not_synced_again(self, member: Member) -> None:
        member.loop.queue.offer("a")
        await idle(member)
        assert member.began.count("a") == 1

    async def test_a_key_that_left_is_not_retried(self, member: Member) -> None:
        member.error = OSError()
        await asyncio.sleep(3600)
        assert member.began.count("a") == 1

    async def test_a_key_that_returns_is_synced_again(self, member: Member) -> None:
        member.leadership.move(OnlyKeys(["a", "b"]))
        await idle(member)
        assert member.began.count("a") == 2


class TestEndOfTerm:
    async def test_the_end_of_a_term_cancels_a_running_sync(self, member: Member) -> None:
        member.sync_s = SYNC_S
        member.begin(OnlyKeys(["a"]))
        await eventually(lambda: "a" in member.began)
        member.leadership.step_down()
        await asyncio.sleep(2 * SYNC_S)
        assert member.ended == []

    async def test_no_key_is_held_after_the_term(self, member: Member) -> None:
        member.begin(ALL)
        await idle(member)
        member.leadership.step_down()
        await idle(member)
        assert (member.kept, member.loop.holdings.has("a")) == ([], False)

    async def test_the_queue_is_empty_after_the_term(self, member: Member) -> None:
        member.begin(ALL)
        await idle(member)
        member.loop.queue.offer("a", after=1e5)
        member.loop.queue.feed([f"k{number}" for number in range(10_000)], member.loop.queue.offer)
        member.leadership.step_down()
        await asyncio.sleep(60)
        assert place(member.loop.queue, "a") is None
        assert (member.loop.queue.idle, take_nowait(member.loop.queue)) == (True, None)

    async def test_the_next_term_syncs_its_keys(self, member: Member) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.leadership.step_down()
        await idle(member)
        member.begin(OnlyKeys(["b"]))
        await idle(member)
        assert member.began == ["a", "b"]


class TestEveryValue:
    async def test_every_value_is_read_once_a_reader_wants_all_values(self, member: Member) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.informer.cache.want_all()
        await idle(member)
        assert member.values() == set(KEYS)

    async def test_the_assigned_keys_are_synced_again_after_every_value_is_read(
        self, member: Member
    ) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.informer.cache.want_all()
        await idle(member)
        assert member.began == ["a", "a"]


class Noted(OnlyKeys):
    """An assignment that notes which keys are tested."""

    def __init__(self, keys: Collection[str]) -> None:
        super().__init__(keys)
        self.tested: list[Hashable] = []

    def has(self, key: Hashable) -> bool:
        self.tested.append(key)
        return super().has(key)


class TestCount:
    """The number of the assigned keys is known without a test of each cached key."""

    @staticmethod
    def count(member: Member) -> int:
        return KeyQueue(member.loop).count(member.informer.cache)

    async def test_a_process_without_a_term_syncs_no_key(self, member: Member) -> None:
        assert self.count(member) == 0

    async def test_the_assigned_keys_are_counted_without_a_test(self, member: Member) -> None:
        assignment = Noted(["a", "b"])
        member.begin(assignment)
        await idle(member)
        assignment.tested.clear()
        assert (self.count(member), assignment.tested) == (2, [])

    async def test_keys_that_left_do_not_count(self, member: Member) -> None:
        member.begin(OnlyKeys(["a", "b"]))
        await idle(member)
        member.leadership.move(OnlyKeys(["b"]))
        await idle(member)
        assert self.count(member) == 1

    async def test_values_of_other_keys_do_not_count(self, member: Member) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.informer.cache.want_all()
        await idle(member)
        assert self.count(member) == 1


class TestSettled:
    """A cache asks for no primary again once all values of the assigned keys are read."""

    async def test_the_values_are_read_in_a_term(self, member: Member) -> None:
        assert not member.keeping.settled
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        assert member.keeping.settled

    async def test_new_keys_are_not_read_yet(self, member: Member) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.leadership.move(OnlyKeys(["a", "b"]))
        assert not member.keeping.settled
        await idle(member)
        assert member.keeping.settled

    async def test_nothing_is_read_after_a_term(self, member: Member) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.leadership.step_down()
        await asyncio.sleep(1)
        assert not member.keeping.settled

    async def test_a_process_that_wants_every_value_asks_again(self, member: Member) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.informer.cache.want_all()
        member.leadership.move(OnlyKeys(["a", "b"]))
        await idle(member)
        assert not member.keeping.settled


class TestKeeps:
    async def test_a_process_that_shares_keys_needs_those_of_its_next_term(self) -> None:
        leadership = Leadership("things", asyncio.get_running_loop().time)
        leadership.expected = OnlyKeys(["a"])
        current_leadership.set(leadership)
        loop = self.loop()
        loop.holdings.reset(NONE)
        assert [loop.assigned.keeps(key) for key in ("a", "b")] == [True, False]

    async def test_other_tasks_may_ask_for_the_needs_of_a_loop(self, member: Member) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        assert [member.loop.assigned.keeps(key) for key in ("a", "b")] == [True, False]

    def loop(self) -> SyncLoop[str]:
        return SyncLoop(Member.sync)  # type: ignore[arg-type]  # never called

    async def test_a_process_that_shares_no_keys_needs_every_object(self) -> None:
        assert self.loop().assigned.keeps("a")

    async def test_a_process_that_may_lead_needs_every_object(self) -> None:
        current_leadership.set(Leadership("things", asyncio.get_running_loop().time))
        assert self.loop().assigned.keeps("a")


async def test_a_leader_syncs_nothing_before_its_cache_has_the_newest_writes() -> None:
    """Without a listener, a term has every key."""
    store = LateStore(THINGS)
    leadership = Leadership("things", asyncio.get_running_loop().time)
    informer = Informer(store, THINGS)
    revisions: list[int] = []

    async def sync(_key: str) -> None:
        revisions.append(informer.cache.revision)

    loop = SyncLoop(sync)
    loop.watch(informer, lambda change: loop.queue.offer(change.key))

    async def run() -> None:
        current_leadership.set(leadership)
        await loop.run(_at_once)

    task = asyncio.create_task(run())
    async with informed(informer):
        await store.create("a", value())
        await caught_up(informer, store)
        newest = await store.create("b", value())  # shown late
        leadership.begin(1, TERM_S)
        await eventually(lambda: len(revisions) == 2)
    assert revisions == [newest.revision] * 2
    task.cancel()


async def test_a_process_that_shares_no_keys_holds_every_key() -> None:
    """A controller has a listener, even if its process runs alone."""
    store = LateStore(THINGS)
    for key in KEYS:
        await store.create(key, value())
    member = Member(store)
    async with informed(member.informer), informed(member.parts):
        task = asyncio.create_task(member.loop.run(member.ready, member))
        for key in KEYS:
            member.loop.queue.offer(key)
        await idle(member)
        assert sorted(member.began) == [*KEYS]
        assert not member.loop.assigned.shared
        task.cancel()


async def test_a_loop_without_a_listener_holds_every_key_of_a_shared_term() -> None:
    store = LateStore(THINGS)
    for key in KEYS:
        await store.create(key, value())
    member = Member(store)
    member.leadership.expected = OnlyKeys(["a"])
    current_leadership.set(member.leadership)
    async with informed(member.informer), informed(member.parts):
        task = asyncio.create_task(member.loop.run(member.ready))
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        assert set(member.began) == set(KEYS)
        assert not member.loop.assigned.shared
        assert member.loop.assigned.keeps("b")
        task.cancel()


class TestSearches:
    """A search for missing or spare values visits every key of a cache, so it is seldom."""

    @pytest.fixture(autouse=True)
    def searches(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the names of the searches that run."""
        names: list[str] = []

        async def read(informer: Informer[Thing], keeps: KeyFilter) -> None:
            names.append("missing")
            await read_values(informer, keeps)

        async def release(informer: Informer[Thing]) -> None:
            names.append("spare")
            await release_values(informer)

        monkeypatch.setattr(assigned_keys, "read_values", read)
        monkeypatch.setattr(assigned_keys, "release_values", release)
        return names

    async def test_a_first_term_with_the_expected_keys_searches_for_nothing(
        self, searches: list[str]
    ) -> None:
        store = LateStore(THINGS)
        for key in KEYS:
            await store.create(key, value())
        member = Member(store)
        expected = OnlyKeys(["a", "b"])
        member.leadership.expected = expected
        async with _running(member):
            member.begin(expected)
            await idle(member)
            assert (member.values(), searches) == ({"a", "b"}, [])

    async def test_keys_that_leave_cause_a_search_for_spare_values_only(
        self, member: Member, searches: list[str]
    ) -> None:
        member.begin(OnlyKeys(["a", "b"]))
        await idle(member)
        searches.clear()
        member.leadership.move(OnlyKeys(["b"]))
        await idle(member)
        assert (member.values(), searches) == ({"b"}, ["spare"])

    async def test_keys_that_arrive_cause_a_search_for_missing_values_only(
        self, member: Member, searches: list[str]
    ) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        searches.clear()
        member.leadership.move(OnlyKeys(["a", "b"]))
        await idle(member)
        assert (member.values(), searches) == ({"a", "b"}, ["missing"])

    async def test_a_search_for_spare_values_is_not_repeated(
        self, member: Member, searches: list[str]
    ) -> None:
        member.begin(OnlyKeys(["a", "b"]))
        await idle(member)
        member.leadership.move(OnlyKeys(["b"]))
        await idle(member)
        searches.clear()
        member.leadership.move(OnlyKeys(["b", "c"]))
        await idle(member)
        assert (member.values(), searches) == ({"b", "c"}, ["missing"])

    async def test_keys_that_arrive_in_two_moves_are_all_read(
        self, member: Member, searches: list[str]
    ) -> None:
        member.begin(OnlyKeys(["a"]))
        await idle(member)
        member.leadership.move(OnlyKeys(["a", "b"]))
        await asyncio.sleep(LATE_S / 2)
        member.leadership.move(OnlyKeys(KEYS))
        await idle(member)
        assert member.values() == set(KEYS)
        assert sorted(set(member.began)) == [*KEYS]
