"""Leases in a real bucket: they expire, they are made with the first of them, none is left."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from faults.admin import Admin, NoMessage, Refused
from servers import NatsCluster, NatsServer, eventually

from natsctl import connect
from natsctl.core.lease import Lease
from natsctl.errors import ConflictError
from natsctl.kv.stores import Nats

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


async def test_a_bucket_that_is_dropped_is_made_again(nats: Nats, admin: Admin) -> None:
    one = lease(nats, "one")
    assert await one.acquire() is not None
    await admin.drop(BUCKET)
    assert await one.acquire() is not None


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
    assert await store.living("greetings.shards.*") == ["greetings.shards.a", "greetings.shards.b"]
