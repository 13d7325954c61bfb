"""Nothing alive in a cluster is ever collected, however hard one tries."""

import asyncio
from contextlib import suppress

from tests.support.clients.nats_admin import FAILURES
from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import EAGER, SITES, Maps, kube_playing, running
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy

KEYS = [f"k{number}" for number in range(20)]
SWEEPS = 6  # by then, what may be collected is


async def sweeps(count: int = SWEEPS) -> None:
    """Let so many sweeps pass: that nothing goes in them is to be seen."""
    await asyncio.sleep(count * EAGER.interval_s)


async def test_owners_unknown_to_a_stale_cache_keep_what_they_own(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with (
        CutProxy(nats_server.url) as proxy,
        kube_playing(
            nats_server.url, own_kube_server, nats_through=proxy.url, keys=len(KEYS)
        ) as play,
    ):
        proxy.freeze()
        await play.put("late")
        planted = await play.plant("late", "late")
        await eventually(lambda: play.controller.maps.get("maps/late") is not None)
        await sweeps()
        assert (await play.uids())["late"] == planted
        proxy.thaw()
        proxy.cut()
        await proxy.heal()
        await play.settled()
        assert (await play.uids())["late"] == planted


async def test_an_owner_made_again_between_suspicion_and_deletion_keeps_what_it_owns(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server, keys=len(KEYS)) as play:
        before = await play.uids()
        mark = own_kube_server.mark()
        for key in KEYS[:5]:  # without a trace: only a sweep may find what they left
            await play.admin.purge(SITES, key)
        await sweeps(1)
        play.controller.go_on.clear()
        await play.put(*KEYS[:5])
        play.controller.go_on.set()
        await play.settled()
        await sweeps()
        after = await play.uids()
        assert after.keys() == before.keys()
        assert {key for key in after if after[key] != before[key]} <= play.deleted(mark)
        assert play.deleted(mark) <= set(KEYS[:5])


async def test_owners_that_come_and_go_all_the_time_keep_what_is_theirs(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server, keys=len(KEYS)) as play:
        before = await play.uids()
        for _ in range(15):
            await play.delete(*KEYS[::2])
            await play.put(*KEYS[::2])
        await play.settled()
        after = await play.uids()
        assert after.keys() == before.keys()
        assert {key: after[key] for key in KEYS[1::2]} == {key: before[key] for key in KEYS[1::2]}


async def test_while_nats_is_down_nothing_is_collected(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server, keys=len(KEYS)) as play:
        mark = own_kube_server.mark()
        nats_server.kill()
        await eventually(lambda: play.runtime.failure is not None)
        planted = await play.plant("late", "nobody")
        await sweeps()
        assert play.deleted(mark) == set()
        assert (await play.uids())["late"] == planted
        await nats_server.start()
        await eventually(lambda: play.deleted(mark))
        assert play.deleted(mark) == {"late"}
        await play.settled()


async def test_a_bucket_made_again_loses_nobody_anything(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server, keys=len(KEYS)) as play:
        before, mark = await play.uids(), own_kube_server.mark()
        cache = play.controller.sites.informer.cache
        incarnation = cache.incarnation
        config = await play.admin.drop(SITES)
        await play.admin.restore(config)
        await eventually(lambda: cache.incarnation != incarnation)
        await sweeps()
        plan = await play.runtime.garbage_plan()
        assert "recreated" in plan.refused
        assert len(plan.orphans) == len(KEYS)
        assert play.deleted(mark) == set()
        await play.put(*KEYS)
        await play.settled()
        assert await play.uids() == before
        assert play.deleted(mark) == set()


async def test_a_bucket_made_again_while_nobody_ran_loses_nobody_anything(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server, keys=len(KEYS)) as play:
        before = await play.uids()
        admin = play.admin
        await eventually(lambda: remembered(play.admin.entry("natsctl", "gc.maps")))
    mark = own_kube_server.mark()
    async with admin:
        config = await admin.drop(SITES)
        await admin.restore(config)
        async with running(Maps(), nats_server.url, own_kube_server.kubeconfig()) as runtime:
            await sweeps()
            assert "recreated" in (await runtime.garbage_plan()).refused
        assert play.deleted(mark) == set()
        assert await play.uids() == before


async def test_an_apiserver_that_is_down_in_the_middle_only_delays(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server, keys=len(KEYS)) as play:
        before, mark = await play.uids(), own_kube_server.mark()
        await play.delete(*KEYS[::2])
        await eventually(lambda: play.deleted(mark))
        own_kube_server.kill()
        await play.put(KEYS[0])
        await eventually(lambda: play.runtime.failure is not None)
        await sweeps()
        await own_kube_server.start()
        await play.settled()
        assert play.deleted(mark) <= set(KEYS[::2])
        after = await play.uids()
        assert {key: after[key] for key in KEYS[1::2]} == {key: before[key] for key in KEYS[1::2]}


async def test_what_was_purged_without_a_trace_while_nobody_ran_goes_at_last(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server, keys=len(KEYS)) as play:
        await eventually(lambda: remembered(play.admin.entry("natsctl", "gc.maps")))
    async with play.admin:
        for key in KEYS[:3]:
            await play.admin.purge(SITES, key)
        mark = own_kube_server.mark()
        async with running(Maps(), nats_server.url, own_kube_server.kubeconfig()):
            await eventually(lambda: len(play.deleted(mark)) == 3)
            assert await play.equal()
        assert play.deleted(mark) == set(KEYS[:3])


async def remembered(entry: object) -> bool:
    """Say whether a sweep was remembered; for `eventually`."""
    with suppress(*FAILURES):
        await entry  # type: ignore[misc]  # a coroutine
        return True
    return False
