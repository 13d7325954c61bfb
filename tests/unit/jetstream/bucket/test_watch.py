"""A watch lists a bucket, reports every later change, and breaks if it may have missed one."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

import pytest

from natsctl.errors import WatchBrokenError
from natsctl.jetstream.watch import COUNTS, KvWatch
from natsctl.model.store import Applied, Batch, Deleted, Listed, Listing, Stored, WatchEvent
from tests.support.stores.bucket_server import BucketServer

VERIFY_S = 60.0
COUNT_S = VERIFY_S / COUNTS


@pytest.fixture
async def server() -> BucketServer:
    return BucketServer()


async def events_of(
    watch: KvWatch, seconds: float = 5.0, shown: set[str] | None = None
) -> list[WatchEvent]:
    """Return the events that the watch reports within this time; *shown* gets the keys."""
    events: list[WatchEvent] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), watch(shown) as reported:
            async for event in reported:
                if isinstance(event, Batch):
                    events.extend(Applied(stored) for stored in event.states)
                else:
                    events.append(event)
                if shown is not None and isinstance(event, Applied | Batch):
                    states = event.states if isinstance(event, Batch) else [event.stored]
                    shown.update(stored.key for stored in states)
                if shown is not None and isinstance(event, Deleted):
                    shown.discard(event.key)
    return events


async def broken(
    server: BucketServer,
    action: Callable[[], object],
    pattern: str = ">",
    *,
    within_s: float = 3 * VERIFY_S,
    shown: Collection[str] | None = None,
) -> tuple[str, float]:
    """Return why and after how many seconds a watch breaks after the *action*."""
    clock = asyncio.get_running_loop().time
    acted_at = clock()

    async def follow() -> None:
        nonlocal acted_at
        async with KvWatch(server.bucket, (pattern,), verify_s=VERIFY_S)(shown) as events:
            async for event in events:
                if isinstance(event, Listed):
                    acted_at = clock()
                    action()

    with pytest.raises(WatchBrokenError) as raised:
        async with asyncio.timeout(within_s):
            await follow()
    return str(raised.value), clock() - acted_at


async def followed(
    server: BucketServer,
    action: Callable[[], object],
    pattern: str = ">",
    *,
    seconds: float = 3 * VERIFY_S,
    shown: set[str] | None = None,
) -> list[WatchEvent]:
    """Return the events after the *action*, of a watch that does not break."""
    watch = KvWatch(server.bucket, (pattern,), verify_s=VERIFY_S)
    acting = asyncio.create_task(after_a_second(action))
    events = await events_of(watch, seconds, shown)
    await acting
    end = next(index for index, event in enumerate(events) if isinstance(event, Listed))
    return events[end + 1 :]


async def after_a_second(action: Callable[[], object]) -> None:
    await asyncio.sleep(1)
    action()


class TestList:
    async def test_every_key_and_every_later_change_is_reported(self, server: BucketServer) -> None:
        def change() -> None:
            server.put("a", "b")
            server.delete("c")

        assert await events_of(KvWatch(server.bucket)) == [Listing("2026-01-01"), Listed(0)]
        server.put("a", value=b"one")
        assert await events_of(KvWatch(server.bucket)) == [
            Listing("2026-01-01"),
            Applied(Stored("a", 1, b"one")),
            Listed(1),
        ]
        assert await followed(server, change) == [
            Applied(Stored("a", 2, b"{}")),
            Applied(Stored("b", 3, b"{}")),
            Deleted("c", 4, purged=False),
        ]
        assert not server.consumers

    async def test_the_list_has_a_key_that_moves_behind_the_first_revision(
        self, server: BucketServer
    ) -> None:
        server.lag_s = 0.1
        server.put("a", "b", "c")
        server.after("STREAM.MSG.GET", lambda: server.put("c", "b"))
        _, *states, end = await events_of(KvWatch(server.bucket))
        assert states == [
            Applied(Stored(key, at, b"{}")) for key, at in (("a", 1), ("c", 4), ("b", 5))
        ]
        assert end == Listed(5)

    async def test_a_key_that_is_deleted_after_many_changes_is_listed_as_deleted(
        self, server: BucketServer
    ) -> None:
        def delete() -> None:
            server.put("c")
            server.delete("b")

        server.lag_s = 0.1
        server.put("a", "b", "c")
        for _ in range(4):
            server.after("STREAM.MSG.GET", delete)
        events = await events_of(KvWatch(server.bucket))
        assert [event for event in events if getattr(event, "key", "") == "b"] == [
            Deleted("b", 11, purged=False)
        ]


class TestIncarnation:
    async def incarnations(self, server: BucketServer, *actions: Callable[[], object]) -> list[str]:
        """Return the incarnation of each list: the first one, and those after the actions."""
        watch, incarnations, shown = KvWatch(server.bucket), list[str](), set[str]()
        for action in (lambda: None, *actions):
            action()
            events = await events_of(watch, shown=shown)
            incarnations += [event.incarnation for event in events if isinstance(event, Listing)]
        return incarnations

    async def test_a_bucket_that_grows_keeps_its_incarnation(self, server: BucketServer) -> None:
        server.put("a")
        assert await self.incarnations(server, lambda: server.put("b")) == ["2026-01-01"]

    async def test_a_bucket_that_lost_revisions_has_another_incarnation(
        self, server: BucketServer
    ) -> None:
        def restore() -> None:
            server.recreate()
            server.created = "2026-01-01"

        server.put("a", "b")
        assert await self.incarnations(
            server, restore, lambda: None, lambda: server.put("a"), restore
        ) == ["2026-01-01", *["2026-01-01#1"] * 3, "2026-01-01#2"]


def replaced(server: BucketServer) -> None:
    server.purge("a")
    server.put("c")


def stopped(server: BucketServer) -> None:
    server.stopped = True
    server.put("c")


class Break(NamedTuple):
    happens: Callable[[BucketServer], object]
    reason: str
    key: str = "a"
    shown: Collection[str] | None = None
    after_s: float = 0.0
    within_s: float = COUNT_S + 1  # of the next count


BREAKS = {
    "own keys": Break(lambda server: server.purge("a"), "a vanished from b without a trace"),
    "keys of the reader": Break(lambda server: server.purge("a"), "a vanished from", shown="ab"),
    "despite a new key": Break(replaced, "a vanished from b", within_s=3 * VERIFY_S),
    "key of a part": Break(
        lambda server: server.purge("x.a"),
        "x.a vanished from b without a trace",
        "x.a",
        after_s=VERIFY_S - 1,
        within_s=VERIFY_S + 1,
    ),
    "illegal key": Break(lambda server: server.purge("x..y"), "illegal keys vanished", "x..y"),
    "consumer that only sends heartbeats": Break(
        stopped,
        "b is at revision 3, but the consumer has stopped at 2",
        after_s=VERIFY_S,
        within_s=2 * VERIFY_S + 1,
    ),
}


class TestBrokenWatches:
    @pytest.mark.parametrize("name", BREAKS)
    async def test_what_a_watch_missed_is_noticed_by_the_next_count_or_check(
        self, server: BucketServer, name: str
    ) -> None:
        missed = BREAKS[name]
        server.put(missed.key, "x.b" if missed.key == "x.a" else "b")
        if missed.happens is replaced:
            server.config["max_age"] = 1  # the same number of keys, before and after
        pattern = "x.>" if missed.key == "x.a" else ">"
        reason, after_s = await broken(
            server, lambda: missed.happens(server), pattern, shown=missed.shown
        )
        assert reason.startswith(missed.reason)
        assert missed.after_s <= after_s <= missed.within_s

    async def test_another_prefix_is_noticed_by_the_next_count(self, server: BucketServer) -> None:
        mirror = {"name": "KV_other"}
        reason, _ = await broken(server, lambda: server.config.update(mirror=mirror))
        assert reason == "the keys of b are under $KV.other.> now"

    async def test_a_key_that_vanished_is_noticed_by_a_number_that_is_ahead_of_the_watch(
        self, server: BucketServer
    ) -> None:
        def change() -> None:
            server.purge("a")
            for number in range(30):  # some of these keys arrive after the answer of the server
                later_s = COUNT_S - 1 + number / 5
                asyncio.get_running_loop().call_later(later_s, server.put, f"k{number}")

        server.lag_s = 0.4
        server.put("a")
        reason, after_s = await broken(server, change)
        assert reason == "a vanished from b without a trace"
        assert COUNT_S < after_s < COUNT_S + 8


class TestCounts:
    async def test_an_expired_delete_marker_breaks_no_watch(self, server: BucketServer) -> None:
        def delete() -> None:
            server.delete("b")
            asyncio.get_running_loop().call_later(1, server.purge, "b")

        server.put("a", "b")
        assert await followed(server, delete) == [Deleted("b", 3, purged=False)]

    async def test_the_keys_are_listed_once_after_a_delete_marker_expired(
        self, server: BucketServer
    ) -> None:
        def delete() -> None:
            server.delete("b")
            server.delete("c")
            asyncio.get_running_loop().call_later(1, server.purge, "b")

        server.put("a", "b", "c", "x..y")
        await followed(server, delete)
        assert server.listings == ["$KV.b.>"]

    @pytest.mark.parametrize("shown", [None, set()], ids=["own keys", "keys of the reader"])
    async def test_a_key_that_returned_is_counted_once(
        self, server: BucketServer, shown: set[str] | None
    ) -> None:
        def return_key() -> None:
            server.delete("a")
            asyncio.get_running_loop().call_later(1, server.put, "a")

        server.put("a", "b")
        await followed(server, return_key, shown=shown)
        assert server.listings == []

    async def test_the_keys_of_a_part_are_counted_without_a_list(
        self, server: BucketServer
    ) -> None:
        server.put("x.a", "y.a")
        await followed(server, lambda: None, "x.>", seconds=2 * VERIFY_S + 5)
        assert server.listings == []
