"""Leader election between processes survives kills, pauses, disconnections and hand-overs."""

import asyncio
import random
import signal
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.support.clients.nats_admin import Admin, Entry, NoMessage
from tests.support.controllers.sync_log import PAUSE_S, Book, Overlap, Record
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import no_consumers
from tests.support.faults.process_group import Member, ProcessGroup, processes
from tests.support.servers.nats_server import NatsServer

LEASES, RECORD = "natsctl_leases", "turns.record"
LONG_TTL_S = 30.0  # a leader that is stopped for ten seconds keeps its lease


async def leader_and_standby(group: ProcessGroup) -> tuple[Member, Member]:
    """Return the leader and the standby.

    The leader may change at any time: it loses its lease if the machine stops it for too long.
    """
    leader = await group.leader()
    (standby,) = (member for member in group.members if member is not leader)
    return leader, standby


async def test_a_killed_leader_is_replaced(nats_server: NatsServer, tmp_path: Path) -> None:
    """The unit tests of the election check in virtual time that this takes at most the TTL."""
    async with processes(2, nats_server, tmp_path, ttl_s=3) as group:
        leader, standby = await leader_and_standby(group)
        await leader.end(signal.SIGKILL)
        await eventually(lambda: standby.terms)
        await group.progress(standby)


async def test_a_leader_paused_longer_than_the_ttl_begins_no_sync_when_it_resumes(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with processes(2, nats_server, tmp_path, ttl_s=2) as group:
        leader, standby = await leader_and_standby(group)
        terms, standbys = leader.terms, leader.log.count("standing by")
        leader.pause()
        await group.progress(standby)
        since = group.recorded
        leader.resume()
        await eventually(lambda: leader.log.count("standing by") > standbys)
        await group.progress(leader, standby, syncs=100)
        after_resume = {
            record.what for record in group.book.records()[since:] if record.pid == leader.pid
        }
        assert after_resume <= {"end"} or leader.terms > terms
        assert "lost leadership" in leader.log


@pytest.mark.parametrize("fault", ["cut", "frozen"])
async def test_a_disconnected_leader_stops_before_a_standby_leads(
    nats_server: NatsServer, tmp_path: Path, fault: str
) -> None:
    async with processes(2, nats_server, tmp_path, ttl_s=3) as group:
        leader, standby = await leader_and_standby(group)
        terms, standbys = leader.terms, leader.log.count("standing by")
        if fault == "cut":
            leader.proxy.cut()
        else:
            leader.proxy.freeze()
        await group.progress(standby)
        too_late = "reason='the lease could not be renewed in time'"
        await eventually(lambda: too_late in leader.log)
        since = group.recorded
        leader.proxy.thaw()
        await leader.proxy.heal()
        await eventually(lambda: leader.log.count("standing by") > standbys)
        await group.progress(leader, standby, syncs=50)
        assert leader.begun(since) == 0 or leader.terms > terms


async def test_a_disconnected_standby_does_not_disturb_the_leader(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with processes(2, nats_server, tmp_path, ttl_s=LONG_TTL_S) as group:
        leader, standby = group.members
        standby.proxy.cut()
        await eventually(lambda: "lease out of reach" in standby.log)
        await group.progress(leader, syncs=100)
        await standby.proxy.heal()
        await group.progress(leader, syncs=100)
        assert standby.begun() == 0
        assert "lost leadership" not in leader.log


async def test_the_leader_keeps_its_lease_over_a_restart_of_the_server(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        processes(2, nats_server, tmp_path, ttl_s=LONG_TTL_S) as group,
        Admin(nats_server.url) as admin,
    ):
        leader, standby = group.members
        before = await heartbeats(admin)
        nats_server.kill()
        await nats_server.start()
        await group.progress(leader, syncs=50)
        await eventually(lambda: all_renewed(admin, before))
        assert standby.begun() == 0
        assert "lost leadership" not in leader.log
        assert leader.terms == 1


async def test_a_stopped_leader_releases_its_lease_and_leaves_no_consumer(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        processes(2, nats_server, tmp_path, ttl_s=5) as group,
        Admin(nats_server.url) as admin,
    ):
        leader, standby = await leader_and_standby(group)
        assert await leader.end(signal.SIGTERM) == 0
        await group.progress(standby)
        assert await standby.end(signal.SIGTERM) == 0
        await eventually(lambda: no_consumers(admin))
        await eventually(lambda: no_lease(admin))


FAULTS = (
    "deleted",
    "purged",
    "garbled",
    "emptied",
    "heartbeats",
    "stream purged",
    "bucket deleted",
)


@pytest.mark.parametrize("fault", FAULTS)
async def test_manual_changes_of_the_lease_never_cause_two_leaders(
    nats_server: NatsServer, tmp_path: Path, fault: str
) -> None:
    """The group's log shows overlaps; `test_shares.py` checks in virtual time how long it takes."""
    async with (
        processes(3, nats_server, tmp_path, ttl_s=3.0) as group,
        Admin(nats_server.url) as admin,
    ):
        leader = await group.leader()
        other = next(member for member in group.members if member is not leader)
        assert await other.end(signal.SIGTERM) == 0
        starting = asyncio.create_task(other.start())  # it knows nothing of the lease
        await change_lease(admin, fault)
        await starting
        await group.progress(*group.members, syncs=50)


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


async def test_twenty_changes_of_leader_cause_no_overlap(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with processes(3, nats_server, tmp_path, ttl_s=2) as group:
        await change_leaders(group, times=20)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_hundred_changes_of_leader_cause_no_overlap(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with processes(3, nats_server, tmp_path, ttl_s=2) as group:
        await change_leaders(group, times=100)


async def change_leaders(group: ProcessGroup, *, times: int) -> None:
    """Stop or disconnect the leader repeatedly, each time in a random way."""
    chance = random.Random(times)
    leaders = set()
    for _ in range(times):
        leader = await group.leader()
        leaders.add(leader)
        match chance.choice(("terminated", "killed", "cut", "frozen", "stopped")):
            case "terminated":
                assert await leader.end(signal.SIGTERM) == 0
                await group.leader(other_than=leader)
                await leader.start()
            case "killed":
                await leader.end(signal.SIGKILL)
                await group.leader(other_than=leader)
                await leader.start()
            case "cut":
                group.excused |= {leader.pid}  # it must take no step, by its own clock
                leader.proxy.cut()
                await group.leader(other_than=leader)
                await leader.proxy.heal()
            case "frozen":
                group.excused |= {leader.pid}
                leader.proxy.freeze()
                await group.leader(other_than=leader)
                leader.proxy.thaw()
            case _:
                leader.pause()
                await group.leader(other_than=leader)
                leader.resume()
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
    with suppress(NoMessage):  # a heartbeat may expire during the read
        entries = await admin.entries(LEASES)
        return (
            set(entries) == {RECORD} and not msgspec.json.decode(entries[RECORD].value)["members"]
        )
    return False


@pytest.mark.parametrize(
    "records",
    [
        ["1 begin", "2 begin"],
        ["1 begin", "1 end", "1 step"],
        ["3 begin 1", "2 begin 2", "3 step 3"],
    ],
)
def test_the_sync_log_detects_overlaps(tmp_path: Path, records: list[str]) -> None:
    book = log_with(tmp_path, records)
    with pytest.raises(Overlap):
        book.check(excused=frozenset({3}))


def test_the_sync_log_reports_no_overlap_for_separate_syncs(tmp_path: Path) -> None:
    records = ["1 begin", "1 step", "1 end", "3 begin", "2 begin", "3 end", "2 step", "2 end"]
    log_with(tmp_path, records).check(excused=frozenset({3}))


def test_the_sync_log_excuses_what_the_loop_had_begun_before_the_other(tmp_path: Path) -> None:
    log_with(tmp_path, ["3 begin 1", "2 begin 2.5", "3 step 2.4"]).check(excused=frozenset({3}))


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
