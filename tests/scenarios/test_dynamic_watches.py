"""A dynamic watcher has one watch for each watched object, until its last watcher is removed."""

import asyncio
from itertools import pairwise

import pytest

from natsctl import ExponentialLimiter, TokenBucket
from natsctl.dynamic import DynamicOptions, DynamicWatcher, ObjectIdentifier
from natsctl.errors import (
    CacheDisabledError,
    InvalidInputError,
    NotStartedError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.testing import MemoryStores
from tests.support.controllers.dynamic_dependents import (
    CACHED,
    QUIET,
    DynamicHarness,
    HeldStores,
    Reconcile,
    dynamic_harness,
    limit,
    secret,
    secrets,
    watcher_called,
)

A, B = watcher_called("a"), watcher_called("b")


def failing(times: list[float]) -> Reconcile:
    """Return a reconciler that fails and notes the times of its calls."""

    async def fail(_watcher: ObjectIdentifier) -> float | None:
        times.append(asyncio.get_running_loop().time())
        raise RuntimeError("on purpose")

    return fail


async def test_a_create_an_update_and_a_delete_each_call_the_watcher() -> None:
    async with dynamic_harness() as harness:
        await harness.watcher.add_watcher(A, secret("one"))
        assert await harness.taken() == []
        await harness.put_secret("default/one", "1")
        assert await harness.taken() == ["a"]
        await harness.put_secret("default/one", "2")
        assert await harness.taken() == ["a"]
        await harness.secrets.delete("default/one")
        assert await harness.taken() == ["a"]


async def test_an_existing_object_calls_a_new_watcher() -> None:
    async with dynamic_harness() as harness:
        await harness.put_secret("default/one")
        await harness.watcher.add_watcher(A, secret("one"))
        assert await harness.taken() == ["a"]
        await harness.watcher.add_watcher(B, secret("one"))
        assert await harness.taken() == ["b"]
        await harness.watcher.add_watcher(B, secret("one"))
        assert await harness.taken() == []


async def test_a_selector_reports_objects_that_enter_change_and_leave() -> None:
    async with dynamic_harness() as harness:
        await harness.watcher.add_or_update_watcher(A, secrets("tier=gold"))
        await harness.watcher.add_or_update_watcher(B, limit(selector="tier=gold", namespace="eu"))
        watchers = []  # type: ignore[var-annotated]
        for tier in ("tin", "gold", "gold", "tin", "tin"):
            await harness.put_secret("default/one", str(len(watchers)), tier=tier)
            await harness.put_limit("eu.one", len(watchers), tier=tier)
            await harness.put_limit("us.one", len(watchers), tier=tier)
            watchers.append(await harness.taken())
        assert watchers == [[], ["a", "b"], ["a", "b"], ["a", "b"], []]


async def test_changes_during_a_call_are_one_further_call() -> None:
    async with dynamic_harness() as harness:
        await harness.watcher.add_or_update_watcher(A, secret("one"), secret("two"))

        async def slowly(_watcher: ObjectIdentifier) -> None:
            await asyncio.sleep(10)

        harness.reconcile = slowly
        for text in "xyz":
            await harness.put_secret("default/one", text)
            await harness.put_secret("default/two", text)
            await asyncio.sleep(1)
        await asyncio.sleep(30)
        assert harness.calls == ["a", "a"]


async def test_a_call_that_times_out_is_retried() -> None:
    async with dynamic_harness(DynamicOptions(reconcile_timeout_s=5)) as harness:

        async def hang(_watcher: ObjectIdentifier) -> float | None:
            if len(harness.calls) == 1:
                await asyncio.sleep(3600)
            return None

        harness.reconcile = hang
        await harness.watcher.add_watcher(A, secret("one"))
        await harness.put_secret("default/one")
        await asyncio.sleep(6)
        assert harness.calls == ["a", "a"]


async def test_a_removed_watcher_is_not_retried() -> None:
    async with dynamic_harness() as harness:
        harness.reconcile = failing([])
        await harness.watcher.add_watcher(A, secret("one"))
        await harness.put_secret("default/one")
        await asyncio.sleep(30)
        await harness.watcher.remove_watcher(A)
        await asyncio.sleep(1)
        harness.calls.clear()
        await asyncio.sleep(3600)
        assert harness.calls == []


async def test_every_call_before_the_start_or_after_the_stop_raises_not_started() -> None:
    async with dynamic_harness() as harness:
        await harness.watcher.add_watcher(A, secret("one"))
    watcher = harness.watcher
    assert not watcher.started.is_set()
    assert (watcher.get_watch_count(), harness.watches) == (0, 0)
    gvk = secret("one").group_version_kind()
    for attempt in (
        watcher.add_watcher(A, secret("one")),
        watcher.add_or_update_watcher(A, secret("one")),
        watcher.remove_watcher(A),
        watcher.start_query_batch(A),
        watcher.end_query_batch(A),
        watcher.get(A, gvk, "default", "one"),
        watcher.list(A, gvk, "default"),
        watcher.gvk_to_gvr(gvk),
    ):
        with pytest.raises(NotStartedError):
            await attempt
    with pytest.raises(NotStartedError):
        watcher.get_from_cache(gvk, "default", "one")
    with pytest.raises(NotStartedError):
        watcher.list_from_cache(gvk, "default")
    with pytest.raises(NotStartedError):
        watcher.list_watched_from_cache(A)


async def test_a_restarted_dynamic_watcher_has_no_watchers() -> None:
    stores = MemoryStores()
    async with dynamic_harness(CACHED, stores=stores) as harness:
        await harness.watcher.add_watcher(A, secret("one"))
    second_start = asyncio.create_task(harness.watcher.start())
    await harness.watcher.started.wait()
    await harness.put_secret("default/one")
    assert await harness.taken() == []
    await harness.watcher.add_watcher(A, secret("one"))
    assert await harness.taken() == ["a"]
    with pytest.raises(UsageError, match="runs already"):
        await harness.watcher.start()
    second_start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second_start
    await asyncio.sleep(0.1)
    assert harness.watches == 0


async def test_a_stop_waits_for_running_calls_up_to_stop_timeout_s() -> None:
    ends = []

    async def slowly(watcher: ObjectIdentifier) -> float | None:
        try:
            await asyncio.sleep(5 if watcher == A else 50)
        finally:
            ends.append((watcher.name, asyncio.get_running_loop().time()))
        return None

    async with dynamic_harness(DynamicOptions(workers=2, stop_timeout_s=20)) as harness:
        harness.reconcile = slowly
        await harness.watcher.add_watcher(A, secret("one"))
        await harness.watcher.add_watcher(B, secret("one"))
        await harness.put_secret("default/one")
        await asyncio.sleep(1)
        stopped = asyncio.get_running_loop().time()
    (first, early), (second, late) = ends
    assert (first, second) == ("a", "b")
    assert (round(early - stopped), round(late - stopped)) == (4, 20)


async def test_a_watch_that_does_not_list_in_time_raises_a_timeout() -> None:
    stores = HeldStores()
    async with dynamic_harness(DynamicOptions(list_timeout_s=10), stores=stores) as harness:
        stores.hold()
        started = asyncio.get_running_loop().time()
        with pytest.raises(StoreTimeoutError, match="10 s"):
            await harness.watcher.add_watcher(A, limit("eu"))
        assert asyncio.get_running_loop().time() - started == 10
        assert harness.watcher.get_watch_count() == 0


async def test_concurrent_calls_for_one_watcher_run_in_order() -> None:
    stores = HeldStores()
    async with dynamic_harness(stores=stores) as harness:
        stores.hold()
        first = asyncio.create_task(harness.watcher.add_or_update_watcher(A, limit("one")))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(harness.watcher.add_or_update_watcher(A, limit("two")))
        third = asyncio.create_task(harness.watcher.add_watcher(A, limit("three")))
        fourth = asyncio.create_task(harness.watcher.start_query_batch(A))
        await asyncio.sleep(0.1)
        stores.release()
        await asyncio.gather(first, second, third, fourth)
        names = [obj["metadata"]["name"] for obj in harness.watcher.list_watched_from_cache(A)]  # type: ignore[index]
        assert names == []
        for name in ("one", "two", "three"):
            await harness.put_limit(name)
        await asyncio.sleep(0.1)
        names = [obj["metadata"]["name"] for obj in harness.watcher.list_watched_from_cache(A)]  # type: ignore[index]
        assert sorted(names) == ["three", "two"]


@pytest.mark.parametrize(
    "watched",
    [
        ObjectIdentifier(version="v1", namespace="default", name="one"),
        ObjectIdentifier(kind="Secret", namespace="default", name="one"),
        ObjectIdentifier(version="v1", kind="Secret", name="one"),
        ObjectIdentifier(version="v1", kind="Secret"),
        ObjectIdentifier(version="v1", kind="Secret", namespace="x"),
        ObjectIdentifier(version="v1", kind="Secret", namespace="x", name="a", selector="b=c"),
        ObjectIdentifier(version="v1", kind="Secret", namespace="x", selector="b=(c"),
        ObjectIdentifier(version="v1", kind="Secret", namespace="x", name="a/b"),
        limit("*"),
        limit("a..b"),
        limit("shop", namespace=">"),
    ],
    ids=str,
)
async def test_an_invalid_identifier_is_refused(watched: ObjectIdentifier) -> None:
    async with dynamic_harness() as harness:
        with pytest.raises(InvalidInputError):
            await harness.watcher.add_watcher(A, watched)
        with pytest.raises(InvalidInputError):
            await harness.watcher.add_or_update_watcher(A, secret("one"), watched)
        assert harness.watcher.get_watch_count() == 0


@pytest.mark.parametrize(
    "watcher", [ObjectIdentifier(), secrets("a=b"), secrets()], ids=["empty", "selector", "all"]
)
async def test_a_watcher_without_a_name_is_refused(watcher: ObjectIdentifier) -> None:
    async with dynamic_harness(CACHED) as harness:
        for attempt in (
            harness.watcher.add_watcher(watcher, secret("one")),
            harness.watcher.add_or_update_watcher(watcher, secret("one")),
            harness.watcher.remove_watcher(watcher),
            harness.watcher.start_query_batch(watcher),
            harness.watcher.end_query_batch(watcher),
        ):
            with pytest.raises(InvalidInputError):
                await attempt
        with pytest.raises(InvalidInputError, match="at least one"):
            await harness.watcher.add_or_update_watcher(A)


@pytest.mark.parametrize(
    ("options", "pauses"),
    [
        (
            DynamicOptions(rate_limiter=ExponentialLimiter(base_s=7, jitter=lambda: 0.0)),
            [7, 14, 28],
        ),
        (DynamicOptions(overall_rate=TokenBucket(rate_per_s=0.01, burst=1)), [0, 100, 100]),
    ],
    ids=["each", "overall"],
)
async def test_the_rate_limits_set_the_delays_of_retries(
    options: DynamicOptions, pauses: list[int]
) -> None:
    async with dynamic_harness(options) as harness:
        times: list[float] = []
        harness.reconcile = failing(times)
        await harness.watcher.add_watcher(A, secret("one"))
        await harness.put_secret("default/one")
        await asyncio.sleep(300)
        assert [round(later - earlier) for earlier, later in pairwise(times)][:3] == pauses


async def test_every_read_raises_cache_disabled_without_a_cache() -> None:
    async with dynamic_harness(None) as harness:
        gvk = secret("one").group_version_kind()
        await harness.watcher.add_watcher(A, secret("one"))
        with pytest.raises(CacheDisabledError):
            harness.watcher.get_from_cache(gvk, "default", "one")
        with pytest.raises(CacheDisabledError):
            harness.watcher.list_from_cache(gvk, "default")
        with pytest.raises(CacheDisabledError):
            harness.watcher.list_watched_from_cache(A)
        with pytest.raises(CacheDisabledError):
            await harness.watcher.start_query_batch(A)
        with pytest.raises(CacheDisabledError):
            await harness.watcher.end_query_batch(A)
        with pytest.raises(CacheDisabledError):
            await harness.watcher.get(A, gvk, "default", "one")


async def test_a_reconciler_can_be_an_object() -> None:
    class Noting:
        def __init__(self) -> None:
            self.notified: list[ObjectIdentifier] = []

        async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
            self.notified.append(watcher)
            return None

    noting, stores = Noting(), MemoryStores()
    watcher = DynamicWatcher(noting, kube=stores.kube)
    work = asyncio.create_task(watcher.start())
    await watcher.started.wait()
    await watcher.add_watcher(A, secret("one"))
    await DynamicHarness(stores, None).put_secret("default/one")
    await asyncio.sleep(1)
    assert noting.notified == [A]
    watcher.stop()
    await work


async def test_a_returned_delay_calls_the_reconciler_again() -> None:
    async with dynamic_harness() as harness:
        times: list[float] = []

        async def second_start(_watcher: ObjectIdentifier) -> float | None:
            times.append(asyncio.get_running_loop().time())
            return 60.0 if len(times) < 3 else 0.0

        harness.reconcile = second_start
        await harness.watcher.add_watcher(A, secret("one"))
        await harness.put_secret("default/one")
        await asyncio.sleep(1000)
        assert [round(later - times[0]) for later in times] == [0, 60, 120]


async def test_an_existing_object_calls_no_watcher_if_that_is_disabled() -> None:
    async with dynamic_harness(QUIET) as harness:
        await harness.put_secret("default/one")
        await harness.watcher.add_watcher(A, secret("one"))
        await harness.watcher.add_watcher(B, secret("one"))
        assert await harness.taken() == []
        await harness.put_secret("default/one", "2")
        assert await harness.taken() == ["a", "b"]


async def test_an_update_stops_watches_that_it_does_not_name() -> None:
    async with dynamic_harness() as harness:
        await harness.watcher.add_or_update_watcher(A, secret("one"), secret("two"))
        await harness.watcher.add_or_update_watcher(B, secret("two"))
        await harness.watcher.add_or_update_watcher(A, secret("three"))
        await asyncio.sleep(0.1)
        assert (harness.watcher.get_watch_count(), harness.watches) == (2, 2)
        for name in ("one", "two", "three"):
            await harness.put_secret(f"default/{name}")
        assert await harness.taken() == ["a", "b"]
        await harness.put_secret("default/two", "2")
        assert await harness.taken() == ["b"]
