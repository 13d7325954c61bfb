"""A lease is one process's at a time, and another's soon after that one has died."""

import asyncio

import msgspec
import pytest

from natsctl.core.coordination.lease import Claim, HeldLease, Lease
from natsctl.core.coordination.own_record import TAKE_OVER, VOID, Workload
from natsctl.errors import ConflictError, StoreError
from natsctl.model.kinds import kv
from natsctl.model.store import Stored
from natsctl.testing.memory import MemoryStore, MemoryStores

LEASES = kv(Claim, bucket="leases", history=1)
TTL_S = 10.0
NAME = "greetings"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStores().store(LEASES)


def lease(store: MemoryStore, holder: str) -> Lease:
    clock = asyncio.get_running_loop().time
    return Lease(store, NAME, holder=holder, ttl_s=TTL_S, clock=clock)


async def taken(lease: Lease) -> HeldLease:
    held = await lease.acquire()
    assert held is not None
    return held


async def test_the_first_takes_it_and_nobody_else_does_while_it_is_renewed(
    store: MemoryStore,
) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    held = await taken(one)
    for _ in range(100):
        await asyncio.sleep(TTL_S / 4)
        assert await two.acquire() is None
        held = await one.renew(held)
    assert two.seen_holder == "one"


async def test_one_that_is_not_renewed_is_another_s_within_its_time_to_live(
    store: MemoryStore,
) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    held = await taken(one)
    assert await two.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert await two.acquire() is None
    await asyncio.sleep(0.2)
    newer = await taken(two)
    assert newer.epoch > held.epoch
    with pytest.raises(ConflictError):
        await one.renew(held)


async def test_who_waits_for_it_looks_when_it_is_due(store: MemoryStore) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    await taken(one)
    while await two.acquire() is None:
        assert 0 < two.look_s <= TTL_S / 10
        await asyncio.sleep(two.look_s)
    assert asyncio.get_running_loop().time() == pytest.approx(TAKE_OVER * TTL_S, abs=1e-3)


async def test_who_comes_late_waits_from_when_he_came(store: MemoryStore) -> None:
    await taken(lease(store, "one"))
    await asyncio.sleep(100 * TTL_S)
    two = lease(store, "two")
    assert await two.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await taken(two)


async def test_the_epoch_is_the_revision_at_which_it_was_taken(store: MemoryStore) -> None:
    one = lease(store, "one")
    held = await taken(one)
    assert held.epoch == held.revision
    renewed = await one.renew(await one.renew(held))
    assert renewed.epoch == held.epoch
    assert renewed.revision > held.revision


async def test_it_counts_from_before_it_was_sent(store: MemoryStore) -> None:
    one = lease(store, "one")
    held = await taken(one)
    await asyncio.sleep(3)
    at = asyncio.get_running_loop().time()
    assert (held.sent, (await one.renew(held)).sent) == (0, at)


async def test_one_that_is_given_back_is_another_s_at_once(store: MemoryStore) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    await taken(one)
    assert await two.acquire() is None
    await one.release()
    await taken(two)


async def test_one_that_is_another_s_is_not_given_back(store: MemoryStore) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    await taken(one)
    await two.acquire()
    await asyncio.sleep(TTL_S)
    held = await taken(two)
    await one.release()
    assert (await two.renew(held)).epoch == held.epoch


async def test_one_that_vanishes_without_a_trace_is_not_taken_before_its_time(
    store: MemoryStore,
) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    await taken(one)
    assert await two.acquire() is None
    store.vanish(NAME)
    assert await two.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await taken(two)


async def test_a_holder_that_takes_it_again_has_another_epoch(store: MemoryStore) -> None:
    one = lease(store, "one")
    held = await taken(one)
    assert (await taken(one)).epoch > held.epoch


async def test_of_many_who_want_it_one_gets_it(store: MemoryStore) -> None:
    found = await asyncio.gather(*(lease(store, f"p{number}").acquire() for number in range(20)))
    assert sum(held is not None for held in found) == 1


class Forgetful(MemoryStore):
    """Stores a write and does not say so, when asked to."""

    lost = False

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        stored = await super().update(key, value, revision=revision)
        if self.lost:
            self.lost = False
            raise StoreError("no answer")
        return stored


async def test_a_renewal_whose_answer_was_lost_counts_from_the_one_before() -> None:
    store = Forgetful(LEASES)
    one = lease(store, "one")
    held = await taken(one)
    await asyncio.sleep(2)
    store.lost = True
    with pytest.raises(StoreError, match="no answer"):
        await one.renew(held)
    found = await one.renew(held)
    assert (found.sent, found.epoch) == (held.sent, held.epoch)
    await asyncio.sleep(1)
    assert (await one.renew(found)).sent == 3


async def test_what_somebody_wrote_over_it_is_waited_out_too(store: MemoryStore) -> None:
    await store.create(NAME, b"nonsense")
    one = lease(store, "one")
    assert await one.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await taken(one)


LOST = {
    "deleted": None,
    "no JSON": b"nonsense",
    "another object": b"{}",
    "a time to live of nothing": b'{"holder": "x", "since": "", "ttlS": 0}',
    "a negative time to live": b'{"holder": "x", "since": "", "ttlS": -5}',
    "an endless time to live": b'{"holder": "x", "since": "", "ttlS": 1e300}',
    "a short time to live": b'{"holder": "x", "since": "", "ttlS": 1}',
    "deep JSON": b'{"holder": ' + b"[" * 100_000,
}


async def lose(store: MemoryStore, value: bytes | None) -> None:
    """Do to the lease what nobody does who holds it."""
    if value is None:
        await store.delete(NAME)
    else:
        await store.update(NAME, value, revision=(await store.get(NAME)).revision)


@pytest.mark.parametrize("value", LOST.values(), ids=LOST)
async def test_a_lost_lease_is_taken_a_time_to_live_after_it_was_lost(
    store: MemoryStore, value: bytes | None
) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    await taken(one)
    assert await two.acquire() is None
    await asyncio.sleep(0.8 * TTL_S)  # it may have been renewed since
    await lose(store, value)
    assert await two.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert await two.acquire() is None
    await asyncio.sleep(0.2)
    await taken(two)


@pytest.mark.parametrize("value", LOST.values(), ids=LOST)
async def test_a_process_that_starts_waits_for_a_lost_lease_too(
    store: MemoryStore, value: bytes | None
) -> None:
    await taken(lease(store, "one"))
    await lose(store, value)
    two = lease(store, "two")
    assert await two.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert await two.acquire() is None
    await asyncio.sleep(0.2)
    await taken(two)


@pytest.mark.parametrize("how", ["deleted", "purged", "vanished", "made again", "no claim"])
async def test_a_holder_writes_a_lost_lease_again_and_keeps_its_epoch(
    store: MemoryStore, how: str
) -> None:
    one = lease(store, "one")
    held = await taken(one)
    await asyncio.sleep(1)
    match how:
        case "vanished":
            store.vanish(NAME)
        case "made again":
            store.recreate()
        case "no claim":
            await lose(store, b"?")
        case _:
            await store.delete(NAME, purge=how == "purged")
    renewed = await one.renew(held)
    assert (renewed.epoch, renewed.sent) == (held.epoch, 1)
    two = lease(store, "two")
    assert await two.acquire() is None
    assert two.seen_holder == "one"


async def test_a_void_lease_that_was_lost_is_not_written_again(store: MemoryStore) -> None:
    one = lease(store, "one")
    held = await taken(one)
    await asyncio.sleep(VOID * TTL_S)
    await store.delete(NAME)
    with pytest.raises(ConflictError, match="was changed by another process"):
        await one.renew(held)


async def test_a_release_is_a_value_that_frees_the_lease_at_once(store: MemoryStore) -> None:
    one = lease(store, "one")
    await taken(one)
    await one.release()
    released = msgspec.json.decode((await store.get(NAME)).value, type=Claim)
    assert (released.holder, released.released) == ("one", True)
    await taken(lease(store, "two"))


async def test_a_lost_lease_is_released_by_its_holder_too(store: MemoryStore) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    await taken(one)
    await store.delete(NAME)
    assert await two.acquire() is None
    await one.release()
    await taken(two)


async def test_the_first_of_all_does_not_wait(store: MemoryStore) -> None:
    await taken(lease(store, "one"))
    assert asyncio.get_running_loop().time() == 0


async def test_a_lease_without_a_trace_that_may_have_been_lost_is_waited_for(
    store: MemoryStore,
) -> None:
    async def vacant() -> bool:
        return False

    clock = asyncio.get_running_loop().time
    one = Lease(store, NAME, holder="one", ttl_s=TTL_S, clock=clock, vacant=vacant)
    assert await one.acquire() is None
    assert one.wait_s == TAKE_OVER * TTL_S
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await taken(one)


class OldClaim(msgspec.Struct, frozen=True, rename="camel"):
    """A claim as version 0.1 reads and writes it."""

    holder: str
    since: str
    ttl_s: float
    epoch: int = 0
    renewals: int = 0


async def test_version_0_1_takes_a_released_lease_at_once(store: MemoryStore) -> None:
    one = lease(store, "one")
    await taken(one)
    await one.release()
    assert msgspec.json.decode((await store.get(NAME)).value, type=OldClaim).ttl_s == 0


async def test_a_claim_of_version_0_1_is_accepted_from_anyone(store: MemoryStore) -> None:
    await store.create(NAME, msgspec.json.encode(OldClaim("old", "today", TTL_S)))
    one = Lease(
        store,
        NAME,
        holder="one",
        ttl_s=TTL_S,
        clock=asyncio.get_running_loop().time,
        workload=Workload("App.apps", "here"),
    )
    assert await one.acquire() is None
    assert one.seen is not None
    assert one.workload.same(one.seen.work)


@pytest.mark.parametrize(
    ("theirs", "same"),
    [
        (Workload(), True),
        (Workload("App.apps"), True),
        (Workload("App.apps", "here"), True),
        (Workload("", "here"), True),
        (Workload("Site.sites", "here"), False),
        (Workload("App.apps", "there"), False),
    ],
)
def test_work_is_the_same_unless_something_known_differs(theirs: Workload, *, same: bool) -> None:
    assert Workload("App.apps", "here").same(theirs) is same


async def test_others_wait_for_as_long_as_its_holder_said(store: MemoryStore) -> None:
    await taken(lease(store, "one"))
    clock = asyncio.get_running_loop().time
    two = Lease(store, NAME, holder="two", ttl_s=1.0, clock=clock)
    assert await two.acquire() is None
    await asyncio.sleep(TTL_S / 2)
    assert await two.acquire() is None
    await asyncio.sleep(TTL_S / 2)
    await taken(two)
