"""Query batches of a dynamic watcher: reads begin watches, and watches without reads end."""

import asyncio

import pytest

from natsctl import Selector
from natsctl.dynamic import DynamicOptions, ObjectIdentifier
from natsctl.errors import (
    InvalidInputError,
    InvalidObjectError,
    NoCacheEntryError,
    PermissionDeniedError,
    QueryBatchInProgressError,
    QueryBatchNotStartedError,
)
from tests.support.controllers.dynamic_dependents import (
    CACHED,
    LIMITS,
    NODE,
    QUIET,
    SECRET,
    DynamicHarness,
    HeldStores,
    content_of,
    dynamic_harness,
    limit,
    secret,
    secrets,
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


async def test_a_batch_that_reads_fewer_objects_stops_only_unused_watches() -> None:
    async with dynamic_harness(QUIET) as harness:
        await read(harness, A, "one", "two", "three")
        await read(harness, B, "two", "four")
        await read(harness, A, "three", "five")
        await asyncio.sleep(0.1)
        assert (harness.watcher.get_watch_count(), harness.watches) == (4, 4)
        for name, watchers in (("one", []), ("two", ["b"]), ("three", ["a"]), ("five", ["a"])):
            await harness.put_secret(f"default/{name}")
            assert await harness.taken() == watchers


async def test_a_batch_that_reads_nothing_stops_all_watches_of_its_watcher() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.watcher.add_watcher(A, secret("zero"))
        await read(harness, A, "one", "two")
        await read(harness, A)
        await asyncio.sleep(0.1)
        assert (harness.watcher.get_watch_count(), harness.watches) == (0, 0)


async def test_a_read_of_a_watched_object_is_served_from_the_cache() -> None:
    stores = HeldStores()
    async with dynamic_harness(QUIET, stores=stores) as harness:
        await harness.put_limit("eu", 1)
        async with harness.watcher.query_batch(A):
            await harness.watcher.get(A, LIMITS, "", "eu")
        stores.hold()
        async with harness.watcher.query_batch(B):
            response = await harness.watcher.get(B, LIMITS, "", "eu")
        assert content_of(response) == {"most": 1}


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


async def test_an_object_of_a_bucket_has_kind_name_and_resource_version() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.put_limit("eu.west", 7, tier="gold")
        async with harness.watcher.query_batch(A):
            response = await harness.watcher.get(A, LIMITS, "eu", "west")
            listed = await harness.watcher.list(A, LIMITS, "eu", GOLD)
        assert response == {
            "apiVersion": "nats/kv",
            "kind": "limits",
            "metadata": {"labels": {"tier": "gold"}, "name": "eu.west", "resourceVersion": "1"},
            "spec": {"most": 7},
        }
        assert listed == [response]


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


async def test_the_namespace_is_ignored_for_a_cached_cluster_scoped_object() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.nodes.create("n1", b'{"spec": {"a": 1}}')
        async with harness.watcher.query_batch(A):
            await harness.watcher.get(A, NODE, "", "n1")
        assert content_of(harness.watcher.get_from_cache(NODE, "anywhere", "n1")) == {"a": 1}


async def test_list_watched_from_cache_has_each_watched_object_once() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.put_secret("default/one", "1", tier="gold")
        await harness.put_secret("default/two", "2", tier="gold")
        await harness.put_limit("eu", 1)
        await harness.watcher.add_or_update_watcher(
            A, secret("one"), secrets("tier=gold"), secret("three"), limit("eu")
        )
        await harness.watcher.add_watcher(B, secret("zero"))
        listed = harness.watcher.list_watched_from_cache(A)
        names = [obj["metadata"]["name"] for obj in listed]  # type: ignore[index]
        assert sorted(names) == ["eu", "one", "two"]


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


async def test_other_changes_of_a_watcher_within_its_batch_are_refused() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.watcher.start_query_batch(A)
        with pytest.raises(QueryBatchInProgressError):
            await harness.watcher.add_watcher(A, secret("one"))
        with pytest.raises(QueryBatchInProgressError):
            await harness.watcher.add_or_update_watcher(A, secret("one"))
        with pytest.raises(QueryBatchInProgressError):
            await harness.watcher.remove_watcher(A)
        with pytest.raises(QueryBatchInProgressError):
            await harness.watcher.start_query_batch(A)
        await harness.watcher.add_watcher(B, secret("one"))
        await harness.watcher.end_query_batch(A)
        await harness.watcher.add_watcher(A, secret("one"))
        assert harness.watcher.get_watch_count() == 1


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


async def test_a_reconciler_that_follows_references_watches_only_the_current_chain() -> None:
    async with dynamic_harness(CACHED) as harness:
        path: list[str] = []

        async def follow(watcher: ObjectIdentifier) -> float | None:
            path.clear()
            name: object = "start"
            async with harness.watcher.query_batch(watcher):
                while isinstance(name, str):
                    path.append(name)
                    response = await harness.watcher.get(watcher, SECRET, "default", name)
                    name = None if response is None else response["data"]["text"]  # type: ignore[index]
            return None

        harness.reconcile = follow
        await harness.watcher.add_watcher(A, secret("start"))
        for name, to in (("start", "b"), ("b", "c"), ("c", "d"), ("b", "e"), ("e", "f")):
            await harness.put_secret(f"default/{name}", to)
            await harness.taken()
        assert path == ["start", "b", "e", "f"]
        assert harness.watcher.get_watch_count() == 4


async def test_a_value_that_is_not_a_document_raises_invalid_object_and_is_watched() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.limits.create("eu", b"\xff")
        async with harness.watcher.query_batch(A):
            with pytest.raises(InvalidObjectError):
                await harness.watcher.get(A, LIMITS, "", "eu")
        await harness.put_limit("eu", 1)
        assert await harness.taken() == ["a"]


async def test_lists_omit_values_that_are_not_documents() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.limits.create("eu", b"[1]")
        await harness.put_limit("us", 2)
        async with harness.watcher.query_batch(A):
            objects = await harness.watcher.list(A, LIMITS, "")
        assert [content_of(obj) for obj in objects] == [{"most": 2}]
        await harness.watcher.add_watcher(A, limit("eu"))
        assert len(harness.watcher.list_watched_from_cache(A)) == 1


async def test_get_without_a_name_is_refused() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.watcher.start_query_batch(A)
        with pytest.raises(InvalidInputError):
            await harness.watcher.get(A, SECRET, "default", "")


async def test_reads_of_one_batch_can_be_concurrent() -> None:
    async with dynamic_harness(DynamicOptions(enable_cache=True, list_timeout_s=5)) as harness:
        for number in range(50):
            await harness.put_secret(f"default/s{number}", str(number))
        async with harness.watcher.query_batch(A):
            objects = await asyncio.gather(
                *(
                    harness.watcher.get(A, SECRET, "default", f"s{number % 50}")
                    for number in range(99)
                )
            )
        assert [content_of(obj) for obj in objects] == [
            {"text": str(number % 50)} for number in range(99)
        ]
        assert (harness.watcher.get_watch_count(), harness.watches) == (50, 50)
