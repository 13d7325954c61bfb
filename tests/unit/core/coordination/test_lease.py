"""A lease has one holder at a time and expires soon after its holder dies."""

import asyncio

import msgspec
import pytest

from natsctl import kv
from natsctl.core.coordination.lease import LOOK, Claim, HeldLease, Lease, claim_of
from natsctl.core.coordination.own_record import TAKE_OVER, VOID, Workload
from natsctl.errors import ConflictError, StoreError
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore, MemoryStores

LEASES = kv(Claim, bucket="leases", history=1)
TTL_S = 10.0
NAME = "greetings"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStores().store(LEASES)


def lease_of(store: MemoryStore, holder: str) -> Lease:
    clock = asyncio.get_running_loop().time
    return Lease(store, NAME, holder=holder, ttl_s=TTL_S, clock=clock)


async def acquired(lease: Lease) -> HeldLease:
    held = await lease.acquire()
    assert held is not None
    return held


async def test_a_renewed_lease_cannot_be_taken_by_another_process(
    store: MemoryStore,
) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    held = await acquired(lease)
    for _ in range(100):
        await asyncio.sleep(TTL_S / 4)
        assert await other_lease.acquire() is None
        held = await lease.renew(held)
    assert other_lease.seen_holder == "one"


async def test_a_lease_that_is_not_renewed_can_be_taken_within_its_time_to_live(
    store: MemoryStore,
) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    held = await acquired(lease)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert await other_lease.acquire() is None
    await asyncio.sleep(0.2)
    newer = await acquired(other_lease)
    assert newer.epoch > held.epoch
    with pytest.raises(ConflictError):
        await lease.renew(held)


async def test_a_waiting_process_looks_again_when_the_lease_is_due(store: MemoryStore) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    await acquired(lease)
    while await other_lease.acquire() is None:
        assert 0 < other_lease.look_s <= TTL_S / 10
        await asyncio.sleep(other_lease.look_s)
    assert asyncio.get_running_loop().time() == pytest.approx(TAKE_OVER * TTL_S, abs=1e-3)


async def test_a_process_that_starts_late_waits_from_its_first_look(store: MemoryStore) -> None:
    await acquired(lease_of(store, "one"))
    await asyncio.sleep(100 * TTL_S)
    other_lease = lease_of(store, "two")
    assert await other_lease.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await acquired(other_lease)


async def test_the_epoch_is_the_revision_of_the_acquisition(store: MemoryStore) -> None:
    lease = lease_of(store, "one")
    held = await acquired(lease)
    assert held.epoch == held.revision
    renewed = await lease.renew(await lease.renew(held))
    assert renewed.epoch == held.epoch
    assert renewed.revision > held.revision


async def test_a_lease_counts_from_before_its_write_was_sent(store: MemoryStore) -> None:
    lease = lease_of(store, "one")
    held = await acquired(lease)
    await asyncio.sleep(3)
    renewed_at = asyncio.get_running_loop().time()
    assert (held.sent, (await lease.renew(held)).sent) == (0, renewed_at)


async def test_a_released_lease_can_be_taken_at_once(store: MemoryStore) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    await acquired(lease)
    assert await other_lease.acquire() is None
    await lease.release()
    await acquired(other_lease)


async def test_a_lease_of_another_process_is_not_released(store: MemoryStore) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    await acquired(lease)
    await other_lease.acquire()
    await asyncio.sleep(TTL_S)
    held = await acquired(other_lease)
    await lease.release()
    assert (await other_lease.renew(held)).epoch == held.epoch


async def test_a_lease_that_vanishes_is_not_taken_before_it_expires(
    store: MemoryStore,
) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    await acquired(lease)
    assert await other_lease.acquire() is None
    store.vanish(NAME)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await acquired(other_lease)


async def test_a_holder_that_acquires_the_lease_again_gets_another_epoch(
    store: MemoryStore,
) -> None:
    lease = lease_of(store, "one")
    held = await acquired(lease)
    assert (await acquired(lease)).epoch > held.epoch


async def test_one_of_many_concurrent_acquisitions_succeeds(store: MemoryStore) -> None:
    results = await asyncio.gather(
        *(lease_of(store, f"p{number}").acquire() for number in range(20))
    )
    assert sum(held is not None for held in results) == 1


class LostReplyStore(MemoryStore):
    """A store that loses the reply to the next write while `loses_reply` is set."""

    loses_reply = False

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        stored = await super().update(key, value, revision=revision)
        if self.loses_reply:
            self.loses_reply = False
            raise StoreError("no answer")
        return stored


async def test_a_renewal_without_a_reply_counts_from_the_one_before() -> None:
    store = LostReplyStore(LEASES)
    lease = lease_of(store, "one")
    held = await acquired(lease)
    await asyncio.sleep(2)
    store.loses_reply = True
    with pytest.raises(StoreError, match="no answer"):
        await lease.renew(held)
    renewed = await lease.renew(held)
    assert (renewed.sent, renewed.epoch) == (held.sent, held.epoch)
    await asyncio.sleep(1)
    assert (await lease.renew(renewed)).sent == 3


async def test_an_invalid_lease_is_taken_after_a_time_to_live(store: MemoryStore) -> None:
    await store.create(NAME, b"nonsense")
    lease = lease_of(store, "one")
    assert await lease.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await acquired(lease)


LOST = {
    "deleted": None,
    "no JSON": b"nonsense",
    "another object": b"{}",
    "a time to live of zero": b'{"holder": "x", "since": "", "ttlS": 0}',
    "a negative time to live": b'{"holder": "x", "since": "", "ttlS": -5}',
    "an endless time to live": b'{"holder": "x", "since": "", "ttlS": 1e300}',
    "a short time to live": b'{"holder": "x", "since": "", "ttlS": 1}',
    "deep JSON": b'{"holder": ' + b"[" * 100_000,
}


async def lose(store: MemoryStore, value: bytes | None) -> None:
    """Delete or overwrite the lease as no holder does."""
    if value is None:
        await store.delete(NAME)
    else:
        await store.update(NAME, value, revision=(await store.get(NAME)).revision)


@pytest.mark.parametrize("value", LOST.values(), ids=LOST)
async def test_a_lost_lease_is_taken_one_time_to_live_after_its_loss(
    store: MemoryStore, value: bytes | None
) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    await acquired(lease)
    assert await other_lease.acquire() is None
    await asyncio.sleep(0.8 * TTL_S)  # the holder may have renewed it in between
    await lose(store, value)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert await other_lease.acquire() is None
    await asyncio.sleep(0.2)
    await acquired(other_lease)


@pytest.mark.parametrize("value", LOST.values(), ids=LOST)
async def test_a_new_process_waits_for_a_lost_lease(
    store: MemoryStore, value: bytes | None
) -> None:
    await acquired(lease_of(store, "one"))
    await lose(store, value)
    other_lease = lease_of(store, "two")
    assert await other_lease.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert await other_lease.acquire() is None
    await asyncio.sleep(0.2)
    await acquired(other_lease)


@pytest.mark.parametrize("damage", ["deleted", "purged", "vanished", "recreated", "no claim"])
async def test_a_holder_rewrites_a_lost_lease_and_keeps_its_epoch(
    store: MemoryStore, damage: str
) -> None:
    lease = lease_of(store, "one")
    held = await acquired(lease)
    await asyncio.sleep(1)
    match damage:
        case "vanished":
            store.vanish(NAME)
        case "recreated":
            store.recreate()
        case "no claim":
            await lose(store, b"?")
        case _:
            await store.delete(NAME, purge=damage == "purged")
    renewed = await lease.renew(held)
    assert (renewed.epoch, renewed.sent) == (held.epoch, 1)
    other_lease = lease_of(store, "two")
    assert await other_lease.acquire() is None
    assert other_lease.seen_holder == "one"


async def test_a_lost_lease_that_has_expired_is_not_rewritten(store: MemoryStore) -> None:
    lease = lease_of(store, "one")
    held = await acquired(lease)
    await asyncio.sleep(VOID * TTL_S)
    await store.delete(NAME)
    with pytest.raises(ConflictError, match="was changed by another process"):
        await lease.renew(held)


async def test_a_release_writes_a_value_that_frees_the_lease_at_once(store: MemoryStore) -> None:
    lease = lease_of(store, "one")
    await acquired(lease)
    await lease.release()
    released = msgspec.json.decode((await store.get(NAME)).value, type=Claim)
    assert (released.holder, released.released) == ("one", True)
    await acquired(lease_of(store, "two"))


async def test_a_lost_lease_can_be_released_by_its_holder(store: MemoryStore) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    await acquired(lease)
    await store.delete(NAME)
    assert await other_lease.acquire() is None
    await lease.release()
    await acquired(other_lease)


async def test_the_first_process_does_not_wait(store: MemoryStore) -> None:
    await acquired(lease_of(store, "one"))
    assert asyncio.get_running_loop().time() == 0


async def test_a_missing_lease_is_waited_for_if_it_may_have_been_lost(
    store: MemoryStore,
) -> None:
    async def vacant(_name: str) -> bool:
        return False

    clock = asyncio.get_running_loop().time
    lease = Lease(store, NAME, holder="one", ttl_s=TTL_S, clock=clock, vacant=vacant)
    assert await lease.acquire() is None
    assert lease.wait_s == TAKE_OVER * TTL_S
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await acquired(lease)


class OldClaim(msgspec.Struct, frozen=True, rename="camel"):
    """A claim as version 0.1 reads and writes it."""

    holder: str
    since: str
    ttl_s: float
    epoch: int = 0
    renewals: int = 0


async def test_version_0_1_takes_a_released_lease_at_once(store: MemoryStore) -> None:
    lease = lease_of(store, "one")
    await acquired(lease)
    await lease.release()
    assert msgspec.json.decode((await store.get(NAME)).value, type=OldClaim).ttl_s == 0


async def test_a_claim_of_version_0_1_matches_any_workload(store: MemoryStore) -> None:
    await store.create(NAME, msgspec.json.encode(OldClaim("old", "today", TTL_S)))
    lease = Lease(
        store,
        NAME,
        holder="one",
        ttl_s=TTL_S,
        clock=asyncio.get_running_loop().time,
        workload=Workload("App.apps", "here"),
    )
    assert await lease.acquire() is None
    assert lease.seen is not None
    assert lease.workload.same(lease.seen.work)


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
def test_workloads_are_equal_unless_known_fields_differ(theirs: Workload, *, same: bool) -> None:
    assert Workload("App.apps", "here").same(theirs) is same


async def test_others_wait_for_the_time_to_live_of_the_holder(store: MemoryStore) -> None:
    await acquired(lease_of(store, "one"))
    clock = asyncio.get_running_loop().time
    other_lease = Lease(store, NAME, holder="two", ttl_s=1.0, clock=clock)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TTL_S / 2)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TTL_S / 2)
    await acquired(other_lease)


async def claim_in(store: MemoryStore) -> Claim:
    return msgspec.json.decode((await store.get(NAME)).value, type=Claim)


@pytest.mark.parametrize("holder", ["", "x"])
def test_a_claim_without_a_holder_is_invalid(holder: str) -> None:
    claim = Claim(holder, "today", TTL_S)
    assert claim_of(msgspec.json.encode(claim)) == (claim if holder else None)


async def test_each_renewal_counts_up_and_keeps_the_epoch(store: MemoryStore) -> None:
    lease = lease_of(store, "one")
    held = await acquired(lease)
    for renewals in (1, 2):
        await lease.renew(lease.last or held)
        claim = await claim_in(store)
        assert (claim.epoch, claim.renewals) == (held.epoch, renewals)


async def test_a_claim_describes_the_work_of_its_holder(store: MemoryStore) -> None:
    clock, work = asyncio.get_running_loop().time, Workload("App.apps", "here")
    lease = Lease(store, NAME, holder="one", ttl_s=TTL_S, clock=clock, workload=work)
    await acquired(lease)
    assert (await claim_in(store)).work == work


async def test_the_holder_is_known_from_the_first_read_until_the_release(
    store: MemoryStore,
) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    assert lease.seen_holder is None
    await acquired(lease)
    assert lease.seen_holder == "one"
    assert not await other_lease.free()
    assert other_lease.seen_holder == "one"
    await lease.release()
    assert await other_lease.free()
    assert other_lease.seen_holder is None


async def test_a_lease_is_free_when_its_time_to_live_is_over(store: MemoryStore) -> None:
    await acquired(lease_of(store, "one"))
    other_lease = lease_of(store, "two")
    assert not await other_lease.free()
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert not await other_lease.free()
    await asyncio.sleep(0.1)
    assert other_lease.wait_s == 0
    assert await other_lease.free()


@pytest.mark.parametrize("released", [True, False])
async def test_a_free_lease_that_is_kept_stays_free_when_it_expires(
    store: MemoryStore, *, released: bool
) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    await acquired(lease)
    if released:
        await lease.release()
    await other_lease.free()
    await asyncio.sleep(TAKE_OVER * TTL_S)
    assert await other_lease.free(kept=True)
    store.vanish(NAME)
    assert [await other_lease.free(kept=True) for _ in range(2)] == [True, True]
    assert await other_lease.free()


async def test_a_free_lease_that_is_kept_and_deleted_is_not_free(store: MemoryStore) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    await acquired(lease)
    await lease.release()
    assert await other_lease.free(kept=True)
    await store.delete(NAME)
    assert not await other_lease.free(kept=True)


async def test_a_held_lease_that_vanishes_is_not_free(store: MemoryStore) -> None:
    other_lease = lease_of(store, "two")
    await acquired(lease_of(store, "one"))
    assert not await other_lease.free(kept=True)
    store.vanish(NAME)
    assert not await other_lease.free(kept=True)


async def test_a_process_looks_often_at_a_free_lease(store: MemoryStore) -> None:
    assert 0.8 * LOOK * TTL_S <= lease_of(store, "one").look_s <= LOOK * TTL_S


async def test_a_process_that_saw_the_lease_does_not_check_whether_it_was_lost(
    store: MemoryStore,
) -> None:
    async def vacant(_name: str) -> bool:
        pytest.fail("the lease was seen")

    await acquired(lease_of(store, "one"))
    clock = asyncio.get_running_loop().time
    other_lease = Lease(store, NAME, holder="two", ttl_s=TTL_S, clock=clock, vacant=vacant)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S)
    await acquired(other_lease)


async def test_a_release_without_a_lease_writes_nothing(store: MemoryStore) -> None:
    lease = lease_of(store, "one")
    await lease.release()
    await acquired(lease)
    await lease.release()
    released = await store.get(NAME)
    await lease.release()
    assert await store.get(NAME) == released


async def test_a_released_lease_is_not_renewed(store: MemoryStore) -> None:
    lease = lease_of(store, "one")
    held = await acquired(lease)
    await lease.release()
    assert lease.last is None
    with pytest.raises(ConflictError, match="was changed by another process"):
        await lease.renew(held)


async def test_a_holder_accepts_that_an_administrator_gave_its_lease_to_another_process(
    store: MemoryStore,
) -> None:
    lease = lease_of(store, "one")
    held = await acquired(lease)
    await lose(store, msgspec.json.encode(Claim("two", "today", TTL_S)))
    with pytest.raises(ConflictError, match="was changed by another process"):
        await lease.renew(held)
    await lease.release()
    assert (await claim_in(store)).holder == "two"


async def test_a_lease_that_was_rewritten_and_deleted_again_is_waited_for_again(
    store: MemoryStore,
) -> None:
    lease, other_lease = lease_of(store, "one"), lease_of(store, "two")
    held = await acquired(lease)
    await store.delete(NAME)
    assert await other_lease.acquire() is None
    await asyncio.sleep(3)
    await lease.renew(held)
    await store.delete(NAME)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert await other_lease.acquire() is None
    await asyncio.sleep(0.2)
    await acquired(other_lease)


@pytest.mark.parametrize("value", [None, Claim("x", "today", 1.0)], ids=["deleted", "overwritten"])
async def test_others_wait_for_the_time_to_live_of_the_holder_of_a_lost_lease(
    store: MemoryStore, value: Claim | None
) -> None:
    await acquired(lease_of(store, "one"))
    clock = asyncio.get_running_loop().time
    other_lease = Lease(store, NAME, holder="two", ttl_s=1.0, clock=clock)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TTL_S / 2)
    await lose(store, None if value is None else msgspec.json.encode(value))
    assert await other_lease.acquire() is None
    await asyncio.sleep((TAKE_OVER - 0.5) * TTL_S - 0.1)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TTL_S)
    await acquired(other_lease)


async def test_others_wait_a_whole_time_to_live_after_a_deletion(store: MemoryStore) -> None:
    await acquired(lease_of(store, "one"))
    clock = asyncio.get_running_loop().time
    other_lease = Lease(store, NAME, holder="two", ttl_s=1.0, clock=clock)
    assert await other_lease.acquire() is None
    await asyncio.sleep(TTL_S / 2)
    await store.delete(NAME)
    assert await other_lease.acquire() is None
    assert other_lease.wait_s == TAKE_OVER * TTL_S


async def test_others_wait_for_the_longer_time_to_live_of_the_next_holder(
    store: MemoryStore,
) -> None:
    clock = asyncio.get_running_loop().time
    await acquired(Lease(store, NAME, holder="one", ttl_s=1.0, clock=clock))
    other_lease = Lease(store, NAME, holder="two", ttl_s=1.0, clock=clock)
    assert await other_lease.acquire() is None
    await lose(store, msgspec.json.encode(Claim("next", "today", TTL_S)))
    assert await other_lease.acquire() is None
    assert other_lease.wait_s == TAKE_OVER * TTL_S
