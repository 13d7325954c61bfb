"""`natsctl status`, `explain`, `tree`, `resync` and `gc` send requests to running daemons."""

import asyncio
import json
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.clients.bucket_keys import keys
from tests.support.clients.raw_nats_client import stranger
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

GREETINGS = "controllers.greetings:Greetings"
FAILING = """
from natsctl import Controller, Object, kv, primary

class Job(Object, frozen=True):
    spec: dict[str, str] = {}

class Jobs(Controller):
    jobs = primary(kv(Job, bucket="jobs"))

    async def sync_handler(self, key):
        raise ValueError("no luck today")
"""


Daemon = Callable[..., Awaitable[Running]]


async def synced(natsctl: Natsctl, bucket: str, key: str) -> bool:
    """Return whether the daemon knows the result of a sync of this object."""
    result = await natsctl("describe", bucket, key, "-o", "json")
    return result.status == 0 and bool(result.json[0]["syncs"])


async def test_garbage_is_held_until_gc_accept(
    natsctl: Natsctl, daemon: Daemon, jetstream: JetStreamContext
) -> None:
    first = await daemon(GREETINGS)
    for key in ("blog", "forum", "shop"):
        await natsctl.done("put", "greetings", key, "spec: {text: hi}")
        await eventually(lambda key=key: synced(natsctl, "greetings", key))  # type: ignore[misc]
    assert await first.ends(signal.SIGTERM) == 0
    await jetstream.delete_key_value("natsctl")
    await jetstream.purge_stream("KV_greetings", subject="$KV.greetings.shop")
    await daemon(GREETINGS)

    async def is_held() -> bool:
        plan = await natsctl("gc", "plan")
        assert "Route.routes   shop" in plan.out
        return "nothing is remembered about the bucket" in plan.err

    await eventually(is_held)
    refused = await natsctl("gc", "apply", "--yes")
    assert refused.status == 1
    assert refused.err.endswith("; remove it anyway with --force\n")
    assert await natsctl.typed("n", "gc", "apply") == 1
    await natsctl("doctor", "-c", GREETINGS)  # doctor checks the permission for each verb
    assert await is_held()
    assert (await natsctl("repair", "gc")).status == 2
    assert await is_held()
    assert await natsctl.done("repair", "gc", "--yes")
    routes = await jetstream.key_value("routes")
    assert await natsctl.typed("y", "gc", "apply") == 0
    assert await keys(routes) == ["blog", "forum"]
    assert "nothing is held" in (await natsctl("repair", "gc", "--yes")).err


async def test_two_daemons_report_their_status_and_only_the_leader_does_a_resync(
    natsctl: Natsctl, daemon: Daemon
) -> None:
    elect = ("--leader-elect", "--lease-ttl", "600")  # the leader stays, however slow it is
    await daemon(GREETINGS, options=elect)
    async with natsctl.running("run", "--controller", GREETINGS, *elect):

        async def states() -> list[dict[str, Any]]:
            """Return the status of both daemons; a slow one may not be found at first."""
            reported: list[dict[str, Any]] = (await natsctl("status", "-o", "json")).json
            assert sorted(entry["state"] for entry in reported) == ["standby", "syncing"]
            return reported

        async def only_the_leader_answers() -> bool:
            expected = f"0 keys of greetings queued in {leader['host']}:{leader['pid']}\n"
            assert await natsctl.done("resync") == expected
            return (await natsctl("gc", "plan")).err == "there are no orphans\n"

        reported = await eventually(states)
        leader = next(entry["daemon"] for entry in reported if entry["state"] == "syncing")
        await eventually(only_the_leader_answers)


OTHER = """
from natsctl import Controller, Object, kv, primary


class Site(Object, frozen=True):
    pass


class Greetings(Controller):
    sites = primary(kv(Site, bucket="sites"))

    async def sync_handler(self, key):
        return None
"""


async def test_two_daemons_without_leader_election_cause_warnings(
    natsctl: Natsctl, daemon: Daemon
) -> None:
    first = await daemon(GREETINGS)
    warned = "every key is synced more than once because 2 daemons run alone"
    async with natsctl.running("run", "-c", GREETINGS) as second:
        await first.logged(warned)
        await second.logged(warned)

        async def status_warns() -> bool:
            status = await natsctl("status")
            assert status.out.count("alone \N{MULTIPLICATION SIGN}2") == 1
            because = "every key is synced more than once because 2 daemons run"
            return f"greetings: {because}" in status.out

        async def doctor_warns() -> bool:
            reported = (await natsctl("doctor", "-c", GREETINGS, "-o", "json")).json
            modes = [entry for entry in reported if entry["check"] == "modes greetings"]
            assert [entry["result"] for entry in modes] == ["warning"]
            return "2 daemons run alone" in modes[0]["found"]

        await eventually(status_warns)
        await eventually(doctor_warns)

    async def status_is_quiet() -> bool:
        return "\N{MULTIPLICATION SIGN}" not in await natsctl.done("status")

    await eventually(status_is_quiet)


async def test_status_and_doctor_report_another_application_with_the_same_name(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    await daemon(GREETINGS, options=("--leader-elect", "--lease-ttl", "600"))
    (folder / "other.py").write_text(OTHER)
    async with natsctl.running("run", "-c", "other:Greetings", "--leader-elect") as other_daemon:
        await other_daemon.logged("this process does not take part")

        async def is_reported() -> bool:
            status = await natsctl("status")
            assert "it works on Greeting.greetings" in status.out
            return "this one on Site.sites" in status.out

        await eventually(is_reported)
        doctor = await natsctl("doctor", "-c", "other:Greetings", "-o", "json")
        assert doctor.status == 1
        assert "lease greetings" in [
            finding["check"] for finding in doctor.json if finding["result"] == "failed"
        ]


async def test_daemons_that_shard_keys_answer_for_their_own_keys(
    natsctl: Natsctl, daemon: Daemon, jetstream: JetStreamContext
) -> None:
    keys = [f"shop-{number}" for number in range(8)]
    for _ in range(2):
        await daemon(GREETINGS, options=("--shard", "--lease-ttl", "600"))
    for key in keys:
        await natsctl.done("put", "greetings", key, "spec: {text: hi}")

    async def shared() -> bool:
        reported = (await natsctl("status", "-o", "json")).json
        assert [len(entry["members"]) for entry in reported] == [2, 2]
        return sum(entry["keys"] for entry in reported) == len(keys)

    async def both_are_reported() -> bool:
        return "greetings: 2 members share the keys\n" in await natsctl.done("status")

    async def is_explained() -> bool:
        reported = (await natsctl("describe", "greetings", keys[0], "-o", "json")).json
        assert [entry["here"] for entry in reported] == [True]
        expected = f"{reported[0]['member']}, which is this one"
        return expected in await natsctl.done("describe", "greetings", keys[0])

    async def are_resynced(*words: str) -> bool:
        resynced = await natsctl("resync", *words)
        queued = re.findall(r"^(\d+) keys? of greetings", resynced.out, re.MULTILINE)
        return sum(map(int, queued)) == len(keys)

    # a command does not find a member that answers too late
    await eventually(shared)
    await eventually(both_are_reported)
    await eventually(is_explained)
    await eventually(are_resynced)
    await eventually(lambda: are_resynced("greetings", *keys))

    routes = await jetstream.key_value("routes")
    spec = {"subject": "hello.nobody", "payload": "?"}
    for stray in ("s1", "s2", "s3", "s4", "s5", "s6"):
        labels = {"natsctl.io/owner-kind": "Greeting.greetings", "natsctl.io/owner-key": stray}
        value = json.dumps({"metadata": {"labels": labels}, "spec": spec})
        await routes.put(stray, value.encode())

    async def planned() -> bool:
        return len((await natsctl("gc", "plan", "-o", "json")).json["orphans"]) == 6

    await eventually(planned)
    removed: list[str] = []

    async def are_removed() -> bool:
        applied = await natsctl("gc", "apply", "--yes", "--force")
        removed.extend(re.findall(r"^Route.routes/(s\d) deleted$", applied.out, re.MULTILINE))
        return sorted(removed) == ["s1", "s2", "s3", "s4", "s5", "s6"]

    await eventually(are_removed)


async def test_a_leader_waits_until_the_last_shard_member_ends(
    natsctl: Natsctl, daemon: Daemon
) -> None:
    member = await daemon(GREETINGS, options=("--shard", "--lease-ttl", "5"))
    words = ("--controller", GREETINGS, "--leader-elect", "--lease-ttl", "5")
    async with natsctl.running("run", *words) as leader:
        await leader.logged("shares its keys: run all its processes with --leader-elect, or none")
        await natsctl.done("put", "greetings", "shop", "spec: {text: hi}")
        await eventually(lambda: synced(natsctl, "greetings", "shop"))
        assert await member.ends(signal.SIGTERM) == 0
        await leader.logged("leading  controller=greetings")


@pytest.mark.timeout(900)  # a busy machine takes a minute for it
async def test_a_large_amount_of_garbage_is_removed_in_several_plans(
    natsctl: Natsctl, daemon: Daemon, jetstream: JetStreamContext
) -> None:
    await daemon(GREETINGS)
    await natsctl.done("put", "greetings", "shop", "spec: {text: hi}")
    await eventually(lambda: synced(natsctl, "greetings", "shop"))
    routes = await jetstream.key_value("routes")
    labels = {"natsctl.io/owner-kind": "Greeting.greetings", "natsctl.io/owner-key": "nobody"}
    spec = {"subject": "hello.nobody", "payload": "?"}
    stray = json.dumps({"metadata": {"labels": labels}, "spec": spec}).encode()
    for hundred in range(11):
        await asyncio.gather(
            *(routes.put(f"stray{hundred:02}{number:02}", stray) for number in range(100))
        )

    async def planned() -> bool:
        return "100 more suspects were not checked" in (await natsctl("gc", "plan")).err

    removed: list[int] = []

    async def collected() -> bool:
        """Apply a plan, which a slow daemon may not finish; return whether no garbage is left."""
        result = await natsctl("gc", "apply", "--yes", "--force")
        removed.append(result.out.count("Route.routes/"))
        return await keys(routes) == ["shop"]

    await eventually(planned, within_s=300)
    await eventually(collected, within_s=300)
    assert len(removed) > 1
    assert max(removed) <= 1000


async def test_an_illegal_key_is_skipped_and_breaks_no_command(
    natsctl: Natsctl, daemon: Daemon, nats_server: NatsServer
) -> None:
    await daemon(GREETINGS)
    async with stranger(nats_server.url) as stranger_client:
        stranger_client.publish(b"$KV.greetings.a\x0bb", b'{"spec": {"text": "hi"}}')
        await stranger_client.flush()
    await natsctl.done("put", "greetings", "shop", '{"spec": {"text": "hi"}}')
    await eventually(lambda: synced(natsctl, "greetings", "shop"))
    status = await natsctl("status")
    assert r"greetings: a\x0bb is skipped: its name is not a legal key" in status.out
    assert await natsctl.done("get", "greetings", "-o", "name") == "greetings/shop\n"
    assert await natsctl.done("get", "greetings", "shop", "-o", "name") == "greetings/shop\n"
    refused = await natsctl("get", "greetings", r"a\x0bb")
    assert (refused.status, "a key has only letters, digits" in refused.err) == (2, True)


async def test_a_controller_whose_daemon_died_is_down_with_its_failing_keys(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    (folder / "jobs.py").write_text(FAILING)
    greetings = await daemon("controllers.greetings:Greetings")
    jobs = await daemon("jobs:Jobs")
    await natsctl.done("put", "jobs/a", "spec: {}")

    async def is_recorded() -> bool:
        names = await natsctl.done("get", "natsctl", "-o", "name")
        return "controllers.jobs.failing.a" in names

    await eventually(is_recorded)
    jobs.process.kill()

    async def is_down() -> bool:
        status = await natsctl("status")
        assert [row[0] for row in status.rows] == ["jobs", "greetings"], status
        assert status.rows[0][1:3] == ["-", "down"]
        assert status.rows[0][7] == "1"  # failing
        assert "jobs: no daemon runs it\n" in status.out
        assert "jobs: a fails: ValueError: no luck today\n" in status.out
        return True

    await eventually(is_down)
    [explained] = (await natsctl("describe", "jobs/a", "-o", "json")).json
    assert explained["syncs"][-1]["error"] == "ValueError: no luck today"
    assert explained["failing_since"]
    assert "which no daemon runs" in await natsctl.done("describe", "jobs/a")
    greetings.process.kill()

    async def are_down() -> bool:
        return [row[2] for row in (await natsctl("status")).rows] == ["down", "down"]

    await eventually(are_down)


async def test_two_applications_with_one_name_warn_of_each_other(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    first = await daemon(GREETINGS)
    (folder / "other.py").write_text(OTHER)
    async with natsctl.running("run", "-c", "other:Greetings") as second:
        warned = "daemons run controllers of one name, but of Greeting.greetings, Site.sites"
        await first.logged(warned)
        await second.logged(warned)
