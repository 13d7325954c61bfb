"""A controller survives a network that is cut, frozen and healed."""

import asyncio

import pytest

from natsctl import StoreError
from tests.support.controllers.copy_controller import THINGS, Thing, ThingSpec
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import playing
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy


async def test_a_controller_converges_after_a_cut_connection(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    async with playing(nats_server.url, through=cut_proxy.url) as play:
        async with play.user.writing():
            cut_proxy.cut()
            await play.user.progress()
            await cut_proxy.heal()
            await play.user.progress()
        await play.settled()


async def test_a_controller_converges_after_repeated_cuts(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    async with playing(nats_server.url, through=cut_proxy.url) as play:
        async with play.user.writing():
            for step in range(20):
                cut_proxy.cut()
                await cut_proxy.heal()
                await asyncio.sleep(0.02 * (step % 7))
        await play.settled()


async def test_a_controller_converges_after_a_network_that_drops_everything(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    async with playing(nats_server.url, through=cut_proxy.url) as play:
        async with play.user.writing():
            cut_proxy.freeze()
            await play.lost()
            await play.user.progress()
            cut_proxy.thaw()
            await play.user.progress()
        await play.settled()


async def test_a_write_into_a_frozen_network_is_not_sent_again(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    async with playing(nats_server.url, through=cut_proxy.url) as play:
        cut_proxy.freeze()
        with pytest.raises(StoreError):
            await play.controller.things.put("ghost", Thing(spec=ThingSpec("boo")))
        cut_proxy.cut()
        cut_proxy.thaw()
        await cut_proxy.heal()
        await play.user.put_all()
        await play.settled()
        assert set(await play.admin.entries(THINGS)) == set(play.user.keys)


async def test_deletions_with_purged_markers_are_detected_after_a_disconnection(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    async with playing(nats_server.url, through=cut_proxy.url) as play:
        await eventually(play.swept)
        deleted_keys = play.user.keys[:20:2]
        cut_proxy.cut()
        await play.lost()
        for key in deleted_keys:
            await play.admin.delete(THINGS, key)
            await play.admin.purge(THINGS, key)
        await cut_proxy.heal()
        await play.settled()
        assert play.sights.gone == set(deleted_keys)


async def test_secondaries_purged_during_a_disconnection_are_restored(
    nats_server: NatsServer, cut_proxy: CutProxy
) -> None:
    async with playing(nats_server.url, through=cut_proxy.url) as play:
        cut_proxy.cut()
        await play.lost()
        for key in play.user.keys[:20]:
            await play.admin.purge("copies", f"{key}.0")
        await cut_proxy.heal()
        await play.settled()
