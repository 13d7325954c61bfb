"""Contract tests of the delete markers and the history of a bucket."""

import pytest

import natsctl
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Applied, Deleted, Store
from tests.support.stores.backends import Backend, listing, note, of_buckets, put, take

pytestmark = of_buckets


class TestDeletedAt:
    async def test_get_of_a_deleted_key_has_the_revision_of_the_deletion(
        self, store: Store
    ) -> None:
        await put(store, "shop")
        deleted_at = await store.delete("shop")
        with pytest.raises(NotFoundError) as raised:
            await store.get("shop")
        assert raised.value.deleted_at == deleted_at

    async def test_a_second_delete_has_the_revision_of_the_first(self, store: Store) -> None:
        await put(store, "shop")
        deleted_at = await store.delete("shop")
        with pytest.raises(NotFoundError) as raised:
            await store.delete("shop")
        assert raised.value.deleted_at == deleted_at

    async def test_a_purge_leaves_a_delete_marker(self, store: Store) -> None:
        await put(store, "shop")
        purged_at = await store.delete("shop", purge=True)
        with pytest.raises(NotFoundError) as raised:
            await store.get("shop")
        assert raised.value.deleted_at == purged_at


class TestHistory:
    async def test_the_history_is_oldest_first_and_has_the_deletions(self, store: Store) -> None:
        first = await put(store, "shop", "1")
        deleted_at = await store.delete("shop")
        recreated = await put(store, "shop", "2")
        await put(store, "other")
        newest = await put(store, "shop", "3")
        assert await store.history("shop") == [
            first,
            Deleted("shop", deleted_at),
            recreated,
            newest,
        ]

    async def test_the_history_is_no_longer_than_declared(self, backend: Backend) -> None:
        kind = natsctl.kv(bytes, bucket="short", history=2, storage="memory")
        store = await backend.stores.open(kind)
        written = [await put(store, "shop", str(number)) for number in range(4)]
        assert await store.history("shop") == written[-2:]

    async def test_the_history_of_a_key_excludes_keys_below_it(self, store: Store) -> None:
        stored = await put(store, "a")
        await put(store, "a.b")
        assert await store.history("a") == [stored]


class TestPurge:
    async def test_a_purge_deletes_the_history(self, store: Store) -> None:
        await put(store, "shop", "1")
        await put(store, "shop", "2")
        purged_at = await store.delete("shop", purge=True)
        assert await store.history("shop") == [Deleted("shop", purged_at, purged=True)]

    async def test_a_delete_marker_can_be_purged_at_its_revision(self, store: Store) -> None:
        await put(store, "shop")
        deleted_at = await store.delete("shop")
        purged_at = await store.delete("shop", revision=deleted_at, purge=True)
        assert await store.history("shop") == [Deleted("shop", purged_at, purged=True)]

    async def test_a_purge_of_a_stale_revision_is_refused(self, store: Store) -> None:
        stale = await put(store, "shop", "1")
        await put(store, "shop", "2")
        with pytest.raises(ConflictError):
            await store.delete("shop", revision=stale.revision, purge=True)
        assert len(await store.history("shop")) == 2

    async def test_a_purged_key_can_be_created_again(self, store: Store) -> None:
        await put(store, "shop")
        await store.delete("shop", purge=True)
        created = await store.create("shop", note("again"))
        assert (await store.history("shop"))[1:] == [created]


class TestWatch:
    async def test_a_listing_has_a_deleted_event_for_a_deleted_key(self, store: Store) -> None:
        await put(store, "a")
        kept = await put(store, "b")
        deleted_at = await store.delete("a")
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        assert shown == [Applied(kept), Deleted("a", deleted_at)]

    async def test_a_listing_has_only_an_applied_event_for_a_recreated_key(
        self, store: Store
    ) -> None:
        await put(store, "a")
        await store.delete("a")
        recreated = await put(store, "a")
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        assert shown == [Applied(recreated)]

    async def test_a_purge_of_a_deleted_key_is_another_deleted_event(self, store: Store) -> None:
        await put(store, "a")
        await store.delete("a")
        async with store.watch() as events:
            await listing(events)
            purged_at = await store.delete("a", purge=True)
            assert await take(events, 1) == [Deleted("a", purged_at, purged=True)]
