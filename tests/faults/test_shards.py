"""Sharding survives processes that join, leave, crash, pause or lose their connection."""

import asyncio
import json
import math
import re
import signal
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from zlib import crc32

from natsctl.core.coordination.lease import record_in, record_key
from tests.support.cli.natsctl_command import Natsctl
from tests.support.clients.console_client import console_on
from tests.support.clients.nats_admin import Admin
from tests.support.controllers.sync_log import STEPS, TURNS
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import no_consumers
from tests.support.faults.process_group import Member, ProcessGroup, processes
from tests.support.servers.nats_server import NatsServer

SHARES = 256
SLOW = "shares for another process are still worked on"
KEYS = [f"k{number}" for number in range(30)]
TTL_S = 6.0
LONG_TTL_S = 30.0  # a member that is stopped for ten seconds keeps its keys
WITHIN_S = 120.0
NEVER_S = 1e6
SIGMAS = 5.0

sharing = partial(
    processes, ttl_s=TTL_S, options=("--shard", "--workers", "8"), keys=KEYS, again_s=0.5
)


async def test_keys_are_spread_evenly_after_joins_stops_kills_and_pauses(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with sharing(3, nats_server, tmp_path) as group:
        first_member, second_member, third_member = group.members
        await wait_until_shared(group, KEYS)

        new = [f"new{number}" for number in range(10)]
        async with Admin(nats_server.url) as admin:  # a fourth member joins while keys are put
            putting = asyncio.create_task(put_slowly(admin, new))
            four = await group.join()
            await putting
        keys = [*KEYS, *new]
        await wait_until_shared(group, keys)

        assert await second_member.end(signal.SIGTERM) == 0
        await wait_until_shared(group, keys)

        await third_member.end(signal.SIGKILL)
        await wait_until_shared(group, keys)

        async with first_member.away("paused"):
            await wait_until_shared(group, keys, four)
            since = group.recorded
        await eventually(lambda: "stopped sharing keys" in first_member.log, within_s=WITHIN_S)
        await wait_until_shared(group, keys, first_member, four)
        assert first_member.begun(since) > 0


async def test_members_share_again_after_outages_and_leave_nothing_when_they_stop(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        sharing(2, nats_server, tmp_path) as group,
        Admin(nats_server.url) as admin,
    ):
        first_member, second_member = group.members
        await wait_until_shared(group, KEYS)

        async with second_member.away("frozen"):
            await wait_until_shared(group, KEYS, first_member)
            await eventually(lambda: "the lease could not be renewed in time" in second_member.log)
        await wait_until_shared(group, KEYS)

        nats_server.kill()
        await nats_server.start()
        await wait_until_shared(group, KEYS)

        seen = [len(member.log) for member in group.members]
        await admin.drop("natsctl_leases")

        def all_stopped() -> bool:
            logs = [member.log[since:] for member, since in zip(group.members, seen, strict=True)]
            return all("stopped sharing keys" in log for log in logs)

        await eventually(all_stopped, within_s=WITHIN_S)
        await wait_until_shared(group, KEYS)

        for member in group.members:
            assert await member.end(signal.SIGTERM) == 0
        await eventually(lambda: no_consumers(admin), every_s=0.1)
        await eventually(lambda: no_record(admin), every_s=0.3)


async def test_people_see_who_gives_up_shares_and_since_when(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    natsctl = Natsctl(tmp_path, nats_server.url)
    async with (
        sharing(1, nats_server, tmp_path) as group,
        console_on(nats_server.url) as console,
    ):
        key = min(KEYS, key=lambda key: crc32(key.encode()) % SHARES)  # of those that go first
        group.book.held.write_text(key)
        await eventually(lambda: steps_of(group, key)[-2 * STEPS :] == ["step"] * 2 * STEPS)
        await group.join()
        await eventually(lambda: SLOW in group.members[0].log)

        async def texts() -> list[str]:
            shown = await natsctl("status", "-o", "wide")
            described = await natsctl("describe", f"{TURNS}/{key}")
            return [shown.out, described.out, json.dumps(await console.read("home"))]

        async def seconds(above: int = -1) -> list[int]:
            """Return for how long the share is given up, as each surface shows it."""
            shown = await texts()
            found = [re.search(r"(?:gives up 1 for|ended, for) (\d+) ?s", text) for text in shown]
            durations = [int(match[1]) for match in found if match]
            assert len(durations) == len(shown), shown
            assert min(durations) > above
            return durations

        first = await eventually(seconds)
        await eventually(lambda: seconds(above=max(first)))
        group.book.held.write_text("")

        async def over() -> bool:
            return all("gives" not in text for text in await texts())

        await eventually(over, within_s=WITHIN_S)
        await wait_until_shared(group, KEYS)


def steps_of(group: ProcessGroup, key: str) -> list[str]:
    return [record.what for record in group.book.records() if record.key == key]


async def test_a_rebalance_syncs_only_the_keys_that_move(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with sharing(2, nats_server, tmp_path, ttl_s=LONG_TTL_S, again_s=NEVER_S) as group:
        before = await owners(nats_server, group.members)
        await eventually(lambda: all(key in before[key].synced_keys() for key in KEYS))
        await wait_until_quiet(group)

        since = group.recorded
        third_member = await group.join()
        after = await owners(nats_server, group.members)
        moved = Counter(key for key in KEYS if after[key] is third_member)
        assert 0 < len(moved) < len(KEYS)
        await wait_for_syncs(group, moved, since)
        await eventually(lambda: all(knows_members(member, 3) for member in group.members))
        await wait_until_quiet(group)
        assert sync_counts(group, since) == moved == Counter(third_member.synced_keys(since))

        since = group.recorded
        assert await third_member.end(signal.SIGTERM) == 0
        await wait_for_syncs(group, moved, since)
        await wait_until_quiet(group)
        assert sync_counts(group, since) == moved
        taken = await owners(nats_server, list(set(before.values())))
        assert all(key in taken[key].synced_keys(since) for key in moved)


async def no_record(admin: Admin) -> bool:
    """Return whether the bucket names no member, and holds no heartbeat."""
    entries = await admin.entries("natsctl_leases")
    _, masks = record_in(entries[record_key("turns")].value)
    return len(entries) == 1 and not masks


async def put_slowly(admin: Admin, keys: list[str]) -> None:
    for key in keys:
        await admin.put(TURNS, key, {"spec": {}})
        await asyncio.sleep(0.05)


async def wait_until_shared(group: ProcessGroup, keys: list[str], *living: Member) -> None:
    """Wait until the living members sync all keys, with one member for each key, evenly.

    *living* is every running member by default.
    """
    expected = living or tuple(member for member in group.members if member.runs)
    since = group.recorded

    def is_shared() -> bool:
        nonlocal since
        visits = {member: member.synced_keys(since) for member in group.members}
        if {key for own in visits.values() for key in own} < set(keys):
            return False
        since = group.recorded
        assigned = [set(own) for member, own in visits.items() if member in expected]
        other_keys = [own for member, own in visits.items() if member not in expected and own]
        if other_keys or sum(map(len, assigned)) != len(keys):
            return False
        return all(abs(len(own) - mean) <= spread for own in assigned)

    mean = len(keys) / len(expected)
    spread = SIGMAS * math.sqrt(mean * (1 - 1 / len(expected)))
    await eventually(is_shared, within_s=WITHIN_S, every_s=0.1)
    group.check()


async def owners(server: NatsServer, members: Sequence[Member]) -> dict[str, Member]:
    """Return the member to which each key belongs by the record, once each has its part."""
    by_pid = {f":{member.pid}:": member for member in members}

    async def masks() -> dict[str, int] | None:
        async with Admin(server.url) as admin:
            entry = await admin.entry("natsctl_leases", record_key("turns"))
        _, masks = record_in(entry.value)
        part = -(-SHARES // len(members))  # one that has more gives it up later
        settled = len(masks) == len(members) and sum(masks.values()) == (1 << SHARES) - 1
        return masks if settled and all(it.bit_count() <= part for it in masks.values()) else None

    found = await eventually(masks, within_s=WITHIN_S)
    owned = {
        member: mask
        for session, mask in (found or {}).items()
        for pid, member in by_pid.items()
        if pid in session
    }
    return {
        key: next(
            member for member, mask in owned.items() if mask >> (crc32(key.encode()) % SHARES) & 1
        )
        for key in KEYS
    }


def knows_members(member: Member, size: int) -> bool:
    return re.findall(r"sharing keys .*members=(\d+)", member.log)[-1] == str(size)


def sync_counts(group: ProcessGroup, since: int) -> Counter[str]:
    return Counter(key for member in group.members for key in member.synced_keys(since))


async def wait_for_syncs(group: ProcessGroup, expected: Counter[str], since: int) -> None:
    await eventually(lambda: sync_counts(group, since) >= expected, within_s=WITHIN_S)


async def wait_until_quiet(group: ProcessGroup) -> None:
    """Wait until no sync begins for a second."""
    before = -1
    while before != group.recorded:
        before = group.recorded
        await asyncio.sleep(1)
