"""Garbage collection never deletes a secondary in a cluster whose owner exists."""

from contextlib import suppress

from natsctl import ControllerRuntime, GarbagePlan
from tests.support.clients.nats_admin import FAILURES
from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import KEYS, SITES, Maps, kube_test_bed, running
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_proxy import through_proxy
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy


async def test_owners_missing_from_a_stale_cache_keep_their_secondaries(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with (
        CutProxy(nats_server.url) as proxy,
        kube_test_bed(nats_server.url, own_kube_server, nats_through=proxy.url) as bed,
    ):
        proxy.freeze()
        await bed.put("late")
        planted = await bed.plant("late", "late")
        await eventually(lambda: bed.controller.maps.get("maps/late") is not None)
        await bed.controller.collects()
        assert (await bed.uids())["late"] == planted
        proxy.thaw()
        proxy.cut()
        await proxy.heal()
        await bed.settled()
        assert (await bed.uids())["late"] == planted


async def test_an_owner_recreated_during_the_grace_period_keeps_its_secondary(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server) as bed:
        before = await bed.uids()
        mark = own_kube_server.mark()
        for key in KEYS[:5]:  # no delete marker remains, so only a GC cycle finds the orphans
            await bed.admin.purge(SITES, key)
        await bed.controller.collects(1)
        bed.controller.go_on.clear()
        await bed.put(*KEYS[:5])
        bed.controller.go_on.set()
        await bed.settled()
        await bed.controller.collects()
        after = await bed.uids()
        assert after.keys() == before.keys()
        assert {key for key in after if after[key] != before[key]} <= bed.deleted(mark)
        assert bed.deleted(mark) <= set(KEYS[:5])


async def test_owners_deleted_and_recreated_repeatedly_keep_their_secondaries(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server) as bed:
        before = await bed.uids()
        for _ in range(5):
            await bed.delete(*KEYS[::2])
            await bed.put(*KEYS[::2])
        await bed.settled()
        after = await bed.uids()
        assert after.keys() == before.keys()
        assert {key: after[key] for key in KEYS[1::2]} == {key: before[key] for key in KEYS[1::2]}


async def test_no_garbage_is_collected_while_nats_is_down(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server) as bed:
        mark = own_kube_server.mark()
        nats_server.kill()
        await eventually(lambda: bed.runtime.host.failure is not None)
        planted = await bed.plant("late", "nobody")
        await bed.controller.collects()
        assert bed.deleted(mark) == set()
        assert (await bed.uids())["late"] == planted
        await nats_server.start()
        await eventually(lambda: bed.deleted(mark))
        assert bed.deleted(mark) == {"late"}
        await bed.settled()


async def test_a_primary_bucket_recreated_with_and_without_a_controller_deletes_no_secondary(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server) as bed:
        before, mark = await bed.uids(), own_kube_server.mark()
        cache = bed.controller.sites.informer.table
        incarnation = cache.incarnation
        await bed.admin.restore(await bed.admin.drop(SITES))
        await eventually(lambda: cache.incarnation != incarnation)
        await bed.controller.collects()
        plan = await eventually(lambda: recreated(bed.runtime))
        assert len(plan.orphans) == len(KEYS)
        await bed.put(*KEYS)
        await bed.settled()
        await eventually(lambda: not bed.runtime.garbage_held)
    async with bed.admin as admin:
        await admin.restore(await admin.drop(SITES))
        restarted = Maps()
        kubeconfig = own_kube_server.kubeconfig()
        async with running(restarted, nats_server.url, kubeconfig) as runtime:
            await restarted.collects()
            await eventually(lambda: recreated(runtime))
    assert await bed.uids() == before
    assert bed.deleted(mark) == set()


async def test_an_outage_of_the_apiserver_only_delays_the_deletion_of_secondaries(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with (
        through_proxy(own_kube_server) as (proxy, kubeconfig),
        kube_test_bed(nats_server.url, own_kube_server, through=kubeconfig) as bed,
    ):
        before, mark = await bed.uids(), own_kube_server.mark()
        await bed.delete(*KEYS[::2])
        await eventually(lambda: bed.deleted(mark))
        proxy.cut()
        await bed.put(KEYS[0])
        await eventually(lambda: bed.runtime.host.failure is not None)
        await bed.controller.collects()
        await proxy.heal()
        await bed.settled()
        assert bed.deleted(mark) <= set(KEYS[::2])
        after = await bed.uids()
        assert {key: after[key] for key in KEYS[1::2]} == {key: before[key] for key in KEYS[1::2]}


async def test_secondaries_of_owners_purged_while_no_controller_ran_are_collected(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server) as bed:
        await eventually(lambda: is_recorded(bed.admin.entry("natsctl", "gc.maps")))
    async with bed.admin:
        for key in KEYS[:3]:
            await bed.admin.purge(SITES, key)
        mark = own_kube_server.mark()
        async with running(Maps(), nats_server.url, own_kube_server.kubeconfig()):
            await eventually(lambda: len(bed.deleted(mark)) == 3)
            assert await bed.equal()
        assert bed.deleted(mark) == set(KEYS[:3])


async def recreated(runtime: ControllerRuntime) -> GarbagePlan:
    """Return the plan that garbage collection does not apply, because the bucket was recreated."""
    plan = await runtime.garbage_plan()
    assert "recreated" in plan.refused
    return plan


async def is_recorded(entry: object) -> bool:
    """Return whether the record of a GC cycle exists."""
    with suppress(*FAILURES):
        await entry  # type: ignore[misc]  # a coroutine
        return True
    return False
