"""Who gives up connecting is not kept, in whatever moment that is."""

import asyncio

from natsctl.jetstream.connection.connection import connect
from tests.support.servers.nats_server import NatsServer

MOMENTS = 40


async def stay_connected(url: str) -> None:
    async with connect(url):
        await asyncio.Event().wait()


async def test_connecting_can_be_cancelled_in_every_moment(nats_server: NatsServer) -> None:
    for moment in range(MOMENTS):
        task = asyncio.create_task(stay_connected(nats_server.url))
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=30)
        assert done, f"a cancellation in moment {moment} was lost"
        assert task.cancelled()
