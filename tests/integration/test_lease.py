"""Leases in a real bucket: they expire, they are made with the first of them, none is left."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from natsctl import connect
from natsctl.core.coordination.lease import Lease
from natsctl.core.coordination.vacancy import Vacancy
from natsctl.errors import ConflictError
from natsctl.jetstream.stores import Nats
from tests.support.clients.nats_admin import Admin, NoMessage, Refused
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsCluster, NatsServer

BUCKET = "natsctl_leases"
TTL_S = 1.0


@pytest.fixture
async def nats(nats_server: NatsServer) -> AsyncIterator[Nats]:
    async with connect(nats_server.url) as nats:
        yield nats


@pytest.fixture
async def admin(nats_server: NatsServer) -> AsyncIterator[Admin]:
    async with Admin(nats_server.url) as admin:
        yield admin


def lease(nats: Nats, holder: str) -> Lease:
    store = nats.leases(ttl_s=TTL_S)
    return Lease(store, "greetings", holder=holder, ttl_s=TTL_S, clock=time.monotonic)


async def kept(admin: Admin) -> bool:
    """Say whether the server still has anything of the lease."""
    try:
        await admin.entry(BUCKET, "greetings")
    except NoMessage:
        return False
    return True


async def forgotten(admin: Admin) -> bool:
    return not await kept(admin)


async def test_the_first_lease_makes_the_bucket(nats: Nats, admin: Admin) -> None:
    with pytest.raises(Refused):
        await admin.info(BUCKET)
    assert await lease(nats, "one").acquire() is not None
    config = (await admin.info(BUCKET))["config"]
    assert config["max_msgs_per_subject"] == 1
    assert config["allow_msg_ttl"] is True


async def test_what_nobody_renews_is_forgotten(nats: Nats, admin: Admin) -> None:
    assert await lease(nats, "one").acquire() is not None
    await eventually(lambda: forgotten(admin), within_s=30)


async def test_a_renewal_keeps_the_time_to_live(nats: Nats, admin: Admin) -> None:
    one = lease(nats, "one")
    held = await one.acquire()
    assert held is not None
    created = time.monotonic()
    while time.monotonic() - created < 4 * TTL_S:
        await asyncio.sleep(TTL_S / 4)
        held = await one.renew(held)
        assert await kept(admin)
    await eventually(lambda: forgotten(admin), within_s=30)


async def test_what_was_given_back_is_forgotten_too_and_free_at_once(
    nats: Nats, admin: Admin
) -> None:
    one, two = lease(nats, "one"), lease(nats, "two")
    assert await one.acquire() is not None
    assert await two.acquire() is None
    await one.release()
    assert await two.acquire() is not None
    await two.release()
    await eventually(lambda: forgotten(admin), within_s=30)


async def test_one_that_is_not_renewed_is_taken_and_its_holder_is_told(nats: Nats) -> None:
    one, two = lease(nats, "one"), lease(nats, "two")
    held = await one.acquire()
    assert held is not None
    assert await two.acquire() is None
    newer = await eventually(two.acquire, within_s=30)
    assert newer is not None
    assert newer.epoch > held.epoch
    with pytest.raises(ConflictError):
        await one.renew(held)


async def test_of_many_who_want_it_one_gets_it(nats: Nats) -> None:
    every = [lease(nats, f"p{number}") for number in range(10)]
    assert await every[0].acquire() is not None  # and the bucket is there
    await every[0].release()
    found = await asyncio.gather(*(each.acquire() for each in every))
    assert sum(held is not None for held in found) == 1


async def test_in_a_cluster_it_has_three_replicas(nats_cluster: NatsCluster) -> None:
    async with connect(nats_cluster.url) as nats, Admin(nats_cluster.url) as admin:
        assert await lease(nats, "one").acquire() is not None
        assert (await admin.info(BUCKET))["config"]["num_replicas"] == 3


async def test_only_what_has_a_value_lives(nats: Nats) -> None:
    store = nats.leases(ttl_s=30.0)
    assert await store.living("greetings.shards.*") == []
    for key in ("greetings", "greetings.shards.b", "greetings.shards.a", "greetings.shards.c"):
        await store.create(key, b"{}")
    await store.delete("greetings.shards.c", purge=True)
    living = await store.living("greetings.shards.*")
    assert [stored.key for stored in living] == ["greetings.shards.a", "greetings.shards.b"]


@pytest.mark.parametrize("how", ["deleted", "purged", "purged as a stream", "bucket deleted"])
async def test_a_lease_that_hands_removed_stays_its_holder_s(
    nats: Nats, admin: Admin, how: str
) -> None:
    one, two = lease(nats, "one"), lease(nats, "two")
    held = await one.acquire()
    assert held is not None
    assert await two.acquire() is None
    match how:
        case "purged as a stream":
            await nats.api(f"STREAM.PURGE.KV_{BUCKET}")
        case "bucket deleted":
            await admin.drop(BUCKET)
        case _:
            await nats.leases(ttl_s=TTL_S).delete("greetings", purge=how == "purged")
    assert await two.acquire() is None
    assert (await one.renew(held)).epoch == held.epoch
    assert await two.acquire() is None


def vacancy(nats: Nats) -> Vacancy:
    return Vacancy(nats, nats.leases(ttl_s=TTL_S), ttl_s=TTL_S)


async def test_a_controller_that_was_never_run_by_several_processes_has_a_free_lease(
    nats: Nats,
) -> None:
    assert await vacancy(nats).is_vacant("greetings")
    assert await vacancy(nats).is_vacant("others")
    assert not await vacancy(nats).is_vacant("greetings")


async def test_a_lease_without_a_trace_is_free_once_the_bucket_was_quiet(nats: Nats) -> None:
    assert await vacancy(nats).is_vacant("greetings")
    assert await lease(nats, "one").acquire() is not None
    await nats.api(f"STREAM.PURGE.KV_{BUCKET}")
    assert not await vacancy(nats).is_vacant("greetings")
    await eventually(lambda: vacancy(nats).is_vacant("greetings"))


async def test_a_bucket_made_again_knows_nothing_of_before(nats: Nats, admin: Admin) -> None:
    assert await vacancy(nats).is_vacant("greetings")
    assert await lease(nats, "one").acquire() is not None
    await asyncio.sleep(TTL_S)
    await admin.drop(BUCKET)
    assert not await vacancy(nats).is_vacant("greetings")
    assert await lease(nats, "two").acquire() is not None
    assert not await vacancy(nats).is_vacant("greetings")
