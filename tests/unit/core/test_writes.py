"""Writes: compare-and-set, and what a sync knows of its own writes."""

import asyncio
from contextlib import AbstractContextManager

import pytest

from natsctl.core.compare_and_set import ATTEMPTS, Rewritten, Written, rewrite
from natsctl.core.informer import Informer
from natsctl.core.sync import Sync
from natsctl.core.writes import Writes
from natsctl.errors import ConflictError, NotFoundError, StoreError, StoreTimeoutError
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


# ---- a change is attributed to the sync that made it, if it shows that write and no other


def revision(text: str) -> int | None:
    """Return the revision of a state; 0 and x mean that the object doesn't exist."""
    return None if text in "0x" else int(text)


def log_of(script: str) -> str:
    """Return what follows from writes of syncs, and from changes and lists that a table sees."""
    own, informer = Writes(), Informer(MemoryStore(THINGS), THINGS)
    log, running = list[str](), list[AbstractContextManager[None]]()

    def forward(change: Change[Thing], writer: str | None) -> None:
        before = 0 if change.before is None else change.before.revision
        after = "x" if change.after is None else change.after.revision
        log.append(f"{before}>{after}" if writer is None else f"{before}>{after} by {writer}")

    own.follow(informer, forward, lambda writer: log.append(f"{writer} undone"))
    for step in script.split(", "):
        match step.replace(">", " ").split():
            case [writer, "wrote", base, result]:
                made = revision(result)
                written = Written(
                    int(base) + 1 if made is None else made,
                    None if made is None else stored("x", made),
                )
                with Sync(writer):
                    own.landed(informer, "x", written, base=int(base))
            case ["see", base, result]:
                states = [revision(base), revision(result)]
                before, after = (None if made is None else stored("x", made) for made in states)
                own.see(informer, Change(THINGS, "x", before, after))
            case ["begin"]:
                running.append(own.writing(informer, "x"))
                running[-1].__enter__()
            case ["end"]:
                log.append("end")
                running.pop().__exit__(None, None, None)
            case ["list"]:
                own.listed(informer)
    return ", ".join(log)


@pytest.mark.parametrize(
    ("script", "log"),
    [
        ("a wrote 0>1, see 0>1, see 0>1", "0>1 by a, 0>1"),
        # a change that covers more than an own write is foreign
        *((f"a wrote 2>3, see {change}", change) for change in ("1>3", "0>3", "2>x")),
        *((f"a wrote 2>3, see {change}", f"a undone, {change}") for change in ("1>4", "2>4")),
        ("a wrote 1>x, see 1>9", "a undone, 1>9"),
        # a change may be shown before its write is acknowledged
        ("begin, see 0>1, a wrote 0>1, end", "end, 0>1 by a"),
        ("begin, see 0>1, see 1>2, see 2>3, a wrote 1>2, end", "end, 0>1, 1>2 by a, 2>3"),
        (
            "begin, begin, see 0>1, see 1>2, a wrote 0>1, end, a wrote 1>2, end",
            "end, end, 0>1 by a, 1>2 by a",
        ),
        # another write replaced an own one whose change was never shown
        ("a wrote 0>1, b wrote 0>3, see 0>3", "a undone, 0>3 by b"),
        ("a wrote 0>1, list", "a undone"),
    ],
)
def test_a_change_is_attributed_to_the_sync_that_made_it(script: str, log: str) -> None:
    assert log_of(script) == log


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

    @pytest.mark.parametrize("times", [ATTEMPTS - 1, ATTEMPTS])
    async def test_no_write_of_others_is_lost_under_contention(self, times: int) -> None:
        store = ContendedStore(times)
        seen = await store.create("a", b"1")
        if times < ATTEMPTS:
            result = await rewrite(store, "a", append, seen=seen)
            assert result.stored.value == b"1" + b"o" * times + b"x"
        else:
            with pytest.raises(ConflictError, match=r"a of Thing\.things"):
                await rewrite(store, "a", append, seen=seen)

    async def test_a_write_with_an_unknown_result_raises_its_error(
        self, store: MemoryStore
    ) -> None:
        store.fail(StoreTimeoutError("no reply"))
        with pytest.raises(StoreTimeoutError):
            await rewrite(store, "a", append)
