"""A cancelled connection attempt ends at once, at every step of the event loop."""

import asyncio

from tests.support.clients.nats import connect
from tests.support.servers.nats_server import NatsServer

MOMENTS = 40


async def stay_connected(url: str) -> None:
    async with connect(url):
        await asyncio.Event().wait()


async def test_connecting_can_be_cancelled_at_every_step(nats_server: NatsServer) -> None:
    for moment in range(MOMENTS):
        task = asyncio.create_task(stay_connected(nats_server.url))
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=30)
        assert done, f"a cancellation in moment {moment} was lost"
        assert task.cancelled()
