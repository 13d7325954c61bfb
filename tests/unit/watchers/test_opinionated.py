"""Finalizers are named by a supplier, and say what was handled, whatever the watch shows when."""

from typing import Any

import pytest

from natsctl import UsageError, kube, kv
from natsctl.model.kinds import Kind
from natsctl.testing.memory import MemoryStore
from natsctl.watchers import OpinionatedWatcher, Snapshot, default_finalizer_supplier
from tests.support.controllers.recording_watcher import (
    FINALIZER,
    IN_PROGRESS,
    SITES,
    Notes,
    mark_deleted,
    put,
    site,
)


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
def test_the_default_says_version_kind_and_group_and_a_domain_where_it_must(
    kind: Kind[Any], name: str
) -> None:
    assert default_finalizer_supplier(kind) == name


def test_while_an_add_is_in_progress_the_name_says_so() -> None:
    watcher = OpinionatedWatcher(SITES)
    assert (watcher.finalizer, watcher.in_progress) == (FINALIZER, IN_PROGRESS)


def test_names_are_cut_to_63_characters_that_kubernetes_takes() -> None:
    name = "operator.v1." + "a" * 46 + ".and.more.of.it"
    watcher = OpinionatedWatcher(SITES, finalizer_supplier=lambda _kind: name)
    assert watcher.finalizer == "operator.v1." + "a" * 46 + ".and"
    assert watcher.in_progress == "operator.v1." + "a" * 46 + "-wip"


def test_a_domain_does_not_count() -> None:
    name = f"{'long.' * 20}example.com/{'a' * 70}"
    watcher = OpinionatedWatcher(SITES, finalizer_supplier=lambda _kind: name)
    assert watcher.finalizer == f"{'long.' * 20}example.com/{'a' * 63}"
    assert len(watcher.in_progress) == len(watcher.finalizer)


def test_objects_that_cannot_be_held_are_refused() -> None:
    with pytest.raises(UsageError, match="no labels, finalizers or status"):
        OpinionatedWatcher(kv(dict, bucket="plain"))
    with pytest.raises(UsageError, match="in part only"):
        OpinionatedWatcher(kube("v1", "Secret", metadata_only=True))


class Shown:
    """A store, and a watcher that is shown its states one by one, by hand."""

    def __init__(self) -> None:
        self.store = MemoryStore(SITES)
        self.notes = Notes()
        self.watcher = OpinionatedWatcher(SITES, sync_func=self.notes.sync)
        self.watcher.add_func, self.watcher.update_func = self.notes.add, self.notes.update
        self.watcher.delete_func = self.notes.delete

    async def now(self) -> Snapshot[Any]:
        return Snapshot(SITES, await self.store.get("a"), self.store)

    async def put(self, says: str, **metadata: Any) -> Snapshot[Any]:
        await put(self.store, "a", site(says, **metadata))
        return await self.now()


async def test_what_an_add_has_seen_is_no_update_afterwards() -> None:
    shown = Shown()
    one = await shown.put("one")
    two = await shown.put("two")
    await shown.watcher.add(one)
    await shown.watcher.update(one, two)
    await shown.watcher.update(two, await shown.now())
    assert shown.notes.told == ["add a two"]


async def test_one_put_back_before_the_deletion_of_the_last_is_shown_counts_as_it_is() -> None:
    shown = Shown()
    one = await shown.put("one")
    await shown.watcher.add(one)
    await mark_deleted(shown.store, "a")
    going = await shown.now()
    await shown.watcher.update(one, going)
    assert shown.store.keys() == []
    back = await shown.put("back", finalizers=[FINALIZER])
    await shown.watcher.update(going, back)
    assert shown.notes.told == ["add a one", "delete a one", "update a one back"]


async def test_another_object_under_the_same_name_is_added() -> None:
    shown = Shown()
    one = await shown.put("one", uid="1")
    await shown.watcher.add(one)
    held = await shown.now()
    two = await shown.put("two", uid="2")
    await shown.watcher.update(held, two)
    assert shown.notes.told == ["add a one", "add a two"]


async def test_one_that_became_another_while_it_was_added_is_not_marked_for_it() -> None:
    shown = Shown()

    class Replacing(Notes):
        async def add(self, new: Snapshot[Any]) -> None:
            await super().add(new)
            if len(self.told) == 1:
                await shown.put("two", uid="2")

    shown.watcher.add_func = Replacing(told=shown.notes.told).add
    one = await shown.put("one", uid="1")
    await shown.watcher.add(one)
    two = await shown.now()
    assert two.metadata.finalizers == ()
    await shown.watcher.update(one, two)
    assert shown.notes.told == ["add a one", "add a two"]


async def test_one_kept_in_another_store_by_now_is_looked_at_anew() -> None:
    shown = Shown()
    for said in ("pad", "pad", "one"):
        one = await shown.put(said)
    await shown.watcher.add(one)
    shown.store.recreate()
    two = await shown.put("two")
    await shown.watcher.update(one, two)
    assert shown.notes.told[0] == "add a one"
    assert len(shown.notes.told) == 2
    assert (await shown.now()).metadata.finalizers == (FINALIZER,)
