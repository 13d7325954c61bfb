"""Writes: compare-and-set, and what a sync knows of its own writes."""

import asyncio
from contextlib import AbstractContextManager

import pytest

from natsctl.core.compare_and_set import ATTEMPTS, Rewritten, Written, rewrite
from natsctl.core.informer import Informer
from natsctl.core.sync import Sync
from natsctl.core.writes import Writes
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    StoreError,
    StoreTimeoutError,
)
from natsctl.model.store import Change, Deleted, Listed, Listing, Stored, WatchEvent
from natsctl.testing import MemoryStore
from tests.support.stores.sample_objects import THINGS, Thing, applied, stored, value

# ---- writes: a sync never reads a state older than its key's last write, and knows its own changes


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(THINGS)


@pytest.fixture
def informer(store: MemoryStore) -> Informer[Thing]:
    """An informer whose cache gets its events from the test."""
    informer = Informer(store, THINGS)
    show(informer, Listing("1"), Listed(0))
    return informer


@pytest.fixture
def writes() -> Writes:
    return Writes(timeout_s=10)


def show(informer: Informer[Thing], *events: WatchEvent) -> None:
    for event in events:
        list(informer.table.apply(event))


def wrote(writes: Writes, informer: Informer[Thing], written: Stored) -> None:
    writes.landed(informer, written.key, Written(written.revision, written))


def now() -> float:
    return asyncio.get_running_loop().time()


class TestReads:
    async def test_a_cached_state_older_than_the_write_is_not_read(
        self, writes: Writes, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(writes, informer, stored("x", 3, "mine"))
            show(informer, applied("x", 2, "older"))
            assert writes.read(informer, "x") == stored("x", 3, "mine")

    async def test_concurrent_syncs_do_not_read_each_others_writes(
        self, writes: Writes, informer: Informer[Thing]
    ) -> None:
        async def sync(key: str) -> Stored | None:
            with Sync(key):
                wrote(writes, informer, stored("x", 1, key))
                await asyncio.sleep(1)
                return writes.read(informer, "x")

        async with asyncio.TaskGroup() as group:
            first_sync, second_sync = (group.create_task(sync(key)) for key in ("a", "b"))
        assert (first_sync.result(), second_sync.result()) == (
            stored("x", 1, "a"),
            stored("x", 1, "b"),
        )


class TestWait:
    async def test_wait_covers_every_store(
        self, writes: Writes, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        other_informer = Informer(store, THINGS)
        show(other_informer, Listing("1"), Listed(0))
        with Sync("a"):
            wrote(writes, informer, stored("x", 1))
            wrote(writes, other_informer, stored("x", 1))
        waiting = asyncio.create_task(writes.wait("a"))
        show(informer, applied("x", 1))
        await asyncio.sleep(1)
        assert not waiting.done()
        show(other_informer, applied("x", 1))
        await waiting

    async def test_wait_for_a_deletion_ends_when_the_cache_lacks_the_object(
        self, writes: Writes, informer: Informer[Thing]
    ) -> None:
        show(informer, applied("x", 1))
        with Sync("a"):
            writes.landed(informer, "x", Written(2, None))
        waiting = asyncio.create_task(writes.wait("a"))
        show(informer, applied("y", 3))
        await asyncio.sleep(1)
        assert not waiting.done()
        show(informer, Deleted("x", 2))
        await waiting
        assert (now(), writes.timeouts) == (1, 0)


class TestLostAnswers:
    """A write whose answer is lost may have taken effect."""

    @pytest.mark.parametrize("error", [ConflictError("changed"), NotFoundError("gone")])
    async def test_a_refused_write_needs_no_read(
        self, writes: Writes, informer: Informer[Thing], error: StoreError
    ) -> None:
        with Sync("a"), pytest.raises(type(error)), writes.writing(informer, "x"):
            raise error
        assert "a" not in writes.unseen


class TestDeadline:
    async def test_all_stores_share_one_deadline(
        self, writes: Writes, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            for key in ("x", "y", "z"):
                wrote(writes, informer, await store.create(key, value()))
            await writes.wait("a")
        assert now() == 10
        assert writes.timeouts == 3

    async def test_a_state_older_than_the_deletion_in_the_store_is_not_read(
        self, writes: Writes, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            created = await store.create("x", value("first"))
            wrote(writes, informer, created)
            await store.update("x", value("second"), revision=1)
            await store.delete("x")
            await writes.wait("a")
            show(informer, applied("x", 2, "second"))
            assert writes.read(informer, "x") is None


class TestRecreatedStores:
    async def test_later_writes_are_waited_for(
        self, writes: Writes, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            wrote(writes, informer, stored("x", 1000, "lost"))
        show(informer, Listing("2"), Listed(0))
        with Sync("b"):
            wrote(writes, informer, stored("y", 1))
        waiting = asyncio.create_task(writes.wait("b"))
        await asyncio.sleep(1)
        assert not waiting.done()
        show(informer, applied("y", 1))
        await waiting


class TestMemory:
    async def test_a_write_that_the_cache_has_is_forgotten(
        self, writes: Writes, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(writes, informer, stored("x", 1))
        assert "a" in writes.unseen
        show(informer, applied("x", 1))
        await writes.wait("a")
        assert "a" not in writes.unseen
        with Sync("a"):
            assert writes.written_keys(informer) == set()

    async def test_a_write_that_the_cache_has_does_not_drop_a_later_one(
        self, writes: Writes, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(writes, informer, stored("x", 1))
            wrote(writes, informer, stored("x", 2))
        show(informer, applied("x", 1))
        with Sync("b"):
            wrote(writes, informer, stored("y", 3))
        assert "a" in writes.unseen
        show(informer, applied("x", 2))
        with Sync("b"):
            wrote(writes, informer, stored("y", 4))
        assert "a" not in writes.unseen


class Recorder:
    """Records foreign changes in `changes` and the writers of own changes in `ours`."""

    def __init__(self) -> None:
        self.changes: list[Change[Thing]] = []
        self.ours: list[str] = []
        self.undone: list[str] = []
        self.own = Writes()
        self.informer = Informer(MemoryStore(THINGS), THINGS)
        self.own.follow(self.informer, self.take, self.undone.append)

    def take(self, change: Change[Thing], writer: str | None) -> None:
        if writer is None:
            self.changes.append(change)
        else:
            self.ours.append(writer)

    def see(self, before: int | None, after: int | None, key: str = "x") -> Change[Thing]:
        """Show a change from one revision to another; None means that the object does not exist."""
        change = Change(
            THINGS,
            key,
            None if before is None else stored(key, before),
            None if after is None else stored(key, after),
        )
        self.own.see(self.informer, change)
        return change

    def writing(self) -> AbstractContextManager[None]:
        return self.own.writing(self.informer, "x")

    def landed(self, key: str, *, writer: str, base: int, result: int | None) -> None:
        state = None if result is None else stored(key, result)
        with Sync(writer):
            written = Written(base + 1 if result is None else result, state)
            self.own.landed(self.informer, key, written, base=base)

    def listed(self) -> None:
        self.own.listed(self.informer)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def write(recorder: Recorder, base: int, result: int | None) -> None:
    """Acknowledge a write before its change is shown."""
    with recorder.writing():
        recorder.landed("x", writer="a", base=base, result=result)


class TestOwnWrites:
    """The change is shown after the write was acknowledged."""

    def test_an_own_write_is_attributed_once(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.see(None, 1)
        repeated_change = recorder.see(None, 1)
        assert recorder.changes == [repeated_change]


class TestCombinedChanges:
    """A change that covers more than an own write counts as foreign."""

    @pytest.mark.parametrize(("before", "after"), [(1, 3), (1, 4), (2, 4), (None, 3), (2, None)])
    def test_a_change_that_covers_own_and_foreign_writes_is_passed_on(
        self, recorder: Recorder, before: int | None, after: int | None
    ) -> None:
        write(recorder, 2, 3)
        change = recorder.see(before, after)
        assert recorder.changes == [change]

    def test_a_change_that_covers_an_own_deletion_and_a_foreign_creation_is_passed_on(
        self, recorder: Recorder
    ) -> None:
        write(recorder, 1, None)
        change = recorder.see(1, 9)
        assert recorder.changes == [change]


class TestPendingWrites:
    """A change may be shown before its write is acknowledged."""

    def test_an_own_write_is_attributed_after_its_acknowledgement(self, recorder: Recorder) -> None:
        with recorder.writing():
            recorder.see(None, 1)
            recorder.landed("x", writer="a", base=0, result=1)
        assert recorder.changes == []

    def test_changes_by_others_are_passed_on_after_the_acknowledgement(
        self, recorder: Recorder
    ) -> None:
        with recorder.writing():
            before = recorder.see(None, 1)
            recorder.see(1, 2)
            after = recorder.see(2, 3)
            recorder.landed("x", writer="a", base=1, result=2)
            assert recorder.changes == []
        assert recorder.changes == [before, after]

    def test_changes_wait_until_both_concurrent_writers_are_done(self, recorder: Recorder) -> None:
        with recorder.writing():
            with recorder.writing():
                recorder.see(None, 1)
                recorder.see(1, 2)
                recorder.landed("x", writer="a", base=0, result=1)
            assert recorder.changes == []
            recorder.landed("x", writer="a", base=1, result=2)
        assert recorder.changes == []


class TestOverwrittenWrites:
    """Another write has replaced an own write whose change was never shown."""

    def test_the_writer_is_synced_again(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.landed("x", writer="b", base=0, result=3)
        recorder.see(None, 3)
        assert recorder.undone == ["a"]
        assert recorder.ours == ["b"]


class TestUndoneWrites:
    """An own write that a complete listing does not show was undone during a gap."""

    def test_the_writer_of_an_undone_write_is_notified(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.listed()
        assert recorder.undone == ["a"]


# ---- rewrites of one object by compare-and-set with retries


class ContendedStore(MemoryStore):
    """A store in which another client writes before each of the next *times* updates."""

    def __init__(self, times: int) -> None:
        super().__init__(THINGS)
        self.times = times

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        if self.times:
            self.times -= 1
            newest = await self.get(key)
            await super().update(key, newest.value + b"o", revision=newest.revision)
        return await super().update(key, value, revision=revision)


def append(current: Stored | None) -> bytes:
    return (b"" if current is None else current.value) + b"x"


class TestRewrite:
    async def test_an_unchanged_object_is_not_written(self, store: MemoryStore) -> None:
        seen = await store.create("a", b"1")
        writes = store.writes
        result = await rewrite(store, "a", lambda _: b"1", seen=seen)
        assert result == Rewritten(seen, None)
        assert store.writes == writes

    async def test_no_write_of_others_is_lost_under_contention(self) -> None:
        store = ContendedStore(ATTEMPTS - 1)
        seen = await store.create("a", b"1")
        result = await rewrite(store, "a", append, seen=seen)
        assert result.stored.value == b"1" + b"o" * (ATTEMPTS - 1) + b"x"

    async def test_rewrite_fails_after_the_last_attempt(self) -> None:
        store = ContendedStore(ATTEMPTS)
        seen = await store.create("a", b"1")
        with pytest.raises(ConflictError, match=r"a of Thing\.things"):
            await rewrite(store, "a", append, seen=seen)

    async def test_a_write_with_an_unknown_result_raises_its_error(
        self, store: MemoryStore
    ) -> None:
        store.fail(StoreTimeoutError("no reply"))
        with pytest.raises(StoreTimeoutError):
            await rewrite(store, "a", append)
