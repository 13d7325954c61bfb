"""Our own record: written by us alone, and known as far as somebody has said so."""

import asyncio

import msgspec
import pytest

from natsctl import ConflictError, StoreError, kv
from natsctl.core.coordination.member_record import MemberRecord
from natsctl.core.coordination.membership import Membership
from natsctl.model.store import Stored
from natsctl.testing.memory import MemoryStore, MemoryStores

KIND = kv(Membership, bucket="leases", keys="apps.shards.*", history=1)
KEY = "apps.shards.me"


class Mute(MemoryStore):
    """Does what it is told, and does not always say so."""

    silent = False

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        stored = await super().update(key, value, revision=revision)
        if self.silent:
            raise StoreError("nobody answered")
        return stored


@pytest.fixture
def store() -> Mute:
    return Mute(KIND)


@pytest.fixture
async def seat(store: Mute) -> MemberRecord:
    clock = asyncio.get_running_loop().time
    seat = MemberRecord(store, KEY, holder="me", ttl_s=10, clock=clock)
    await seat.take()
    return seat


async def record(store: MemoryStore) -> Membership:
    return msgspec.json.decode((await store.get(KEY)).value, type=Membership)


async def test_who_joins_claims_nothing_whatever_is_there(store: Mute, seat: MemberRecord) -> None:
    await seat.write(("me", "you"))
    assert (await record(store)).members == ("me", "you")
    await seat.take()
    assert (await record(store)).members == seat.members == ()


async def test_it_is_counted_from_before_the_last_write_that_was_answered(
    store: Mute, seat: MemberRecord
) -> None:
    await asyncio.sleep(1)
    await seat.write(("me",))
    assert (seat.last.sent, seat.tried) == (1.0, 1.0)  # type: ignore[union-attr]
    store.silent = True
    await asyncio.sleep(1)
    with pytest.raises(StoreError, match="nobody answered"):
        await seat.write(("me",))
    assert (seat.last.sent, seat.tried) == (1.0, 2.0)  # type: ignore[union-attr]


async def test_a_write_that_was_stored_without_an_answer_is_found_by_the_next(
    store: Mute, seat: MemberRecord
) -> None:
    store.silent = True
    with pytest.raises(StoreError, match="nobody answered"):
        await seat.write(("me", "you"))
    assert seat.members == ()
    store.silent = False
    await asyncio.sleep(1)
    await seat.write(("me",))
    assert seat.members == ("me", "you")  # type: ignore[comparison-overlap]  # what stands; nothing was written
    assert (await record(store)).members == ("me", "you")
    assert seat.last.sent == 0.0  # type: ignore[union-attr]
    await seat.write(("me",))
    assert seat.members == (await record(store)).members == ("me",)


@pytest.mark.parametrize("how", ["deleted", "written by another", "no record", "too deep"])
async def test_a_record_that_others_were_at_is_ours_no_more(
    store: Mute, seat: MemberRecord, how: str
) -> None:
    other = Membership("you", "today", 10.0)
    if how == "deleted":
        await store.delete(KEY)
    else:
        values = {
            "written by another": msgspec.json.encode(other),
            "no record": b"?",
            "too deep": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        }
        value = values[how]
        await store.update(KEY, value, revision=seat.last.revision)  # type: ignore[union-attr]
    with pytest.raises(ConflictError):
        await seat.write(("me",))
    assert seat.members == ()


async def test_a_member_that_leaves_writes_that_it_left(store: Mute, seat: MemberRecord) -> None:
    await seat.write(("me",))
    await seat.leave()
    left = await record(store)
    assert (left.holder, left.members, left.left) == ("me", (), True)
    writes = store.writes
    await seat.leave()  # there is nothing left to leave
    assert store.writes == writes


async def test_a_member_that_leaves_finds_what_it_wrote_without_an_answer(
    store: Mute, seat: MemberRecord
) -> None:
    store.silent = True
    with pytest.raises(StoreError, match="nobody answered"):
        await seat.write(("me",))
    store.silent = False
    assert seat.members == ()
    await seat.leave()
    assert (await record(store)).left


async def test_who_leaves_lets_be_what_another_wrote(store: Mute, seat: MemberRecord) -> None:
    other = msgspec.json.encode(Membership("you", "today", 10.0))
    await store.update(KEY, other, revision=seat.last.revision)  # type: ignore[union-attr]
    with pytest.raises(ConflictError):
        await seat.leave()
    assert (await record(store)).holder == "you"


async def test_when_a_record_was_sent_is_known_of_those_of_this_time(
    store: Mute, seat: MemberRecord
) -> None:
    await asyncio.sleep(1)
    await seat.write(("me",))
    sent = await record(store)
    assert seat.sent_at(sent) == 1.0
    await seat.take()
    assert seat.sent_at(sent) is None
    assert seat.sent_at(await record(store)) == 1.0


async def test_stores_of_one_bucket_share_it() -> None:
    stores = MemoryStores()
    seat = MemberRecord(stores.store(KIND), KEY, holder="me", ttl_s=10, clock=lambda: 0.0)
    await seat.take()
    assert stores.store(kv(bytes, bucket="leases", history=1)).keys() == [KEY]
