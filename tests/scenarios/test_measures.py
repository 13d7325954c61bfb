"""The measures of a controller are readable at any time and equal its activity."""

import asyncio

import pytest

from natsctl import PermanentError, Primary, StoreError
from natsctl.core.counters import Counts
from natsctl.core.reports import CacheMeasures, Measures, lags
from natsctl.managed import ManagedController, ManagedReconciler
from natsctl.testing import Harness, MemoryStores, running
from natsctl.watchers import InformerController
from tests.support.controllers.app_controller import (
    APPS,
    Apps,
    SlowStores,
    app_client,
    edit,
    running_apps,
)
from tests.support.controllers.disk_reconciler import DISKS, Disk
from tests.support.controllers.recording_watcher import SITES, RecordingWatcher, site
from tests.support.stores.documents import put

A_MINUTE = 60.0


class Late(Apps):
    """A controller whose syncs take `takes_s` and raise `failure`."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__()
        self.takes_s = takes_s
        self.failure: Exception | None = None

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        return await super().sync_handler(key)


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
    async with running(controller := Late(), stores=stores) as harness:
        await harness.run_until_idle()
        assert counts(harness).convergence_s.count == 0  # the change was before the start
        controller.takes_s = 3.0
        await app_client(harness).app("shop")
        await harness.run_until_idle()
        assert counts(harness).convergence_s.count == 1
        assert counts(harness).convergence_s.sum == pytest.approx(3.0, abs=0.1)


async def test_retries_count_towards_the_convergence_time() -> None:
    async with running(controller := Late()) as harness:
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
    async with running(controller := Late()) as harness:
        controller.failure = PermanentError("never")
        await app_client(harness).app("shop")
        await harness.run_until_idle()
        assert (counts(harness).failed, counts(harness).final) == (1, 1)
        controller.failure = StoreError("later")
        await app_client(harness).app("market")
        await asyncio.sleep(1)
        assert counts(harness).final == 1
        assert counts(harness).failed > 2


async def test_orphans_of_the_last_gc_cycle_are_counted_until_they_are_collected() -> None:
    async with running_apps(Apps()) as client:
        for name in ("shop", "market"):
            await client.app(name)
        await client.idle()
        client.apps.vanish("shop")
        client.apps.break_watches()
        await asyncio.sleep(A_MINUTE)
        upkeep = client.runtime.measures().upkeep
        assert upkeep is not None
        assert (upkeep.orphans, upkeep.refused) == (1, False)
        await asyncio.sleep(3 * A_MINUTE)
        upkeep = client.runtime.measures().upkeep
        assert upkeep is not None
        assert (client.part_keys, upkeep.orphans) == (["market.main"], 0)


async def test_measures_report_a_refused_collection() -> None:
    async with running_apps(Apps(), "shop") as client:
        await asyncio.sleep(A_MINUTE)
        client.apps.recreate()
        await asyncio.sleep(5 * A_MINUTE)
        upkeep = client.runtime.measures().upkeep
        assert upkeep is not None
        assert (upkeep.orphans, upkeep.refused, client.part_keys) == (1, True, ["shop.main"])


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
    watching = InformerController(name="watching", nats=stores, workers=2)
    watching.add_informer(SITES)
    watching.add_watcher(watcher, SITES)
    before = watching.measures()
    assert (before.synced, before.caches, await lags(watching.host.informers)) == (False, (), {})
    task = asyncio.create_task(watching.run())
    await watching.synced.wait()
    await asyncio.sleep(1)
    measures = watching.measures()
    assert (measures.synced, measures.syncs, measures.upkeep) == (True, None, None)
    assert [(entry.slot, entry.objects, entry.synced) for entry in measures.caches] == [
        (SITES.name, 1, True)
    ]
    assert [(entry.name, entry.workers, entry.stats.adds) for entry in measures.queues] == [
        (SITES.name, 2, 1)
    ]
    assert await lags(watching.host.informers) == {SITES.name: 0}
    watching.stop()
    await task


class Disks(ManagedController[Disk]):
    """A managed controller without an external system."""

    kind = DISKS
    workers = 3

    def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
        return ManagedReconciler(managed)


async def test_reconciliations_of_managed_objects_are_measured_as_syncs() -> None:
    stores = MemoryStores()
    await stores.store(DISKS).create("one", b'{"spec": {"size": 1}}')
    controller = Disks(nats=stores)
    before = controller.measures()
    assert (before.synced, before.caches) == (False, ())
    assert before.syncs is not None
    assert before.syncs.succeeded == 0
    task = asyncio.create_task(controller.run())
    await controller.synced.wait()
    await asyncio.sleep(1)
    measures = controller.measures()
    assert [(entry.slot, entry.kind, entry.objects) for entry in measures.caches] == [
        ("primary", "Disk.disks", 1)
    ]
    assert [(entry.name, entry.workers) for entry in measures.queues] == [("disks", 3)]
    assert measures.syncs is not None
    assert measures.syncs.failed == 0
    assert measures.syncs.succeeded + measures.syncs.delayed >= 1
    assert measures.upkeep is None
    assert await lags(controller.host.informers) == {"primary": 0}
    await stores.store(DISKS).create("two", b'{"spec": {"size": 1}}')
    await asyncio.sleep(1)
    syncs = controller.measures().syncs
    assert syncs is not None
    assert syncs.convergence_s.count > measures.syncs.convergence_s.count
    controller.stop()
    await task
