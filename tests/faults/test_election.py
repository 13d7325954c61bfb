"""Processes that elect a leader: killed, stopped, cut off, without a server, handed over."""

import asyncio
import random
import signal
import time
from pathlib import Path

import msgspec
import pytest

from tests.support.clients.nats_admin import Admin
from tests.support.controllers.sync_log import Book, Overlap, Record
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import no_consumers
from tests.support.faults.process_group import Crew, crew_of
from tests.support.servers.nats_server import NatsServer


async def test_a_leader_that_is_killed_is_replaced_within_the_time_to_live(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(2, nats_server, tmp_path, ttl_s=10) as crew:
        one, two = crew.members
        await one.end(signal.SIGKILL)
        killed = time.monotonic()
        await eventually(lambda: "leading  controller=" in two.log)
        assert time.monotonic() - killed <= crew.ttl_s
        await crew.progress(two)


async def test_a_leader_that_was_stopped_for_too_long_does_not_sync_once_more(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(2, nats_server, tmp_path, ttl_s=2) as crew:
        one, two = crew.members
        one.pause()
        await crew.progress(two)
        since = crew.recorded
        one.resume()
        await eventually(lambda: "standing by" in one.log)
        await crew.progress(two, syncs=100)
        did = {at.what for at in crew.book.records()[since:] if at.pid == one.pid}
        assert did <= {"end"}
        assert "lost leadership" in one.log


@pytest.mark.parametrize("how", ["cut", "frozen"])
async def test_a_leader_that_is_cut_off_stops_before_another_leads(
    nats_server: NatsServer, tmp_path: Path, how: str
) -> None:
    async with crew_of(2, nats_server, tmp_path, ttl_s=3) as crew:
        one, two = crew.members
        if how == "cut":
            one.way.cut()
        else:
            one.way.freeze()
        await crew.progress(two)
        too_late = "reason='the lease could not be renewed in time'"
        await eventually(lambda: too_late in one.log)
        since = crew.recorded
        one.way.thaw()
        await one.way.heal()
        await eventually(lambda: one.log.count("standing by") > 0)
        await crew.progress(two, syncs=50)
        assert one.begun(since) == 0


async def test_a_standby_that_is_cut_off_changes_nothing(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(2, nats_server, tmp_path, ttl_s=15) as crew:
        one, two = crew.members
        two.way.cut()
        await eventually(lambda: "record out of reach" in two.log)
        await crew.progress(one, syncs=100)
        await two.way.heal()
        await crew.progress(one, syncs=100)
        assert two.begun() == 0
        assert "lost leadership" not in one.log


async def test_a_server_that_restarts_leaves_the_leader_what_it_is(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(2, nats_server, tmp_path, ttl_s=15) as crew:
        one, two = crew.members
        nats_server.kill()
        await nats_server.start()
        await crew.progress(one, syncs=50)
        assert two.begun() == 0
        assert "lost leadership" not in one.log
        assert one.log.count("leading  controller=") == 1


async def test_a_leader_that_is_told_to_stop_hands_over_and_leaves_nothing(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(2, nats_server, tmp_path, ttl_s=5) as crew, Admin(nats_server.url) as admin:
        one, two = crew.members
        assert await one.end(signal.SIGTERM) == 0
        await crew.progress(two)
        assert await two.end(signal.SIGTERM) == 0
        await eventually(lambda: no_consumers(admin))
        await eventually(lambda: no_lease(admin))


LEASES, LEASE = "natsctl_leases", "turns"


async def test_whatever_hands_do_to_the_lease_no_two_sync(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(3, nats_server, tmp_path, ttl_s=6) as crew, Admin(nats_server.url) as admin:
        one, two, _ = crew.members
        for how in ("deleted", "purged", "no claim", "stream purged", "bucket deleted"):
            assert await two.end(signal.SIGTERM) == 0
            starting = asyncio.create_task(two.start())  # it never saw the lease
            await meddle(admin, how)
            await starting
            await crew.progress(one, syncs=20)
        assert one.log.count("leading  controller=") == 1
        assert all("leading" not in other.log for other in crew.members[1:])


async def meddle(admin: Admin, how: str) -> None:
    """Do to the lease what no process does."""
    match how:
        case "deleted":
            await admin.delete(LEASES, LEASE)
        case "purged":
            headers = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
            await admin.request(f"$KV.{LEASES}.{LEASE}", b"", headers)
        case "no claim":
            await admin.put(LEASES, LEASE, {"holder": "x", "since": "", "ttlS": 0})
        case "stream purged":
            await admin.purge(LEASES)
        case _:
            await admin.drop(LEASES)


async def test_twenty_hand_overs(nats_server: NatsServer, tmp_path: Path) -> None:
    async with crew_of(3, nats_server, tmp_path, ttl_s=2) as crew:
        await hand_over(crew, times=20)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_hundred_hand_overs(nats_server: NatsServer, tmp_path: Path) -> None:
    async with crew_of(3, nats_server, tmp_path, ttl_s=2) as crew:
        await hand_over(crew, times=100)


async def hand_over(crew: Crew, *, times: int) -> None:
    """Take the leader away again and again, each time in another way."""
    chance = random.Random(times)
    leaders = set()
    for _ in range(times):
        leader = await crew.leader()
        leaders.add(leader)
        match chance.choice(("told", "killed", "cut", "frozen", "stopped")):
            case "told":
                assert await leader.end(signal.SIGTERM) == 0
                await crew.leader(other_than=leader)
                await leader.start()
            case "killed":
                await leader.end(signal.SIGKILL)
                await crew.leader(other_than=leader)
                await leader.start()
            case "cut":
                leader.way.cut()
                await crew.leader(other_than=leader)
                await leader.way.heal()
            case "frozen":
                leader.way.freeze()
                await crew.leader(other_than=leader)
                leader.way.thaw()
            case _:
                leader.pause()
                await crew.leader(other_than=leader)
                leader.resume()
        crew.check()
    assert len(leaders) > 1


async def no_lease(admin: Admin) -> bool:
    """Say whether the server has forgotten every lease."""
    return not await admin.entries("natsctl_leases")


@pytest.mark.parametrize(
    "records",
    [
        ["1 begin", "2 begin"],
        ["1 begin", "1 end", "1 step"],
        ["3 begin", "2 begin", "3 step"],
    ],
)
def test_the_book_sees_overlaps(tmp_path: Path, records: list[str]) -> None:
    book = written(tmp_path, records)
    with pytest.raises(Overlap):
        book.check(excused=frozenset({3}))


def test_the_book_finds_no_overlap_where_there_is_none(tmp_path: Path) -> None:
    records = ["1 begin", "1 step", "1 end", "3 begin", "2 begin", "3 end", "2 step", "2 end"]
    written(tmp_path, records).check(excused=frozenset({3}))


def written(folder: Path, records: list[str]) -> Book:
    book = Book(folder / "records")
    lines = [Record(int(pid), what, "k") for pid, what in map(str.split, records)]
    book.path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return book
