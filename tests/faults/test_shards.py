"""Sharding survives processes that join, leave, crash, pause or lose their connection."""

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


async def test_keys_are_spread_evenly_after_joins_stops_kills_and_pauses(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(3, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS) as crew:
        one, two, three = crew.members
        await wait_until_shared(crew, KEYS)

        async with Admin(nats_server.url) as admin:  # a fourth member joins while keys are put
            putting = asyncio.create_task(
                put_slowly(admin, [f"new{number}" for number in range(20)])
            )
            four = await crew.join()
            await putting
        keys = [*KEYS, *(f"new{number}" for number in range(20))]
        await wait_until_shared(crew, keys)

        assert await two.end(signal.SIGTERM) == 0
        await wait_until_shared(crew, keys)

        await three.end(signal.SIGKILL)
        await wait_until_shared(crew, keys)

        one.pause()
        await wait_until_shared(crew, keys, four)
        since = crew.recorded
        one.resume()
        await eventually(lambda: "stopped sharing keys" in one.log, within_s=WITHIN_S)
        await wait_until_shared(crew, keys, one, four)
        assert one.begun(since) > 0

        nats_server.kill()
        await nats_server.start()
        await wait_until_shared(crew, keys, one, four)


async def test_a_disconnected_member_stops_before_others_get_its_keys(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(3, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS) as crew:
        one, two, three = crew.members
        await wait_until_shared(crew, KEYS)
        two.way.freeze()
        await wait_until_shared(crew, KEYS, one, three)
        assert "the member record could not be renewed in time" in two.log
        two.way.thaw()
        await wait_until_shared(crew, KEYS)


async def test_a_deleted_lease_bucket_is_recreated_and_members_join_again(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        crew_of(2, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS) as crew,
        Admin(nats_server.url) as admin,
    ):
        await wait_until_shared(crew, KEYS)
        await admin.drop("natsctl_leases")
        for member in crew.members:
            await eventually(
                lambda member=member: "stopped sharing keys" in member.log,  # type: ignore[arg-type,misc]
                within_s=WITHIN_S,
            )
        await wait_until_shared(crew, KEYS)


async def test_a_rebalance_syncs_only_the_keys_that_move(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with crew_of(
        2, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS, again_s=NEVER_S
    ) as crew:
        await wait_for_syncs(crew, Counter(KEYS), since=0)
        former_member = {key: member for member in crew.members for key in member.visits()}
        since = crew.recorded
        three = await crew.join()
        await eventually(lambda: three.begun(since), within_s=WITHIN_S)
        await eventually(lambda: all(knows_members(member, 3) for member in crew.members))
        moved = await wait_until_quiet(crew, since)
        assert set(moved) == set(three.visits(since))
        assert len(moved) < len(KEYS) / 2
        assert set(moved.values()) == {1}

        since = crew.recorded
        assert await three.end(signal.SIGTERM) == 0
        moved_back = await wait_until_quiet(crew, since, Counter(moved))
        assert moved_back == moved
        assert {key: owner_of(crew, key, since) for key in moved_back} == {
            key: former_member[key] for key in moved_back
        }


async def test_a_stopped_member_leaves_no_record_and_no_consumer(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        crew_of(2, nats_server, tmp_path, ttl_s=TTL_S, how=SHARD, keys=KEYS) as crew,
        Admin(nats_server.url) as admin,
    ):
        for member in crew.members:
            assert await member.end(signal.SIGTERM) == 0
        await eventually(lambda: no_consumers(admin))
        await eventually(lambda: no_record(admin))


async def no_record(admin: Admin) -> bool:
    """Return whether the bucket holds no member record."""
    with suppress(NoMessage):  # a record may expire during the read
        return not await admin.entries("natsctl_leases")
    return False


async def put_slowly(admin: Admin, keys: list[str]) -> None:
    for key in keys:
        await admin.put(TURNS, key, {"spec": {}})
        await asyncio.sleep(0.05)


async def wait_until_shared(crew: Crew, keys: list[str], *living: Member) -> None:
    """Wait until the living members sync all keys, with one member for each key.

    *living* is every running member by default.
    """
    expected = living or tuple(member for member in crew.members if member.runs)
    since = crew.recorded

    def is_shared() -> bool:
        nonlocal since
        visits = {member: member.visits(since) for member in crew.members}
        if {key for own in visits.values() for key in own} < set(keys):
            return False
        since = crew.recorded
        assigned = [set(own) for member, own in visits.items() if member in expected]
        others = [own for member, own in visits.items() if member not in expected and own]
        return not others and sum(map(len, assigned)) == len(keys) and all(map(bool, assigned))

    await eventually(is_shared, within_s=WITHIN_S, every_s=0.1)
    await wait_until_even(crew, keys, expected)
    crew.check()


async def wait_until_even(crew: Crew, keys: list[str], living: tuple[Member, ...]) -> None:
    since = crew.recorded
    await eventually(
        lambda: {key for member in living for key in member.visits(since)} == set(keys)
    )
    mean = len(keys) / len(living)
    spread = SIGMAS * math.sqrt(mean * (1 - 1 / len(living)))
    for member in living:
        assert abs(len(set(member.visits(since))) - mean) <= spread


def knows_members(member: Member, size: int) -> bool:
    return re.findall(r"sharing keys .*members=(\d+)", member.log)[-1] == str(size)


def sync_counts(crew: Crew, since: int) -> Counter[str]:
    return Counter(key for member in crew.members for key in member.visits(since))


async def wait_for_syncs(crew: Crew, expected: Counter[str], since: int) -> None:
    await eventually(lambda: sync_counts(crew, since) >= expected, within_s=WITHIN_S)


async def wait_until_quiet(
    crew: Crew, since: int, expected: Counter[str] | None = None
) -> Counter[str]:
    """Wait until no sync begins for a second, and return the number of syncs by key."""
    if expected is not None:
        await wait_for_syncs(crew, expected, since)
    before = -1
    while before != crew.recorded:
        before = crew.recorded
        await asyncio.sleep(1)
    return sync_counts(crew, since)


def owner_of(crew: Crew, key: str, since: int) -> Member:
    return next(member for member in crew.members if key in member.visits(since))
