"""Processes that share a controller's keys: joined, left, killed, stopped, cut off, restarted."""

import asyncio
import math
import re
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.support.clients.nats_admin import Admin, NoMessage
from tests.support.controllers.sync_log import TURNS
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import no_consumers
from tests.support.faults.process_group import Crew, Member, crew_of
from tests.support.servers.nats_server import NatsServer

SHARD = ("--shard", "--workers", "8")
KEYS = [f"k{number}" for number in range(60)]
TTL_S = 6.0
WITHIN_S = 120.0
NEVER_S = 1e6
SIGMAS = 5.0


async def test_keys_go_on_evenly_whatever_happens_to_those_who_share_them(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(3, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS) as crew:
        one, two, three = crew.members
        await shared(crew, KEYS)

        async with Admin(nats_server.url) as admin:  # a fourth joins while keys are put
            putting = asyncio.create_task(put_slowly(admin, [f"new{at}" for at in range(20)]))
            four = await crew.join()
            await putting
        keys = [*KEYS, *(f"new{at}" for at in range(20))]
        await shared(crew, keys)

        assert await two.end(signal.SIGTERM) == 0
        await shared(crew, keys)

        await three.end(signal.SIGKILL)
        await shared(crew, keys)

        one.pause()
        await shared(crew, keys, four)
        since = crew.recorded
        one.resume()
        await eventually(lambda: "stopped sharing keys" in one.log, within_s=WITHIN_S)
        await shared(crew, keys, one, four)
        assert one.begun(since) > 0

        nats_server.kill()
        await nats_server.start()
        await shared(crew, keys, one, four)


async def test_one_that_is_cut_off_stops_before_others_have_its_keys(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(3, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS) as crew:
        one, two, three = crew.members
        await shared(crew, KEYS)
        two.way.freeze()
        await shared(crew, KEYS, one, three)
        assert "the member record could not be renewed in time" in two.log
        two.way.thaw()
        await shared(crew, KEYS)


async def test_a_bucket_of_leases_that_is_deleted_is_made_again_and_joined(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        crew_of(2, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS) as crew,
        Admin(nats_server.url) as admin,
    ):
        await shared(crew, KEYS)
        await admin.drop("natsctl_leases")
        for member in crew.members:
            await eventually(
                lambda member=member: "stopped sharing keys" in member.log,  # type: ignore[arg-type,misc]
                within_s=WITHIN_S,
            )
        await shared(crew, KEYS)


async def test_of_a_move_only_the_keys_that_move_are_visited(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(
        2, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS, again_s=NEVER_S
    ) as crew:
        await visited(crew, Counter(KEYS), since=0)
        had = {key: member for member in crew.members for key in member.visits()}
        since = crew.recorded
        three = await crew.join()
        await eventually(lambda: three.begun(since), within_s=WITHIN_S)
        await eventually(lambda: all(settled(each, 3) for each in crew.members))
        moved = await quiet(crew, since)
        assert set(moved) == set(three.visits(since))
        assert len(moved) < len(KEYS) / 2
        assert set(moved.values()) == {1}

        since = crew.recorded
        assert await three.end(signal.SIGTERM) == 0
        back = await quiet(crew, since, Counter(moved))
        assert back == moved
        assert {key: whose(crew, key, since) for key in back} == {key: had[key] for key in back}


async def test_who_is_told_to_stop_leaves_nothing(nats_server: NatsServer, tmp_path: Path) -> None:
    async with (
        crew_of(2, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS) as crew,
        Admin(nats_server.url) as admin,
    ):
        for member in crew.members:
            assert await member.end(signal.SIGTERM) == 0
        await eventually(lambda: no_consumers(admin))
        await eventually(lambda: no_record(admin))


async def no_record(admin: Admin) -> bool:
    """Say whether the server has forgotten every member."""
    with suppress(NoMessage):  # it forgets one while they are read
        return not await admin.entries("natsctl_leases")
    return False


async def put_slowly(admin: Admin, keys: list[str]) -> None:
    for key in keys:
        await admin.put(TURNS, key, {"spec": {}})
        await asyncio.sleep(0.05)


async def shared(crew: Crew, keys: list[str], *living: Member) -> None:
    """Wait until these, or all who run, visit all keys, each only its own, and each its share."""
    expected = living or tuple(each for each in crew.members if each.runs)
    since = crew.recorded

    def found() -> bool:
        nonlocal since
        visits = {each: each.visits(since) for each in crew.members}
        if {key for own in visits.values() for key in own} < set(keys):
            return False
        since = crew.recorded
        at = [set(own) for each, own in visits.items() if each in expected]
        others = [own for each, own in visits.items() if each not in expected and own]
        return not others and sum(map(len, at)) == len(keys) and all(map(bool, at))

    await eventually(found, within_s=WITHIN_S, every_s=0.1)
    await fair(crew, keys, expected)
    crew.check()


async def fair(crew: Crew, keys: list[str], living: tuple[Member, ...]) -> None:
    since = crew.recorded
    await eventually(lambda: {key for at in living for key in at.visits(since)} == set(keys))
    mean = len(keys) / len(living)
    spread = SIGMAS * math.sqrt(mean * (1 - 1 / len(living)))
    for member in living:
        assert abs(len(set(member.visits(since))) - mean) <= spread


def settled(member: Member, size: int) -> bool:
    return re.findall(r"sharing keys .*members=(\d+)", member.log)[-1] == str(size)


def counted(crew: Crew, since: int) -> Counter[str]:
    return Counter(key for member in crew.members for key in member.visits(since))


async def visited(crew: Crew, expected: Counter[str], since: int) -> None:
    await eventually(lambda: counted(crew, since) >= expected, within_s=WITHIN_S)


async def quiet(crew: Crew, since: int, expected: Counter[str] | None = None) -> Counter[str]:
    """Wait until nothing more is begun for a while; return what was, and how often."""
    if expected is not None:
        await visited(crew, expected, since)
    before = -1
    while before != crew.recorded:
        before = crew.recorded
        await asyncio.sleep(1)
    return counted(crew, since)


def whose(crew: Crew, key: str, since: int) -> Member:
    return next(member for member in crew.members if key in member.visits(since))
