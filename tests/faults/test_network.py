"""A controller survives a network that is cut, frozen and healed."""

import asyncio

import pytest

from natsctl import StoreError
from tests.support.controllers.copy_controller import COPIES, THINGS, Thing, ThingSpec
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import nats_test_bed
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy


async def test_a_controller_converges_after_cuts_and_a_network_that_drops_everything(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    async with nats_test_bed(nats_server.url, through=cut_proxy.url) as bed:
        async with bed.user.writing():
            cut_proxy.cut()
            await bed.user.progress()
            await cut_proxy.heal()
            await bed.user.progress()
        await bed.settled()
        async with bed.user.writing():
            for step in range(20):
                cut_proxy.cut()
                await cut_proxy.heal()
                await asyncio.sleep(0.02 * (step % 7))
        await bed.settled()
        async with bed.user.writing():
            cut_proxy.freeze()
            await bed.lost()
            await bed.user.progress()
            cut_proxy.thaw()
            await bed.user.progress()
        await bed.settled()


async def test_a_write_that_failed_is_never_sent(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    """The network is frozen, or the server is dead, which the first write need not know."""
    async with nats_test_bed(nats_server.url, through=cut_proxy.url) as bed:

        async def fail(key: str) -> None:
            with pytest.raises(StoreError):
                await bed.controller.things.put(key, Thing(spec=ThingSpec("boo")))

        cut_proxy.freeze()
        await fail("ghost")
        cut_proxy.cut()
        cut_proxy.thaw()
        await cut_proxy.heal()
        await bed.user.put_all()
        await bed.settled()
        nats_server.kill()
        for number in range(50):
            await fail(f"ghost{number}")
        await nats_server.start()
        await bed.user.put_all()
        await bed.settled()
        assert set(await bed.admin.entries(THINGS)) == set(bed.user.keys)


async def test_purges_during_a_disconnection_are_detected(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    """Deleted things whose markers are purged go, and copies that are purged come back."""
    async with nats_test_bed(nats_server.url, through=cut_proxy.url) as bed:
        await eventually(bed.swept)
        deleted, kept = bed.user.keys[:10:2], bed.user.keys[1:20:2]
        cut_proxy.cut()
        await bed.lost()
        for key in deleted:
            await bed.admin.delete(THINGS, key)
            await bed.admin.purge(THINGS, key)
        for key in kept:
            await bed.admin.purge(COPIES, f"{key}.0")
        await cut_proxy.heal()
        await bed.settled()
        assert bed.sights.gone == set(deleted)
