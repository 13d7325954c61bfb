"""Changing one object by compare-and-set, until nobody was faster."""

import pytest

from natsctl.core.objects.compare_and_set import ATTEMPTS, Rewritten, read, rewrite
from natsctl.errors import ConflictError, InvalidKeyError, NotFoundError, StoreTimeoutError
from natsctl.model.store import Stored
from natsctl.testing.memory import MemoryStore
from tests.support.stores.sample_objects import THINGS, value


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(THINGS)


class Busy(MemoryStore):
    """A store in which somebody else writes just before we do, a number of times."""

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


class TestReading:
    async def test_what_is_there_is_returned(self, store: MemoryStore) -> None:
        created = await store.create("a", value())
        assert await read(store, "a") == created

    async def test_what_is_not_there_is_none(self, store: MemoryStore) -> None:
        assert await read(store, "a") is None
        await store.create("a", value())
        await store.delete("a")
        assert await read(store, "a") is None

    async def test_other_errors_pass(self, store: MemoryStore) -> None:
        with pytest.raises(InvalidKeyError):
            await read(store, "a..b")


class TestRewriting:
    async def test_what_does_not_exist_is_created(self, store: MemoryStore) -> None:
        result = await rewrite(store, "a", append)
        assert result == Rewritten(await store.get("a"), 0)
        assert result.stored.value == b"x"

    async def test_what_was_seen_is_changed_without_reading_it(self, store: MemoryStore) -> None:
        seen = await store.create("a", b"1")
        writes = store.writes
        result = await rewrite(store, "a", append, seen=seen)
        assert result == Rewritten(await store.get("a"), seen.revision)
        assert result.stored.value == b"1x"
        assert store.writes == writes + 1

    async def test_a_stale_look_is_found_out_and_the_newest_is_changed(
        self, store: MemoryStore
    ) -> None:
        seen = await store.create("a", b"1")
        newest = await store.update("a", b"2", revision=seen.revision)
        result = await rewrite(store, "a", append, seen=seen)
        assert (result.stored.value, result.base) == (b"2x", newest.revision)

    async def test_what_has_gone_since_it_was_seen_is_created(self, store: MemoryStore) -> None:
        seen = await store.create("a", b"1")
        await store.delete("a")
        result = await rewrite(store, "a", append, seen=seen)
        assert (result.stored.value, result.base) == (b"x", 0)

    async def test_what_has_come_since_it_was_not_seen_is_changed(self, store: MemoryStore) -> None:
        created = await store.create("a", b"1")
        result = await rewrite(store, "a", append, seen=None)
        assert (result.stored.value, result.base) == (b"1x", created.revision)

    async def test_what_would_not_change_is_not_written(self, store: MemoryStore) -> None:
        seen = await store.create("a", b"1")
        writes = store.writes
        result = await rewrite(store, "a", lambda _: b"1", seen=seen)
        assert result == Rewritten(seen, None)
        assert store.writes == writes

    async def test_what_others_have_made_the_same_meanwhile_is_not_written(
        self, store: MemoryStore
    ) -> None:
        seen = await store.create("a", b"1")
        newest = await store.update("a", b"2", revision=seen.revision)
        writes = store.writes
        result = await rewrite(store, "a", lambda _: b"2", seen=seen)
        assert result == Rewritten(newest, None)
        assert store.writes == writes

    async def test_nothing_of_others_is_lost_however_busy_they_are(self) -> None:
        store = Busy(ATTEMPTS - 1)
        seen = await store.create("a", b"1")
        result = await rewrite(store, "a", append, seen=seen)
        assert result.stored.value == b"1" + b"o" * (ATTEMPTS - 1) + b"x"

    async def test_in_the_end_it_gives_up(self) -> None:
        store = Busy(ATTEMPTS)
        seen = await store.create("a", b"1")
        with pytest.raises(ConflictError, match=r"a of Thing\.things"):
            await rewrite(store, "a", append, seen=seen)

    async def test_what_the_change_raises_passes_and_nothing_is_written(
        self, store: MemoryStore
    ) -> None:
        def refuse(_: Stored | None) -> bytes:
            raise NotFoundError("not without it")

        with pytest.raises(NotFoundError, match="not without it"):
            await rewrite(store, "a", refuse)
        assert store.keys() == []

    async def test_an_unknown_outcome_passes(self, store: MemoryStore) -> None:
        store.fail(StoreTimeoutError("who knows"))
        with pytest.raises(StoreTimeoutError):
            await rewrite(store, "a", append)
