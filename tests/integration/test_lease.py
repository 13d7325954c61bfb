"""Leases in a real bucket: acquisition, renewal, expiry and manual removal."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

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
TTL_S = 30.0  # no lease expires during a test
SHORT_S = 3.0
EXPIRY_S = 60.0  # within which the server deletes an expired lease


@pytest.fixture
async def nats(nats_server: NatsServer) -> AsyncIterator[Nats]:
    async with connect(nats_server.url) as nats:
        yield nats


@pytest.fixture
async def admin(nats_server: NatsServer) -> AsyncIterator[Admin]:
    async with Admin(nats_server.url) as admin:
        yield admin


def new_lease(nats: Nats, holder: str, *, ttl_s: float = TTL_S) -> Lease:
    store = nats.leases(ttl_s=ttl_s)
    return Lease(store, "greetings", holder=holder, ttl_s=ttl_s, clock=time.monotonic)


async def is_stored(admin: Admin) -> bool:
    """Return whether the bucket has a message for the lease."""
    try:
        await admin.entry(BUCKET, "greetings")
    except NoMessage:
        return False
    return True


async def has_expired(admin: Admin) -> bool:
    return not await is_stored(admin)


async def test_the_first_lease_creates_the_bucket(nats: Nats, admin: Admin) -> None:
    with pytest.raises(Refused):
        await admin.info(BUCKET)
    assert await new_lease(nats, "one").acquire() is not None
    config = (await admin.info(BUCKET))["config"]
    assert config["max_msgs_per_subject"] == 1
    assert config["allow_msg_ttl"] is True


async def test_a_lease_that_is_not_renewed_expires(nats: Nats, admin: Admin) -> None:
    assert await new_lease(nats, "one", ttl_s=SHORT_S).acquire() is not None
    await eventually(lambda: has_expired(admin), within_s=EXPIRY_S)


async def test_a_renewed_lease_does_not_expire(nats: Nats, admin: Admin) -> None:
    lease = new_lease(nats, "one", ttl_s=SHORT_S)
    renewed, renewals = time.monotonic(), 0
    held = await lease.acquire()
    while renewals < 10:
        await asyncio.sleep(SHORT_S / 4)
        assert held is not None
        begun = time.monotonic()
        with suppress(ConflictError):
            held = await lease.renew(held)
        is_kept = await is_stored(admin)
        if time.monotonic() - renewed < SHORT_S:  # else this process was too slow, and may lose it
            assert is_kept
            renewals += 1
        renewed = begun
        if not is_kept:
            renewed, held = time.monotonic(), await lease.acquire()
    await eventually(lambda: has_expired(admin), within_s=EXPIRY_S)


async def test_a_released_lease_is_free_at_once_and_expires(nats: Nats, admin: Admin) -> None:
    lease, other_lease = new_lease(nats, "one"), new_lease(nats, "two")
    assert await lease.acquire() is not None
    assert await other_lease.acquire() is None
    await lease.release()
    short = new_lease(nats, "two", ttl_s=SHORT_S)
    assert await short.acquire() is not None
    await short.release()
    await eventually(lambda: has_expired(admin), within_s=EXPIRY_S)


async def test_an_expired_lease_is_acquired_by_another_process_and_cannot_be_renewed(
    nats: Nats,
) -> None:
    lease, other_lease = (new_lease(nats, holder, ttl_s=SHORT_S) for holder in ("one", "two"))
    acquired = time.monotonic()
    held = await lease.acquire()
    assert held is not None
    newer = await other_lease.acquire()
    if time.monotonic() - acquired < SHORT_S / 2:  # else it may have expired
        assert newer is None
    newer = newer or await eventually(other_lease.acquire, within_s=EXPIRY_S)
    assert newer is not None
    assert newer.epoch > held.epoch
    with pytest.raises(ConflictError):
        await lease.renew(held)


async def test_one_of_many_concurrent_processes_acquires_the_lease(nats: Nats) -> None:
    leases = [new_lease(nats, f"p{number}") for number in range(10)]
    assert await leases[0].acquire() is not None  # which creates the bucket
    await leases[0].release()
    claims = await asyncio.gather(*(new_lease.acquire() for new_lease in leases))
    assert sum(claim is not None for claim in claims) == 1


async def test_the_lease_bucket_has_three_replicas_in_a_cluster(nats_cluster: NatsCluster) -> None:
    async with connect(nats_cluster.url) as nats, Admin(nats_cluster.url) as admin:
        assert await new_lease(nats, "one").acquire() is not None
        assert (await admin.info(BUCKET))["config"]["num_replicas"] == 3


async def test_living_returns_only_keys_with_a_value(nats: Nats) -> None:
    store = nats.leases(ttl_s=30.0)
    assert await store.living("greetings.shards.*") == []
    for key in ("greetings", "greetings.shards.b", "greetings.shards.a", "greetings.shards.c"):
        await store.create(key, b"{}")
    await store.delete("greetings.shards.c", purge=True)
    living = await store.living("greetings.shards.*")
    assert [stored.key for stored in living] == ["greetings.shards.a", "greetings.shards.b"]


@pytest.mark.parametrize("removal", ["deleted", "purged", "purged as a stream", "bucket deleted"])
async def test_a_lease_removed_by_an_administrator_stays_with_its_holder(
    nats: Nats, admin: Admin, removal: str
) -> None:
    lease, other_lease = new_lease(nats, "one"), new_lease(nats, "two")
    held = await lease.acquire()
    assert held is not None
    assert await other_lease.acquire() is None
    match removal:
        case "purged as a stream":
            await nats.api(f"STREAM.PURGE.KV_{BUCKET}")
        case "bucket deleted":
            await admin.drop(BUCKET)
        case _:
            await nats.leases(ttl_s=TTL_S).delete("greetings", purge=removal == "purged")
    assert await other_lease.acquire() is None
    assert (await lease.renew(held)).epoch == held.epoch
    assert await other_lease.acquire() is None


def vacancy(nats: Nats, *, ttl_s: float = TTL_S) -> Vacancy:
    return Vacancy(nats, nats.leases(ttl_s=ttl_s), ttl_s=ttl_s)


async def test_the_lease_of_a_controller_without_former_leader_is_vacant(
    nats: Nats,
) -> None:
    assert await vacancy(nats).is_vacant("greetings")
    assert await vacancy(nats).is_vacant("others")
    assert not await vacancy(nats).is_vacant("greetings")


async def test_a_purged_lease_is_vacant_after_the_bucket_was_quiet(nats: Nats) -> None:
    assert await vacancy(nats).is_vacant("greetings")
    assert await new_lease(nats, "one").acquire() is not None
    await nats.api(f"STREAM.PURGE.KV_{BUCKET}")
    assert not await vacancy(nats).is_vacant("greetings")
    await eventually(lambda: vacancy(nats, ttl_s=SHORT_S).is_vacant("greetings"))


async def test_the_lease_in_a_recreated_bucket_is_not_vacant(nats: Nats, admin: Admin) -> None:
    assert await vacancy(nats).is_vacant("greetings")
    assert await new_lease(nats, "one").acquire() is not None
    await asyncio.sleep(SHORT_S)
    await admin.drop(BUCKET)
    assert not await vacancy(nats, ttl_s=SHORT_S).is_vacant("greetings")
    assert await new_lease(nats, "two").acquire() is not None
    assert not await vacancy(nats).is_vacant("greetings")
