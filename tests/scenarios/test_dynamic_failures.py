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
from tests.support.controllers.dynamic_dependents import (
    QUIET,
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
