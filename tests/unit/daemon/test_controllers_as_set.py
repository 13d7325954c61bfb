"""What is set for controllers holds for those that an operator runs."""

import asyncio

from natsctl import Controller, ControllerRuntime, kv, primary, secondary
from natsctl.daemon.operator import Operator
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.testing.memory import MemoryStores
from tests.support.stores.sample_objects import THINGS, Thing, document, thing, value

SIGNS = kv(Thing, bucket="signs")


class Shops(Controller):
    things = primary(THINGS)
    signs = secondary(SIGNS)

    async def sync_handler(self, key: str) -> float | None:
        await self.signs.apply(key, thing("open"))
        await asyncio.sleep(5)
        return None


async def ran(settings: ControllerSettings, stores: MemoryStores) -> ControllerRuntime:
    """Run it for ten seconds beside one primary."""
    await stores.store(THINGS).create("a", value())
    operator = Operator([Shops()], nats=stores, settings=settings)
    running = asyncio.create_task(operator.run())
    await asyncio.sleep(10)
    operator.stop()
    await running
    (runtime,) = operator.runtimes
    assert isinstance(runtime, ControllerRuntime)
    return runtime


async def test_a_sync_takes_no_longer_than_is_set() -> None:
    runtime = await ran(ControllerSettings(sync_timeout_s=3), MemoryStores())
    first = runtime.explain("a").syncs[0]
    assert first.error.startswith("SyncTimeoutError")
    assert first.duration_s == 3


async def test_a_controller_s_own_limit_holds_where_none_is_set() -> None:
    runtime = await ran(ControllerSettings(), MemoryStores())
    assert [sync.error for sync in runtime.explain("a").syncs] == [""]


async def test_secondaries_are_labelled_in_the_domain_that_is_set() -> None:
    for domain, label in (("example.com", "example.com/owner-key"), ("kumori", "kumori/ownerkey")):
        stores = MemoryStores()
        await ran(ControllerSettings(owner_domain=domain), stores)
        made = document(await stores.store(SIGNS).get("a"))
        assert made["metadata"]["labels"][label] == "a"
        assert made["metadata"]["annotations"][label] == "a"
