"""A managed controller reconciles the objects of its kind, and reports about it."""

import asyncio
from typing import Any

import pytest

from natsctl import UsageError
from natsctl.managed import ManagedController
from natsctl.testing import MemoryStores
from tests.support.controllers.disk_reconciler import DISKS, Cloud, Disk, ManagedDisks, Play, ran


class Disks(ManagedDisks):
    """Disks that three workers reconcile."""

    workers = 3

    def __init__(self, cloud: Cloud, **targets: Any) -> None:
        super().__init__(**targets)
        self.cloud = cloud


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def controller(cloud: Cloud, stores: MemoryStores) -> Disks:
    return Disks(cloud, nats=stores)


@pytest.fixture
def play(cloud: Cloud, stores: MemoryStores) -> Play:
    return Play(store=stores.store(DISKS), cloud=cloud)


class TestClass:
    def test_an_invalid_option_is_reported_when_the_controller_is_created(self) -> None:
        class Wrong(ManagedDisks):
            workers = 0

        with pytest.raises(UsageError, match="workers"):
            Wrong()

    async def test_a_controller_without_a_reconciler_does_not_start(
        self, stores: MemoryStores
    ) -> None:
        class Empty(ManagedController[Disk]):
            kind = DISKS

        with pytest.raises(NotImplementedError):
            await Empty(nats=stores).run()


async def test_a_new_resource_of_a_purged_object_is_deleted_once_it_is_observed(
    controller: Disks, play: Play, cloud: Cloud
) -> None:
    cloud.appears_after_s = 20
    async with ran(controller):
        await play.put()
        await asyncio.sleep(5)
        await play.store.delete("a", purge=True)
        await asyncio.sleep(60)
        assert (cloud.created, cloud.disks) == (["a"], {})


class TestSyncOutsideOfTheLoop:
    async def test_it_is_refused_while_a_worker_may_have_the_key(
        self, controller: Disks, play: Play
    ) -> None:
        await play.put()
        async with ran(controller):
            await asyncio.sleep(1)
            with pytest.raises(UsageError, match="runs: call resync"):
                await controller.sync("a")

    async def test_the_resource_of_an_object_whose_history_is_gone_is_deleted(
        self, controller: Disks, play: Play, cloud: Cloud
    ) -> None:
        await play.put()
        async with controller.opened():
            await asyncio.sleep(1)
            await controller.sync("a")
            last = await play.store.get("a")
            await play.store.delete("a", purge=True)
            await asyncio.sleep(1)
            await controller.sync("a", last=last)
        assert cloud.disks == {}
