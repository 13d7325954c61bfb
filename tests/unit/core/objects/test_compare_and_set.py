"""Rewrites of one object by compare-and-set with retries."""

import pytest

from natsctl.core.compare_and_set import ATTEMPTS, Rewritten, read, rewrite
from natsctl.errors import ConflictError, InvalidKeyError, NotFoundError, StoreTimeoutError
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
from tests.support.stores.sample_objects import THINGS, value


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(THINGS)


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


class TestRead:
    async def test_an_existing_object_is_returned(self, store: MemoryStore) -> None:
        created = await store.create("a", value())
        assert await read(store, "a") == created

    async def test_a_missing_object_is_none(self, store: MemoryStore) -> None:
        assert await read(store, "a") is None
        await store.create("a", value())
        await store.delete("a")
        assert await read(store, "a") is None

    async def test_other_errors_are_raised(self, store: MemoryStore) -> None:
        with pytest.raises(InvalidKeyError):
            await read(store, "a..b")


class TestRewrite:
    async def test_a_missing_object_is_created(self, store: MemoryStore) -> None:
        result = await rewrite(store, "a", append)
        assert result == Rewritten(await store.get("a"), 0)
        assert result.stored.value == b"x"

    async def test_the_given_state_is_changed_without_a_read(self, store: MemoryStore) -> None:
        seen = await store.create("a", b"1")
        writes = store.writes
        result = await rewrite(store, "a", append, seen=seen)
        assert result == Rewritten(await store.get("a"), seen.revision)
        assert result.stored.value == b"1x"
        assert store.writes == writes + 1

    async def test_an_outdated_state_is_replaced_by_the_newest(self, store: MemoryStore) -> None:
        seen = await store.create("a", b"1")
        newest = await store.update("a", b"2", revision=seen.revision)
        result = await rewrite(store, "a", append, seen=seen)
        assert (result.stored.value, result.base) == (b"2x", newest.revision)

    async def test_an_object_deleted_concurrently_is_created(self, store: MemoryStore) -> None:
        seen = await store.create("a", b"1")
        await store.delete("a")
        result = await rewrite(store, "a", append, seen=seen)
        assert (result.stored.value, result.base) == (b"x", 0)

    async def test_an_object_created_concurrently_is_changed(self, store: MemoryStore) -> None:
        created = await store.create("a", b"1")
        result = await rewrite(store, "a", append, seen=None)
        assert (result.stored.value, result.base) == (b"1x", created.revision)

    async def test_an_unchanged_object_is_not_written(self, store: MemoryStore) -> None:
        seen = await store.create("a", b"1")
        writes = store.writes
        result = await rewrite(store, "a", lambda _: b"1", seen=seen)
        assert result == Rewritten(seen, None)
        assert store.writes == writes

    async def test_an_object_that_others_changed_to_the_same_value_is_not_written(
        self, store: MemoryStore
    ) -> None:
        seen = await store.create("a", b"1")
        newest = await store.update("a", b"2", revision=seen.revision)
        writes = store.writes
        result = await rewrite(store, "a", lambda _: b"2", seen=seen)
        assert result == Rewritten(newest, None)
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

    async def test_an_error_of_the_change_is_raised_and_nothing_is_written(
        self, store: MemoryStore
    ) -> None:
        def refuse(_: Stored | None) -> bytes:
            raise NotFoundError("not without it")

        with pytest.raises(NotFoundError, match="not without it"):
            await rewrite(store, "a", refuse)
        assert store.keys() == []

    async def test_a_write_with_an_unknown_result_raises_its_error(
        self, store: MemoryStore
    ) -> None:
        store.fail(StoreTimeoutError("no reply"))
        with pytest.raises(StoreTimeoutError):
            await rewrite(store, "a", append)
