"""Who has which shares: the rules one by one, and processes in virtual time that follow them."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Any

import msgspec
import pytest

from natsctl import kv
from natsctl.core.coordination.lease import (
    BUCKET,
    WAIT,
    Lease,
    Record,
    SessionHeartbeat,
    Workload,
    heartbeat_key,
    record_key,
)
from natsctl.core.coordination.shares import Participation, Shares
from natsctl.core.coordination.term import SHARES, Leadership, keys_in
from natsctl.errors import ConflictError
from natsctl.testing import MemoryStores
from tests.support.controllers.sharing_group import Way, WayStore
from tests.support.eventually import eventually

NAME, TTL_S = "apps", 10.0
WAIT_S = WAIT * TTL_S
KEY = record_key(NAME)
HALF = (1 << 128) - 1
EVERY = (1 << SHARES) - 1


def record(epoch: int, count: int = SHARES, **members: int) -> bytes:
    masks = {session: f"{mask:x}" for session, mask in members.items()}
    return msgspec.json.encode(Record(epoch, count, masks))


def heartbeat(session: str, *, seen: int = 100, ready: bool = True, over: bool = False) -> bytes:
    beat = SessionHeartbeat(session, TTL_S, SHARES, seen=seen, ready=ready, over=over)
    return msgspec.json.encode(beat)


class Process:
    """The rules of one process, whose own heartbeats come back as soon as they are sent."""

    def __init__(self, count: int = SHARES, **shown: tuple[bytes, int]) -> None:
        self.lease = Lease(NAME, "me", TTL_S)
        self.shares = Shares(NAME, self.lease, count)
        self.now = 1000.0
        listed = {heartbeat_key(NAME, name): seen for name, seen in shown.items() if name != "it"}
        if "it" in shown:
            listed[KEY] = shown["it"]
        self.shares.see_list(listed, self.now)
        self.beat()

    @property
    def me(self) -> str:
        return self.lease.session

    def beat(self) -> None:
        value = self.lease.renew(self.now, self.shares.heartbeat(self.now))
        self.shares.see(self.lease.key, msgspec.json.encode(value), 1000, self.now)

    def see(self, value: bytes | None, revision: int, session: str = "") -> None:
        key = heartbeat_key(NAME, session) if session else KEY
        self.shares.see(key, value, revision, self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass, in which this process renews its heartbeat."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 0.15 * TTL_S, until)
            self.beat()

    def change(self, busy: int = 0) -> dict[str, int] | None:
        """Return the masks that the process wants to write."""
        wanted = self.shares.change(self.now, busy)
        if wanted is None:
            return None
        return {session: int(mask, 16) for session, mask in wanted.members.items()}

    @property
    def works(self) -> int:
        return self.shares.works(self.now)


def owning(mask: int = EVERY, **others: int) -> Process:
    """Return a process that has shares by the record at revision 6."""
    process = Process(it=(record(1), 5))
    process.see(record(2, **{process.me: mask}, **others), 6)
    return process


def test_a_process_takes_free_shares_up_to_its_part() -> None:
    process = Process(it=(record(1), 5))
    assert process.change() == {process.me: EVERY}
    process.see(heartbeat("other"), 6, "other")
    wanted = process.change()
    assert wanted is not None
    assert wanted[process.me].bit_count() == 128


def test_a_share_is_worked_on_once_the_record_came_back_and_while_heartbeats_do() -> None:
    assert Process(it=(record(1), 5)).works == 0
    process = owning(HALF)
    assert process.works == HALF
    process.now += 0.4 * TTL_S
    assert process.works == HALF
    process.now += 0.4 * TTL_S
    assert process.works == 0
    process.beat()
    assert process.works == 0  # it is over for good


def test_a_released_share_waits_for_a_newer_record_whatever_the_answer() -> None:
    process = owning()
    process.see(heartbeat("other"), 7, "other")
    released = process.shares.change(process.now, 0)
    assert released is not None
    process.shares.asked(released)
    assert process.works.bit_count() == 128
    process.see(heartbeat("other", over=True), 8, "other")
    assert process.shares.change(process.now, 0) == released  # it may be lost: sent again
    process.see(record(3, **{process.me: EVERY}), 9)  # another change came first
    assert process.works == EVERY


def test_a_share_is_given_up_only_after_its_syncs() -> None:
    process = owning()
    process.see(heartbeat("other"), 7, "other")
    assert process.change(busy=EVERY) is None
    assert process.shares.giving.bit_count() == 128
    busy = process.shares.giving & -process.shares.giving
    wanted = process.change(busy=busy)
    assert wanted is not None
    assert wanted[process.me].bit_count() == 129
    assert wanted[process.me] & busy


def test_a_silent_session_is_ended_before_its_shares_are_taken() -> None:
    process = Process(it=(record(4, other=HALF), 5), other=(heartbeat("other"), 4))
    process.wait(WAIT_S - 0.1)
    assert process.shares.to_end(process.now) == []
    process.see(heartbeat("other"), 4, "other")  # another list has it again
    process.wait(0.2)
    assert [silent.revision for silent in process.shares.to_end(process.now)] == [4]
    assert (process.change() or {}).get("other") == HALF
    process.see(heartbeat("other", over=True), 9, "other")
    assert process.change() == {process.me: EVERY}


@pytest.mark.parametrize("message", [heartbeat("other", ready=False), b"garbled", None])
def test_any_message_of_a_heartbeat_restarts_the_wait(message: bytes | None) -> None:
    process = Process(it=(record(4, other=HALF), 5), other=(heartbeat("other"), 4))
    process.wait(WAIT_S - 0.1)
    process.see(message, 9, "other")
    process.wait(WAIT_S - 0.1)
    assert process.shares.to_end(process.now) == []
    process.wait(0.2)
    (silent,) = process.shares.to_end(process.now)
    assert (silent.revision, silent.exists) == (9, message is not None)


def test_a_session_without_a_heartbeat_is_ended_after_the_wait() -> None:
    process = Process(it=(record(4, other=EVERY), 5))
    assert process.shares.to_end(process.now) == []
    process.wait(WAIT_S + 0.1)
    assert [silent.session for silent in process.shares.to_end(process.now)] == ["other"]


@pytest.mark.parametrize("damage", [None, b"?", record(2), record(4), record(5, 64)])
def test_damage_of_the_record_stops_the_work_and_it_is_made_again_after_the_wait(
    damage: bytes | None,
) -> None:
    process = Process(it=(record(1), 5))
    process.see(record(4, **{process.me: EVERY}), 6)
    assert process.works == EVERY
    process.see(damage, 7)
    assert process.works == 0
    process.wait(WAIT_S - 0.1)
    assert process.shares.make_again(process.now) is None
    assert process.change() is None
    process.wait(0.2)
    again = process.shares.make_again(process.now)
    assert again is not None
    assert again.epoch == 5
    process.see(msgspec.json.encode(again), 8)
    assert process.shares.good


def test_a_record_that_was_put_back_keeps_its_owners() -> None:
    process = Process(it=(record(4), 6))
    process.see(record(3, other=HALF), 7)
    process.wait(WAIT_S + 0.1)
    again = process.shares.make_again(process.now)
    assert again is not None
    assert again.members == {"other": f"{HALF:x}"}


def test_the_same_message_again_is_no_damage() -> None:
    process = owning()
    process.see(record(2, **{process.me: EVERY}), 6)
    own = process.lease.renew(process.now, process.shares.heartbeat(process.now))
    shown = {KEY: (record(2, **{process.me: EVERY}), 6)}
    shown[process.lease.key] = msgspec.json.encode(own), 1001
    process.shares.see_list(shown, process.now)
    assert process.works == EVERY


def test_a_new_process_waits_for_sessions_that_may_know_a_newer_record() -> None:
    process = Process(it=(record(4), 50), other=(heartbeat("other", seen=40), 49))
    assert process.change() is None
    process.see(heartbeat("other", seen=50), 51, "other")
    assert process.change() is not None


def test_a_new_process_waits_no_longer_than_a_session_may_live() -> None:
    process = Process(it=(record(4), 50), other=(heartbeat("other", seen=40), 49))
    process.wait(WAIT_S - 0.1)
    assert process.change() is None
    process.wait(0.2)
    assert process.change() is not None
    own = process.lease.renew(process.now, process.shares.heartbeat(process.now))
    shown = {KEY: (record(4), 50), heartbeat_key(NAME, "other"): (heartbeat("other", seen=40), 49)}
    shown[process.lease.key] = msgspec.json.encode(own), 1001
    process.shares.see_list(shown, process.now)
    assert process.change() is not None  # only after the first list


def test_the_session_that_a_process_had_before_is_ended_at_once() -> None:
    process = Process(it=(record(1), 5))
    former = process.me
    process.lease = Lease(NAME, "me", TTL_S)
    process.shares.begin_again(process.lease)
    process.beat()
    assert [other.session for other in process.shares.to_end(process.now)] == [former]


def test_shares_go_to_sessions_that_can_read_their_objects() -> None:
    process = owning(HALF, other=EVERY & ~HALF)
    process.see(heartbeat("other"), 7, "other")
    process.shares.unreadable = 0b11
    assert process.change() == {process.me: HALF & ~0b11, "other": EVERY & ~HALF}
    beat = SessionHeartbeat("other", TTL_S, SHARES, ready=True, unreadable="3")
    process.see(msgspec.json.encode(beat), 8, "other")
    assert process.change() is None  # nobody can read them


def test_a_process_takes_what_no_other_can_read_above_its_part() -> None:
    process = owning(HALF, other=EVERY & ~HALF & ~(0b11 << 130))
    beat = SessionHeartbeat("other", TTL_S, SHARES, ready=True, unreadable=f"{0b11 << 130:x}")
    process.see(msgspec.json.encode(beat), 7, "other")
    wanted = process.change()
    assert wanted is not None
    assert wanted[process.me] == HALF | 0b11 << 130


def test_daemons_in_different_modes_and_of_other_controllers_keep_out() -> None:
    process = Process(count=1, it=(record(4, other=HALF), 5), other=(heartbeat("other"), 4))
    assert "other shares its keys" in process.shares.refused()
    assert process.change() is None
    stranger = Record(5, 1, {"other": "1"}, Workload("Site.sites"))
    process.shares.workload = Workload("App.apps")
    process.see(msgspec.json.encode(stranger), 6)
    assert "another controller that is named apps" in process.shares.refused()
    process.see(heartbeat("other", over=True), 7, "other")
    assert process.shares.refused() == ""
    assert process.change() == {process.me: 1}


def test_processes_of_version_0_2_are_waited_for_and_stop_the_work_of_this_one() -> None:
    process = owning(HALF)
    former = b'{"holder": "old:1:aa", "since": "", "ttlS": 15, "members": ["old:1:aa"]}'
    for value in (former, None):
        process.shares.see("apps.shards.old", value, 7, process.now)
        assert process.works == (0 if value else HALF)
        assert (process.change() is None) is bool(value)
        waits = "old:1:aa runs apps with version 0.2" in process.shares.refused()
        assert waits is bool(value)


def test_keys_are_spread_evenly_over_the_shares() -> None:
    holds = keys_in(HALF)
    held = sum(holds(f"shop-{number}") for number in range(10_000))
    assert 4_800 < held < 5_200
    assert keys_in(EVERY)("a")
    assert not keys_in(0)("a")


def calls_of(function: Callable[[str], object]) -> list[str]:
    """Return the names of the functions that are called to look up a key."""
    calls = []

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event in {"call", "c_call"}:
            calls.append(frame.f_code.co_name if event == "call" else called.__name__)

    sys.setprofile(note)
    function("shop-1")
    sys.setprofile(None)
    return calls[:-1]  # without the end of the measurement


def test_a_look_up_of_a_keys_owner_is_one_checksum() -> None:
    leadership = Leadership("apps", lambda: 0.0, SHARES)
    leadership.begin(1, until=1.0, mask=HALF)
    assert calls_of(keys_in(HALF)) == ["<lambda>", "encode", "crc32"]
    assert calls_of(leadership.keeps) == ["keeps", "encode", "crc32"]
    assert calls_of(keys_in(EVERY)) == ["every_key"]


# ---- processes


class World:
    """Processes that elect a leader over one bucket."""

    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.leases = self.stores.store(kv(bytes, bucket=BUCKET, history=1))
        self.ways: list[Way] = []
        self.parts: list[Participation] = []

    @asynccontextmanager
    async def process(self, count: int = 1) -> AsyncIterator[Participation]:
        clock, way, ended = asyncio.get_running_loop().time, Way(), asyncio.Event()
        part = Participation(
            lambda kind: WayStore(self.stores, kind, way),
            NAME,
            "",
            count=count,
            ttl_s=TTL_S,
            clock=clock,
        )
        synced = asyncio.Event()
        synced.set()
        self.ways.append(way)
        self.parts.append(part)

        async def work() -> None:
            await ended.wait()

        task = asyncio.create_task(part.during(work, synced))
        try:
            yield part
        finally:
            way.cut = way.deaf = False
            ended.set()
            await task

    @property
    def leaders(self) -> int:
        return sum(part.leadership.leads for part in self.parts)


async def took(world: World, old: Participation) -> float:
    """Return the seconds until another process leads; there's never more than one."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    while not any(part.leadership.leads for part in world.parts if part is not old):
        assert world.leaders <= 1
        assert clock() - begun < 5 * TTL_S
        await asyncio.sleep(0.01)
    assert world.leaders == 1
    return clock() - begun


@pytest.mark.parametrize(("fault", "within_s"), [("cut", TTL_S), ("deaf", 2 * TTL_S)])
async def test_a_leader_without_its_server_is_followed_once_it_has_stepped_down(
    fault: str, within_s: float
) -> None:
    world = World()
    async with world.process() as one, world.process():
        await eventually(lambda: one.leadership.leads)
        await asyncio.sleep(7.3)
        setattr(world.ways[0], fault, True)
        assert await took(world, one) <= within_s


@pytest.mark.parametrize("fault", ["deleted", "purged", "garbled", "put back", "recreated"])
async def test_a_damaged_record_never_has_two_leaders_and_one_is_back_in_time(fault: str) -> None:
    world = World()
    async with world.process() as one, world.process():
        await eventually(lambda: one.leadership.leads)
        await asyncio.sleep(3.3)
        stored = await world.leases.get(KEY)
        match fault:
            case "deleted" | "purged":
                await world.leases.delete(KEY, purge=fault == "purged")
            case "garbled":
                await world.leases.update(KEY, b"?", revision=stored.revision)
            case "put back":
                await world.leases.update(KEY, record(1, 1), revision=stored.revision)
            case _:
                world.leases.recreate()
        await eventually(lambda: world.leaders == 0)
        await eventually(lambda: world.leaders > 0, within_s=2 * TTL_S)
        assert world.leaders == 1


async def test_a_deleted_heartbeat_is_written_again_without_a_pause() -> None:
    world = World()
    async with world.process() as one, world.process():
        await eventually(lambda: one.leadership.leads)
        for key in world.leases.keys():  # noqa: SIM118 - a store is not a dict
            if key != KEY:
                await world.leases.delete(key)
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert one.leadership.leads


async def test_a_clock_jump_ends_the_term_and_the_process_begins_again() -> None:
    world = World()
    async with world.process() as one:
        await eventually(lambda: one.leadership.leads)
        session = one.state().identity
        asyncio.get_running_loop().jump(TTL_S)  # type: ignore[attr-defined]  # virtual time
        assert not one.leadership.leads
        await eventually(lambda: one.leadership.leads, within_s=0.5)
        assert one.state().identity != session


async def test_members_join_and_leave_without_a_pause_of_the_whole() -> None:
    world = World()
    async with world.process(SHARES) as one, world.process(SHARES) as two:
        await eventually(lambda: one.state().shares and not one.state().moving)
        async with world.process(SHARES) as three:
            await eventually(lambda: len(three.state().members) == 3, within_s=1.0)
            await eventually(lambda: not three.state().moving)
            assert sorted(three.state().shares.values()) == [84, 86, 86]
        await eventually(lambda: len(one.state().members) == 2, within_s=1.0)
        await eventually(lambda: one.leadership.mask | two.leadership.mask == EVERY)


def test_silence_counts_from_when_the_record_names_a_session() -> None:
    process = Process(it=(record(4), 5), other=(heartbeat("other"), 4))
    process.wait(WAIT_S - 0.1)
    process.see(record(5, other=EVERY), 6)
    process.wait(0.2)
    assert process.shares.to_end(process.now) == []
    process.wait(WAIT_S)
    assert len(process.shares.to_end(process.now)) == 1


@pytest.mark.parametrize("turns", range(12))
async def test_a_decision_does_not_replace_a_record_that_is_seen_before_it_is_sent(
    turns: int,
) -> None:
    world = World()
    async with world.process(SHARES) as one:
        await eventually(lambda: one.leadership.mask == EVERY)
        await asyncio.sleep(1.0)
        epoch, stored = one.leadership.epoch, await world.leases.get(KEY)
        await world.leases.create(heartbeat_key(NAME, "other"), heartbeat("other"))
        for _ in range(turns):  # somewhere on the way it decides to give up a half
            await asyncio.sleep(0)
        newer = msgspec.json.decode(stored.value, type=Record)
        newer = msgspec.structs.replace(newer, epoch=newer.epoch + 1)
        with suppress(ConflictError):  # its release was first
            await world.leases.update(KEY, msgspec.json.encode(newer), revision=stored.revision)
        await asyncio.sleep(1.0)
        assert one.leadership.epoch == epoch  # no record that it took for damaged


async def test_an_end_mark_does_not_replace_a_heartbeat_that_is_seen_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, key, to_end = World(), heartbeat_key(NAME, "other"), Shares.to_end
    sent: list[asyncio.Future[Any]] = []
    await world.leases.create(KEY, record(1, other=HALF))
    await world.leases.create(key, heartbeat("other"))
    alive = heartbeat("other", seen=101)

    def then_hear(shares: Shares, now: float) -> list[Any]:
        silent = to_end(shares, now)
        if silent and not sent:
            sent.append(asyncio.ensure_future(world.leases.update(key, alive, revision=2)))
            revision = max(stored.revision for stored in world.leases.stored()) + 1
            asyncio.get_running_loop().call_soon(shares.see, key, alive, revision, now)
        return silent

    async with world.process(SHARES):
        monkeypatch.setattr(Shares, "to_end", then_hear)
        await eventually(lambda: bool(sent), within_s=2 * TTL_S)
        await asyncio.sleep(1.0)
        assert (await world.leases.get(key)).value == alive


async def test_a_leader_of_version_0_2_is_waited_for_and_stops_this_process() -> None:
    world, former = World(), b'{"holder": "old:1:aa", "since": "", "ttlS": 15}'
    await world.leases.create(NAME, former)
    async with world.process() as one:
        await asyncio.sleep(TTL_S)
        assert not one.leadership.leads
        assert "old:1:aa runs apps with version 0.2" in one.state().trouble
        await world.leases.delete(NAME)
        await eventually(lambda: one.leadership.leads, within_s=0.2 * TTL_S)
        await world.leases.create(NAME, former)
        await eventually(lambda: not one.leadership.leads, within_s=0.2 * TTL_S)
