"""The measures of a controller are readable at any time and equal its activity."""

import asyncio

import pytest

from natsctl import PermanentError, StoreError
from natsctl.core.counters import Counts
from natsctl.core.reports import CacheMeasures, Measures, lags
from natsctl.testing import Harness, MemoryStores, running
from tests.support.controllers.app_controller import (
    APPS,
    Apps,
    Fallible,
    SlowStores,
    app_client,
    edit,
    running_apps,
)
from tests.support.controllers.disk_reconciler import DISKS, Cloud, ManagedDisks, ran
from tests.support.controllers.recording_watcher import SITES, RecordingWatcher, site, watching
from tests.support.controllers.recording_watcher import running as running_watchers
from tests.support.stores.documents import put

A_MINUTE = 60.0


def cache(measures: Measures, slot: str) -> CacheMeasures:
    return next(entry for entry in measures.caches if entry.slot == slot)


def counts(harness: Harness) -> Counts:
    current = harness.runtime.measures().syncs
    assert current is not None
    return current


async def test_the_measures_of_a_cache_count_its_objects() -> None:
    async with running_apps(Apps()) as client:
        await client.app("shop", parts=("a", "b"))
        await put(client.apps, "bad", b"{}")
        await client.idle()
        measures = client.runtime.measures()

        apps, parts = cache(measures, "apps"), cache(measures, "parts")
        assert (apps.kind, apps.synced, apps.failure) == ("App.apps", True, "")
        assert (apps.objects, apps.invalid, parts.objects, parts.invalid) == (1, 1, 2, 0)
        assert apps.revision == await client.apps.newest_revision()


async def test_the_measures_of_a_cache_have_the_restarts_and_the_failure_of_its_watch() -> None:
    async with running(Apps()) as harness:
        store = app_client(harness).apps
        store.fail(StoreError("out of order"))
        await asyncio.sleep(A_MINUTE)
        broken = cache(harness.runtime.measures(), "apps")
        assert (broken.synced, broken.failure) == (True, "out of order")
        assert broken.restarts >= 2
        store.fail(None)
        await asyncio.sleep(A_MINUTE)
        assert cache(harness.runtime.measures(), "apps").failure == ""
        assert cache(harness.runtime.measures(), "parts").restarts == 0


async def test_convergence_is_measured_from_the_change_event_to_the_end_of_the_sync() -> None:
    stores = MemoryStores()
    await put(stores.store(APPS), "old", {"spec": {}})
    async with running(controller := Fallible(), stores=stores) as harness:
        await harness.run_until_idle()
        assert counts(harness).convergence_s.count == 0  # the change was before the start
        controller.delay_s = 3.0
        await app_client(harness).app("shop")
        await harness.run_until_idle()
        assert counts(harness).convergence_s.count == 1
        assert counts(harness).convergence_s.sum == pytest.approx(3.0, abs=0.1)


async def test_retries_count_towards_the_convergence_time() -> None:
    async with running(controller := Fallible()) as harness:
        controller.failure = StoreError("not now")
        await app_client(harness).app("shop")
        await asyncio.sleep(A_MINUTE)
        assert counts(harness).convergence_s.count == 0
        assert counts(harness).unanswered == 1
        assert counts(harness).oldest_s == pytest.approx(A_MINUTE)
        controller.failure = None
        await harness.run_until_idle()
        assert counts(harness).convergence_s.count == 1
        assert counts(harness).convergence_s.sum > A_MINUTE


async def test_resyncs_status_writes_and_secondaries_do_not_count_as_changes() -> None:
    async with running_apps(Apps(), "shop") as client:
        before = counts(client.harness)
        await edit(client.apps, "shop", "status", "parts", to=7)
        await edit(client.parts, "shop.main", "spec", "text", to="by hand")
        client.runtime.resync()
        await client.idle()
        assert counts(client.harness).succeeded > before.succeeded
        assert counts(client.harness).convergence_s.count == before.convergence_s.count == 1


async def test_permanent_failures_are_counted_separately_from_retried_failures() -> None:
    async with running(controller := Fallible()) as harness:
        controller.failure = PermanentError("never")
        await app_client(harness).app("shop")
        await harness.run_until_idle()
        assert (counts(harness).failed, counts(harness).final) == (1, 1)
        controller.failure = StoreError("later")
        await app_client(harness).app("market")
        await asyncio.sleep(1)
        assert counts(harness).final == 1
        assert counts(harness).failed > 2


async def test_lags_returns_the_revisions_that_a_cache_is_behind() -> None:
    stores = SlowStores()
    async with running_apps(Apps(), "shop", stores=stores) as client:
        assert await lags(client.runtime.host.informers) == {"apps": 0, "parts": 0}
        with stores.store(APPS).held_up():
            for text in ("a", "b", "c"):
                await client.app("shop", text=text)
            assert await lags(client.runtime.host.informers) == {"apps": 3, "parts": 0}
        await client.idle()
        assert await lags(client.runtime.host.informers) == {"apps": 0, "parts": 0}


async def test_watchers_have_measures_of_a_queue_and_a_cache_for_each_kind() -> None:
    stores, watcher = MemoryStores(), RecordingWatcher()
    await stores.store(SITES).create("athens", site("one"))
    controller = watching(watcher, workers=2)
    before = controller.measures()
    assert (before.synced, before.caches, await lags(controller.host.informers)) == (False, (), {})
    async with running_watchers(controller, stores):
        measures = controller.measures()
        behind = await lags(controller.host.informers)
    assert (measures.synced, measures.syncs, measures.upkeep) == (True, None, None)
    assert [(entry.slot, entry.objects, entry.synced) for entry in measures.caches] == [
        (SITES.name, 1, True)
    ]
    assert [(entry.name, entry.workers, entry.stats.adds) for entry in measures.queues] == [
        (SITES.name, 2, 1)
    ]
    assert behind == {SITES.name: 0}


async def test_reconciliations_of_managed_objects_are_measured_as_syncs() -> None:
    stores = MemoryStores()
    await stores.store(DISKS).create("one", b'{"spec": {"size": 1}}')
    controller = ManagedDisks(Cloud(), nats=stores)
    controller.workers = 3
    before = controller.measures()
    assert (before.synced, before.caches) == (False, ())
    assert before.syncs is not None
    assert before.syncs.succeeded == 0
    async with ran(controller):
        await asyncio.sleep(1)
        measures = controller.measures()
        behind = await lags(controller.host.informers)
        await stores.store(DISKS).create("two", b'{"spec": {"size": 1}}')
        await asyncio.sleep(1)
        syncs = controller.measures().syncs
    assert [(entry.slot, entry.kind, entry.objects) for entry in measures.caches] == [
        ("primary", "Disk.disks", 1)
    ]
    assert [(entry.name, entry.workers) for entry in measures.queues] == [("manageddisks", 3)]
    assert measures.syncs is not None
    assert measures.syncs.failed == 0
    assert measures.syncs.succeeded + measures.syncs.delayed >= 1
    assert (measures.upkeep, behind) == (None, {"primary": 0})
    assert syncs is not None
    assert syncs.convergence_s.count > measures.syncs.convergence_s.count
