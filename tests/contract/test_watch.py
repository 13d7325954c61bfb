"""Contract tests of a watch: a listing, then every change in order."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from natsctl.errors import WatchBrokenError
from natsctl.model.store import Applied, Deleted, Listed, Listing, Store, WatchEvent
from tests.support.eventually import eventually
from tests.support.stores.backends import (
    PATIENCE_S,
    Backend,
    KubeBackend,
    listing,
    note,
    of_buckets,
    put,
    take,
    text,
)


async def follow_one(store: Store, events: AsyncIterator[WatchEvent]) -> None:
    """Take the listing and one change from a new watch."""
    await listing(events)
    await put(store, "a")
    await take(events, 1)


async def eventually_watched(backend: Backend, count: int) -> None:
    """Wait until the system serves `count` watches; it may notice the end of a watch late."""

    async def has_count() -> bool:
        return await backend.watches() == count

    await eventually(has_count)


class TestList:
    async def test_a_listing_has_a_begin_every_object_and_an_end(self, store: Store) -> None:
        stored = [await put(store, key) for key in ("a", "b", "c")]
        async with store.watch() as events:
            begin, *shown, end = await listing(events)
        assert isinstance(begin, Listing)
        assert shown == [Applied(state) for state in stored]
        assert isinstance(end, Listed)
        assert end.revision >= stored[-1].revision

    @of_buckets
    async def test_a_listing_ends_at_the_revision_of_the_newest_write(self, store: Store) -> None:
        async with store.watch() as events:
            begin, end = await listing(events)
        assert isinstance(begin, Listing)
        assert end == Listed(0)
        await put(store, "a")
        newest = await put(store, "b")
        async with store.watch() as events:
            assert (await listing(events))[-1] == Listed(newest.revision)

    async def test_the_revision_of_a_listing_includes_a_last_deletion(self, store: Store) -> None:
        await put(store, "a")
        deleted_at = await store.delete("a")
        async with store.watch() as events:
            end = (await listing(events))[-1]
        assert isinstance(end, Listed)
        assert end.revision >= deleted_at

    async def test_a_listing_shows_all_of_many_objects(
        self, backend: Backend, store: Store
    ) -> None:
        count = 50 if isinstance(backend, KubeBackend) else 1000  # a cluster writes slowly
        keys = [f"k{number}" for number in range(count)]
        await asyncio.gather(*(store.create(key, note(key)) for key in keys))
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        texts = {
            event.stored.key: text(event.stored) for event in shown if isinstance(event, Applied)
        }
        assert texts == {key: key for key in keys}


class TestChanges:
    async def test_events_are_in_the_order_of_their_revisions(self, store: Store) -> None:
        async with store.watch() as events:
            await listing(events)
            first = await put(store, "a", "1")
            other_object = await put(store, "b", "1")
            second = await put(store, "a", "2")
            deleted_at = await store.delete("b")
            recreated = await put(store, "b", "2")
            *before, deleted, after = await take(events, 5)
        assert before == [Applied(first), Applied(other_object), Applied(second)]
        assert isinstance(deleted, Deleted)
        assert deleted.key == "b"
        assert second.revision < deleted.revision < recreated.revision
        assert deleted.revision >= deleted_at
        assert after == Applied(recreated)

    async def test_no_event_is_lost_between_the_listing_and_the_changes(self, store: Store) -> None:
        keys = [f"k{number}" for number in range(100)]

        async def write() -> None:
            for key in keys:
                await store.create(key, note(key))

        listed: list[str] = []
        followed: list[str] = []
        phase_keys = listed
        async with asyncio.TaskGroup() as group, store.watch() as events:
            group.create_task(write())
            async with asyncio.timeout(PATIENCE_S):
                while len(listed) + len(followed) < len(keys):
                    event = await anext(events)
                    if isinstance(event, Applied):
                        phase_keys.append(event.stored.key)
                    elif isinstance(event, Listed):
                        phase_keys = followed
        assert sorted(listed) == sorted(keys[: len(listed)])
        assert followed == keys[len(listed) :]


class TestIncarnation:
    async def test_every_watch_of_a_store_has_the_same_incarnation(self, store: Store) -> None:
        incarnations = set()
        for _ in range(3):
            async with store.watch() as events:
                incarnations.add((await listing(events))[0])
            await put(store, "a")
        assert len(incarnations) == 1

    async def test_a_second_reader_that_begins_during_writes_changes_no_incarnation(
        self, store: Store
    ) -> None:
        shown: set[str] = set()
        async with store.watch(shown) as events:
            before = (await listing(events))[0]
            async with store.watch() as others:  # has asked the server before these writes
                for key in "ab":
                    shown.add(key)
                    stored = await put(store, key)
                    assert await take(events, 1) == [Applied(stored)]
                await listing(others)
        async with store.watch(shown) as events:
            begun = [event for event in await listing(events) if isinstance(event, Listing)]
        assert begun in ([before], [])

    @of_buckets
    async def test_a_watch_breaks_if_its_store_is_recreated(
        self, backend: Backend, store: Store
    ) -> None:
        """The new store has another incarnation."""
        async with store.watch() as events:
            before = (await listing(events))[0]
            await backend.recreate()
            with pytest.raises(WatchBrokenError):
                await take(events, 1)
        async with store.watch() as events:
            assert (await listing(events))[0] != before


class TestClose:
    async def test_a_closed_watch_leaves_no_consumer(self, backend: Backend, store: Store) -> None:
        async with store.watch() as first_events, store.watch() as second_events:
            await listing(first_events)
            await listing(second_events)
            await put(store, "a")
            await take(first_events, 1)
            await take(second_events, 1)
            await eventually_watched(backend, 2)
        await eventually_watched(backend, 0)

    async def test_a_failed_watch_leaves_no_consumer(self, backend: Backend, store: Store) -> None:
        async def fail() -> None:
            async with store.watch() as events:
                await follow_one(store, events)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        await eventually_watched(backend, 0)

    async def test_a_cancelled_watch_leaves_no_consumer(
        self, backend: Backend, store: Store
    ) -> None:
        following = asyncio.Event()

        async def follow() -> None:
            async with store.watch() as events:
                await follow_one(store, events)
                following.set()
                await anext(events)

        task = asyncio.create_task(follow())
        await following.wait()
        task.cancel()
        await asyncio.wait({task})
        await eventually_watched(backend, 0)
