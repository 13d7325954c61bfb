"""A dynamic watcher recovers from broken, failing and forbidden watches."""

import asyncio

import pytest

from natsctl.dynamic import DynamicWatcher, GroupVersionKind, ObjectIdentifier
from natsctl.errors import (
    NoVersionedResourceError,
    PermissionDeniedError,
    StoreMissingError,
    UsageError,
)
from natsctl.testing import MemoryStores
from tests.support.controllers.dynamic_dependents import (
    QUIET,
    DynamicHarness,
    dynamic_harness,
    limit,
    secret,
    watcher_called,
)

A, B = watcher_called("a"), watcher_called("b")
DENIED = PermissionDeniedError("you may not")
WIDGET = ObjectIdentifier(group="x.io", version="v1", kind="Widget", namespace="default", name="w")


async def test_a_broken_watch_restarts_and_reports_missed_changes() -> None:
    async with dynamic_harness() as harness:
        await harness.put_secret("default/one", "1")
        await harness.put_secret("default/two", "2")
        await harness.watcher.add_or_update_watcher(A, secret("one"), secret("two"))
        await harness.watcher.add_watcher(B, secret("two"))
        await harness.taken()
        harness.secrets.break_watches()
        await harness.secrets.delete("default/one")
        assert await harness.taken() == ["a"]
        assert (harness.watcher.get_watch_count(), harness.watches) == (2, 2)


async def test_add_watcher_raises_and_adds_nothing_if_the_watch_fails() -> None:
    async with dynamic_harness() as harness:
        harness.secrets.fail(DENIED)
        with pytest.raises(PermissionDeniedError):
            await harness.watcher.add_watcher(A, secret("one"))
        assert harness.watcher.get_watch_count() == 0
        assert await harness.taken() == []


async def test_a_revoked_permission_ends_the_watch_and_calls_its_watchers_once() -> None:
    async with dynamic_harness() as harness:
        await harness.watcher.add_or_update_watcher(A, secret("one"), limit("eu"))
        await harness.watcher.add_or_update_watcher(B, secret("one"))
        harness.secrets.fail(DENIED)
        assert await harness.taken() == ["a", "b"]
        assert (harness.watcher.get_watch_count(), harness.watches) == (1, 1)
        harness.secrets.fail(None)
        await harness.put_secret("default/one")
        assert await harness.taken() == []


async def test_a_missing_kind_ends_the_watch_and_calls_its_watchers() -> None:
    async with dynamic_harness() as harness:
        await harness.watcher.add_watcher(A, limit("eu"))
        harness.limits.fail(StoreMissingError("no bucket"))
        assert await harness.taken() == ["a"]
        assert harness.watcher.get_watch_count() == 0


async def test_a_recreated_bucket_is_watched_and_its_lost_objects_are_deletions() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.put_limit("eu")
        await harness.watcher.add_watcher(A, limit("eu"))
        await harness.watcher.add_watcher(B, limit("us"))
        harness.limits.recreate()
        assert await harness.taken() == ["a"]
        await harness.put_limit("us")
        assert await harness.taken() == ["b"]


async def test_discovery_runs_again_for_an_unknown_kind() -> None:
    async with dynamic_harness() as harness:
        kinds = harness.stores.kube.kinds
        kinds.remove("x.io/v1", "Widget")
        for _ in range(2):
            with pytest.raises(NoVersionedResourceError):
                await harness.watcher.add_watcher(A, WIDGET)
        assert kinds.lookups == 2
        assert harness.watcher.get_watch_count() == 0
        kinds.define("x.io/v1", "Widget", kinds.resource("v1", "Secret"))
        await harness.watcher.add_watcher(A, WIDGET)
        assert harness.watcher.get_watch_count() == 1


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
    async with dynamic_harness() as harness:

        async def reconcile(watcher: ObjectIdentifier) -> float | None:
            if watcher == A:
                raise RuntimeError("on purpose")
            return None

        harness.reconcile = reconcile
        await harness.watcher.add_watcher(A, secret("one"))
        await harness.watcher.add_watcher(B, secret("one"))
        for turn in range(20):
            await harness.put_secret("default/one", str(turn))
            assert "b" in await harness.taken()


async def count(harness: DynamicHarness) -> tuple[int, int]:
    await asyncio.sleep(0.5)
    return harness.watcher.get_watch_count(), harness.watches


async def test_a_thousand_watchers_over_two_hundred_objects_are_counted_exactly() -> None:
    stores = MemoryStores()
    everyone = [watcher_called(f"w{number}") for number in range(1000)]
    shared = [secret(f"s{n}") if n % 2 else limit(f"s{n}") for n in range(200)]
    async with dynamic_harness(QUIET, stores=stores) as harness:
        for number, watcher in enumerate(everyone):
            await harness.watcher.add_watcher(watcher, shared[number % 200])
        assert await count(harness) == (200, 200)
        await harness.put_secret("default/s7")
        await harness.put_limit("s8")
        assert await harness.taken() == sorted(f"w{n}" for n in range(1000) if n % 200 in {7, 8})
        for number, watcher in enumerate(everyone):
            await harness.watcher.add_or_update_watcher(watcher, shared[number % 100], shared[199])
        assert await count(harness) == (101, 101)
        harness.limits.fail(DENIED)
        watchers = await harness.taken()
        assert watchers == sorted(f"w{n}" for n in range(1000) if n % 100 % 2 == 0)
        assert await count(harness) == (51, 51)
        harness.limits.fail(None)
        for watcher in everyone[:999]:
            await harness.watcher.remove_watcher(watcher)
        assert await count(harness) == (2, 2)
        await harness.watcher.remove_watcher(everyone[999])
        assert await count(harness) == (0, 0)


async def test_gvk_to_gvr_returns_an_irregular_plural() -> None:
    async with dynamic_harness() as harness:
        resource = await harness.watcher.gvk_to_gvr(GroupVersionKind("x.io", "v1", "Policy"))
        assert (resource.group, resource.version, resource.resource) == ("x.io", "v1", "policies")


async def test_a_failed_update_changes_no_watch() -> None:
    async with dynamic_harness() as harness:
        await harness.watcher.add_or_update_watcher(A, secret("one"), secret("two"))
        harness.limits.fail(DENIED)
        with pytest.raises(PermissionDeniedError):
            await harness.watcher.add_or_update_watcher(
                A, secret("two"), secret("three"), limit("eu"), limit("us")
            )
        await asyncio.sleep(0.1)
        assert (harness.watcher.get_watch_count(), harness.watches) == (2, 2)
        await harness.taken()
        for name, watchers in (("one", ["a"]), ("two", ["a"]), ("three", [])):
            await harness.put_secret(f"default/{name}")
            assert await harness.taken() == watchers
