"""Query batches: what is read is watched first, and what is not read any more is let go."""

import asyncio

import pytest

from natsctl.dynamic import DynamicOptions, ObjectIdentifier
from natsctl.errors import (
    InvalidInputError,
    InvalidObjectError,
    NoCacheEntryError,
    PermissionDeniedError,
    QueryBatchInProgressError,
    QueryBatchNotStartedError,
)
from natsctl.model.selectors import Selector
from tests.support.controllers.dynamic_dependents import (
    CACHED,
    LIMITS,
    NODE,
    QUIET,
    SECRET,
    Dependents,
    HeldStores,
    dependents,
    limit,
    said,
    secret,
    secrets,
    watcher_called,
)

A, B = watcher_called("a"), watcher_called("b")
GOLD = Selector.parse("tier=gold")


async def read(play: Dependents, who: ObjectIdentifier, *names: str) -> list[object]:
    """Read secrets in a batch of their own."""
    async with play.watcher.query_batch(who):
        return [said(await play.watcher.get(who, SECRET, "default", name)) for name in names]


async def read_limit_too(play: Dependents, who: ObjectIdentifier) -> None:
    """Read a secret and a limit in a batch of their own."""
    async with play.watcher.query_batch(who):
        await play.watcher.get(who, SECRET, "default", "three")
        await play.watcher.get(who, LIMITS, "", "us")


async def test_an_object_read_in_a_batch_is_watched() -> None:
    async with dependents(QUIET) as play:
        await play.put_secret("default/one", "1")
        assert await read(play, A, "one", "two") == [{"text": "1"}, None]
        await play.put_secret("default/one", "2")
        assert await play.taken() == ["a"]
        await play.put_secret("default/two")
        assert await play.taken() == ["a"]
        assert await read(play, A, "one", "two") == [{"text": "2"}, {"text": "hi"}]


async def test_a_batch_that_reads_fewer_objects_stops_only_unused_watches() -> None:
    async with dependents(QUIET) as play:
        await read(play, A, "one", "two", "three")
        await read(play, B, "two", "four")
        await read(play, A, "three", "five")
        await asyncio.sleep(0.1)
        assert (play.watcher.get_watch_count(), play.watches) == (4, 4)
        for name, told in (("one", []), ("two", ["b"]), ("three", ["a"]), ("five", ["a"])):
            await play.put_secret(f"default/{name}")
            assert await play.taken() == told


async def test_a_batch_that_reads_nothing_stops_all_watches_of_its_watcher() -> None:
    async with dependents(QUIET) as play:
        await play.watcher.add_watcher(A, secret("zero"))
        await read(play, A, "one", "two")
        await read(play, A)
        await asyncio.sleep(0.1)
        assert (play.watcher.get_watch_count(), play.watches) == (0, 0)


async def test_a_read_of_a_watched_object_is_served_from_the_cache() -> None:
    stores = HeldStores()
    async with dependents(QUIET, stores=stores) as play:
        await play.put_limit("eu", 1)
        async with play.watcher.query_batch(A):
            await play.watcher.get(A, LIMITS, "", "eu")
        stores.hold()
        async with play.watcher.query_batch(B):
            found = await play.watcher.get(B, LIMITS, "", "eu")
        assert said(found) == {"most": 1}


async def test_an_object_that_begins_to_match_a_list_calls_the_watcher() -> None:
    async with dependents(QUIET) as play:
        await play.put_secret("default/one", "1", tier="gold")
        await play.put_secret("default/two", "2", tier="tin")
        await play.put_secret("other/three", "3", tier="gold")
        async with play.watcher.query_batch(A):
            here = await play.watcher.list(A, SECRET, "default", GOLD)
            everywhere = await play.watcher.list(A, SECRET, "", GOLD)
            everything = await play.watcher.list(A, SECRET, "default")
        assert [said(at) for at in here] == [{"text": "1"}]
        assert [said(at) for at in everywhere] == [{"text": "1"}, {"text": "3"}]
        assert [said(at) for at in everything] == [{"text": "1"}, {"text": "2"}]
        assert play.watcher.get_watch_count() == 3
        await play.put_secret("default/two", "2", tier="gold")
        assert await play.taken() == ["a"]
        cached = play.watcher.list_from_cache(SECRET, "default", GOLD)
        assert [said(at) for at in cached] == [{"text": "1"}, {"text": "2"}]


async def test_an_object_of_a_bucket_has_kind_name_and_resource_version() -> None:
    async with dependents(QUIET) as play:
        await play.put_limit("eu.west", 7, tier="gold")
        async with play.watcher.query_batch(A):
            found = await play.watcher.get(A, LIMITS, "eu", "west")
            listed = await play.watcher.list(A, LIMITS, "eu", GOLD)
        assert found == {
            "apiVersion": "nats/kv",
            "kind": "limits",
            "metadata": {"labels": {"tier": "gold"}, "name": "eu.west", "resourceVersion": "1"},
            "spec": {"most": 7},
        }
        assert listed == [found]


async def test_changing_a_read_object_does_not_change_the_cache() -> None:
    async with dependents(QUIET) as play:
        await play.put_secret("default/one", "1")
        async with play.watcher.query_batch(A):
            first = await play.watcher.get(A, SECRET, "default", "one")
            assert first is not None
            first["data"]["text"] = "spoilt"  # type: ignore[index]
            second = await play.watcher.get(A, SECRET, "default", "one")
        assert said(second) == {"text": "1"}
        cached = play.watcher.get_from_cache(SECRET, "default", "one")
        assert said(cached) == {"text": "1"}


async def test_a_missing_object_is_none_and_an_unwatched_object_raises_no_cache_entry() -> None:
    async with dependents(QUIET) as play:
        await read(play, A, "one")
        assert play.watcher.get_from_cache(SECRET, "default", "one") is None
        with pytest.raises(NoCacheEntryError):
            play.watcher.get_from_cache(SECRET, "default", "two")
        with pytest.raises(NoCacheEntryError):
            play.watcher.list_from_cache(SECRET, "default")
        with pytest.raises(NoCacheEntryError):
            play.watcher.list_watched_from_cache(B)
        assert play.watcher.list_watched_from_cache(A) == []


async def test_the_namespace_is_ignored_for_a_cached_cluster_scoped_object() -> None:
    async with dependents(QUIET) as play:
        await play.nodes.create("n1", b'{"spec": {"a": 1}}')
        async with play.watcher.query_batch(A):
            await play.watcher.get(A, NODE, "", "n1")
        assert said(play.watcher.get_from_cache(NODE, "anywhere", "n1")) == {"a": 1}


async def test_list_watched_from_cache_has_each_watched_object_once() -> None:
    async with dependents(QUIET) as play:
        await play.put_secret("default/one", "1", tier="gold")
        await play.put_secret("default/two", "2", tier="gold")
        await play.put_limit("eu", 1)
        await play.watcher.add_or_update_watcher(
            A, secret("one"), secrets("tier=gold"), secret("three"), limit("eu")
        )
        await play.watcher.add_watcher(B, secret("zero"))
        listed = play.watcher.list_watched_from_cache(A)
        names = [at["metadata"]["name"] for at in listed]  # type: ignore[index]
        assert sorted(names) == ["eu", "one", "two"]


async def test_reads_outside_a_batch_raise_batch_not_started() -> None:
    async with dependents(QUIET) as play:
        with pytest.raises(QueryBatchNotStartedError):
            await play.watcher.get(A, SECRET, "default", "one")
        with pytest.raises(QueryBatchNotStartedError):
            await play.watcher.list(A, SECRET, "default")
        with pytest.raises(QueryBatchNotStartedError):
            await play.watcher.end_query_batch(A)
        await play.watcher.start_query_batch(B)
        with pytest.raises(QueryBatchNotStartedError):
            await play.watcher.get(A, SECRET, "default", "one")
        assert play.watcher.get_watch_count() == 0


async def test_other_changes_of_a_watcher_within_its_batch_are_refused() -> None:
    async with dependents(QUIET) as play:
        await play.watcher.start_query_batch(A)
        with pytest.raises(QueryBatchInProgressError):
            await play.watcher.add_watcher(A, secret("one"))
        with pytest.raises(QueryBatchInProgressError):
            await play.watcher.add_or_update_watcher(A, secret("one"))
        with pytest.raises(QueryBatchInProgressError):
            await play.watcher.remove_watcher(A)
        with pytest.raises(QueryBatchInProgressError):
            await play.watcher.start_query_batch(A)
        await play.watcher.add_watcher(B, secret("one"))
        await play.watcher.end_query_batch(A)
        await play.watcher.add_watcher(A, secret("one"))
        assert play.watcher.get_watch_count() == 1


async def test_a_failed_batch_keeps_all_watches_and_ends() -> None:
    async with dependents(QUIET) as play:
        await read(play, A, "one", "two")
        await play.watcher.add_watcher(B, limit("eu"))
        play.limits.fail(PermissionDeniedError("you may not"))
        with pytest.raises(PermissionDeniedError):
            await read_limit_too(play, A)
        await asyncio.sleep(0.1)
        assert play.watcher.get_watch_count() == 3
        await read(play, A, "one")
        assert play.watcher.get_watch_count() == 1


async def test_a_change_between_the_watch_and_the_read_is_never_lost() -> None:
    async with dependents(QUIET) as play:
        seen: list[object] = []

        async def reconcile(watcher: ObjectIdentifier) -> float | None:
            async with play.watcher.query_batch(watcher):
                seen.append(said(await play.watcher.get(watcher, SECRET, "default", "one")))
                await asyncio.sleep(0.01)
            return None

        play.reconcile = reconcile
        await play.watcher.add_watcher(A, secret("one"))
        for turn in range(50):
            await play.put_secret("default/one", str(turn))
            await asyncio.sleep(0.003)
        await asyncio.sleep(1)
        assert seen[-1] == {"text": "49"}


async def test_a_reconciler_that_follows_references_watches_only_the_current_chain() -> None:
    async with dependents(CACHED) as play:
        path: list[str] = []

        async def follow(watcher: ObjectIdentifier) -> float | None:
            path.clear()
            name: object = "start"
            async with play.watcher.query_batch(watcher):
                while isinstance(name, str):
                    path.append(name)
                    found = await play.watcher.get(watcher, SECRET, "default", name)
                    name = None if found is None else found["data"]["text"]  # type: ignore[index]
            return None

        play.reconcile = follow
        await play.watcher.add_watcher(A, secret("start"))
        for name, to in (("start", "b"), ("b", "c"), ("c", "d"), ("b", "e"), ("e", "f")):
            await play.put_secret(f"default/{name}", to)
            await play.taken()
        assert path == ["start", "b", "e", "f"]
        assert play.watcher.get_watch_count() == 4


async def test_a_value_that_is_not_a_document_raises_invalid_object_and_is_watched() -> None:
    async with dependents(QUIET) as play:
        await play.limits.create("eu", b"\xff")
        async with play.watcher.query_batch(A):
            with pytest.raises(InvalidObjectError):
                await play.watcher.get(A, LIMITS, "", "eu")
        await play.put_limit("eu", 1)
        assert await play.taken() == ["a"]


async def test_lists_omit_values_that_are_not_documents() -> None:
    async with dependents(QUIET) as play:
        await play.limits.create("eu", b"[1]")
        await play.put_limit("us", 2)
        async with play.watcher.query_batch(A):
            found = await play.watcher.list(A, LIMITS, "")
        assert [said(at) for at in found] == [{"most": 2}]
        await play.watcher.add_watcher(A, limit("eu"))
        assert len(play.watcher.list_watched_from_cache(A)) == 1


async def test_get_without_a_name_is_refused() -> None:
    async with dependents(QUIET) as play:
        await play.watcher.start_query_batch(A)
        with pytest.raises(InvalidInputError):
            await play.watcher.get(A, SECRET, "default", "")


async def test_reads_of_one_batch_can_be_concurrent() -> None:
    async with dependents(DynamicOptions(enable_cache=True, list_timeout_s=5)) as play:
        for number in range(50):
            await play.put_secret(f"default/s{number}", str(number))
        async with play.watcher.query_batch(A):
            found = await asyncio.gather(
                *(play.watcher.get(A, SECRET, "default", f"s{number % 50}") for number in range(99))
            )
        assert [said(at) for at in found] == [{"text": str(number % 50)} for number in range(99)]
        assert (play.watcher.get_watch_count(), play.watches) == (50, 50)
