"""A controller restores a secondary that is deleted before the watch delivers it."""

from collections.abc import Awaitable, Callable

import pytest

from tests.support.clients.nats_admin import Admin
from tests.support.controllers.copy_controller import COPIES, THINGS
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import nats_test_bed
from tests.support.servers.nats_server import NatsServer


async def delete(admin: Admin, name: str) -> None:
    await admin.delete(COPIES, name)


async def purge(admin: Admin, name: str) -> None:
    await admin.purge(COPIES, name)


@pytest.mark.parametrize("undo", [delete, purge])
async def test_secondaries_deleted_before_their_event_are_restored(
    nats_server: NatsServer, undo: Callable[[Admin, str], Awaitable[None]]
) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        (name,) = (await bed.admin.consumers())[f"KV_{COPIES}"]
        await bed.admin.api(f"CONSUMER.DELETE.KV_{COPIES}.{name}")
        await bed.admin.put(THINGS, "new", {"spec": {"text": "new"}})
        await eventually(lambda: "new" in bed.sights.synced)
        bed.user.meddled.add("new.0")
        await undo(bed.admin, "new.0")
        await bed.settled()
