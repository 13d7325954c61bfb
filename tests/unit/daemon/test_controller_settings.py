"""The controller settings apply to the controllers that an operator runs."""

import asyncio

from natsctl import Controller, ControllerRuntime, Operator, kv, primary, secondary
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.testing import MemoryStores
from tests.support.stores.sample_objects import THINGS, Thing, document, thing, value

SIGNS = kv(Thing, bucket="signs")


class Shops(Controller):
    things = primary(THINGS)
    signs = secondary(SIGNS)

    async def sync_handler(self, key: str) -> float | None:
        await self.signs.apply(key, thing("open"))
        await asyncio.sleep(5)
        return None


async def run_controller(settings: ControllerSettings, stores: MemoryStores) -> ControllerRuntime:
    """Run the controller for ten seconds with one primary."""
    await stores.store(THINGS).create("a", value())
    operator = Operator([Shops()], nats=stores, settings=settings)
    running = asyncio.create_task(operator.run())
    await asyncio.sleep(10)
    operator.stop()
    await running
    (runtime,) = operator.runtimes
    assert isinstance(runtime, ControllerRuntime)
    return runtime


async def test_the_sync_timeout_setting_limits_a_sync() -> None:
    runtime = await run_controller(ControllerSettings(sync_timeout_s=3), MemoryStores())
    first = runtime.explain("a").syncs[0]
    assert first.error.startswith("SyncTimeoutError")
    assert first.duration_s == 3


async def test_the_timeout_of_the_controller_applies_without_a_setting() -> None:
    runtime = await run_controller(ControllerSettings(), MemoryStores())
    assert [sync.error for sync in runtime.explain("a").syncs] == [""]


async def test_secondaries_have_labels_of_the_owner_domain_setting() -> None:
    for domain, label in (("example.com", "example.com/owner-key"), ("kumori", "kumori/ownerkey")):
        stores = MemoryStores()
        await run_controller(ControllerSettings(owner_domain=domain), stores)
        sign = document(await stores.store(SIGNS).get("a"))
        assert sign["metadata"]["labels"][label] == "a"
        assert sign["metadata"]["annotations"][label] == "a"
