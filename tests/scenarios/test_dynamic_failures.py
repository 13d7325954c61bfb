"""Watches that break, cannot be had, or are taken away."""

import asyncio

import pytest

from natsctl.dynamic import DynamicWatcher, GroupVersionKind, ObjectIdentifier
from natsctl.errors import (
    NoVersionedResourceError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    UsageError,
)
from natsctl.testing.memory import MemoryStores
from tests.support.controllers.dynamic_dependents import (
    QUIET,
    SECRET,
    Dependents,
    dependents,
    limit,
    said,
    secret,
    secrets,
    watcher_called,
)

A, B = watcher_called("a"), watcher_called("b")
DENIED = PermissionDeniedError("you may not")
WIDGET = ObjectIdentifier(group="x.io", version="v1", kind="Widget", namespace="default", name="w")


async def test_a_broken_watch_restarts_and_reports_missed_changes() -> None:
    async with dependents() as play:
        await play.put_secret("default/one", "1")
        await play.put_secret("default/two", "2")
        await play.watcher.add_or_update_watcher(A, secret("one"), secret("two"))
        await play.watcher.add_watcher(B, secret("two"))
        await play.taken()
        play.secrets.break_watches()
        await play.secrets.delete("default/one")
        assert await play.taken() == ["a"]
        assert (play.watcher.get_watch_count(), play.watches) == (2, 2)


async def test_a_broken_watch_without_a_missed_change_calls_no_watcher() -> None:
    async with dependents() as play:
        await play.put_secret("default/one")
        await play.watcher.add_or_update_watcher(A, secret("one"), secrets("a=b"), limit("eu"))
        await play.taken()
        play.secrets.break_watches()
        play.limits.break_watches()
        assert await play.taken() == []


async def test_a_watch_continues_after_an_outage_of_the_store() -> None:
    async with dependents() as play:
        await play.watcher.add_watcher(A, limit("eu"))
        play.limits.fail(StoreError("away"))
        await asyncio.sleep(600)
        assert play.watcher.get_watch_count() == 1
        play.limits.fail(None)
        await play.put_limit("eu")
        await asyncio.sleep(10)
        assert await play.taken() == ["a"]


async def test_add_watcher_raises_and_adds_nothing_if_the_watch_fails() -> None:
    async with dependents() as play:
        play.secrets.fail(DENIED)
        with pytest.raises(PermissionDeniedError):
            await play.watcher.add_watcher(A, secret("one"))
        assert play.watcher.get_watch_count() == 0
        assert await play.taken() == []


async def test_a_failed_update_changes_no_watch() -> None:
    async with dependents() as play:
        await play.watcher.add_or_update_watcher(A, secret("one"), secret("two"))
        play.limits.fail(DENIED)
        with pytest.raises(PermissionDeniedError):
            await play.watcher.add_or_update_watcher(
                A, secret("two"), secret("three"), limit("eu"), limit("us")
            )
        await asyncio.sleep(0.1)
        assert (play.watcher.get_watch_count(), play.watches) == (2, 2)
        await play.taken()
        for name, told in (("one", ["a"]), ("two", ["a"]), ("three", [])):
            await play.put_secret(f"default/{name}")
            assert await play.taken() == told


async def test_a_revoked_permission_ends_the_watch_and_calls_its_watchers_once() -> None:
    async with dependents() as play:
        await play.watcher.add_or_update_watcher(A, secret("one"), limit("eu"))
        await play.watcher.add_or_update_watcher(B, secret("one"))
        play.secrets.fail(DENIED)
        assert await play.taken() == ["a", "b"]
        assert (play.watcher.get_watch_count(), play.watches) == (1, 1)
        play.secrets.fail(None)
        await play.put_secret("default/one")
        assert await play.taken() == []


async def test_a_reconciler_sees_a_permission_error_and_recovers_with_the_permission() -> None:
    async with dependents(QUIET) as play:
        seen: list[object] = []

        async def reconcile(watcher: ObjectIdentifier) -> float | None:
            async with play.watcher.query_batch(watcher):
                try:
                    seen.append(said(await play.watcher.get(watcher, SECRET, "default", "one")))
                except PermissionDeniedError:
                    seen.append("denied")
                    raise
            return None

        play.reconcile = reconcile
        await play.watcher.add_watcher(A, secret("one"))
        await play.put_secret("default/one", "1")
        await play.taken()
        play.secrets.fail(DENIED)
        await asyncio.sleep(60)
        assert seen[:2] == [{"text": "1"}, "denied"]
        assert play.watcher.get_watch_count() == 0
        play.secrets.fail(None)
        await play.put_secret("default/one", "2")
        await asyncio.sleep(120)
        assert seen[-1] == {"text": "2"}
        assert (play.watcher.get_watch_count(), play.watches) == (1, 1)
        seen.clear()
        await play.put_secret("default/one", "3")
        await asyncio.sleep(1)
        assert seen == [{"text": "3"}]


async def test_a_missing_kind_ends_the_watch_and_calls_its_watchers() -> None:
    async with dependents() as play:
        await play.watcher.add_watcher(A, limit("eu"))
        play.limits.fail(StoreMissingError("no bucket"))
        assert await play.taken() == ["a"]
        assert play.watcher.get_watch_count() == 0


async def test_a_recreated_bucket_is_watched_and_its_lost_objects_are_deletions() -> None:
    async with dependents(QUIET) as play:
        await play.put_limit("eu")
        await play.watcher.add_watcher(A, limit("eu"))
        await play.watcher.add_watcher(B, limit("us"))
        play.limits.recreate()
        assert await play.taken() == ["a"]
        await play.put_limit("us")
        assert await play.taken() == ["b"]


async def test_discovery_runs_again_for_an_unknown_kind() -> None:
    async with dependents() as play:
        kinds = play.stores.kube.kinds
        kinds.remove("x.io/v1", "Widget")
        for _ in range(2):
            with pytest.raises(NoVersionedResourceError):
                await play.watcher.add_watcher(A, WIDGET)
        assert kinds.lookups == 2
        assert play.watcher.get_watch_count() == 0
        kinds.define("x.io/v1", "Widget", kinds.resource("v1", "Secret"))
        await play.watcher.add_watcher(A, WIDGET)
        assert play.watcher.get_watch_count() == 1


@pytest.mark.parametrize("watched", [secret("one"), limit("eu")], ids=str)
async def test_the_error_names_the_missing_connection(watched: ObjectIdentifier) -> None:
    async def nothing(_watcher: ObjectIdentifier) -> float | None:
        return None

    watcher = DynamicWatcher(nothing)
    work = asyncio.create_task(watcher.start())
    await watcher.started.wait()
    with pytest.raises(UsageError, match=r"kube=|nats="):
        await watcher.add_watcher(A, watched)
    watcher.stop()
    await work


async def test_a_failing_watcher_does_not_delay_another() -> None:
    async with dependents() as play:

        async def reconcile(watcher: ObjectIdentifier) -> float | None:
            if watcher == A:
                raise RuntimeError("on purpose")
            return None

        play.reconcile = reconcile
        await play.watcher.add_watcher(A, secret("one"))
        await play.watcher.add_watcher(B, secret("one"))
        for turn in range(20):
            await play.put_secret("default/one", str(turn))
            assert "b" in await play.taken()


async def count(play: Dependents) -> tuple[int, int]:
    await asyncio.sleep(0.5)
    return play.watcher.get_watch_count(), play.watches


async def test_a_thousand_watchers_over_two_hundred_objects_are_counted_exactly() -> None:
    stores = MemoryStores()
    everyone = [watcher_called(f"w{number}") for number in range(1000)]
    shared = [secret(f"s{n}") if n % 2 else limit(f"s{n}") for n in range(200)]
    async with dependents(QUIET, stores=stores) as play:
        for number, who in enumerate(everyone):
            await play.watcher.add_watcher(who, shared[number % 200])
        assert await count(play) == (200, 200)
        await play.put_secret("default/s7")
        await play.put_limit("s8")
        assert await play.taken() == sorted(f"w{n}" for n in range(1000) if n % 200 in {7, 8})
        for number, who in enumerate(everyone):
            await play.watcher.add_or_update_watcher(who, shared[number % 100], shared[199])
        assert await count(play) == (101, 101)
        play.limits.fail(DENIED)
        told = await play.taken()
        assert told == sorted(f"w{n}" for n in range(1000) if n % 100 % 2 == 0)
        assert await count(play) == (51, 51)
        play.limits.fail(None)
        for who in everyone[:999]:
            await play.watcher.remove_watcher(who)
        assert await count(play) == (2, 2)
        await play.watcher.remove_watcher(everyone[999])
        assert await count(play) == (0, 0)


async def test_gvk_to_gvr_returns_an_irregular_plural() -> None:
    async with dependents() as play:
        found = await play.watcher.gvk_to_gvr(GroupVersionKind("x.io", "v1", "Policy"))
        assert (found.group, found.version, found.resource) == ("x.io", "v1", "policies")
