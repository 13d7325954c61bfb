"""Contract tests of the delete markers and the history of a bucket."""

import pytest

import natsctl
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Applied, Deleted, Store
from tests.support.stores.backends import Backend, listing, note, of_buckets, put, take

pytestmark = of_buckets


async def missing_since(store: Store, key: str = "shop") -> int | None:
    """Return the revision of the deletion of a key that does not exist."""
    with pytest.raises(NotFoundError) as raised:
        await store.get(key)
    return raised.value.deleted_at


class TestDeletedAt:
    async def test_get_of_a_deleted_key_has_the_revision_of_the_deletion(
        self, store: Store
    ) -> None:
        await put(store, "shop")
        deleted_at = await store.delete("shop")
        assert await missing_since(store) == deleted_at
        with pytest.raises(NotFoundError) as raised:
            await store.delete("shop")
        assert raised.value.deleted_at == deleted_at
        await put(store, "shop")
        purged_at = await store.delete("shop", purge=True)
        assert await missing_since(store) == purged_at


class TestHistory:
    async def test_the_history_is_oldest_first_and_has_the_deletions(self, store: Store) -> None:
        """It has no key below its key."""
        first = await put(store, "shop", "1")
        deleted_at = await store.delete("shop")
        recreated = await put(store, "shop", "2")
        await put(store, "other")
        await put(store, "shop.a")
        newest = await put(store, "shop", "3")
        deletion = Deleted("shop", deleted_at)
        assert await store.history("shop") == [first, deletion, recreated, newest]

    async def test_the_history_is_no_longer_than_declared(self, backend: Backend) -> None:
        kind = natsctl.kv(bytes, bucket="short", history=2, storage="memory")
        store = await backend.stores.open(kind)
        written = [await put(store, "shop", str(number)) for number in range(4)]
        assert await store.history("shop") == written[-2:]


class TestPurge:
    async def test_a_purge_deletes_the_history(self, store: Store) -> None:
        """Also that of a deleted key; the key can be created again."""
        await put(store, "shop", "1")
        await put(store, "shop", "2")
        purged_at = await store.delete("shop", purge=True)
        assert await store.history("shop") == [Deleted("shop", purged_at, purged=True)]
        created = await store.create("shop", note("again"))
        assert (await store.history("shop"))[1:] == [created]
        deleted_at = await store.delete("shop")
        purged_at = await store.delete("shop", revision=deleted_at, purge=True)
        assert await store.history("shop") == [Deleted("shop", purged_at, purged=True)]

    async def test_a_purge_of_a_stale_revision_is_refused(self, store: Store) -> None:
        stale = await put(store, "shop", "1")
        await put(store, "shop", "2")
        with pytest.raises(ConflictError):
            await store.delete("shop", revision=stale.revision, purge=True)
        assert len(await store.history("shop")) == 2


class TestWatch:
    async def test_a_listing_has_a_deleted_event_for_a_deleted_key(self, store: Store) -> None:
        """A recreated key has only an applied event, and a purge is another deleted event."""
        for key in ("again", "a"):
            await put(store, key)
        kept = await put(store, "b")
        await store.delete("again")
        recreated = await put(store, "again")
        deleted_at = await store.delete("a")
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
            assert shown == [Applied(kept), Applied(recreated), Deleted("a", deleted_at)]
            purged_at = await store.delete("a", purge=True)
            assert await take(events, 1) == [Deleted("a", purged_at, purged=True)]
