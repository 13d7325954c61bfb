"""The member record of this process and the writes whose replies are lost."""

import asyncio
from datetime import datetime

import msgspec
import pytest

from natsctl import ConflictError, StoreError, kv
from natsctl.core.coordination.member_record import (
    SENT_MAX,
    MemberRecord,
    members_of,
    record_key,
)
from natsctl.core.coordination.membership import Membership
from natsctl.core.coordination.own_record import Workload
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore, MemoryStores

KIND = kv(Membership, bucket="leases", keys="apps.shards.*", history=1)
KEY = "apps.shards.me"


class LostReplyStore(MemoryStore):
    """A store that loses the replies to writes while `loses_replies` is set."""

    loses_replies = False

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        stored = await super().update(key, value, revision=revision)
        if self.loses_replies:
            raise StoreError("no reply")
        return stored


@pytest.fixture
def store() -> LostReplyStore:
    return LostReplyStore(KIND)


@pytest.fixture
async def member(store: LostReplyStore) -> MemberRecord:
    clock = asyncio.get_running_loop().time
    member = MemberRecord(store, KEY, holder="me", ttl_s=10, clock=clock)
    await member.take()
    return member


async def record(store: MemoryStore) -> Membership:
    return msgspec.json.decode((await store.get(KEY)).value, type=Membership)


async def test_a_joining_member_claims_no_members(
    store: LostReplyStore, member: MemberRecord
) -> None:
    await member.write(("me", "you"))
    assert (await record(store)).members == ("me", "you")
    await member.take()
    assert (await record(store)).members == member.members == ()


async def test_a_record_counts_from_a_write_without_a_reply_that_is_stored(
    store: LostReplyStore, member: MemberRecord
) -> None:
    await asyncio.sleep(1)
    store.loses_replies = True
    with pytest.raises(StoreError):
        await member.write(("me",))
    await asyncio.sleep(1)
    await member.write(("me",))
    assert member.void_at == 1 + 7


async def test_a_record_counts_from_before_its_last_acknowledged_write(
    store: LostReplyStore, member: MemberRecord
) -> None:
    await asyncio.sleep(1)
    await member.write(("me",))
    assert (member.last.sent, member.tried) == (1.0, 1.0)  # type: ignore[union-attr]
    store.loses_replies = True
    await asyncio.sleep(1)
    with pytest.raises(StoreError, match="no reply"):
        await member.write(("me",))
    assert (member.last.sent, member.tried) == (1.0, 2.0)  # type: ignore[union-attr]


async def test_a_write_without_a_reply_is_found_by_the_next_write(
    store: LostReplyStore, member: MemberRecord
) -> None:
    store.loses_replies = True
    with pytest.raises(StoreError, match="no reply"):
        await member.write(("me", "you"))
    assert member.members == ()
    store.loses_replies = False
    await asyncio.sleep(1)
    await member.write(("me",))
    assert member.members == ("me", "you")  # type: ignore[comparison-overlap]  # the stored members; nothing was written
    assert (await record(store)).members == ("me", "you")
    assert member.last.sent == 0.0  # type: ignore[union-attr]
    await member.write(("me",))
    assert member.members == (await record(store)).members == ("me",)


@pytest.mark.parametrize("damage", ["deleted", "written by another", "no record", "too deep"])
async def test_a_record_changed_by_others_is_lost(
    store: LostReplyStore, member: MemberRecord, damage: str
) -> None:
    foreign = Membership("you", "today", 10.0)
    if damage == "deleted":
        await store.delete(KEY)
    else:
        values = {
            "written by another": msgspec.json.encode(foreign),
            "no record": b"?",
            "too deep": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        }
        value = values[damage]
        await store.update(KEY, value, revision=member.last.revision)  # type: ignore[union-attr]
    with pytest.raises(ConflictError):
        await member.write(("me",))
    assert member.members == ()


async def test_a_leaving_member_marks_its_record(
    store: LostReplyStore, member: MemberRecord
) -> None:
    await member.write(("me",))
    await member.leave()
    stored = await record(store)
    assert (stored.holder, stored.members, stored.left) == ("me", (), True)
    writes = store.writes
    await member.leave()  # it has left already
    assert store.writes == writes


async def test_a_leaving_member_finds_its_write_without_a_reply(
    store: LostReplyStore, member: MemberRecord
) -> None:
    store.loses_replies = True
    with pytest.raises(StoreError, match="no reply"):
        await member.write(("me",))
    store.loses_replies = False
    assert member.members == ()
    await member.leave()
    assert (await record(store)).left


async def test_a_leaving_member_keeps_a_record_written_by_another(
    store: LostReplyStore, member: MemberRecord
) -> None:
    foreign = msgspec.json.encode(Membership("you", "today", 10.0))
    await store.update(KEY, foreign, revision=member.last.revision)  # type: ignore[union-attr]
    with pytest.raises(ConflictError):
        await member.leave()
    assert (await record(store)).holder == "you"


async def test_the_send_time_is_known_only_for_records_of_this_membership(
    store: LostReplyStore, member: MemberRecord
) -> None:
    await asyncio.sleep(1)
    await member.write(("me",))
    sent = await record(store)
    assert member.sent_at(sent) == 1.0
    await member.take()
    assert member.sent_at(sent) is None
    assert member.sent_at(await record(store)) == 1.0


async def test_stores_of_one_bucket_share_its_records() -> None:
    stores = MemoryStores()
    member = MemberRecord(stores.store(KIND), KEY, holder="me", ttl_s=10, clock=lambda: 0.0)
    await member.take()
    assert stores.store(kv(bytes, bucket="leases", history=1)).keys() == [KEY]


async def test_a_record_states_its_writer_and_its_work() -> None:
    store, work = MemoryStore(KIND), Workload("App.apps", "one")
    member = MemberRecord(store, KEY, holder="me", ttl_s=10, clock=lambda: 0.0, workload=work)
    await member.take()
    stored = await record(store)
    assert (stored.holder, stored.ttl_s, stored.work, stored.left) == ("me", 10, work, False)


async def test_a_record_states_since_when_its_member_takes_part(
    store: LostReplyStore, member: MemberRecord
) -> None:
    assert datetime.fromisoformat((await record(store)).since).tzinfo is not None


async def test_every_write_differs_from_the_one_before(
    store: LostReplyStore, member: MemberRecord
) -> None:
    before = await record(store)
    await member.write(())
    after = await record(store)
    assert (after.since, after.renewals) == (before.since, before.renewals + 1)


async def test_a_member_without_a_record_writes_none(store: LostReplyStore) -> None:
    member = MemberRecord(store, KEY, holder="me", ttl_s=10, clock=lambda: 0.0)
    with pytest.raises(ConflictError):
        await member.write(("me",))
    assert store.keys() == []


async def test_a_record_that_left_has_no_time_to_live(
    store: LostReplyStore, member: MemberRecord
) -> None:
    await member.leave()
    assert (await record(store)).ttl_s == 0


class TestProof:
    """A record states whether every member that may work has a record."""

    async def test_a_record_has_no_proof_by_itself(
        self, store: LostReplyStore, member: MemberRecord
    ) -> None:
        await member.write(("me",))
        assert not (await record(store)).complete

    async def test_a_record_keeps_its_proof(
        self, store: LostReplyStore, member: MemberRecord
    ) -> None:
        await member.write(("me",), complete=True)
        await member.write(("me",))
        assert (await record(store)).complete

    async def test_a_first_record_may_have_the_proof(
        self, store: LostReplyStore, member: MemberRecord
    ) -> None:
        await member.take(complete=True)
        assert (await record(store)).complete

    @pytest.mark.parametrize(("holder", "complete"), [("me", True), ("you", False)])
    async def test_only_an_earlier_record_of_this_process_is_a_proof(
        self, store: LostReplyStore, member: MemberRecord, holder: str, *, complete: bool
    ) -> None:
        earlier = Membership(holder, "today", 10.0, complete=True)
        newest = await store.get(KEY)
        await store.update(KEY, msgspec.json.encode(earlier), revision=newest.revision)
        await member.take()
        assert (await record(store)).complete == complete

    async def test_an_earlier_record_without_proof_is_none(
        self, store: LostReplyStore, member: MemberRecord
    ) -> None:
        await member.take()
        assert not (await record(store)).complete


async def test_the_send_times_of_the_last_writes_are_known(
    store: LostReplyStore, member: MemberRecord
) -> None:
    first = await record(store)
    for _ in range(SENT_MAX - 1):
        await member.write(())
    assert member.sent_at(first) == 0.0
    await member.write(())
    assert member.sent_at(first) is None


def test_the_key_of_a_record_has_only_legal_characters() -> None:
    assert record_key("apps", "host.a:1:ab-c") == "apps.shards.host_a_1_ab-c"


class Leases:
    """A store of member records that expire."""

    def __init__(self, **values: bytes) -> None:
        self._values = values

    async def living(self, pattern: str) -> list[Stored]:
        assert pattern == "apps.shards.*"
        return [Stored(key, 1, value) for key, value in self._values.items()]


async def test_the_members_of_a_group_are_those_with_a_valid_record_that_have_not_left() -> None:
    living = Membership("one", "today", 10.0)
    leaving = Membership("two", "today", 0.0, left=True)
    leases = Leases(
        one=msgspec.json.encode(living),
        two=msgspec.json.encode(leaving),
        three=b"?",
        four=msgspec.json.encode(Membership("four", "today", 0.0)),  # no member writes this
    )
    assert await members_of(leases, "apps") == {"one": living}
