"""A controller works without an optional kind, and uses the kind when the cluster has it."""

import asyncio
import logging

import msgspec
import pytest

from natsctl import (
    Controller,
    ControllerRuntime,
    Manifest,
    Object,
    StoreMissingError,
    kube,
    kv,
    primary,
    secondary,
)
from natsctl.testing import MemoryResource, MemoryStores, running


class AppSpec(msgspec.Struct, frozen=True):
    port: int


class App(Object, frozen=True):
    spec: AppSpec


LONGEST_WAIT_S = 5.5  # between two watches, with the jitter
CONFIGS = kube("v1", "ConfigMap", namespace="default")
MONITORS = kube("monitoring.test/v1", "Monitor", namespace="default", optional=True)


class Apps(Controller):
    """Creates a ConfigMap and a Monitor for each app."""

    apps = primary(kv(App, bucket="apps"))
    configs = secondary(CONFIGS)
    monitors = secondary(MONITORS)

    def __init__(self) -> None:
        self.synced: list[str] = []

    async def sync_handler(self, key: str) -> float | None:
        app = self.apps.get(key)
        if app is None:
            return None
        named: Manifest = {"metadata": {"name": key}}
        await self.monitors.apply({**named, "spec": {"port": app.spec.port}})
        await self.configs.apply({**named, "data": {"port": str(app.spec.port)}})
        self.synced.append(key)
        return None


def remove_kind(stores: MemoryStores) -> None:
    stores.kube.kinds.remove(MONITORS.api_version, MONITORS.kind)
    stores.kube.store(MONITORS).fail(StoreMissingError("there is no kind Monitor"))


def add_kind(stores: MemoryStores) -> None:
    stores.kube.kinds.define(MONITORS.api_version, MONITORS.kind, MemoryResource("monitors"))
    stores.kube.store(MONITORS).fail(None)


@pytest.fixture
def stores() -> MemoryStores:
    stores = MemoryStores()
    remove_kind(stores)
    return stores


async def test_a_controller_works_without_an_optional_kind_until_that_appears(
    stores: MemoryStores, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(controller := Apps(), stores=stores) as harness:
        for key in ("blog", "shop"):
            await controller.apps.put(key, App(spec=AppSpec(80)))
        await harness.run_until_idle()
        assert stores.kube.store(CONFIGS).keys() == ["default/blog", "default/shop"]
        assert not controller.monitors.available
        assert controller.monitors.owned("shop") == {}
        status = harness.runtime.status()
        assert (status.missing_kinds, status.failure) == (["Monitor.monitoring.test"], "")
        await asyncio.sleep(300)
        assert harness.runtime.status().watch_restarts == status.watch_restarts
        add_kind(stores)
        await asyncio.sleep(LONGEST_WAIT_S)
        await harness.run_until_idle()
        assert controller.monitors.available
        assert stores.kube.store(MONITORS).keys() == ["default/blog", "default/shop"]
        assert controller.synced == ["blog", "shop", "blog", "shop"]
        assert harness.runtime.status().missing_kinds == []
    kinds = [message for message in caplog.messages if message.startswith("optional kind")]
    assert [message.split(" kind=")[0] for message in kinds] == [
        "optional kind does not exist yet",
        "optional kind exists now",
    ]


async def test_a_controller_continues_without_an_optional_kind_that_disappears(
    stores: MemoryStores,
) -> None:
    add_kind(stores)
    async with running(controller := Apps(), stores=stores) as harness:
        await controller.apps.put("shop", App(spec=AppSpec(80)))
        await harness.run_until_idle()
        remove_kind(stores)
        await asyncio.sleep(LONGEST_WAIT_S)
        await controller.apps.put("shop", App(spec=AppSpec(81)))
        await harness.run_until_idle()
        document = stores.kube.store(CONFIGS).document("default/shop")
        assert document["data"] == {"port": "81"}
        assert harness.runtime.status().failing == {}


async def test_a_controller_waits_for_a_kind_that_is_not_optional() -> None:
    class Strict(Apps):
        monitors = secondary(kube("monitoring.test/v1", "Monitor", namespace="default"))

    stores = MemoryStores()
    remove_kind(stores)
    runtime = ControllerRuntime(Strict(), nats=stores, kube=stores.kube)
    run = asyncio.create_task(runtime.run())
    await asyncio.sleep(60)
    assert not runtime.synced.is_set()
    assert isinstance(runtime.host.failure, StoreMissingError)
    add_kind(stores)
    async with asyncio.timeout(10):
        await runtime.synced.wait()
    runtime.stop()
    await run
