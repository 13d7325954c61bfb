"""Simple and opinionated watchers, snapshots, and policies of retries."""

from typing import Any

import pytest

from natsctl import Drop, Kind, Retry, RetryPolicy, UsageError, kube, kv
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
from natsctl.watchers import (
    DEFAULT_RETRY_POLICY,
    OpinionatedWatcher,
    ResourceAction,
    SimpleWatcher,
    Snapshot,
    default_finalizer_supplier,
    exponential_backoff_retry_policy,
    opinionated_retry_dequeue_policy,
)
from tests.support.controllers.recording_watcher import (
    FINALIZER,
    SITES,
    RecordingWatcher,
    Site,
    SiteSpec,
    mark_deleted,
    site,
)
from tests.support.stores.documents import put


def snapshot(value: bytes, kind: Kind[object] = SITES) -> Snapshot[object]:  # type: ignore[assignment]
    return Snapshot(kind, Stored("berlin", 7, value), MemoryStore(kind))


@pytest.mark.parametrize(
    ("functions", "calls"),
    [
        ("add update delete", ["add berlin one", "update berlin one two", "delete berlin two"]),
        ("update", ["update berlin one two"]),
    ],
)
async def test_each_action_calls_its_function_if_there_is_one(
    functions: str, calls: list[str]
) -> None:
    recording = RecordingWatcher()
    given: Any = {f"{name}_func": getattr(recording, name) for name in functions.split()}
    watcher, (created, updated) = SimpleWatcher(**given), map(snapshot, (site("one"), site("two")))
    await watcher.add(created)
    await watcher.update(created, updated)
    await watcher.delete(updated)
    assert recording.calls == calls


def test_a_snapshot_shows_an_object_at_one_revision() -> None:
    taken = snapshot(site("one", labels={"region": "eu"}))
    assert (taken.key, taken.revision, taken.value) == (
        "berlin",
        7,
        site("one", labels={"region": "eu"}),
    )
    assert isinstance(taken.object, Site)
    assert taken.object.spec == SiteSpec("one")
    assert taken.metadata.labels == {"region": "eu"}
    assert not taken.is_going
    assert snapshot(site(deletionTimestamp="2026-01-01T00:00:00Z")).is_going


def test_an_object_without_metadata_is_never_marked_deleted() -> None:
    plain: Kind[object] = kv(dict, bucket="plain")
    taken = snapshot(b'{"a": 1}', plain)
    assert taken.object == {"a": 1}
    assert not taken.is_going
    with pytest.raises(UsageError, match="a subclass of"):
        assert taken.metadata


CREATE, UPDATE, DELETE = ResourceAction.CREATE, ResourceAction.UPDATE, ResourceAction.DELETE


def dequeues(
    action: ResourceAction, value: bytes, retried_action: ResourceAction, retried_value: bytes
) -> bool:
    error = ValueError("reason")
    return opinionated_retry_dequeue_policy(
        action, snapshot(value), retried_action, snapshot(retried_value), error
    )


@pytest.mark.parametrize(
    ("policy", "delays_s"),
    [
        (DEFAULT_RETRY_POLICY, [5, 10, 20, 40, 80, 160]),
        (exponential_backoff_retry_policy(0.5, 2), [0.5, 1, 2]),
        (exponential_backoff_retry_policy(3, 0), [3]),
    ],
)
def test_a_policy_retries_with_backoff_and_then_drops(
    policy: RetryPolicy, delays_s: list[float]
) -> None:
    decisions = [policy(ValueError("reason"), count + 1) for count in range(len(delays_s) + 1)]
    assert decisions == [*map(Retry, delays_s), Drop()]


@pytest.mark.parametrize("retry", ResourceAction)
def test_a_delete_drops_every_retry(retry: ResourceAction) -> None:
    assert dequeues(DELETE, site("a"), retry, site("a"))


@pytest.mark.parametrize("action", [CREATE, UPDATE])
def test_another_spec_drops_the_retry(action: ResourceAction) -> None:
    assert dequeues(action, site("b", generation=3), action, site("a", generation=2))


def test_actions_are_create_update_and_delete() -> None:
    assert [str(action) for action in ResourceAction] == ["CREATE", "UPDATE", "DELETE"]


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
