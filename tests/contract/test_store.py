"""Contract tests of the reads and writes of a store."""

import asyncio

import pytest

from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Deleted, Store
from tests.support.stores.backends import Backend, listing, note, of_buckets, put, take, text


class TestGet:
    async def test_get_returns_what_was_written(self, store: Store) -> None:
        with pytest.raises(NotFoundError, match="shop") as raised:
            await store.get("shop")
        assert raised.value.deleted_at is None
        written = await store.create("shop", note("hi"))
        for content in ("Grüße aus 東京 🎉", "\\ \" ' \n \t", "x" * 100_000, ""):
            written = await store.update("shop", note(content), revision=written.revision)
            assert await store.get("shop") == written
            assert text(written) == content


class TestRevisions:
    async def test_revisions_grow_with_every_write_to_the_store(self, store: Store) -> None:
        first = await store.create("a", note("1"))
        second = await store.create("b", note("1"))
        third = await store.update("a", note("2"), revision=first.revision)
        assert 0 < first.revision < second.revision < third.revision

    async def test_the_revision_of_a_delete_is_between_those_of_the_deleted_and_the_new_object(
        self, store: Store
    ) -> None:
        created = await store.create("a", note("1"))
        async with store.watch() as events:
            await listing(events)
            deleted_at = await store.delete("a", revision=created.revision)
            recreated = await store.create("a", note("2"))
            deleted, _ = await take(events, 2)
        assert isinstance(deleted, Deleted)
        assert created.revision <= deleted_at <= deleted.revision < recreated.revision


class TestCreate:
    async def test_an_object_is_created_only_while_it_does_not_exist(self, store: Store) -> None:
        created = await store.create("shop", note("hi"))
        with pytest.raises(ConflictError, match="shop"):
            await store.create("shop", note("ho"))
        assert await store.get("shop") == created
        deleted_at = await store.delete("shop")
        recreated = await store.create("shop", note("ho"))
        assert recreated.revision > deleted_at
        assert await store.get("shop") == recreated

    async def test_one_of_many_concurrent_creates_succeeds(self, store: Store) -> None:
        attempts = (store.create("shop", note(str(number))) for number in range(8))
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(result, ConflictError) for result in results) == 7
        assert await store.get("shop") in results


class TestUpdate:
    async def test_only_an_update_of_the_newest_revision_is_accepted(self, store: Store) -> None:
        stale = await store.create("shop", note("1"))
        newest = await store.update("shop", note("2"), revision=stale.revision)
        with pytest.raises(ConflictError, match="shop"):
            await store.update("shop", note("3"), revision=stale.revision)
        assert await store.get("shop") == newest
        with pytest.raises(ConflictError, match="unused"):
            await store.update("unused", note("2"), revision=newest.revision)
        await store.delete("shop")
        with pytest.raises(ConflictError, match="shop"):
            await store.update("shop", note("2"), revision=newest.revision)

    async def test_one_of_many_concurrent_updates_of_a_revision_succeeds(
        self, store: Store
    ) -> None:
        base = (await store.create("shop", note("0"))).revision
        attempts = (store.update("shop", note(str(n)), revision=base) for n in range(1, 9))
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(result, ConflictError) for result in results) == 7
        assert await store.get("shop") in results


class TestDelete:
    async def test_only_a_delete_of_the_newest_revision_deletes(self, store: Store) -> None:
        stale = await store.create("shop", note("1"))
        newest = await store.update("shop", note("2"), revision=stale.revision)
        with pytest.raises(ConflictError, match="shop"):
            await store.delete("shop", revision=stale.revision)
        assert await store.get("shop") == newest
        await store.delete("shop", revision=newest.revision)
        with pytest.raises(NotFoundError):
            await store.get("shop")
        with pytest.raises(ConflictError, match="shop"):
            await store.delete("shop", revision=newest.revision)


class TestIdentity:
    async def test_a_store_opened_twice_is_the_same_store(
        self, backend: Backend, store: Store
    ) -> None:
        reopened = await backend.stores.open(backend.kind())
        created = await store.create("shop", note("hi"))
        assert await reopened.get("shop") == created

    @of_buckets
    async def test_a_recreated_store_is_empty(self, backend: Backend, store: Store) -> None:
        await put(store, "shop")
        await backend.recreate()
        with pytest.raises(NotFoundError) as raised:
            await store.get("shop")
        assert raised.value.deleted_at is None
        await store.create("shop", note("again"))
