"""An opinionated watcher misses no change over failures, restarts and downtime."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import StoreTimeoutError, UsageError, kube
from natsctl.testing import MemoryManifestStore, MemoryStores
from natsctl.watchers import InformerController, OpinionatedWatcher, Snapshot
from tests.support.controllers.app_controller import edit
from tests.support.controllers.recording_watcher import (
    FINALIZER,
    IN_PROGRESS,
    SITES,
    RecordingWatcher,
    Sites,
    finalizers,
    mark_deleted,
    running,
    site,
    watching,
)
from tests.support.stores.documents import put

WIDGETS = kube("example.com/v1", "Widget")
KEY = "athens"
WIDGET = "ns/one"


def opinionated(recording: RecordingWatcher, **options: Any) -> OpinionatedWatcher:
    return OpinionatedWatcher(
        SITES,
        add_func=recording.add,
        update_func=recording.update,
        delete_func=recording.delete,
        sync_func=recording.sync,
        **options,
    )


async def settled() -> None:
    await asyncio.sleep(100)


@asynccontextmanager
async def added(sites: Sites) -> AsyncIterator[RecordingWatcher]:
    """Watch a site that was added."""
    recording = RecordingWatcher()
    async with running(watching(opinionated(recording)), sites.stores):
        await put(sites, KEY, site("one"))
        await settled()
        yield recording


# ---- adding


async def test_add_runs_with_the_in_progress_finalizer_and_ends_with_the_final_one(
    sites: Sites,
) -> None:
    held: list[list[str]] = []

    class Looking(RecordingWatcher):
        async def record(self, call: str, snapshot: Snapshot[Any]) -> None:
            held.append(await finalizers(sites, KEY))
            await super().record(call, snapshot)

    await put(sites, KEY, site("one", finalizers=["another's"]))
    recording = Looking()
    async with running(watching(opinionated(recording)), sites.stores):
        await settled()
    assert recording.calls == ["add athens one"]
    assert held == [["another's", IN_PROGRESS]]
    assert await finalizers(sites, KEY) == ["another's", FINALIZER]


async def test_a_failed_add_keeps_the_in_progress_finalizer_and_is_retried_as_an_add(
    sites: Sites,
) -> None:
    recording = RecordingWatcher(failures=2)
    async with running(watching(opinionated(recording)), sites.stores):
        await put(sites, KEY, site("one"))
        await asyncio.sleep(1)
        assert await finalizers(sites, KEY) == [IN_PROGRESS]
        await settled()
    assert recording.calls == ["add athens one fails", "add athens one fails", "add athens one"]
    assert await finalizers(sites, KEY) == [FINALIZER]


async def test_an_object_that_changes_during_its_add_is_updated_afterwards(sites: Sites) -> None:
    class Meddled(RecordingWatcher):
        async def record(self, call: str, snapshot: Snapshot[Any]) -> None:
            if not self.calls:
                await edit(sites, KEY, "spec", "text", to="two")
            await super().record(call, snapshot)

    recording = Meddled()
    async with running(watching(opinionated(recording)), sites.stores):
        await put(sites, KEY, site("one"))
        await settled()
    assert recording.calls == ["add athens one", "update athens one two"]
    assert await finalizers(sites, KEY) == [FINALIZER]


async def test_an_object_deleted_before_it_has_the_finalizer_is_never_added(sites: Sites) -> None:
    recording, first = RecordingWatcher(), RecordingWatcher(takes_s=5)
    sites_controller = watching(first, opinionated(recording))
    async with running(sites_controller, sites.stores):
        await put(sites, KEY, site("one"))
        await asyncio.sleep(1)
        await sites.delete(KEY)
        await settled()
    assert first.calls == ["add athens one", "delete athens one"]
    assert recording.calls == []
    assert sites_controller.failing == {SITES.name: {}}


async def test_a_finalizer_that_others_add_during_the_add_is_kept(sites: Sites) -> None:
    class Meddled(RecordingWatcher):
        async def record(self, call: str, snapshot: Snapshot[Any]) -> None:
            changed_finalizers = [*await finalizers(sites, KEY), "another's"]
            await edit(sites, KEY, "metadata", "finalizers", to=changed_finalizers)
            await super().record(call, snapshot)

    async with running(watching(opinionated(Meddled())), sites.stores):
        await put(sites, KEY, site("one"))
        await settled()
    assert await finalizers(sites, KEY) == ["another's", FINALIZER]


async def test_an_object_marked_deleted_before_its_add_gets_no_finalizer(sites: Sites) -> None:
    recording, first = RecordingWatcher(), RecordingWatcher(takes_s=5)
    async with running(watching(first, opinionated(recording)), sites.stores):
        await put(sites, KEY, site("one", finalizers=["another's"]))
        await asyncio.sleep(1)
        await mark_deleted(sites, KEY)
        await settled()
    assert recording.calls == []
    assert await finalizers(sites, KEY) == ["another's"]


# ---- updating


async def test_only_a_change_of_spec_or_labels_is_an_update(sites: Sites) -> None:
    async with added(sites) as recording:
        await edit(sites, KEY, "status", to={"seen": True})
        await edit(sites, KEY, "spec", "text", to="two")
        await edit(sites, KEY, "metadata", "labels", to={"region": "eu"})
        await settled()
    assert recording.calls == [
        "add athens one",
        "update athens one two",
        "update athens two two",
    ]


async def test_a_change_after_a_failed_add_is_one_add(sites: Sites) -> None:
    recording = RecordingWatcher(failures=1)
    async with running(watching(opinionated(recording)), sites.stores):
        await put(sites, KEY, site("one"))
        await asyncio.sleep(1)
        await edit(sites, KEY, "spec", "text", to="two")
        await settled()
    assert recording.calls == ["add athens one fails", "add athens two"]


async def test_a_failed_update_is_retried_after_a_status_write(sites: Sites) -> None:
    async with added(sites) as recording:
        recording.failures = 1
        await edit(sites, KEY, "spec", "text", to="two")
        await asyncio.sleep(1)
        await edit(sites, KEY, "status", to={"seen": True})
        await settled()
    assert recording.calls[1:] == ["update athens one two fails", "update athens one two"]


# ---- deleting


async def test_a_failed_delete_keeps_the_object_and_is_retried(sites: Sites) -> None:
    async with added(sites) as recording:
        recording.failures = 1
        await mark_deleted(sites, KEY)
        await asyncio.sleep(1)
        assert sites.keys() == [KEY]
        await settled()
    assert recording.calls[1:] == ["delete athens one fails", "delete athens one"]
    assert sites.keys() == []


async def test_an_object_with_finalizers_of_others_only_is_not_changed(sites: Sites) -> None:
    going = site("one", finalizers=["another's"], deletionTimestamp="2026-01-01T00:00:00Z")
    await put(sites, KEY, going)
    recording = RecordingWatcher()
    async with running(watching(opinionated(recording)), sites.stores):
        await settled()
    assert recording.calls == []
    assert sites.writes == 1


async def test_an_object_marked_deleted_without_finalizers_is_removed(sites: Sites) -> None:
    await put(sites, KEY, site("one", deletionTimestamp="2026-01-01T00:00:00Z"))
    recording = RecordingWatcher()
    async with running(watching(opinionated(recording)), sites.stores):
        await settled()
    assert (recording.calls, sites.keys()) == ([], [])


async def test_an_object_deleted_despite_its_finalizer_gets_a_delete_of_its_last_state(
    sites: Sites,
) -> None:
    async with added(sites) as recording:
        recording.failures = 1
        await sites.delete(KEY)
        await settled()
    assert recording.calls[1:] == ["delete athens one fails", "delete athens one"]
    restarted_watcher = RecordingWatcher()
    async with running(watching(opinionated(restarted_watcher)), sites.stores):
        await settled()
    assert restarted_watcher.calls == []


async def test_an_overwritten_and_deleted_object_gets_a_delete_without_its_finalizer(
    sites: Sites,
) -> None:
    for away in (False, True):
        recording, restarted_watcher = RecordingWatcher(), RecordingWatcher()
        async with running(watching(opinionated(recording)), sites.stores):
            await put(sites, KEY, site("one"))
            await settled()
            if not away:
                await put(sites, KEY, site("two"))
                await sites.delete(KEY)
                await settled()
        if away:
            await put(sites, KEY, site("two"))
            await sites.delete(KEY)
        async with running(watching(opinionated(restarted_watcher)), sites.stores):
            await settled()
        assert [*recording.calls, *restarted_watcher.calls][-1] == "delete athens two"
        assert restarted_watcher.calls == (["delete athens two"] if away else [])


async def test_a_recreated_object_without_the_finalizer_gets_no_delete(sites: Sites) -> None:
    async with running(watching(opinionated(RecordingWatcher())), sites.stores):
        await put(sites, KEY, site("one"))
        await settled()
        await mark_deleted(sites, KEY)
        await settled()
    await put(sites, KEY, site("two"))
    await sites.delete(KEY)
    recording = RecordingWatcher()
    async with running(watching(opinionated(recording)), sites.stores):
        await settled()
    assert recording.calls == []


async def test_an_object_lost_without_a_delete_marker_gets_no_delete(sites: Sites) -> None:
    async with added(sites) as recording:
        sites.vanish(KEY)
        sites.break_watches()
        await settled()
    assert recording.calls == ["add athens one"]


async def test_an_object_marked_deleted_gets_no_update(sites: Sites) -> None:
    recording = RecordingWatcher()
    async with running(watching(opinionated(recording)), sites.stores):
        await put(sites, KEY, site("one", finalizers=["another's"]))
        await settled()
        await mark_deleted(sites, KEY)
        await settled()
        await edit(sites, KEY, "spec", "text", to="two")
        await settled()
        assert await finalizers(sites, KEY) == ["another's"]
    assert recording.calls == ["add athens one", "delete athens one"]


# ---- restarts


async def test_a_restart_syncs_known_objects_and_adds_new_ones(sites: Sites) -> None:
    await put(sites, KEY, site("one"))
    async with running(watching(opinionated(RecordingWatcher())), sites.stores):
        await settled()
    await put(sites, "berlin", site("new"))
    recording = RecordingWatcher()
    async with running(watching(opinionated(recording)), sites.stores):
        await settled()
    assert sorted(recording.calls) == ["add berlin new", "sync athens one"]


async def test_an_unfinished_add_is_an_add_after_a_restart(sites: Sites) -> None:
    failing = RecordingWatcher(failures=100)
    await put(sites, KEY, site("one"))
    async with running(watching(opinionated(failing)), sites.stores):
        await settled()
    recording = RecordingWatcher()
    async with running(watching(opinionated(recording)), sites.stores):
        await settled()
    assert recording.calls == ["add athens one"]
    assert await finalizers(sites, KEY) == [FINALIZER]


@pytest.mark.parametrize("name", [FINALIZER, IN_PROGRESS])
async def test_an_object_marked_deleted_during_a_stop_is_deleted(sites: Sites, name: str) -> None:
    marked = "2026-01-01T00:00:00Z"
    await put(sites, KEY, site("one", finalizers=[name], deletionTimestamp=marked))
    recording = RecordingWatcher()
    async with running(watching(opinionated(recording)), sites.stores):
        await settled()
    assert recording.calls == ["delete athens one"]
    assert sites.keys() == []


# ---- wrapping


@pytest.mark.parametrize("calls", [["add athens one"], []])
async def test_sync_to_add_calls_the_wrapped_add_for_known_objects(
    sites: Sites, calls: list[str]
) -> None:
    await put(sites, KEY, site("one", finalizers=[FINALIZER]))
    recording = RecordingWatcher()
    watcher = OpinionatedWatcher(SITES)
    watcher.wrap(recording, sync_to_add=bool(calls))
    async with running(watching(watcher), sites.stores):
        await settled()
        assert recording.calls == calls
        await edit(sites, KEY, "spec", "text", to="two")
        await put(sites, "berlin", site("new"))
        await settled()
        await mark_deleted(sites, KEY)
        await settled()
    assert recording.calls[len(calls) :] == [
        "update athens one two",
        "add berlin new",
        "delete athens two",
    ]


# ---- failures


async def test_two_watchers_with_one_finalizer_are_refused() -> None:
    sites_controller = watching(opinionated(RecordingWatcher()))
    with pytest.raises(UsageError, match=f"have the finalizer {FINALIZER}"):
        sites_controller.add_watcher(opinionated(RecordingWatcher()), SITES)
    sites_controller.add_watcher(
        opinionated(RecordingWatcher(), finalizer_supplier=lambda _kind: "another"), SITES
    )


async def test_two_watchers_add_and_remove_their_own_finalizers(sites: Sites) -> None:
    first_recording, second_recording = RecordingWatcher(), RecordingWatcher()
    second_watcher = opinionated(second_recording, finalizer_supplier=lambda _kind: "another")
    async with running(watching(opinionated(first_recording), second_watcher), sites.stores):
        await put(sites, KEY, site("one"))
        await settled()
        assert await finalizers(sites, KEY) == [FINALIZER, "another"]
        second_recording.failures = 2  # a second failure after the first finalizer is removed
        await mark_deleted(sites, KEY)
        await asyncio.sleep(1)
        assert await finalizers(sites, KEY) == ["another"]
        await settled()
    assert first_recording.calls == ["add athens one", "delete athens one"]
    fails = "delete athens one fails"
    assert second_recording.calls == ["add athens one", fails, fails, "delete athens one"]
    assert sites.keys() == []


async def test_an_add_is_made_after_a_long_outage_of_the_store(sites: Sites) -> None:
    recording, first = RecordingWatcher(), RecordingWatcher(takes_s=5)
    sites_controller = watching(first, opinionated(recording))
    async with running(sites_controller, sites.stores):
        await put(sites, KEY, site("one"))
        await asyncio.sleep(1)
        sites.fail(StoreTimeoutError("no answer"))
        await asyncio.sleep(3600)
        sites.fail(None)
        await settled()
    assert recording.calls == ["add athens one"]


# ---- a cluster removes an object together with its last finalizer, without an update event


@pytest.fixture
def widgets(stores: MemoryStores) -> MemoryManifestStore:
    return stores.kube.store(WIDGETS)


def widget_watcher(recording: RecordingWatcher) -> InformerController:
    informer_controller = InformerController()
    informer_controller.add_informer(WIDGETS)
    watcher = OpinionatedWatcher(WIDGETS)
    watcher.wrap(recording, sync_to_add=True)
    informer_controller.add_watcher(watcher, WIDGETS)
    return informer_controller


async def test_a_kubernetes_object_is_added_updated_and_deleted_once(
    stores: MemoryStores, widgets: MemoryManifestStore
) -> None:
    recording = RecordingWatcher()
    async with running(widget_watcher(recording), stores, stores.kube):
        await put(widgets, WIDGET, site("one"))
        await settled()
        await edit(widgets, WIDGET, "spec", "text", to="two")
        await settled()
        assert await finalizers(widgets, WIDGET) == ["operator.v1.Widget.example.com"]
        await widgets.delete(WIDGET)
        await settled()
    assert recording.calls == ["add ns/one one", "update ns/one one two", "delete ns/one two"]
    assert widgets.keys() == []


async def test_a_kubernetes_object_that_changes_during_its_delete_gets_one_delete(
    stores: MemoryStores, widgets: MemoryManifestStore
) -> None:
    class Meddled(RecordingWatcher):
        async def delete(self, last: Snapshot[Any]) -> None:
            await widgets.patch_status(WIDGET, {"seen": True})
            await super().delete(last)

    recording = Meddled()
    async with running(widget_watcher(recording), stores, stores.kube):
        await put(widgets, WIDGET, site("one"))
        await settled()
        await widgets.delete(WIDGET)
        await settled()
    assert recording.calls == ["add ns/one one", "delete ns/one one"]
    assert widgets.keys() == []


async def test_an_informer_selects_kubernetes_objects_by_labels(
    stores: MemoryStores, widgets: MemoryManifestStore
) -> None:
    recording = RecordingWatcher()
    sites_controller = InformerController()
    sites_controller.add_informer(WIDGETS, labels="region!=ap")
    sites_controller.add_informer(kube("v1", "ConfigMap", namespace="ns"), "configs")
    sites_controller.add_watcher(recording, WIDGETS)
    sites_controller.add_watcher(recording, "configs")
    async with running(sites_controller, stores, stores.kube):
        await put(widgets, "ns/a", site("one", labels={"region": "eu"}))
        await put(widgets, "ns/b", site("one", labels={"region": "ap"}))
        configs = stores.kube.store(kube("v1", "ConfigMap"))
        await put(configs, "ns/c", site("one"))
        await put(configs, "elsewhere/c", site("one"))
        await edit(widgets, "ns/a", "metadata", "labels", to={"region": "ap"})
        await asyncio.sleep(1)
    assert sorted(recording.calls) == ["add ns/a one", "add ns/c one", "delete ns/a one"]


async def test_a_kubernetes_kind_without_a_cluster_is_refused() -> None:
    sites_controller = widget_watcher(RecordingWatcher())
    assert sites_controller.kinds == [WIDGETS]
    sites_controller.use(nats=MemoryStores())
    with pytest.raises(UsageError, match="stored in Kubernetes"):
        await sites_controller.run()
