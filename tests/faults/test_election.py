"""Leader election between processes survives kills, pauses, disconnections and hand-overs."""

import asyncio
import random
import signal
from pathlib import Path

import msgspec
import pytest

from tests.support.clients.nats_admin import Admin, Entry
from tests.support.controllers.sync_log import PAUSE_S, Book, Overlap, Record
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import no_consumers
from tests.support.faults.process_group import Member, ProcessGroup, processes
from tests.support.servers.nats_server import NatsServer

LEASES, RECORD = "natsctl_leases", "turns.record"
TOO_LATE = "reason='the lease could not be renewed in time'"
LONG_TTL_S = 30.0  # a leader that is stopped for ten seconds keeps its lease


async def leader_and_standby(group: ProcessGroup) -> tuple[Member, Member]:
    """Return the leader and the standby.

    The leader may change at any time: it loses its lease if the machine stops it for too long.
    """
    leader = await group.leader()
    (standby,) = (member for member in group.members if member is not leader)
    return leader, standby


async def test_a_leader_takes_no_step_when_it_lost_its_lease_and_leaves_none_when_it_stops(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        processes(2, nats_server, tmp_path, ttl_s=2) as group,
        Admin(nats_server.url) as admin,
    ):
        for fault in ("paused", "cut", "frozen"):
            await lose_the_lease(group, fault)
        leader, standby = await leader_and_standby(group)
        assert await leader.end(signal.SIGTERM) == 0
        await group.progress(standby)
        assert await standby.end(signal.SIGTERM) == 0
        await eventually(lambda: no_consumers(admin))
        await eventually(lambda: no_lease(admin), every_s=0.3)


async def lose_the_lease(group: ProcessGroup, fault: str) -> None:
    leader, standby = await leader_and_standby(group)
    terms, seen = leader.terms, len(leader.log)
    async with leader.away(fault):
        await group.progress(standby)
        if fault != "paused":
            await eventually(lambda: TOO_LATE in leader.log[seen:])
        back = asyncio.get_running_loop().time()  # on the clock of all processes
    await eventually(lambda: "standing by" in leader.log[seen:])
    await group.progress(leader, standby)
    assert "lost leadership" in leader.log[seen:]
    own = (record for record in group.book.records() if record.pid == leader.pid)
    taken = {record.what for record in own if record.at > back}
    assert taken <= {"end"} or leader.terms > terms


async def test_the_leader_keeps_its_lease_while_a_standby_or_the_server_is_away(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        processes(2, nats_server, tmp_path, ttl_s=LONG_TTL_S) as group,
        Admin(nats_server.url) as admin,
    ):
        leader, standby = group.members
        async with standby.away("cut"):
            await eventually(lambda: "lease out of reach" in standby.log)
            await group.progress(leader)
        await group.progress(leader)
        before = await heartbeats(admin)
        nats_server.kill()
        await nats_server.start()
        await group.progress(leader)
        await eventually(lambda: all_renewed(admin, before), every_s=0.3)
        assert standby.begun() == 0
        assert "lost leadership" not in leader.log
        assert leader.terms == 1


FAULTS = ("deleted", "purged", "garbled", "emptied", "heartbeats", "stream purged", "dropped")


async def test_manual_changes_of_the_lease_never_cause_two_leaders(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """The group's log shows overlaps; `test_shares.py` checks in virtual time how long it takes."""
    async with (
        processes(3, nats_server, tmp_path, ttl_s=3.0) as group,
        Admin(nats_server.url) as admin,
    ):
        for fault in FAULTS:
            leader = await group.leader()
            other = next(member for member in group.members if member is not leader)
            assert await other.end(signal.SIGTERM) == 0
            starting = asyncio.create_task(other.start())  # it knows nothing of the lease
            await change_lease(admin, fault)
            await starting
            await group.progress(*group.members)
            group.check()


async def change_lease(admin: Admin, fault: str) -> None:
    """Change the lease as an administrator might."""
    match fault:
        case "deleted":
            await admin.delete(LEASES, RECORD)
        case "purged":
            headers = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
            await admin.request(f"$KV.{LEASES}.{RECORD}", b"", headers)
        case "garbled":
            await admin.put(LEASES, RECORD, {"epoch": "x", "members": []})
        case "emptied":
            await admin.put(LEASES, RECORD, {"epoch": 1, "shares": 1, "members": {}})
        case "heartbeats":
            for key in await heartbeats(admin):
                await admin.delete(LEASES, key)
        case "stream purged":
            await admin.purge(LEASES)
        case _:
            await admin.drop(LEASES)


ENDS = {"terminated": (signal.SIGTERM, 0), "killed": (signal.SIGKILL, -signal.SIGKILL)}
WAYS = (*ENDS, "paused", "cut", "frozen")


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
async def test_many_changes_of_leader_cause_no_overlap(
    nats_server: NatsServer, tmp_path: Path, times: int
) -> None:
    ways = [way for way in WAYS for _ in range(times)]
    random.Random(1).shuffle(ways)
    leaders = set()
    async with processes(3, nats_server, tmp_path, ttl_s=2) as group:
        for way in ways:
            leader = await group.leader()
            leaders.add(leader)
            if way in ENDS:
                sent, status = ENDS[way]
                assert await leader.end(sent) == status
                await group.leader(other_than=leader)
                await leader.start()
            else:
                async with leader.away(way):
                    await group.leader(other_than=leader)
            group.check()
    assert len(leaders) > 1


async def heartbeats(admin: Admin) -> dict[str, Entry]:
    """Return the heartbeats of all sessions, by key."""
    entries = await admin.entries(LEASES)
    return {key: entry for key, entry in entries.items() if key != RECORD}


async def all_renewed(admin: Admin, before: dict[str, Entry]) -> bool:
    now = await heartbeats(admin)
    return all(key in now and now[key].revision > before[key].revision for key in before)


async def no_lease(admin: Admin) -> bool:
    """Return whether the bucket names no leader, and holds no heartbeat."""
    entries = await admin.entries(LEASES)
    return set(entries) == {RECORD} and not msgspec.json.decode(entries[RECORD].value)["members"]


@pytest.mark.parametrize(
    "records",
    [
        ["1 begin", "2 begin", "1 step"],
        ["1 begin", "1 end", "1 step"],
        ["3 begin 1", "2 begin 2", "3 step 3"],
        ["3 begin 1", "2 begin 2", "2 end 3", "3 step 2.5"],
    ],
)
def test_the_sync_log_detects_overlaps(tmp_path: Path, records: list[str]) -> None:
    with pytest.raises(Overlap):
        log_with(tmp_path, records).check()


@pytest.mark.parametrize(
    "records",
    [
        ["1 begin", "1 step", "1 end", "3 begin", "2 begin", "3 end", "2 step", "2 end"],
        ["3 begin 1", "2 begin 2.5", "3 step 2.4", "3 end 3", "2 step 4"],
        ["2 begin 2.5", "3 begin 2.4", "2 step 2.6"],
    ],
)
def test_the_sync_log_excuses_what_a_loop_had_begun_before_the_other(
    tmp_path: Path, records: list[str]
) -> None:
    log_with(tmp_path, records).check()


def log_with(folder: Path, records: list[str]) -> Book:
    book = Book(folder / "records")
    parts = [(*record.split(), str(second)) for second, record in enumerate(records)]
    lines = [Record(int(pid), event, "k", float(at)) for pid, event, at, *_ in parts]
    book.path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return book


@pytest.mark.parametrize(
    ("options", "former"),
    [
        pytest.param(("--leader-elect",), "turns", id="leader"),
        pytest.param(("--shard",), "turns.shards.old", id="member"),
    ],
)
async def test_daemons_stop_beside_one_of_version_0_2_and_go_on_when_it_is_gone(
    nats_server: NatsServer, tmp_path: Path, options: tuple[str, ...], former: str
) -> None:
    """What that version stores is written by hand: it sees no record of newer ones."""
    stored = {"holder": "old:1:aa", "since": "2026-01-01T00:00:00Z", "ttlS": 15}
    refused = "old:1:aa runs turns with version 0.2: stop all its daemons of that version first"
    async with (
        processes(2, nats_server, tmp_path, ttl_s=6, options=options) as group,
        Admin(nats_server.url) as admin,
    ):
        lost = "lost leadership" if "--leader-elect" in options else "stopped sharing keys"
        await group.leader()
        await admin.put(LEASES, former, stored)
        await eventually(lambda: all(refused in member.log for member in group.members))
        await eventually(lambda: any(lost in member.log for member in group.members))
        since = group.recorded
        await asyncio.sleep(10 * PAUSE_S)
        assert not any(member.begun(since) for member in group.members)
        await admin.delete(LEASES, former)
        await group.progress(*group.members)
