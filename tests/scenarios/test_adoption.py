"""A managed controller changes and deletes only what it made, unless somebody says otherwise."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import Primary, UsageError, plan
from natsctl.managed import Managed, ManagedReconciler, Observation
from natsctl.testing import MemoryCluster, MemoryRecorder, MemoryStore, MemoryStores
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

POLL_S = 61.0  # after which every object was observed once more
NOT_OWNED = ("False", "NotOwned")
AVAILABLE = ("True", "Available")


class Disks(ManagedDisks):
    """Disks that have the names of their objects, and nothing marks them as natsctl's."""

    adopt_here: bool | None = None

    def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
        return ManagedReconciler(
            managed,
            connecter=self.connect,
            external_name=lambda disk: disk.key,
            recorder=self,
            creation_grace_period_s=0.0,
            clock=clock,
            adopt=self.adopt_here,
        )

    async def connect(self, _managed: Managed[Disk]) -> CloudClient:
        return CloudClient(self.cloud, by_key=True)


class Adopting(Disks):
    """Disks that are taken over."""

    adopt = True


@pytest.fixture
def cloud() -> Cloud:
    cloud = Cloud()
    cloud.disks["a"] = 7  # a stranger's
    return cloud


@pytest.fixture
def play(cloud: Cloud, stores: MemoryStores) -> Play:
    play = Play(store=stores.store(DISKS), cloud=cloud)
    play.recorder = stores.events
    return play


def objects(play: Play) -> list[str]:
    assert isinstance(play.store, MemoryStore)
    return play.store.keys()


@asynccontextmanager
async def disowning(cloud: Cloud, stores: MemoryStores, play: Play) -> AsyncIterator[Disks]:
    """Run a controller until it has found the stranger's disk of an object."""
    controller = Disks(cloud, nats=stores)
    async with ran(controller):
        await play.put()
        await asyncio.sleep(POLL_S)
        assert (await play.conditions())["Ready"] == NOT_OWNED
        yield controller


async def test_a_strangers_resource_is_neither_changed_nor_deleted(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    async with disowning(cloud, stores, play):
        assert await play.finalizers() == []
        assert await play.annotations() == {}
        assert "natsctl repair external adopt disks/a" in await play.message()
        writes = stores.store(DISKS).writes
        await asyncio.sleep(10 * POLL_S)
        assert stores.store(DISKS).writes == writes
        assert play.reasons.count("NotOwned") == 1
        await play.primary.delete("a")
        await asyncio.sleep(POLL_S)
        assert objects(play) == []
    assert (cloud.disks, set(cloud.calls)) == ({"a": 7}, {"observe"})


async def test_a_resource_is_created_once_the_strangers_is_gone(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    async with disowning(cloud, stores, play):
        del cloud.disks["a"]
        await asyncio.sleep(POLL_S)
        assert (cloud.disks, cloud.created) == ({"a": 1}, ["a"])
        await play.primary.delete("a")
        await asyncio.sleep(POLL_S)
        assert cloud.disks == {}


@pytest.mark.parametrize("annotation", [{"adopt": "true"}, {"external_name": "a"}])
async def test_an_object_adopts_by_an_annotation_and_by_a_name(
    cloud: Cloud, stores: MemoryStores, play: Play, annotation: dict[str, str]
) -> None:
    async with disowning(cloud, stores, play) as controller:
        explanation = controller.explain("a")
        assert explanation.external == []
        (ready,) = (text for text in explanation.conditions if text.startswith("Ready="))
        assert ready.startswith("Ready=False NotOwned: ")
        assert "exists, and natsctl didn't create it, so nothing is changed" in ready
        await play.annotate(**annotation)
        await asyncio.sleep(POLL_S)
        assert controller.explain("a").external == ["a, adopted"]
        assert await play.conditions() == {"Ready": AVAILABLE, "Synced": SYNCED}
        assert (cloud.disks, cloud.created, await play.finalizers()) == ({"a": 1}, [], HELD)
        assert play.reasons.count("AdoptedExternalResource") == 1
        annotations = await play.annotations()
        assert annotations["external-name"] == "a"
        assert annotations["external-adopted"].endswith("Z name a")
        await play.primary.delete("a")
        await asyncio.sleep(POLL_S)
        assert (cloud.disks, objects(play)) == ({}, [])


async def test_an_object_may_refuse_what_the_declaration_permits(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    async with ran(Adopting(cloud, nats=stores)):
        await play.put(adopt="false")
        await asyncio.sleep(POLL_S)
        assert (await play.conditions())["Ready"] == NOT_OWNED
        await play.annotate(adopt="yes")
        await asyncio.sleep(POLL_S)
        assert 'must be "true" or "false"' in await play.message()
    assert cloud.disks == {"a": 7}


async def test_a_name_that_a_failed_creation_left_does_not_adopt(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    del cloud.disks["a"]
    cloud.failures["create"] = PermissionError("no more disks")
    async with ran(Disks(cloud, nats=stores)):
        await play.put()
        await asyncio.sleep(POLL_S)
        assert (await play.annotations())["external-name"] == "a"
        cloud.disks["a"] = 7  # somebody else makes it meanwhile
        await asyncio.sleep(POLL_S)
        assert (await play.conditions())["Ready"] == NOT_OWNED
        await play.primary.delete("a")
        await asyncio.sleep(POLL_S)
    assert (cloud.disks, objects(play)) == ({"a": 7}, [])
    assert "KeptExternalResource" in play.reasons


async def test_a_name_that_a_client_gave_in_a_failed_creation_does_not_adopt(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    class Client(CloudClient):
        async def create(self, managed: Managed[Any]) -> None:
            managed.external_name = f"disk-{managed.key}"
            raise FileExistsError(managed.external_name)

    class Named(ManagedDisks):
        async def connect(self, _managed: Managed[Disk]) -> CloudClient:
            return Client(cloud)

    cloud.disks["disk-a"] = 7
    async with ran(Named(nats=stores)):
        await play.put()
        await asyncio.sleep(10 * POLL_S)
        assert (await play.conditions())["Ready"] == NOT_OWNED
        await play.primary.delete("a")
        await asyncio.sleep(POLL_S)
    assert (cloud.disks["disk-a"], objects(play)) == (7, [])


async def test_an_object_that_names_another_resource_adopts_it(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    cloud.disks = {"other": 1}
    async with ran(Disks(cloud, nats=stores)):
        await play.put()
        await asyncio.sleep(POLL_S)
        await play.annotate(external_name="other")
        await asyncio.sleep(POLL_S)
        assert play.reasons.count("AdoptedExternalResource") == 1


async def test_a_resource_that_is_only_observed_needs_no_permission(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    async with ran(Disks(cloud, nats=stores)):
        await play.put(size=7, management_policy="observe")
        await asyncio.sleep(POLL_S)
        assert (await play.conditions())["Ready"] == AVAILABLE
        await play.annotate(management_policy=None)
        await asyncio.sleep(POLL_S)
        assert (await play.conditions())["Ready"] == NOT_OWNED
        await play.primary.delete("a")
        await asyncio.sleep(POLL_S)
    assert (cloud.disks, objects(play)) == ({"a": 7}, [])


@pytest.mark.parametrize("policy", ["observe-delete", "observe-create-update"])
async def test_a_policy_that_permits_a_change_needs_permission(
    cloud: Cloud, stores: MemoryStores, play: Play, policy: str
) -> None:
    async with ran(Disks(cloud, nats=stores)):
        await play.put(management_policy=policy)
        await asyncio.sleep(POLL_S)
        await play.primary.delete("a")
        await asyncio.sleep(POLL_S)
    assert cloud.disks == {"a": 7}


async def test_a_name_that_an_observation_found_does_not_adopt(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    class Client(CloudClient):
        async def observe(self, managed: Managed[Any]) -> Observation:
            managed.external_name = "a"
            return Observation(exists=True, up_to_date=True, late_initialized=True)

    class Found(ManagedDisks):
        async def connect(self, _managed: Managed[Disk]) -> CloudClient:
            return Client(cloud)

    async with ran(Found(nats=stores)):
        await play.put("b", management_policy="observe")
        await asyncio.sleep(POLL_S)
        await play.annotate("b", management_policy=None)
        await asyncio.sleep(POLL_S)
        assert (await play.conditions("b"))["Ready"] == NOT_OWNED


async def test_a_plan_shows_an_adoption_and_a_stranger(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    await play.put()
    planned = await plan(Disks(cloud), nats=stores)
    assert [action.action for action in planned.keys["a"].actions] == ["status"]
    assert "NotOwned" in str(planned.keys["a"].actions[0].diff)
    planned = await plan(Adopting(cloud), nats=stores)
    actions = [action for action in planned.keys["a"].actions if action.action == "external"]
    assert [action.call for action in actions] == ["adopt", "update"]
    assert actions[1].differs == "size is 7, not 1"
    assert cloud.disks == {"a": 7}


# ---- what differs at an external resource is shown wherever a person looks


async def test_an_event_and_the_log_show_what_differs(
    cloud: Cloud, stores: MemoryStores, play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with ran(Adopting(cloud, nats=stores)):
        await play.put()
        await asyncio.sleep(POLL_S)
    events = {event.reason: event.message for event in stores.events.events}
    assert events["UpdatedExternalResource"].endswith(": size is 7, not 1")
    assert caplog.text.count("external resource differs") == 1


async def test_the_status_shows_what_differs_if_it_may_not_be_updated(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    controller = Disks(cloud, nats=stores)
    async with ran(controller):
        await play.put(management_policy="observe")
        await asyncio.sleep(10 * POLL_S)
        text = "its policies don't permit an update: size is 7, not 1"
        assert f"Synced=True ReconcileSuccess: {text}" in controller.explain("a").conditions
        assert play.reasons.count("ExternalResourceDiffers") == 1


async def test_what_differs_is_shown_without_secrets_of_the_object(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    class Client(CloudClient):
        async def observe(self, managed: Managed[Any]) -> Observation:
            return Observation(exists=True, diff=f"password is {managed.spec['password']}")

    class Secret(Adopting):
        async def connect(self, _managed: Managed[Disk]) -> CloudClient:
            return Client(cloud)

    await play.put()
    await play.edit("a", lambda document: document["spec"].update(password="hunter2"))
    planned = await plan(Secret(cloud), nats=stores)
    calls = {action.call: action.differs for action in planned.keys["a"].actions}
    assert calls["update"] == "password is ***"


async def test_an_object_of_a_cluster_adopts_by_an_annotation(cloud: Cloud) -> None:
    cluster = MemoryCluster(MemoryRecorder())
    store = cluster.store(ClusterDisks.kind)
    play = Play(store=store, cloud=cloud, kind=ClusterDisks.kind)
    document = {
        "apiVersion": "example.org/v1",
        "kind": "Disk",
        "metadata": {"name": "a", "namespace": "shop"},
        "spec": {"size": 1},
    }
    key = "shop/a"
    async with ran(ClusterDisks(cloud, by_key=True, kube=cluster)):
        await play.edit(key, lambda stored: stored.update(document), create=True)
        await asyncio.sleep(POLL_S)
        message = await play.message(key)
        assert "kubectl annotate Disk a -n shop natsctl.io/adopt=true" in message
        await play.annotate(key, adopt="true")
        await asyncio.sleep(POLL_S)
        assert (await play.conditions(key))["Ready"] == AVAILABLE
        assert (cloud.disks, cloud.created) == ({"a": 1}, [])


async def test_a_reconciler_without_the_option_adopts_as_the_seed_does(
    cloud: Cloud, play: Play
) -> None:
    play = Play(cloud=cloud, by_key=True)
    await play.put()
    await play.settle()
    assert (cloud.disks, "AdoptedExternalResource" in play.reasons) == ({"a": 1}, False)


def test_the_option_of_a_controller_is_checked(cloud: Cloud) -> None:
    class Wrong(Disks):
        adopt: Any = "yes"

    with pytest.raises(UsageError, match="adopt is 'yes', and must be True or False"):
        Wrong(cloud)


@pytest.mark.parametrize("in_cluster", [False, True])
async def test_a_name_that_its_user_took_back_does_not_adopt(
    cloud: Cloud, stores: MemoryStores, *, in_cluster: bool
) -> None:
    cloud.disks["other"] = 8
    cluster, key = MemoryCluster(MemoryRecorder()), "shop/a" if in_cluster else "a"
    store: Any = cluster.store(ClusterDisks.kind) if in_cluster else stores.store(DISKS)
    play = Play(store=store, cloud=cloud, kind=store.kind)
    controller = (
        ClusterDisks(cloud, by_key=True, kube=cluster) if in_cluster else Disks(cloud, nats=stores)
    )
    async with ran(controller):
        cloud.failures["observe"] = ValueError("out of order")
        await play.put(key, external_name="other")
        await asyncio.sleep(POLL_S)
        revision = (await store.get(key)).revision
        await store.update(key, b'{"spec": {"size": 2}}', revision=revision)
        cloud.failures.clear()
        await asyncio.sleep(10 * POLL_S)
        assert (await play.conditions(key))["Ready"] == NOT_OWNED
    assert cloud.disks == {"a": 7, "other": 8}


async def test_a_name_that_was_only_observed_does_not_adopt_once_its_user_took_it_back(
    cloud: Cloud, stores: MemoryStores, play: Play
) -> None:
    cloud.disks["other"] = 8
    async with ran(Disks(cloud, nats=stores)):
        await play.put(external_name="other", management_policy="observe")
        await asyncio.sleep(POLL_S)
        assert (await play.conditions())["Ready"] == AVAILABLE
        revision = (await play.store.get("a")).revision
        await play.store.update("a", b'{"spec": {"size": 2}}', revision=revision)
        await asyncio.sleep(10 * POLL_S)
        assert (await play.conditions())["Ready"] == NOT_OWNED
        assert cloud.disks == {"a": 7, "other": 8}
        del cloud.disks["a"]
        await asyncio.sleep(POLL_S)
        assert cloud.disks == {"a": 2, "other": 8}
        await play.primary.delete("a")
        await asyncio.sleep(POLL_S)
        assert cloud.disks == {"other": 8}
        assert stores.store(play.records.kind).keys() == []
