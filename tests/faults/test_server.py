"""The server is killed, started again, stopped and continued."""

import asyncio

import pytest

from natsctl import StoreError
from tests.support.clients.nats_admin import Admin
from tests.support.controllers.bulk_reader import PADDING, Readers, settled, taken_in, write
from tests.support.controllers.copy_controller import THINGS, Thing, ThingSpec
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import no_consumers, playing, running
from tests.support.servers.nats_server import NatsServer


async def test_a_server_that_is_killed_under_writes(nats_server: NatsServer) -> None:
    async with playing(nats_server.url) as play:
        async with play.user.writing():
            for _ in range(2):
                await play.user.progress()
                nats_server.kill()
                await asyncio.sleep(0.3)
                await nats_server.start()
            await play.user.progress()
        await play.settled()


async def test_a_server_that_is_killed_again_while_the_watch_lists(
    nats_server: NatsServer,
) -> None:
    controller = Readers()
    async with Admin(nats_server.url) as admin:
        async with running(controller, nats_server.url):
            for number in range(10_000):
                await write(admin, f"k{number}", PADDING)
            await eventually(lambda: taken_in(controller, 10_000))
            for number in range(4):
                nats_server.kill()
                await nats_server.start()
                await admin.put(THINGS, f"k{number}", {"spec": {"text": "new"}})
                await eventually(admin.consumers, every_s=0)
            await eventually(lambda: settled(controller, admin), every_s=0.2)
        assert not controller.sights.gone
        await eventually(lambda: no_consumers(admin))


async def test_a_server_that_stops_and_continues(nats_server: NatsServer) -> None:
    async with playing(nats_server.url) as play:
        async with play.user.writing():
            nats_server.pause()
            await play.lost()
            nats_server.resume()
            await play.user.progress()
            nats_server.pause()
            await asyncio.sleep(0.7)  # too short to be noticed by all
            nats_server.resume()
            await play.user.progress()
        await play.settled()


async def test_a_write_that_failed_during_an_outage_is_never_sent(
    nats_server: NatsServer,
) -> None:
    async with playing(nats_server.url) as play:
        nats_server.kill()
        for at in range(50):  # the first may meet a connection that nobody knows to be lost
            with pytest.raises(StoreError):
                await play.controller.things.put(f"ghost{at}", Thing(spec=ThingSpec("boo")))
        await nats_server.start()
        await play.user.put_all()
        await play.settled()
        assert set(await play.admin.entries(THINGS)) == set(play.user.keys)
