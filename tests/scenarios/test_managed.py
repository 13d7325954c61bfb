"""Managed objects are created, polled, updated and deleted with their external resources."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from natsctl import (
    Controller,
    Operation,
    Operator,
    Primary,
    Reference,
    UsageError,
    primary,
    retry_up_to,
)
from natsctl.managed import Managed, ManagedReconciler
from natsctl.testing import MemoryManifestStore, MemoryStore, MemoryStores, running
from tests.support.controllers.app_controller import SlowStores
from tests.support.controllers.disk_reconciler import (
    DISKS,
    HELD,
    SYNCED,
    Cloud,
    CloudClient,
    ClusterDisks,
    Disk,
    ManagedDisks,
    Play,
    clock,
    ran,
)


class Disks(Controller):
    """A controller whose sync handler is a reconciler."""

    disks = primary(DISKS)
    sync_timeout_s = 120.0
    resync_s = 1e6  # a resync observes as well, between two polls

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    async def start(self) -> None:
        self.reconciler = ManagedReconciler(
            self.disks, connecter=self.connect, recorder=self.runtime, clock=clock
        )

    async def connect(self, _managed: Managed[Disk]) -> CloudClient:
        return CloudClient(self.cloud)

    async def sync_handler(self, key: str) -> float | None:
        return await self.reconciler.reconcile(key)


class NatsDisks(ManagedDisks):
    """A managed controller of disks in NATS."""

    started = cleaned = 0

    async def start(self) -> None:
        self.started += 1

    async def clean(self) -> None:
        self.cleaned += 1


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture(params=["controller", "managed controller"])
async def play(request: pytest.FixtureRequest, cloud: Cloud) -> AsyncIterator[Play]:
    """Run the reconciler in a controller or in a managed controller."""
    stores = MemoryStores()
    play = Play(store=stores.store(DISKS), cloud=cloud)
    play.recorder = stores.events
    if request.param == "controller":
        async with running(Disks(cloud), stores=stores):
            yield play
    else:
        async with ran(NatsDisks(cloud, nats=stores)):
            yield play


async def test_a_disk_is_created_updated_and_deleted_with_its_object(
    play: Play, cloud: Cloud
) -> None:
    await play.put(size=1)
    await asyncio.sleep(5)
    assert cloud.disks == {"disk-1": 1}
    assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}
    await play.edit("a", lambda document: document["spec"].update(size=2))
    await asyncio.sleep(5)
    assert cloud.disks == {"disk-1": 2}
    cloud.disks["disk-1"] = 9
    await asyncio.sleep(65)  # until the next poll
    assert cloud.disks == {"disk-1": 2}
    await play.primary.delete("a")
    await asyncio.sleep(5)
    assert cloud.disks == {}
    assert isinstance(play.store, MemoryStore)
    assert play.store.keys() == []
    assert play.reasons[-2:] == ["DeletedExternalResource", "Synced"]


class ReadingDisks(Disks):
    """Reads its object before each reconciliation."""

    seen: list[str]

    async def sync_handler(self, key: str) -> float | None:
        disk = self.disks.get(key)
        annotations = {} if disk is None else disk.metadata.annotations
        self.seen.append(annotations.get("natsctl.io/external-name", ""))
        return await super().sync_handler(key)


async def test_a_handler_reads_what_its_reconciler_wrote_if_the_watch_lags(cloud: Cloud) -> None:
    stores, controller = SlowStores(), ReadingDisks(cloud)
    stores.store(DISKS).lag_s, controller.seen = 3.0, []
    play = Play(store=stores.store(DISKS), cloud=cloud)
    async with running(controller, stores=stores) as harness:
        await play.put(size=1)
        await asyncio.sleep(3.5)
        assert (controller.seen, cloud.disks) == ([""], {"disk-1": 1})
        harness.runtime.enqueue_key("a", Operation.MANUAL)  # before the watch shows the writes
        await asyncio.sleep(10)
    assert set(controller.seen[1:]) == {"disk-1"}


async def test_a_converged_object_is_observed_once_a_minute_and_never_written(
    play: Play, cloud: Cloud
) -> None:
    await play.put(size=1)
    await asyncio.sleep(5)
    assert isinstance(play.store, MemoryStore)
    writes, calls = play.store.writes, len(cloud.calls)
    await asyncio.sleep(600)
    assert play.store.writes == writes
    assert cloud.calls[calls:] == ["observe"] * 10


async def test_a_failing_create_is_retried_with_backoff(stores: MemoryStores, cloud: Cloud) -> None:
    play = Play(store=stores.store(DISKS), cloud=cloud)
    controller = NatsDisks(cloud, nats=stores)
    async with ran(controller):
        cloud.failures["create"] = PermissionError("no")
        await play.put(size=1)
        await asyncio.sleep(5)
        for _ in range(30):  # it fails also while the next creation waits
            await asyncio.sleep(1)
            assert controller.status().failing == {"a": "PermissionError: no"}
        await asyncio.sleep(3600)
        assert 40 <= cloud.calls.count("create") <= 80
        assert cloud.calls.count("observe") <= 200
        del cloud.failures["create"]
        await asyncio.sleep(70)
        assert (cloud.created, controller.status().failing) == (["a"], {})


async def test_a_paused_object_is_not_reconciled_until_it_is_resumed(
    stores: MemoryStores, cloud: Cloud
) -> None:
    play = Play(store=stores.store(DISKS), cloud=cloud)
    async with ran(NatsDisks(cloud, nats=stores)):
        await play.put(size=1)
        await asyncio.sleep(5)
        await play.annotate(paused="true")
        await asyncio.sleep(5)
        calls = len(cloud.calls)
        await play.edit("a", lambda document: document["spec"].update(size=2))
        await asyncio.sleep(600)
        assert len(cloud.calls) == calls
        assert (await play.conditions())["Synced"] == ("False", "ReconcilePaused")
        await play.annotate(paused=None)
        await asyncio.sleep(5)
        assert cloud.disks == {"disk-1": 2}
        assert (await play.conditions())["Synced"] == SYNCED


async def test_disks_of_objects_deleted_while_no_process_ran_are_deleted_at_the_start(
    cloud: Cloud,
) -> None:
    stores = MemoryStores()
    play = Play(store=stores.store(DISKS), cloud=cloud)
    async with ran(NatsDisks(cloud, nats=stores)):
        await play.put("a", size=1)
        await play.put("b", size=2)
        await asyncio.sleep(5)
    await play.primary.delete("a")
    await play.store.delete("b")
    async with ran(NatsDisks(cloud, nats=stores)):
        await asyncio.sleep(5)
    assert cloud.disks == {}


async def test_an_invalid_object_is_not_reconciled_until_it_is_valid(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    stores = MemoryStores()
    play = Play(store=stores.store(DISKS), cloud=cloud)
    async with ran(NatsDisks(cloud, nats=stores)):
        await play.put(size=1)
        await asyncio.sleep(5)
        calls = len(cloud.calls)
        await play.edit("a", lambda document: document.update(spec={"size": "huge"}))
        await asyncio.sleep(600)
        assert len(cloud.calls) == calls
        assert [record for record in caplog.records if "failed" in record.getMessage()] == []
        await play.edit("a", lambda document: document.update(spec={"size": 3}))
        await asyncio.sleep(5)
        assert cloud.disks == {"disk-1": 3}


# ---- a managed controller


async def test_the_last_state_of_a_deleted_object_is_kept_until_it_is_cleaned_up(
    cloud: Cloud,
) -> None:
    primaries: list[Primary[Disk]] = []

    class Watched(NatsDisks):
        def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
            primaries.append(managed)
            return super().reconciler(managed)

    stores = MemoryStores()
    play = Play(store=stores.store(DISKS), cloud=cloud)
    async with ran(Watched(cloud, nats=stores)):
        await play.put(size=1)
        await asyncio.sleep(5)
        cloud.failures["delete"] = OSError("no")
        await play.store.delete("a")
        await asyncio.sleep(5)
        noted = primaries[0].queue.noted("a")
        assert noted is not None
        assert noted.last is not None
        cloud.failures.clear()
        await asyncio.sleep(60)
        await play.put("b", size=1)
        await asyncio.sleep(5)
        await play.primary.delete("b")
        await asyncio.sleep(5)
        assert primaries[0].queue.works == {}


async def test_a_stop_waits_for_running_reconciliations_and_then_calls_clean(cloud: Cloud) -> None:
    cloud.takes_s["create"] = 10.0
    stores = MemoryStores()
    play = Play(store=stores.store(DISKS), cloud=cloud)
    controller = NatsDisks(cloud, nats=stores)
    async with ran(controller):
        await play.put(size=1)
        await asyncio.sleep(5)
        assert (controller.started, controller.cleaned, cloud.created) == (1, 0, [])
    assert (controller.started, controller.cleaned, cloud.created) == (1, 1, ["a"])
    assert "external-create-succeeded" in await play.annotations()


async def test_enqueue_key_reconciles_an_object_at_once(cloud: Cloud) -> None:
    stores = MemoryStores()
    play = Play(store=stores.store(DISKS), cloud=cloud)
    controller = NatsDisks(cloud, nats=stores)
    async with ran(controller):
        await play.put(size=1)
        await asyncio.sleep(5)
        cloud.disks["disk-1"] = 9
        controller.enqueue_key("a")
        await asyncio.sleep(1)
        assert cloud.disks == {"disk-1": 1}


async def test_the_error_names_the_missing_connection(cloud: Cloud) -> None:
    with pytest.raises(UsageError, match="NATS, but no connection"):
        await NatsDisks(cloud).run()
    with pytest.raises(UsageError, match="Kubernetes, but no cluster"):
        await ClusterDisks(cloud, nats=MemoryStores()).run()


async def test_a_retry_policy_can_stop_the_controller(cloud: Cloud) -> None:
    class Short(NatsDisks):
        retry = retry_up_to(2)  # type: ignore[assignment]

    stores = MemoryStores()
    cloud.failures["observe"] = ValueError("no")
    controller = Short(cloud, nats=stores)
    task = asyncio.create_task(controller.run())
    await Play(store=stores.store(DISKS)).put(size=1)
    await task
    assert cloud.calls == ["observe"] * 3


async def test_an_operator_can_run_several_managed_controllers(cloud: Cloud) -> None:
    stores = MemoryStores()
    controllers = [NatsDisks(cloud), ClusterDisks(cloud)]
    operator = Operator(controllers, nats=stores, kube=stores.kube)  # type: ignore[arg-type]
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    await Play(store=stores.store(DISKS)).put(size=1)
    await asyncio.sleep(5)
    operator.stop()
    await task
    assert cloud.created == ["a"]


# ---- custom resources


@pytest.fixture
async def store(stores: MemoryStores, cloud: Cloud) -> AsyncIterator[MemoryManifestStore]:
    async with ran(ClusterDisks(cloud, kube=stores.kube)):
        yield stores.kube.store(ClusterDisks.kind)


async def test_a_disk_is_created_and_deleted_with_a_custom_resource(
    stores: MemoryStores, store: MemoryManifestStore, cloud: Cloud
) -> None:
    value = {"spec": {"size": 1}, "metadata": {"labels": {"mine": "1"}}}
    await store.create("shop/a", json.dumps(value).encode())
    await asyncio.sleep(5)
    assert cloud.disks == {"disk-1": 1}
    document: dict[str, Any] = store.document("shop/a")
    assert document["metadata"]["labels"] == {"mine": "1"}
    assert document["status"]["observedGeneration"] == 1
    event, synced = stores.events.events
    assert (event.reason, synced.reason) == ("CreatedExternalResource", "Synced")
    (about,) = event.regarding
    assert isinstance(about, Reference)
    assert (about.kind, about.namespace, about.name) == ("Disk", "shop", "a")
    writes, calls = store.writes, len(cloud.calls)
    await asyncio.sleep(300)  # nothing is written after convergence
    assert (store.writes, cloud.calls[calls:]) == (writes, ["observe"] * 5)
    await store.delete("shop/a")
    await asyncio.sleep(5)
    assert cloud.disks == {}
    assert store.keys() == []


@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("held", [True, False])
async def test_a_custom_resource_that_is_replaced_as_a_whole_keeps_its_disk(
    store: MemoryManifestStore, cloud: Cloud, *, held: bool, deleted: bool
) -> None:
    """Whoever replaces it drops the only link to the disk, and perhaps the finalizer."""
    await store.create("shop/a", json.dumps({"spec": {"size": 1}}).encode())
    await asyncio.sleep(5)
    whole = {"spec": {"size": 2}, "metadata": {"finalizers": HELD if held else []}}
    revision = (await store.get("shop/a")).revision
    await store.update("shop/a", json.dumps(whole).encode(), revision=revision)
    if deleted:
        await store.delete("shop/a")
    await asyncio.sleep(5)
    assert cloud.disks == ({} if deleted else {"disk-1": 2})
    assert cloud.created == ["shop/a"]
    assert store.keys() == ([] if deleted else ["shop/a"])


async def test_whoever_removes_an_unknown_intent_says_that_nothing_was_created(
    store: MemoryManifestStore, cloud: Cloud
) -> None:
    cloud.failures["create"] = TimeoutError("the cloud did not respond")
    await store.create("shop/a", json.dumps({"spec": {"size": 1}}).encode())
    await asyncio.sleep(5)
    cloud.failures.clear()
    stored = await store.get("shop/a")
    document = json.loads(stored.value)
    del document["metadata"]["annotations"]
    await store.update("shop/a", json.dumps(document).encode(), revision=stored.revision)
    await asyncio.sleep(100)
    assert cloud.disks == {"disk-1": 1}


async def test_a_disk_stays_if_somebody_lets_go_of_its_deleted_custom_resource(
    store: MemoryManifestStore, cloud: Cloud
) -> None:
    await store.create("shop/a", json.dumps({"spec": {"size": 1}}).encode())
    await asyncio.sleep(5)
    cloud.failures["delete"] = ValueError("it's in use")
    await store.delete("shop/a")
    await asyncio.sleep(5)
    stored = await store.get("shop/a")
    document = json.loads(stored.value)
    document["metadata"]["finalizers"] = []
    await store.update("shop/a", json.dumps(document).encode(), revision=stored.revision)
    assert store.keys() == []
    cloud.failures.clear()
    await asyncio.sleep(100)
    assert cloud.disks == {"disk-1": 1}
