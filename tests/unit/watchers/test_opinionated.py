"""The opinionated watcher: names of its finalizers, and the changes it handles."""

from typing import Any

import pytest

from natsctl import Kind, UsageError, kube, kv
from natsctl.testing import MemoryStore
from natsctl.watchers import OpinionatedWatcher, Snapshot, default_finalizer_supplier
from tests.support.controllers.recording_watcher import (
    FINALIZER,
    SITES,
    RecordingWatcher,
    mark_deleted,
    site,
)
from tests.support.stores.documents import put


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SITES, "operator.v1.Site.sites"),
        (kube("example.com/v1beta1", "Widget"), "operator.v1beta1.Widget.example.com"),
        (kube("v1", "ConfigMap"), "natsctl.io/operator.v1.ConfigMap"),
        (kube("apps/v1", "Deployment"), "natsctl.io/operator.v1.Deployment.apps"),
        (
            kube("networking.k8s.io/v1", "Ingress"),
            "natsctl.io/operator.v1.Ingress.networking.k8s.io",
        ),
    ],
)
def test_the_default_name_has_version_kind_group_and_if_needed_a_domain(
    kind: Kind[Any], name: str
) -> None:
    assert default_finalizer_supplier(kind) == name


def test_names_are_cut_to_63_characters_that_kubernetes_accepts() -> None:
    name = "operator.v1." + "a" * 46 + ".and.more.of.it"
    watcher = OpinionatedWatcher(SITES, finalizer_supplier=lambda _kind: name)
    assert watcher.finalizer == "operator.v1." + "a" * 46 + ".and"
    assert watcher.in_progress == "operator.v1." + "a" * 46 + "-wip"


def test_kinds_without_finalizers_are_refused() -> None:
    with pytest.raises(UsageError, match="no labels, finalizers or status"):
        OpinionatedWatcher(kv(dict, bucket="plain"))
    with pytest.raises(UsageError, match="in part only"):
        OpinionatedWatcher(kube("v1", "Secret", metadata_only=True))


class Stage:
    """A store, and a watcher that gets the states of the store one by one."""

    def __init__(self) -> None:
        self.store = MemoryStore(SITES)
        self.recording = RecordingWatcher()
        self.watcher = OpinionatedWatcher(SITES, sync_func=self.recording.sync)
        self.watcher.add_func, self.watcher.update_func = self.recording.add, self.recording.update
        self.watcher.delete_func = self.recording.delete

    async def now(self) -> Snapshot[Any]:
        return Snapshot(SITES, await self.store.get("a"), self.store)

    async def put(self, text: str, **metadata: Any) -> Snapshot[Any]:
        await put(self.store, "a", site(text, **metadata))
        return await self.now()


async def test_an_object_restored_before_its_deletion_is_shown_is_updated() -> None:
    stage = Stage()
    created = await stage.put("one")
    await stage.watcher.add(created)
    await mark_deleted(stage.store, "a")
    marked = await stage.now()
    await stage.watcher.update(created, marked)
    assert stage.store.keys() == []
    restored = await stage.put("back", finalizers=[FINALIZER])
    await stage.watcher.update(marked, restored)
    assert stage.recording.calls == ["add a one", "delete a one", "update a one back"]


async def test_an_object_replaced_during_its_add_does_not_get_the_finalizer() -> None:
    stage = Stage()

    class Replacing(RecordingWatcher):
        async def add(self, new: Snapshot[Any]) -> None:
            await super().add(new)
            if len(self.calls) == 1:
                await stage.put("two", uid="2")

    stage.watcher.add_func = Replacing(calls=stage.recording.calls).add
    created = await stage.put("one", uid="1")
    await stage.watcher.add(created)
    replacement = await stage.now()
    assert replacement.metadata.finalizers == ()
    await stage.watcher.update(created, replacement)
    assert stage.recording.calls == ["add a one", "add a two"]
