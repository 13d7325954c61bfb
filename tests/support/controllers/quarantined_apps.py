"""Apps whose syncs kill processes, and the records of these deaths."""

import asyncio

from natsctl.core.pausing.pausing import PAUSES
from natsctl.testing.harness import Harness, running
from natsctl.testing.memory import MemoryStores
from tests.support.controllers.app_controller import Apps, app_client


class Stuck(Apps):
    """A controller that never ends a sync, so that no sync clears the deaths of its key."""

    name = "apps"
    sync_timeout_s = 3600.0

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.Event().wait()
        return None


async def prepared() -> MemoryStores:
    """Return stores in which the controller has synced the apps shop and market."""
    stores = MemoryStores()
    async with running(Apps(), stores=stores) as harness:
        client = app_client(harness)
        await client.app("shop")
        await client.app("market")
        await harness.run_until_idle()
    return stores


def syncs_of(harness: Harness) -> list[str]:
    """Return the keys of the syncs of the running controller."""
    controller = harness.runtime.controller
    assert isinstance(controller, Apps)
    return controller.syncs


async def deaths(stores: MemoryStores) -> list[str]:
    """Return the keys of the records of deaths."""
    return [key for key in list(stores.store(PAUSES).keys()) if ".deaths." in key]
