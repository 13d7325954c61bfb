"""A controller survives a server that is killed, restarted and paused."""

import asyncio
from contextlib import suppress

from natsctl import UsageError
from tests.support.clients.nats_admin import Admin
from tests.support.controllers.bulk_reader import PADDING, Readers, settled, write
from tests.support.controllers.copy_controller import THINGS
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import nats_test_bed, no_consumers, running
from tests.support.servers.nats_server import NatsServer


async def test_a_controller_converges_after_kills_and_pauses_of_the_server_under_writes(
    nats_server: NatsServer,
) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        async with bed.user.writing():
            for _ in range(2):
                await bed.user.progress()
                nats_server.kill()
                await asyncio.sleep(0.3)
                await nats_server.start()
            await bed.user.progress()
        await bed.settled()
        async with bed.user.writing():
            nats_server.pause()
            await bed.lost()
            nats_server.resume()
            await bed.user.progress()
            nats_server.pause()
            await asyncio.sleep(0.7)  # too short for some timeouts
            nats_server.resume()
            await bed.user.progress()
        await bed.settled()


async def test_a_controller_converges_after_kills_of_the_server_during_lists(
    nats_server: NatsServer,
) -> None:
    controller = Readers()
    count = 2_000
    async with Admin(nats_server.url) as admin:
        await admin.create(THINGS, max_msgs_per_subject=1)
        for number in range(count):
            await write(admin, f"k{number}", PADDING)

        async def kill_four_times() -> None:
            await eventually(begun, every_s=0)
            for number in range(4):
                nats_server.kill()
                await nats_server.start()
                await admin.put(THINGS, f"k{number}", {"spec": {"text": "new"}})
                await eventually(admin.consumers, every_s=0)

        def begun() -> bool:
            with suppress(UsageError):  # the bucket isn't open yet
                return 0 < len(tuple(controller.things.informer.table.shown)) < count
            return False

        async with asyncio.TaskGroup() as group:
            killing = group.create_task(kill_four_times())
            async with running(controller, nats_server.url):
                await killing
                await eventually(lambda: settled(controller, admin), every_s=0.2)
        assert not controller.sights.gone
        await eventually(lambda: no_consumers(admin))
