"""What every bucket keeps beside the newest values: markers of deletions, and history."""

import pytest

import natsctl
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Applied, Deleted, Store
from tests.support.stores.backends import Backend, listing, note, of_buckets, put, take

pytestmark = of_buckets


class TestDeletedAt:
    async def test_a_read_tells_at_which_revision_the_object_was_deleted(
        self, store: Store
    ) -> None:
        await put(store, "shop")
        deleted_at = await store.delete("shop")
        with pytest.raises(NotFoundError) as raised:
            await store.get("shop")
        assert raised.value.deleted_at == deleted_at

    async def test_a_second_delete_tells_when_the_first_was(self, store: Store) -> None:
        await put(store, "shop")
        deleted_at = await store.delete("shop")
        with pytest.raises(NotFoundError) as raised:
            await store.delete("shop")
        assert raised.value.deleted_at == deleted_at

    async def test_a_purge_leaves_a_marker_as_a_delete_does(self, store: Store) -> None:
        await put(store, "shop")
        purged_at = await store.delete("shop", purge=True)
        with pytest.raises(NotFoundError) as raised:
            await store.get("shop")
        assert raised.value.deleted_at == purged_at


class TestHistory:
    async def test_it_is_told_oldest_first_with_its_deletions(self, store: Store) -> None:
        first = await put(store, "shop", "1")
        deleted_at = await store.delete("shop")
        again = await put(store, "shop", "2")
        await put(store, "other")
        newest = await put(store, "shop", "3")
        assert await store.history("shop") == [first, Deleted("shop", deleted_at), again, newest]

    async def test_it_is_no_longer_than_declared(self, backend: Backend) -> None:
        kind = natsctl.kv(bytes, bucket="short", history=2, storage="memory")
        store = await backend.stores.open(kind)
        written = [await put(store, "shop", str(number)) for number in range(4)]
        assert await store.history("shop") == written[-2:]

    async def test_of_what_never_was_it_is_empty(self, store: Store) -> None:
        assert await store.history("shop") == []

    async def test_of_a_key_it_is_not_that_of_keys_below_it(self, store: Store) -> None:
        stored = await put(store, "a")
        await put(store, "a.b")
        assert await store.history("a") == [stored]


class TestPurging:
    async def test_it_forgets_the_history(self, store: Store) -> None:
        await put(store, "shop", "1")
        await put(store, "shop", "2")
        purged_at = await store.delete("shop", purge=True)
        assert await store.history("shop") == [Deleted("shop", purged_at, purged=True)]

    async def test_it_leaves_other_keys_alone(self, store: Store) -> None:
        await put(store, "a")
        below = await put(store, "a.b")
        await store.delete("a", purge=True)
        assert await store.get("a.b") == below

    async def test_it_may_be_asked_of_what_was_deleted(self, store: Store) -> None:
        await put(store, "shop")
        deleted_at = await store.delete("shop")
        assert await store.delete("shop", purge=True) > deleted_at

    async def test_it_may_be_asked_of_the_revision_of_a_marker(self, store: Store) -> None:
        await put(store, "shop")
        deleted_at = await store.delete("shop")
        purged_at = await store.delete("shop", revision=deleted_at, purge=True)
        assert await store.history("shop") == [Deleted("shop", purged_at, purged=True)]

    async def test_of_what_never_was_it_finds_nothing(self, store: Store) -> None:
        with pytest.raises(NotFoundError):
            await store.delete("shop", purge=True)

    async def test_of_a_stale_revision_it_is_refused(self, store: Store) -> None:
        stale = await put(store, "shop", "1")
        await put(store, "shop", "2")
        with pytest.raises(ConflictError):
            await store.delete("shop", revision=stale.revision, purge=True)
        assert len(await store.history("shop")) == 2

    async def test_what_was_purged_can_be_created_again(self, store: Store) -> None:
        await put(store, "shop")
        await store.delete("shop", purge=True)
        created = await store.create("shop", note("again"))
        assert (await store.history("shop"))[1:] == [created]


class TestWatching:
    async def test_a_listing_shows_what_was_deleted_as_deleted(self, store: Store) -> None:
        await put(store, "a")
        kept = await put(store, "b")
        deleted_at = await store.delete("a")
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        assert shown == [Applied(kept), Deleted("a", deleted_at)]

    async def test_a_listing_shows_what_was_created_again_as_it_is(self, store: Store) -> None:
        await put(store, "a")
        await store.delete("a")
        again = await put(store, "a")
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        assert shown == [Applied(again)]

    async def test_a_purge_is_told_as_a_deletion(self, store: Store) -> None:
        await put(store, "a")
        async with store.watch() as events:
            await listing(events)
            purged_at = await store.delete("a", purge=True)
            assert await take(events, 1) == [Deleted("a", purged_at, purged=True)]

    async def test_a_purge_of_what_was_deleted_is_told_once_more(self, store: Store) -> None:
        await put(store, "a")
        await store.delete("a")
        async with store.watch() as events:
            await listing(events)
            purged_at = await store.delete("a", purge=True)
            assert await take(events, 1) == [Deleted("a", purged_at, purged=True)]
