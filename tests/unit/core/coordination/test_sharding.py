"""Sharding: processes divide the keys of a controller and rebalance them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import pytest

from natsctl import Operator, PermanentError, kv, primary
from natsctl.core.coordination.election import Election, elections
from natsctl.core.coordination.lease import Lease
from natsctl.core.coordination.membership import Membership
from natsctl.core.coordination.rendezvous import MemberSet
from natsctl.core.coordination.sharding import shards
from natsctl.errors import UsageError
from natsctl.jetstream.bucket.leases import LEASES
from natsctl.model.store import Stored
from natsctl.testing import MemoryStores, VirtualTimeLoop
from tests.support.controllers.sharding_group import (
    TTL_S,
    Floor,
    Item,
    Items,
    Member,
    Town,
    Way,
    WayStore,
)
from tests.support.eventually import eventually

KEYS = [f"k{number}" for number in range(60)]


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    town = Town()
    await town.put(*KEYS)
    yield town
    await town.close()
    town.check()


async def test_a_single_member_has_every_key(town: Town) -> None:
    member = town.join("one")
    await eventually(lambda: town.shared(member))
    await eventually(lambda: town.floor.workers().keys() == set(KEYS))


async def test_a_joining_member_gets_its_keys_and_no_others_move(town: Town) -> None:
    first_member, second_member = town.join("one", again_s=None), town.join("two", again_s=None)
    await eventually(lambda: town.shared(first_member, second_member))
    await asyncio.sleep(TTL_S)
    before = {member.who: member.keys for member in town.members}
    visits_before = len(town.floor.visits)
    third_member = town.join("three", again_s=None)
    await eventually(lambda: town.shared(first_member, second_member, third_member))
    await asyncio.sleep(TTL_S)
    moved = {key for keys in before.values() for key in keys & third_member.keys}
    assert moved == third_member.keys
    assert first_member.keys < before["one"]
    assert second_member.keys < before["two"]
    assert sorted(town.floor.visits[visits_before:]) == sorted(("three", key) for key in moved)


async def test_a_leaving_member_releases_its_keys_at_once(town: Town) -> None:
    first_member, second_member = town.join("one", again_s=None), town.join("two", again_s=None)
    await eventually(lambda: town.shared(first_member, second_member))
    await asyncio.sleep(TTL_S)
    released_keys, visits_before = second_member.keys, len(town.floor.visits)
    stopped_at = asyncio.get_running_loop().time()
    await second_member.stop()
    await eventually(lambda: town.shared(first_member))
    assert asyncio.get_running_loop().time() - stopped_at <= TTL_S / 10
    await asyncio.sleep(TTL_S)
    assert sorted(town.floor.visits[visits_before:]) == sorted(
        ("one", key) for key in released_keys
    )
    assert [record.left for record in await town.records()] == [False, True]


async def test_a_key_that_failed_permanently_is_synced_when_it_returns_from_another_member(
    town: Town,
) -> None:
    first_member = town.join("one", again_s=None)
    first_member.controller.failure = PermanentError("no such region")
    await eventually(lambda: town.floor.workers().keys() == set(KEYS))
    second_member = town.join("two", again_s=None)
    await eventually(lambda: town.shared(first_member, second_member))
    returning, visits_before = second_member.keys, len(town.floor.visits)
    await second_member.stop()
    await asyncio.sleep(TTL_S)
    assert town.floor.workers(visits_before).keys() >= returning


async def test_a_stopped_member_marks_its_record_as_left(town: Town) -> None:
    member = town.join("one")
    await eventually(lambda: town.shared(member))
    await member.stop()
    assert [record.left for record in await town.records()] == [True]


@pytest.mark.parametrize("after_s", [0.0, 0.4, 0.8, 1.2, 1.49])
async def test_keys_of_a_dead_member_are_reassigned_within_its_time_to_live(
    town: Town, after_s: float
) -> None:
    first_member, second_member, third_member = (
        town.join(name) for name in ("one", "two", "three")
    )
    await eventually(lambda: town.shared(first_member, second_member, third_member))
    await asyncio.sleep(2 * TTL_S + after_s)
    await second_member.kill()
    died = asyncio.get_running_loop().time()
    await eventually(lambda: town.shared(first_member, third_member))
    assert asyncio.get_running_loop().time() - died <= TTL_S


async def test_a_member_that_cannot_renew_ends_its_work_before_others_begin(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    second_member.way.cut = True
    await asyncio.sleep(TTL_S)
    assert town.shared(first_member)
    assert second_member.keys == set()
    assert (
        "stopped sharing keys reason='the member record could not be renewed in time'"
        in caplog.text
    )
    assert "record out of reach record='member record' error='the connection is cut'" in caplog.text
    second_member.way.cut = False
    await eventually(lambda: town.shared(first_member, second_member))


async def test_the_state_names_the_error_until_a_member_has_joined(town: Town) -> None:
    member = town.join("one")
    member.way.cut = True
    await asyncio.sleep(TTL_S)
    states = [member.shard.state()]
    member.way.cut = False
    await eventually(lambda: town.shared(member))
    states.append(member.shard.state())
    assert [(state.known, state.trouble) for state in states] == [
        (False, "the connection is cut"),
        (True, ""),
    ]


async def test_the_state_names_the_error_of_a_renewal_until_one_succeeds(town: Town) -> None:
    member = town.join("one", again_s=None)
    await eventually(lambda: town.shared(member))
    states = []
    for cut in (True, False):
        member.way.cut = cut
        await asyncio.sleep(0.3 * TTL_S)
        states.append(member.shard.state())
    assert [(state.works, state.known, state.trouble) for state in states] == [
        (True, False, "the connection is cut"),
        (True, True, ""),
    ]


async def test_a_short_disconnection_has_no_effect(town: Town) -> None:
    first_member, second_member = town.join("one", again_s=None), town.join("two", again_s=None)
    await eventually(lambda: town.shared(first_member, second_member))
    await asyncio.sleep(TTL_S)
    visits_before = len(town.floor.visits)
    second_member.way.cut = True
    await asyncio.sleep(0.3 * TTL_S)
    second_member.way.cut = False
    await asyncio.sleep(2 * TTL_S)
    assert town.floor.visits[visits_before:] == []
    assert town.shared(first_member, second_member)


async def test_a_member_without_a_watch_keeps_its_keys_and_takes_no_others(town: Town) -> None:
    first_member, second_member, third_member = (
        town.join(name) for name in ("one", "two", "three")
    )
    await eventually(lambda: town.shared(first_member, second_member, third_member))
    keys_before = first_member.keys
    first_member.way.deaf = True
    await second_member.kill()
    await asyncio.sleep(3 * TTL_S)
    assert first_member.keys == keys_before
    assert third_member.keys == set(KEYS) - keys_before - {
        key
        for key in KEYS
        if MemberSet(_identities(first_member, third_member)).owner(key)
        == _identities(first_member)[0]
    }
    first_member.way.deaf = False
    await eventually(lambda: town.shared(first_member, third_member))


def _identities(*members: object) -> list[str]:
    return [member.shard.state().identity for member in members]  # type: ignore[attr-defined]


async def test_a_suspended_process_continues_no_sync(
    town: Town,
) -> None:
    member = town.join("one", pause_s=2.0)
    await eventually(lambda: town.shared(member))
    await eventually(lambda: len(town.floor.at) == Items.workers)
    visits_before = len(town.floor.visits)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.jump(0.85 * TTL_S)  # as after SIGSTOP: every timer is due
    for _ in range(20):
        await asyncio.sleep(0)
    assert town.floor.visits[visits_before:] == []
    await eventually(lambda: town.shared(member))


async def test_the_state_of_a_process_that_was_suspended_for_long_is_standby(town: Town) -> None:
    one = town.join("one", again_s=None)
    await eventually(lambda: town.shared(one))
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.jump(0.85 * TTL_S)
    state = one.shard.state()
    assert (state.works, state.members) == (False, ())


class StubbornItems(Items):
    """Items whose syncs go on after a cancellation until they are released."""

    name = "items"

    def __init__(self, floor: Floor) -> None:
        super().__init__("one", floor, pause_s=0.0, again_s=None)
        self.released = asyncio.Event()

    async def sync_handler(self, key: str) -> float | None:
        self.floor.visits.append((self.who, key))
        while not self.released.is_set():
            with suppress(asyncio.CancelledError):
                await self.released.wait()
        return None


async def test_a_member_takes_no_keys_while_a_sync_of_its_last_term_goes_on(town: Town) -> None:
    way, clock = Way(), asyncio.get_running_loop().time
    make = shards(
        lambda kind: WayStore(town.stores, kind, way), LEASES.bucket, ttl_s=TTL_S, clock=clock
    )
    controller = StubbornItems(town.floor)
    operator = Operator([controller], nats=town.stores, shard=make)
    running = asyncio.create_task(operator.run())
    await eventually(lambda: town.floor.visits)
    way.cut = True
    await asyncio.sleep(TTL_S)
    way.cut = False
    await asyncio.sleep(3 * TTL_S)
    assert not operator.shards["items"].state().works
    controller.released.set()
    await eventually(lambda: operator.shards["items"].state().works)
    operator.stop()
    await running


async def test_members_keep_their_keys_if_no_reply_to_a_write_arrives(town: Town) -> None:
    first_member, second_member = town.join("one", again_s=None), town.join("two", again_s=None)
    await eventually(lambda: town.shared(first_member, second_member))
    await asyncio.sleep(TTL_S)
    visits_before = len(town.floor.visits)
    first_member.way.unanswered = second_member.way.unanswered = True
    await asyncio.sleep(5 * TTL_S)
    assert town.shared(first_member, second_member)
    assert town.floor.visits[visits_before:] == []


class FarStore(WayStore):
    """A store whose reads take as long as its writes."""

    async def get(self, key: str) -> Stored:
        await asyncio.sleep(self._way.delay_s)
        return await super().get(key)


async def test_a_member_that_slept_before_its_first_work_joins_again(town: Town) -> None:
    loop, way, slept_s = asyncio.get_running_loop(), Way(), 0.0
    way.delay_s = 0.5
    make = shards(
        lambda kind: FarStore(town.stores, kind, way),
        LEASES.bucket,
        ttl_s=TTL_S,
        clock=lambda: loop.time() + slept_s,
    )
    controller = Items("one", town.floor, pause_s=0.1, again_s=0.1)
    operator = Operator([controller], nats=town.stores, shard=make)
    running = asyncio.create_task(operator.run())
    await asyncio.sleep(2.2)
    way.deaf = True  # it does not see that its first member set was written
    await asyncio.sleep(1.5)
    (record,) = town.leases.keys()
    claiming = msgspec.json.decode((await town.leases.get(record)).value, type=Membership)
    assert claiming.members == (claiming.holder,)
    slept_s = TTL_S  # during a renewal: no timer ran, and others may have taken its keys
    await asyncio.sleep(3.0)
    rejoined = msgspec.json.decode((await town.leases.get(record)).value, type=Membership)
    assert rejoined.members == ()
    assert town.floor.visits == []
    way.deaf = False
    await eventually(lambda: town.floor.workers().keys() == set(KEYS))
    operator.stop()
    await running


async def test_a_member_that_lost_its_record_releases_its_keys_and_joins_again(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    for record in list(town.leases.keys()):
        await town.leases.delete(record)
    await eventually(lambda: "was changed by another process" in caplog.text)
    await eventually(lambda: town.shared(first_member, second_member))


async def test_keys_of_a_lost_record_are_reassigned_only_after_a_silence(
    town: Town,
) -> None:
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    keys_before = second_member.keys
    second_member.way.cut = True
    lost = asyncio.get_running_loop().time()
    town.leases.recreate()
    await eventually(lambda: second_member.keys == set())
    assert asyncio.get_running_loop().time() - lost <= TTL_S / 2 + 0.1
    await eventually(lambda: first_member.keys >= keys_before)
    assert asyncio.get_running_loop().time() - lost >= 0.7 * TTL_S
    second_member.way.cut = False
    await eventually(lambda: town.shared(first_member, second_member))


async def test_all_members_join_a_recreated_bucket_again(town: Town) -> None:
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    town.leases.recreate()
    await asyncio.sleep(TTL_S)
    await eventually(lambda: town.shared(first_member, second_member))


async def test_a_key_whose_sync_does_not_end_is_kept_and_logged(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    first_member = town.join("one", pause_s=5 * TTL_S)
    await eventually(lambda: len(town.floor.at) == Items.workers)
    held = set(town.floor.at)
    second_member = town.join("two")
    await asyncio.sleep(2 * TTL_S)
    assert not second_member.keys & held
    assert set(town.floor.at) == held
    assert "are still worked on keys='k" in caplog.text
    third_member = town.join("three")  # during the drain: the next member set includes both
    await eventually(
        lambda: town.shared(first_member, second_member, third_member), within_s=20 * TTL_S
    )


async def test_before_a_write_is_acknowledged_only_keys_of_both_member_sets_are_synced(
    town: Town,
) -> None:
    first_member = town.join("one")
    await eventually(lambda: town.shared(first_member))
    first_member.way.unanswered = first_member.way.deaf = True
    second_member = town.join("two")
    await asyncio.sleep(0.4 * TTL_S)
    assert second_member.keys == set()  # no write of the first member is acknowledged
    first_member.way.deaf = False  # it sees its own write
    await eventually(lambda: second_member.keys)
    first_member.way.unanswered = False
    await eventually(lambda: town.shared(first_member, second_member))


async def test_no_key_that_another_member_gets_is_synced_while_the_new_members_are_written(
    town: Town,
) -> None:
    one = town.join("one", pause_s=5.0, again_s=None)
    await eventually(lambda: town.shared(one))
    await eventually(lambda: town.floor.workers().keys() == set(KEYS) and not town.floor.at)
    one.way.delay_s = 1.0
    two = town.join("two", again_s=None)
    for edit in range(30):
        await asyncio.sleep(0.1)
        for key in KEYS:
            await town.touch(key, f"edit {edit}")
    await eventually(lambda: town.shared(one, two))
    await asyncio.sleep(TTL_S)
    assert town.floor.overlaps == []


async def test_keys_put_while_members_join_are_synced_by_one_member(town: Town) -> None:
    members = []
    for number in range(5):
        members.append(town.join(f"m{number}", again_s=None))
        await town.put(*(f"new{number}-{index}" for index in range(10)))
        await asyncio.sleep(0.1 * number)
    await eventually(lambda: town.shared(*members))
    await eventually(lambda: town.floor.workers().keys() == set(town.items.keys()))


async def test_sharding_stops_while_a_leader_is_elected_and_logs_the_reason(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    clock = asyncio.get_running_loop().time
    member = town.join("one")
    await eventually(lambda: town.shared(member))
    make = elections(town.leases, ttl_s=TTL_S, clock=clock)
    leader = Operator(
        [Items("leader", town.floor, pause_s=1e6, again_s=None)], nats=MemoryStores(), election=make
    )
    task = asyncio.create_task(leader.run())
    await eventually(lambda: "this process shares no keys error=" in caplog.text)
    assert "leads it: run all its processes with --shard, or none" in caplog.text
    await eventually(lambda: not member.shard.state().works)
    await asyncio.sleep(2 * TTL_S)
    assert caplog.text.count("this process shares no keys error=") == 1
    election = leader.participations["items"]
    assert isinstance(election, Election)
    assert member.shard.state().trouble.startswith(f"{election.state().identity} leads it: ")
    leader.stop()
    await task
    await eventually(lambda: town.shared(member))


async def test_members_keep_their_keys_when_the_lease_of_an_earlier_leader_expires(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    clock = asyncio.get_running_loop().time
    lease = Lease(town.leases, "items", holder="leader", ttl_s=TTL_S, clock=clock)
    assert await lease.acquire() is not None
    await lease.release()
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    town.leases.vanish("items")
    for _ in range(20):
        await asyncio.sleep(TTL_S / 10)
        assert town.shared(first_member, second_member)
    assert "this process shares no keys" not in caplog.text


async def test_no_process_leads_while_keys_are_shared_and_the_reason_is_logged_once(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    member = town.join("one")
    await eventually(lambda: town.shared(member))

    async def sharing(_name: str) -> list[str]:
        return [
            f"items.shards.{record.holder}" for record in await town.records() if not record.left
        ]

    clock = asyncio.get_running_loop().time
    leader = Operator(
        [Items("leader", town.floor, pause_s=1.0, again_s=None)],
        nats=town.stores,
        election=elections(town.leases, ttl_s=TTL_S, clock=clock, sharing=sharing),
    )
    task = asyncio.create_task(leader.run())
    await asyncio.sleep(3 * TTL_S)
    election = leader.participations["items"]
    assert isinstance(election, Election)
    state = election.state()
    assert (state.leads, state.known) == (False, True)
    assert caplog.text.count("this process does not lead error='items.shards.") == 1
    assert "shares its keys: run all its processes with --leader-elect, or none" in caplog.text
    assert town.shared(member)
    await member.stop()
    await eventually(lambda: election.state().leads)
    leader.stop()
    await task


async def test_the_state_of_a_member_names_the_owner_of_a_key(town: Town) -> None:
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    state = first_member.shard.state()
    assert (state.name, state.works, state.moving, state.known) == ("items", True, False, True)
    assert set(state.members) == set(_identities(first_member, second_member))
    for key in KEYS:
        owner = first_member if key in first_member.keys else second_member
        assert (
            first_member.shard.whose(key) == second_member.shard.whose(key) == _identities(owner)[0]
        )


@pytest.mark.parametrize("purge", [False, True])
async def test_keys_of_a_record_deleted_by_hand_stay_with_its_member_until_it_expires(
    town: Town, caplog: pytest.LogCaptureFixture, *, purge: bool
) -> None:
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    keys_before = second_member.keys
    second_member.way.cut = second_member.way.deaf = True
    deleted = asyncio.get_running_loop().time()
    await town.leases.delete(key_of(second_member), purge=purge)
    await eventually(lambda: first_member.keys >= keys_before)
    assert asyncio.get_running_loop().time() - deleted >= 0.85 * TTL_S
    assert caplog.text.count("member records were deleted or are invalid") == 1
    second_member.way.cut = second_member.way.deaf = False
    await eventually(lambda: town.shared(first_member, second_member))


@pytest.mark.parametrize("value", [b"?", b"{}", b'{"holder": "x", "since": "", "ttlS": 0}'])
async def test_an_overwritten_record_counts_as_a_member_until_it_expires(
    town: Town, value: bytes
) -> None:
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    keys_before, revision = (
        second_member.keys,
        (await town.leases.get(key_of(second_member))).revision,
    )
    second_member.way.cut = second_member.way.deaf = True
    written = asyncio.get_running_loop().time()
    await town.leases.update(key_of(second_member), value, revision=revision)
    await eventually(lambda: first_member.keys >= keys_before)
    assert asyncio.get_running_loop().time() - written >= 0.85 * TTL_S
    second_member.way.cut = second_member.way.deaf = False
    await eventually(lambda: town.shared(first_member, second_member))


async def test_a_member_that_joins_after_a_record_was_deleted_waits(
    town: Town,
) -> None:
    first_member = town.join("one")
    await eventually(lambda: town.shared(first_member))
    first_member.way.cut = first_member.way.deaf = True
    await town.leases.delete(key_of(first_member))
    joined = asyncio.get_running_loop().time()
    second_member = town.join("two")
    await eventually(lambda: town.shared(second_member))
    assert asyncio.get_running_loop().time() - joined >= 0.85 * TTL_S


async def test_a_member_that_joins_a_recreated_bucket_waits_if_others_may_work(
    town: Town,
) -> None:
    vacancy = FirstCallerVacant()
    first_member = town.join("one", vacant=vacancy.of)
    await eventually(lambda: town.shared(first_member))
    assert asyncio.get_running_loop().time() < TTL_S / 2  # the first process does not wait
    first_member.way.cut = first_member.way.deaf = True
    town.leases.recreate()
    joined = asyncio.get_running_loop().time()
    second_member = town.join("two", vacant=vacancy.of)
    await eventually(lambda: town.shared(second_member))
    assert asyncio.get_running_loop().time() - joined >= 0.85 * TTL_S


async def test_a_member_that_joins_a_recreated_bucket_waits_for_members_that_no_record_names(
    town: Town,
) -> None:
    vacancy = FirstCallerVacant()
    first_member, second_member = (town.join(name, vacant=vacancy.of) for name in ("one", "two"))
    await eventually(lambda: town.shared(first_member, second_member))
    first_member.way.cut = first_member.way.deaf = True
    town.leases.recreate()
    lost = asyncio.get_running_loop().time()
    await eventually(town.leases.keys)  # the second member has joined again
    third_member = town.join("three", vacant=vacancy.of)
    await eventually(lambda: town.shared(second_member, third_member))
    assert asyncio.get_running_loop().time() - lost >= 0.7 * TTL_S


async def test_a_member_that_joins_a_group_of_proven_members_does_not_wait(town: Town) -> None:
    vacancy = FirstCallerVacant()
    first_member = town.join("one", vacant=vacancy.of)
    await eventually(lambda: town.shared(first_member))
    joined = asyncio.get_running_loop().time()
    second_member = town.join("two", vacant=vacancy.of)
    await eventually(lambda: town.shared(first_member, second_member))
    third_member = town.join("three", vacant=vacancy.of)
    await eventually(lambda: town.shared(first_member, second_member, third_member))
    assert asyncio.get_running_loop().time() - joined <= 0.2 * TTL_S


async def test_a_member_that_has_waited_proves_to_later_ones_that_no_other_works(
    town: Town,
) -> None:
    async def occupied(_name: str) -> bool:
        return False

    one = town.join("one", vacant=occupied)
    await eventually(lambda: town.shared(one))
    assert asyncio.get_running_loop().time() >= 0.85 * TTL_S
    await asyncio.sleep(TTL_S)
    joined = asyncio.get_running_loop().time()
    two = town.join("two", vacant=occupied)
    await eventually(lambda: town.shared(one, two))
    assert asyncio.get_running_loop().time() - joined <= 0.2 * TTL_S


async def test_members_that_lost_the_connection_together_join_again_without_a_wait(
    town: Town,
) -> None:
    vacancy = FirstCallerVacant()
    first_member, second_member = (town.join(name, vacant=vacancy.of) for name in ("one", "two"))
    await eventually(lambda: town.shared(first_member, second_member))
    first_member.way.cut = second_member.way.cut = True
    await asyncio.sleep(0.6 * TTL_S)
    assert not first_member.shard.state().works
    assert not second_member.shard.state().works
    first_member.way.cut = second_member.way.cut = False
    restored = asyncio.get_running_loop().time()
    await eventually(lambda: town.shared(first_member, second_member))
    assert asyncio.get_running_loop().time() - restored <= 0.3 * TTL_S


class FirstCallerVacant:
    """Reports the lease as vacant to the first caller only."""

    calls = 0

    async def of(self, _name: str) -> bool:
        self.calls += 1
        return self.calls == 1


def key_of(member: Member) -> str:
    identity = member.shard.state().identity
    return f"items.shards.{re.sub('[^A-Za-z0-9-]', '_', identity)}"


class Others(Items):
    """A controller with another name in the same bucket of leases."""

    name = "others"
    items = primary(kv(Item, bucket="others"))


async def test_members_of_another_controller_share_no_keys_with_ours(town: Town) -> None:
    make = shards(
        town.stores.store,
        LEASES.bucket,
        ttl_s=TTL_S,
        clock=asyncio.get_running_loop().time,
    )
    other_controller = Others("stranger", town.floor, pause_s=1.0, again_s=None)
    other_operator = Operator([other_controller], nats=town.stores, shard=make)
    task = asyncio.create_task(other_operator.run())
    member = town.join("one")
    await eventually(lambda: town.shared(member) and other_operator.shards["others"].state().works)
    await asyncio.sleep(2 * TTL_S)
    states = [member.shard.state(), other_operator.shards["others"].state()]
    assert [len(state.members) for state in states] == [1, 1]
    other_operator.stop()
    await task


class OtherItems(Items):
    """A controller of another application with the same name."""

    name = "items"
    items = primary(kv(Item, bucket="others"))


async def test_members_of_another_application_do_not_share_keys_with_ours(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    first_member, second_member = town.join("one"), town.join("two")
    await eventually(lambda: town.shared(first_member, second_member))
    other_operator = Operator(
        [OtherItems("stranger", town.floor, pause_s=1.0, again_s=None)],
        nats=town.stores,
        shard=shards(
            town.stores.store,
            LEASES.bucket,
            ttl_s=TTL_S,
            clock=asyncio.get_running_loop().time,
        ),
    )
    task = asyncio.create_task(other_operator.run())
    await asyncio.sleep(5 * TTL_S)
    assert town.shared(first_member, second_member)
    state = other_operator.shards["items"].state()
    assert not state.works
    assert "runs another controller that is named items too: it works on Item.items" in (
        state.trouble
    )
    assert caplog.text.count("this process shares no keys error=") == 1

    async def has_left() -> bool:
        return (state.identity, True) in [
            (record.holder, record.left) for record in await town.records()
        ]

    await eventually(has_left)
    await first_member.stop()
    await second_member.stop()
    await eventually(lambda: other_operator.shards["items"].state().works, within_s=100)
    assert other_operator.shards["items"].state().trouble == ""
    other_operator.stop()
    await task


async def test_one_of_two_applications_that_start_together_works(town: Town) -> None:
    clock = asyncio.get_running_loop().time
    make = shards(town.stores.store, LEASES.bucket, ttl_s=TTL_S, clock=clock)
    others = OtherItems("stranger", town.floor, pause_s=1.0, again_s=None)
    other_operator = Operator([others], nats=town.stores, shard=make)
    member = town.join("one")
    task = asyncio.create_task(other_operator.run())
    await asyncio.sleep(3 * TTL_S)
    states = [member.shard.state(), other_operator.shards["items"].state()]
    assert sorted(state.works for state in states) == [False, True]
    other_operator.stop()
    await task


@pytest.mark.parametrize(
    ("ttl_s", "reason"), [(0.5, "too short"), (float("nan"), "too short"), (3601, "too long")]
)
async def test_a_time_to_live_below_a_second_or_above_an_hour_is_refused(
    ttl_s: float, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        shards(MemoryStores().store, LEASES.bucket, ttl_s=ttl_s)
