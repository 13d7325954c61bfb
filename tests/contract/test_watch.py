"""What every watch tells: a listing, then every change, in order."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from natsctl.errors import WatchBrokenError
from natsctl.model.store import Applied, Deleted, Listed, Listing, Store, WatchEvent
from tests.support.eventually import eventually
from tests.support.stores.backends import (
    PATIENCE_S,
    Backend,
    listing,
    note,
    of_buckets,
    put,
    take,
    text,
)

MANY = 1000


async def follow_one(store: Store, events: AsyncIterator[WatchEvent]) -> None:
    """Be past the listing, and told of a change."""
    await listing(events)
    await put(store, "a")
    await take(events, 1)


async def eventually_watched(backend: Backend, count: int) -> None:
    """Wait until the system serves so many watches: it may hear late of one that ended."""

    async def so_many() -> bool:
        return await backend.watches() == count

    await eventually(so_many)


class TestListing:
    async def test_it_begins_shows_every_object_and_ends(self, store: Store) -> None:
        stored = [await put(store, key) for key in ("a", "b", "c")]
        async with store.watch() as events:
            begin, *shown, end = await listing(events)
        assert isinstance(begin, Listing)
        assert shown == [Applied(at) for at in stored]
        assert isinstance(end, Listed)
        assert end.revision >= stored[-1].revision

    async def test_it_shows_the_newest_state_only(self, store: Store) -> None:
        await put(store, "a", "1")
        newest = await put(store, "a", "2")
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        assert shown == [Applied(newest)]

    async def test_of_nothing_it_ends_at_once(self, store: Store) -> None:
        async with store.watch() as events:
            begin, end = await listing(events)
        assert isinstance(begin, Listing)
        assert isinstance(end, Listed)

    @of_buckets
    async def test_it_ends_at_the_newest_write(self, store: Store) -> None:
        async with store.watch() as events:
            assert (await listing(events))[-1] == Listed(0)
        await put(store, "a")
        newest = await put(store, "b")
        async with store.watch() as events:
            assert (await listing(events))[-1] == Listed(newest.revision)

    async def test_it_shows_no_object_that_was_deleted(self, store: Store) -> None:
        await put(store, "a")
        await put(store, "b")
        await store.delete("a")
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        assert [event.stored.key for event in shown if isinstance(event, Applied)] == ["b"]

    async def test_it_reaches_a_deletion_that_was_the_last_write(self, store: Store) -> None:
        await put(store, "a")
        deleted_at = await store.delete("a")
        async with store.watch() as events:
            end = (await listing(events))[-1]
        assert isinstance(end, Listed)
        assert end.revision >= deleted_at

    async def test_a_thousand_objects_are_all_shown(self, store: Store) -> None:
        keys = [f"k{number}" for number in range(MANY)]
        await asyncio.gather(*(store.create(key, note(key)) for key in keys))
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        told = {
            event.stored.key: text(event.stored) for event in shown if isinstance(event, Applied)
        }
        assert told == {key: key for key in keys}


class TestFollowing:
    async def test_changes_come_in_the_order_of_their_revisions(self, store: Store) -> None:
        async with store.watch() as events:
            await listing(events)
            first = await put(store, "a", "1")
            other = await put(store, "b", "1")
            second = await put(store, "a", "2")
            gone = await store.delete("b")
            again = await put(store, "b", "2")
            *before, deleted, after = await take(events, 5)
        assert before == [Applied(first), Applied(other), Applied(second)]
        assert isinstance(deleted, Deleted)
        assert deleted.key == "b"
        assert second.revision < deleted.revision < again.revision
        assert deleted.revision >= gone
        assert after == Applied(again)

    async def test_a_thousand_changes_are_all_told_in_order(self, store: Store) -> None:
        async with store.watch() as events:
            await listing(events)
            written = [await put(store, f"k{number % 7}", str(number)) for number in range(MANY)]
            assert await take(events, MANY) == [Applied(stored) for stored in written]

    async def test_nothing_is_lost_between_the_listing_and_what_follows(self, store: Store) -> None:
        keys = [f"k{number}" for number in range(200)]

        async def write() -> None:
            for key in keys:
                await store.create(key, note(key))

        listed: list[str] = []
        followed: list[str] = []
        told = listed
        async with asyncio.TaskGroup() as group, store.watch() as events:
            group.create_task(write())
            async with asyncio.timeout(PATIENCE_S):
                while len(listed) + len(followed) < len(keys):
                    event = await anext(events)
                    if isinstance(event, Applied):
                        told.append(event.stored.key)
                    elif isinstance(event, Listed):
                        told = followed
        assert sorted(listed) == sorted(keys[: len(listed)])
        assert followed == keys[len(listed) :]

    async def test_two_watches_are_told_the_same(self, store: Store) -> None:
        async with store.watch() as one, store.watch() as two:
            await listing(one)
            await listing(two)
            stored = await put(store, "a")
            assert await take(one, 1) == await take(two, 1) == [Applied(stored)]

    async def test_one_watch_ends_without_the_other(self, store: Store) -> None:
        async with store.watch() as one:
            await listing(one)
            async with store.watch() as two:
                await listing(two)
            stored = await put(store, "a")
            assert await take(one, 1) == [Applied(stored)]

    async def test_a_watch_of_another_opening_is_told_too(
        self, backend: Backend, store: Store
    ) -> None:
        other = await backend.stores.open(backend.kind())
        async with other.watch() as events:
            await listing(events)
            stored = await put(store, "a")
            assert await take(events, 1) == [Applied(stored)]


class TestIncarnation:
    async def test_it_is_the_same_for_every_watch_of_a_store(self, store: Store) -> None:
        incarnations = set()
        for _ in range(3):
            async with store.watch() as events:
                incarnations.add((await listing(events))[0])
            await put(store, "a")
        assert len(incarnations) == 1

    async def test_it_is_the_same_however_the_store_was_opened(
        self, backend: Backend, store: Store
    ) -> None:
        other = await backend.stores.open(backend.kind())
        async with store.watch() as one, other.watch() as two:
            assert (await listing(one))[0] == (await listing(two))[0]

    @of_buckets
    async def test_it_is_another_after_the_store_was_recreated(
        self, backend: Backend, store: Store
    ) -> None:
        async with store.watch() as events:
            before = (await listing(events))[0]
        await backend.recreate()
        async with store.watch() as events:
            assert (await listing(events))[0] != before

    @of_buckets
    async def test_a_watch_breaks_when_its_store_is_recreated(
        self, backend: Backend, store: Store
    ) -> None:
        async with store.watch() as events:
            await listing(events)
            await backend.recreate()
            with pytest.raises(WatchBrokenError):
                await take(events, 1)


class TestLeaving:
    async def test_nothing_is_left_behind(self, backend: Backend, store: Store) -> None:
        async with store.watch() as one, store.watch() as two:
            await listing(one)
            await listing(two)
            await put(store, "a")
            await take(one, 1)
            await take(two, 1)
            await eventually_watched(backend, 2)
        await eventually_watched(backend, 0)

    async def test_nothing_is_left_behind_by_who_leaves_in_the_middle(
        self, backend: Backend, store: Store
    ) -> None:
        for key in ("a", "b", "c"):
            await put(store, key)
        async with store.watch() as events:
            await take(events, 2)
        await eventually_watched(backend, 0)

    async def test_nothing_is_left_behind_by_who_fails(
        self, backend: Backend, store: Store
    ) -> None:
        async def fail() -> None:
            async with store.watch() as events:
                await follow_one(store, events)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        await eventually_watched(backend, 0)

    async def test_nothing_is_left_behind_by_who_is_cancelled(
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
