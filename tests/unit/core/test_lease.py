"""A lease is one process's at a time, and another's soon after that one has died."""

import asyncio

import pytest

from natsctl.core.lease import TAKE_OVER, Claim, Held, Lease
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


async def taken(lease: Lease) -> Held:
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


async def test_others_wait_for_as_long_as_its_holder_said(store: MemoryStore) -> None:
    await taken(lease(store, "one"))
    clock = asyncio.get_running_loop().time
    two = Lease(store, NAME, holder="two", ttl_s=1.0, clock=clock)
    assert await two.acquire() is None
    await asyncio.sleep(TTL_S / 2)
    assert await two.acquire() is None
    await asyncio.sleep(TTL_S / 2)
    await taken(two)
