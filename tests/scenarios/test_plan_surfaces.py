"""Managed resources and watchers can be planned, too."""

import asyncio
from typing import Any

import pytest

from natsctl import InformerController, Kind, Object, Plan, Primary, Snapshot, kv, plan
from natsctl.managed import ManagedReconciler
from natsctl.testing import MemoryStores
from tests.support.controllers.disk_reconciler import DISKS, Cloud, Disk, ManagedDisks, ran
from tests.support.eventually import eventually
from tests.support.stores.documents import put

SITES = kv(Object, bucket="sites")
MARKS = kv(Object, bucket="marks")


class Disks(ManagedDisks):
    """Disks whose observation has a time limit of five seconds."""

    name = "disks"

    def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
        return ManagedReconciler(managed, connecter=self.connect, timeout_s=5.0)


class Marker(InformerController):
    """A controller with a watcher that makes a mark for each site."""

    def __init__(self) -> None:
        super().__init__()
        self.add_informer(SITES)
        self.add_watcher(self, SITES)

    async def add(self, new: Snapshot[Any]) -> None:
        if new.key == "bad":
            raise ValueError("no mark for this site")
        await (await self.open(MARKS)).create(new.key, b"{}")

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        """Do nothing."""

    async def delete(self, last: Snapshot[Any]) -> None:
        """Do nothing."""


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


def actions(planned: Plan, key: str = "d") -> list[tuple[str, object]]:
    return [(action.action, action.call) for action in planned.keys[key].actions]


def writes(stores: MemoryStores, *kinds: Kind[Any]) -> list[int]:
    return [stores.store(kind).writes for kind in kinds]


async def test_a_missing_resource_is_observed_and_its_creation_is_reported(
    stores: MemoryStores, cloud: Cloud
) -> None:
    await put(stores.store(DISKS), "d", {"spec": {"size": 1}})
    before = writes(stores, DISKS)
    planned = await plan(Disks(cloud), nats=stores)
    assert ("external", "create") in actions(planned)
    assert (planned.summary.create, planned.summary.update) == (1, 1)
    assert (set(cloud.calls), cloud.disks, writes(stores, DISKS)) == ({"observe"}, {}, before)


@pytest.mark.parametrize("change", ["update", "delete"])
async def test_a_change_of_an_existing_resource_is_reported(
    stores: MemoryStores, cloud: Cloud, change: str
) -> None:
    disks = stores.store(DISKS)
    await put(disks, "d", {"spec": {"size": 1}})
    controller = Disks(cloud)
    controller.use(nats=stores)
    async with ran(controller):
        await eventually(lambda: cloud.disks)
        await asyncio.sleep(60.0)  # the creation is observed, and its grace period ends
    assert (await plan(Disks(cloud), nats=stores)).summary.unchanged == 1
    if change == "update":
        value = (await disks.get("d")).value.replace(b'"size":1}', b'"size":2}', 1)
        await disks.update("d", value, revision=(await disks.get("d")).revision)
    else:
        await disks.delete("d")
    sizes = dict(cloud.disks)
    planned = await plan(Disks(cloud), nats=stores)
    assert ("external", change) in actions(planned)
    assert cloud.disks == sizes


async def test_an_observation_has_a_time_limit(stores: MemoryStores, cloud: Cloud) -> None:
    await put(stores.store(DISKS), "d", {"spec": {"size": 1}})
    cloud.takes_s["observe"] = 60.0
    planned = await plan(Disks(cloud), nats=stores)
    assert "observe was cut short" in planned.keys["d"].error


async def test_the_writes_of_a_watcher_are_planned(stores: MemoryStores) -> None:
    await put(stores.store(SITES), "a", b"{}")
    await put(stores.store(SITES), "bad", b"{}")
    planned = await plan(Marker(), nats=stores)
    assert actions(planned, "a")[0][0] == "create"
    assert planned.keys["bad"].error == "ValueError: no mark for this site"
    assert stores.store(MARKS).keys() == []


async def test_one_object_of_a_watcher_is_planned_alone(stores: MemoryStores) -> None:
    for key in ("a", "b"):
        await put(stores.store(SITES), key, b"{}")
    assert (await plan(Marker(), nats=stores, keys=["a"])).keys.keys() == {"a"}
