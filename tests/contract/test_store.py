"""What every store does with reads and writes."""

import asyncio

import pytest

from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Deleted, Store
from tests.support.stores.backends import Backend, listing, note, of_buckets, put, take, text


class TestReading:
    async def test_what_was_created_is_read(self, store: Store) -> None:
        created = await store.create("shop", note("hi"))
        assert await store.get("shop") == created
        assert text(created) == "hi"
        assert created.key == "shop"

    async def test_what_was_updated_is_read(self, store: Store) -> None:
        created = await store.create("shop", note("hi"))
        updated = await store.update("shop", note("ho"), revision=created.revision)
        assert await store.get("shop") == updated
        assert text(updated) == "ho"

    async def test_what_never_was_is_not_found_and_was_not_deleted(self, store: Store) -> None:
        with pytest.raises(NotFoundError, match="shop") as raised:
            await store.get("shop")
        assert raised.value.deleted_at is None

    async def test_what_was_deleted_is_not_found(self, store: Store) -> None:
        await store.create("shop", note("hi"))
        await store.delete("shop")
        with pytest.raises(NotFoundError, match="shop"):
            await store.get("shop")

    @pytest.mark.parametrize("says", ["Grüße aus 東京 🎉", "\\ \" ' \n \t", "x" * 100_000, ""])
    async def test_any_text_comes_back_as_it_was_written(self, store: Store, says: str) -> None:
        await store.create("shop", note(says))
        assert text(await store.get("shop")) == says


class TestRevisions:
    async def test_they_grow_with_every_write_to_the_store(self, store: Store) -> None:
        first = await store.create("a", note("1"))
        second = await store.create("b", note("1"))
        third = await store.update("a", note("2"), revision=first.revision)
        assert 0 < first.revision < second.revision < third.revision

    async def test_who_saw_that_of_a_deletion_and_no_older_object_saw_the_deletion(
        self, store: Store
    ) -> None:
        created = await store.create("a", note("1"))
        async with store.watch() as events:
            await listing(events)
            gone = await store.delete("a", revision=created.revision)
            again = await store.create("a", note("2"))
            deleted, _ = await take(events, 2)
        assert isinstance(deleted, Deleted)
        assert created.revision <= gone <= deleted.revision < again.revision

    @of_buckets
    async def test_that_of_a_deletion_is_its_own(self, store: Store) -> None:
        created = await store.create("a", note("1"))
        assert await store.delete("a", revision=created.revision) > created.revision


class TestCreating:
    async def test_what_exists_is_not_created_again(self, store: Store) -> None:
        created = await store.create("shop", note("hi"))
        with pytest.raises(ConflictError, match="shop"):
            await store.create("shop", note("ho"))
        assert await store.get("shop") == created

    async def test_what_was_deleted_can_be_created_again(self, store: Store) -> None:
        await store.create("shop", note("hi"))
        deleted_at = await store.delete("shop")
        again = await store.create("shop", note("ho"))
        assert again.revision > deleted_at
        assert await store.get("shop") == again

    async def test_of_many_who_create_the_same_one_succeeds(self, store: Store) -> None:
        attempts = (store.create("shop", note(str(number))) for number in range(8))
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(result, ConflictError) for result in results) == 7
        assert await store.get("shop") in results


class TestUpdating:
    async def test_an_update_of_a_stale_revision_is_refused(self, store: Store) -> None:
        stale = await store.create("shop", note("1"))
        newest = await store.update("shop", note("2"), revision=stale.revision)
        with pytest.raises(ConflictError, match="shop"):
            await store.update("shop", note("3"), revision=stale.revision)
        assert await store.get("shop") == newest

    async def test_an_update_of_what_never_was_is_refused(self, store: Store) -> None:
        other = await store.create("other", note("1"))
        with pytest.raises(ConflictError, match="shop"):
            await store.update("shop", note("2"), revision=other.revision)

    async def test_an_update_of_what_was_deleted_is_refused(self, store: Store) -> None:
        created = await store.create("shop", note("1"))
        await store.delete("shop")
        with pytest.raises(ConflictError, match="shop"):
            await store.update("shop", note("2"), revision=created.revision)

    async def test_a_write_to_another_object_makes_no_revision_stale(self, store: Store) -> None:
        created = await store.create("shop", note("1"))
        await store.create("other", note("1"))
        updated = await store.update("shop", note("2"), revision=created.revision)
        assert await store.get("shop") == updated

    async def test_of_many_who_update_the_same_revision_one_succeeds(self, store: Store) -> None:
        base = (await store.create("shop", note("0"))).revision
        attempts = (store.update("shop", note(str(n)), revision=base) for n in range(1, 9))
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(result, ConflictError) for result in results) == 7
        assert await store.get("shop") in results


class TestDeleting:
    async def test_a_delete_of_the_newest_revision_deletes(self, store: Store) -> None:
        created = await store.create("shop", note("1"))
        await store.delete("shop", revision=created.revision)
        with pytest.raises(NotFoundError):
            await store.get("shop")

    async def test_a_delete_of_a_stale_revision_is_refused(self, store: Store) -> None:
        stale = await store.create("shop", note("1"))
        newest = await store.update("shop", note("2"), revision=stale.revision)
        with pytest.raises(ConflictError, match="shop"):
            await store.delete("shop", revision=stale.revision)
        assert await store.get("shop") == newest

    async def test_a_delete_of_what_never_was_finds_nothing(self, store: Store) -> None:
        with pytest.raises(NotFoundError, match="shop") as raised:
            await store.delete("shop")
        assert raised.value.deleted_at is None

    async def test_a_second_delete_finds_nothing(self, store: Store) -> None:
        await store.create("shop", note("1"))
        await store.delete("shop")
        with pytest.raises(NotFoundError, match="shop"):
            await store.delete("shop")

    async def test_a_delete_of_a_revision_that_is_gone_is_refused(self, store: Store) -> None:
        created = await store.create("shop", note("1"))
        await store.delete("shop")
        with pytest.raises(ConflictError, match="shop"):
            await store.delete("shop", revision=created.revision)


class TestIdentity:
    async def test_a_store_opened_twice_is_the_same_store(
        self, backend: Backend, store: Store
    ) -> None:
        other = await backend.stores.open(backend.kind())
        created = await store.create("shop", note("hi"))
        assert await other.get("shop") == created

    @of_buckets
    async def test_a_recreated_store_is_empty(self, backend: Backend, store: Store) -> None:
        await put(store, "shop")
        await backend.recreate()
        with pytest.raises(NotFoundError) as raised:
            await store.get("shop")
        assert raised.value.deleted_at is None
        await store.create("shop", note("again"))

    async def test_a_store_knows_its_kind(self, backend: Backend, store: Store) -> None:
        assert store.kind.name == backend.kind().name
