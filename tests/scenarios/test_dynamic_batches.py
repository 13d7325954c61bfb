"""Query batches of a dynamic watcher: reads begin watches, and watches without reads end."""

import asyncio

import pytest

from natsctl import Selector
from natsctl.dynamic import ObjectIdentifier
from natsctl.errors import NoCacheEntryError, PermissionDeniedError, QueryBatchNotStartedError
from tests.support.controllers.dynamic_dependents import (
    LIMITS,
    QUIET,
    SECRET,
    DynamicHarness,
    content_of,
    dynamic_harness,
    limit,
    secret,
    watcher_called,
)

A, B = watcher_called("a"), watcher_called("b")
GOLD = Selector.parse("tier=gold")


async def read(harness: DynamicHarness, watcher: ObjectIdentifier, *names: str) -> list[object]:
    """Read secrets in one batch."""
    async with harness.watcher.query_batch(watcher):
        return [
            content_of(await harness.watcher.get(watcher, SECRET, "default", name))
            for name in names
        ]


async def read_secret_and_limit(harness: DynamicHarness, watcher: ObjectIdentifier) -> None:
    """Read a secret and a limit in one batch."""
    async with harness.watcher.query_batch(watcher):
        await harness.watcher.get(watcher, SECRET, "default", "three")
        await harness.watcher.get(watcher, LIMITS, "", "us")


async def test_an_object_read_in_a_batch_is_watched() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.put_secret("default/one", "1")
        assert await read(harness, A, "one", "two") == [{"text": "1"}, None]
        await harness.put_secret("default/one", "2")
        assert await harness.taken() == ["a"]
        await harness.put_secret("default/two")
        assert await harness.taken() == ["a"]
        assert await read(harness, A, "one", "two") == [{"text": "2"}, {"text": "hi"}]


async def test_an_object_that_begins_to_match_a_list_calls_the_watcher() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.put_secret("default/one", "1", tier="gold")
        await harness.put_secret("default/two", "2", tier="tin")
        await harness.put_secret("other/three", "3", tier="gold")
        async with harness.watcher.query_batch(A):
            matching = await harness.watcher.list(A, SECRET, "default", GOLD)
            everywhere = await harness.watcher.list(A, SECRET, "", GOLD)
            secrets = await harness.watcher.list(A, SECRET, "default")
        assert [content_of(obj) for obj in matching] == [{"text": "1"}]
        assert [content_of(obj) for obj in everywhere] == [{"text": "1"}, {"text": "3"}]
        assert [content_of(obj) for obj in secrets] == [{"text": "1"}, {"text": "2"}]
        assert harness.watcher.get_watch_count() == 3
        await harness.put_secret("default/two", "2", tier="gold")
        assert await harness.taken() == ["a"]
        cached = harness.watcher.list_from_cache(SECRET, "default", GOLD)
        assert [content_of(obj) for obj in cached] == [{"text": "1"}, {"text": "2"}]


async def test_changing_a_read_object_does_not_change_the_cache() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.put_secret("default/one", "1")
        async with harness.watcher.query_batch(A):
            first = await harness.watcher.get(A, SECRET, "default", "one")
            assert first is not None
            first["data"]["text"] = "spoilt"  # type: ignore[index]
            second = await harness.watcher.get(A, SECRET, "default", "one")
        assert content_of(second) == {"text": "1"}
        cached = harness.watcher.get_from_cache(SECRET, "default", "one")
        assert content_of(cached) == {"text": "1"}


async def test_a_missing_object_is_none_and_an_unwatched_object_raises_no_cache_entry() -> None:
    async with dynamic_harness(QUIET) as harness:
        await read(harness, A, "one")
        assert harness.watcher.get_from_cache(SECRET, "default", "one") is None
        with pytest.raises(NoCacheEntryError):
            harness.watcher.get_from_cache(SECRET, "default", "two")
        with pytest.raises(NoCacheEntryError):
            harness.watcher.list_from_cache(SECRET, "default")
        with pytest.raises(NoCacheEntryError):
            harness.watcher.list_watched_from_cache(B)
        assert harness.watcher.list_watched_from_cache(A) == []


async def test_reads_outside_a_batch_raise_batch_not_started() -> None:
    async with dynamic_harness(QUIET) as harness:
        with pytest.raises(QueryBatchNotStartedError):
            await harness.watcher.get(A, SECRET, "default", "one")
        with pytest.raises(QueryBatchNotStartedError):
            await harness.watcher.list(A, SECRET, "default")
        with pytest.raises(QueryBatchNotStartedError):
            await harness.watcher.end_query_batch(A)
        await harness.watcher.start_query_batch(B)
        with pytest.raises(QueryBatchNotStartedError):
            await harness.watcher.get(A, SECRET, "default", "one")
        assert harness.watcher.get_watch_count() == 0


async def test_a_failed_batch_keeps_all_watches_and_ends() -> None:
    async with dynamic_harness(QUIET) as harness:
        await read(harness, A, "one", "two")
        await harness.watcher.add_watcher(B, limit("eu"))
        harness.limits.fail(PermissionDeniedError("you may not"))
        with pytest.raises(PermissionDeniedError):
            await read_secret_and_limit(harness, A)
        await asyncio.sleep(0.1)
        assert harness.watcher.get_watch_count() == 3
        await read(harness, A, "one")
        assert harness.watcher.get_watch_count() == 1


async def test_a_change_between_the_watch_and_the_read_is_never_lost() -> None:
    async with dynamic_harness(QUIET) as harness:
        contents: list[object] = []

        async def reconcile(watcher: ObjectIdentifier) -> float | None:
            async with harness.watcher.query_batch(watcher):
                contents.append(
                    content_of(await harness.watcher.get(watcher, SECRET, "default", "one"))
                )
                await asyncio.sleep(0.01)
            return None

        harness.reconcile = reconcile
        await harness.watcher.add_watcher(A, secret("one"))
        for turn in range(50):
            await harness.put_secret("default/one", str(turn))
            await asyncio.sleep(0.003)
        await asyncio.sleep(1)
        assert contents[-1] == {"text": "49"}


async def test_lists_omit_values_that_are_not_documents() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.limits.create("eu", b"[1]")
        await harness.put_limit("us", 2)
        async with harness.watcher.query_batch(A):
            objects = await harness.watcher.list(A, LIMITS, "")
        assert [content_of(obj) for obj in objects] == [{"most": 2}]
        await harness.watcher.add_watcher(A, limit("eu"))
        assert len(harness.watcher.list_watched_from_cache(A)) == 1
