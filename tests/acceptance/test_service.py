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

WATCHING = """
from natsctl import Object, kv
from natsctl.watchers import InformerController, SimpleWatcher

class Site(Object, frozen=True):
    spec: dict[str, str] = {}

class Sites(InformerController):
    name = "sites"

    def __init__(self):
        super().__init__()
        self.add_informer(SITES)
        self.add_watcher(SimpleWatcher(add_func=self.added), SITES)

    async def added(self, new):
        print("added", new.key, flush=True)
        if new.key == "bad":
            raise ValueError("no luck today")

SITES = kv(Site, bucket="sites")
"""

Daemon = Callable[..., Awaitable[Running]]


async def synced(natsctl: Natsctl, bucket: str, key: str) -> bool:
    """Return whether the daemon knows the result of a sync of this object."""
    result = await natsctl("describe", bucket, key, "-o", "json")
    return result.status == 0 and bool(result.json[0]["syncs"])


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["describe", "greetings/shop"],
        ["resync"],
        ["gc", "plan"],
        ["gc", "apply", "--yes"],
    ],
)
async def test_commands_report_that_no_daemon_answers(natsctl: Natsctl, words: list[str]) -> None:
    result = await natsctl(*words)
    advice = ", or do it here with --local" if words[0] in {"resync", "gc"} else ""
    expected = f"natsctl: error: no daemon answers: start one with `natsctl run`{advice}\n"
    assert (result.status, result.out, result.err) == (1, "", expected)


async def test_status_explain_and_tree_show_controllers_and_their_keys(
    natsctl: Natsctl, daemon: Daemon
) -> None:
    await daemon(GREETINGS)
    await natsctl.done("put", "greetings", "shop", "spec: {text: hi}")
    await natsctl.done("put", "greetings", "odd", "spec: {text: 5}", "--validate=ignore")

    async def is_reported() -> bool:
        status = await natsctl("status")
        assert [row[0] for row in status.rows] == ["greetings"]
        assert status.rows[0][2:] == ["syncing", "alone", "1", "1", "1", *"000000", "-"]
        assert "greetings: odd is skipped: not a valid Greeting: Expected `str`" in status.out
        wide = await natsctl.done("status", "-o", "wide")
        assert re.search(r"^installation [0-9a-f]{16}$", wide, re.MULTILINE)
        return True

    async def is_explained() -> bool:
        explained = await natsctl.done("describe", "greetings/shop")
        assert explained.startswith("shop of greetings, in ")
        assert "owns        Route.routes/shop\n" in explained
        assert "1 created   ok\n" in explained
        assert '"shop" synced successfully (created)' in explained
        return True

    await eventually(is_reported)
    await eventually(is_explained)
    assert "not a valid Greeting" in await natsctl.done(
        "describe", "greetings", "odd", "-c", GREETINGS
    )

    async def is_drawn() -> bool:
        drawn = (await natsctl.done("describe", "greetings/shop")).partition("objects:\n")[2]
        assert [row.split()[:2] for row in drawn.splitlines()[1:]] == [
            ["Greeting.greetings/shop", "True"],
            ["└─Route.routes/shop", "-"],
        ]
        return True

    await eventually(is_drawn)
    assert await natsctl.done("describe", "Greeting/shop", "-o", "name") == (
        "Greeting/shop\nRoute.routes/shop\n"
    )
    for words in (
        ["describe", "greetings/nobody"],
        ["status", "-c", "gretings"],
    ):
        assert (await natsctl(*words)).status == 3
    assert "did you mean greetings?" in (await natsctl("status", "-c", "gretings")).err


async def test_explain_shows_the_error_and_the_next_retry_of_a_failing_key(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    (folder / "jobs.py").write_text(FAILING)
    await daemon("jobs:Jobs")
    await natsctl.done("put", "jobs", "a", "spec: {}")

    async def has_failed_often() -> bool:
        reported = (await natsctl("status", "-o", "json")).json[0]
        return bool(reported["failures"] >= 8 and reported["queue"]["waiting"])

    await eventually(has_failed_often)
    reported = (await natsctl("describe", "jobs/a", "-o", "json")).json[0]
    assert reported["failures"] >= 8
    assert reported["syncs"][-1]["error"] == "ValueError: no luck today"
    assert "failures in a row" in await natsctl.done("describe", "jobs/a")
    status = await natsctl("status")
    assert "jobs: a fails: ValueError: no luck today" in status.out


async def test_a_wide_status_lists_the_keys_in_the_queue_and_counts_the_last_syncs(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    (folder / "jobs.py").write_text(FAILING)
    await daemon("jobs:Jobs")
    await natsctl.done("put", "jobs", "a", "spec: {}")

    async def lists_the_retry() -> bool:
        return bool(re.search(r"^jobs .* a +due in \d+s +retry$", await wide(), re.MULTILINE))

    async def wide() -> str:
        return await natsctl.done("status", "-o", "wide")

    await eventually(lists_the_retry)
    controller = dict(zip(*(line.split() for line in (await wide()).splitlines()[:2]), strict=True))
    assert int(controller["FAILED"]) == int(controller["SYNCS"]) > 0
    assert controller["OLDEST"].endswith("s")


async def test_the_daemon_does_the_resync(natsctl: Natsctl, daemon: Daemon) -> None:
    async def has_operations(*operations: str) -> bool:
        reported = (await natsctl("describe", "greetings/shop", "-o", "json")).json[0]
        assert [entry["operation"] for entry in reported["syncs"]] == list(operations)
        return True

    await daemon(GREETINGS)
    for key in ("shop", "market"):
        await natsctl.done("put", "greetings", key, "spec: {text: hi}")
        await eventually(lambda key=key: synced(natsctl, "greetings", key))  # type: ignore[misc]
    assert (await natsctl.done("resync")).startswith("2 keys of greetings queued in ")
    await eventually(lambda: has_operations("put", "resync"))
    result = await natsctl("resync", "greetings", "shop", "nobody")
    assert result.out.startswith("1 key of greetings queued in ")
    expected = (3, "natsctl: error: greetings/nobody does not exist\n")
    assert (result.status, result.err) == expected
    result = await natsctl("resync", "greetings/nobody")
    assert (result.status, result.err, result.out) == (*expected, "")

    await eventually(lambda: has_operations("put", "resync", "manual"))


async def test_the_daemon_plans_and_removes_garbage(
    natsctl: Natsctl, daemon: Daemon, jetstream: JetStreamContext, folder: Path
) -> None:
    await daemon(GREETINGS)
    await natsctl.done("put", "greetings", "shop", "spec: {text: hi}")
    await eventually(lambda: synced(natsctl, "greetings", "shop"))
    routes = await jetstream.key_value("routes")
    labels = {"natsctl.io/owner-kind": "Greeting.greetings", "natsctl.io/owner-key": "nobody"}
    spec = {"subject": "hello.nobody", "payload": "?"}
    await routes.put("stray", json.dumps({"metadata": {"labels": labels}, "spec": spec}).encode())

    async def planned() -> bool:
        reported = await natsctl("gc", "plan", "-o", "json")
        (folder / "plan.json").write_text(reported.out)
        return [entry["key"] for entry in reported.json["orphans"]] == ["stray"]

    await eventually(planned)
    assert (await natsctl("gc", "apply")).status == 2
    done = await natsctl.done("gc", "apply", "--plan", "plan.json", "--yes")
    assert done == "Route.routes/stray deleted\n"
    assert await keys(routes) == ["shop"]
    second_apply = await natsctl("gc", "apply", "--plan", "plan.json", "--yes")
    assert (second_apply.status, second_apply.out) == (4, "")
    assert (await natsctl("gc", "plan")).err == "there are no orphans\n"


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
    await natsctl("doctor", "-c", GREETINGS)  # doctor checks the permission for each verb
    assert await is_held()
    assert (await natsctl("repair", "gc")).status == 2
    assert await is_held()
    assert await natsctl.done("repair", "gc", "--yes")
    routes = await jetstream.key_value("routes")
    await natsctl.done("gc", "apply", "--yes")
    assert await keys(routes) == ["blog", "forum"]
    assert "nothing is held" in (await natsctl("repair", "gc", "--yes")).err


async def test_a_key_that_no_controller_has_is_not_found(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    (folder / "jobs.py").write_text(FAILING)
    await daemon(GREETINGS, "jobs:Jobs")
    assert await natsctl.done("status", "-o", "name") == "greetings\njobs\n"
    unnamed = await natsctl("describe", "shops/shop")
    assert (unnamed.status, unnamed.err) == (
        3,
        (
            "natsctl: error: no controller has shops/shop: "
            "there are greetings (of greetings), jobs (of jobs)\n"
        ),
    )
    assert (await natsctl("describe", "greetings/shop", "-c", "jobs")).status == 3
    unknown = await natsctl("describe", "jobs/shop")
    assert unknown.err == "natsctl: error: jobs has no jobs/shop, and no sync or event of it\n"
    mistyped = await natsctl("describe", "jobs/shop", "-c", "job")
    assert "no daemon runs controller job; did you mean" in mistyped.err


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


async def test_status_shows_an_equal_message_of_two_daemons_once(
    natsctl: Natsctl, daemon: Daemon
) -> None:
    elected = ("--leader-elect", "--lease-ttl", "600")
    await daemon(GREETINGS, options=elected)
    await natsctl.done("put", "greetings", "shop", "spec: {text: 5}", "--validate=ignore")
    async with natsctl.running("run", "-c", GREETINGS, *elected) as second:
        await second.logged("standing by")

        async def counted_once() -> bool:
            status = await natsctl("status")
            assert [row[-8] for row in status.rows] == ["1"]
            assert status.out.count("shop is skipped") == 1
            return True

        await eventually(counted_once)


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
    warned = "every key is synced more than once  controller=greetings"
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


async def test_two_applications_with_one_name_warn_of_each_other(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    first = await daemon(GREETINGS)
    (folder / "other.py").write_text(OTHER)
    async with natsctl.running("run", "-c", "other:Greetings") as second:
        await first.logged("controllers have the same name")
        await second.logged("controllers have the same name")


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


async def test_watchers_are_explained_and_called_again_by_resync(
    natsctl: Natsctl, folder: Path
) -> None:
    (folder / "watching.py").write_text(WATCHING)
    async with natsctl.running("run", "-c", "watching:Sites") as running:
        await running.logged("primaries listed, syncing")
        for key in ("good", "bad"):
            await natsctl.done("put", "sites", key, "spec: {}")
            await running.logged(f"added {key}")
        explained = await natsctl.done("describe", "sites/bad")
        assert "ValueError: no luck today" in explained
        assert "retried in" in explained
        assert (await natsctl.done("describe", "sites/good")).count("create") == 1
        status = await natsctl("status")
        assert status.rows[0][2:7] == ["syncing", "alone", "2", "2", "0"]
        assert "sites: bad fails: ValueError: no luck today" in status.out
        assert (await natsctl.done("describe", "sites", "good")).startswith("good of sites, in ")
        assert (await natsctl.done("resync")).startswith("2 keys of sites queued in ")
        await running.logged("added good", times=2)
        await running.logged("added bad", times=2)
        planned = await natsctl("gc", "plan")
        assert (planned.status, planned.err) == (
            0,
            "no running controller makes secondaries: there is no garbage\n",
        )
        assert (await natsctl("gc", "plan", "-o", "json")).json["orphans"] == []
        named = await natsctl("gc", "plan", "-c", "sites")
        assert (named.status, named.err) == (
            2,
            "natsctl: error: controller sites makes no secondaries: it has no garbage\n",
        )
        assert await running.ends(signal.SIGTERM) == 0


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
    assert (
        await natsctl.done("get", "-w", "greetings", "--once", "-o", "name") == "greetings/shop\n"
    )
    assert await natsctl.done("get", "greetings", "shop", "-o", "name") == "greetings/shop\n"
    refused = await natsctl("get", "greetings", r"a\x0bb")
    assert (refused.status, "a key has only letters, digits" in refused.err) == (2, True)


SHOPS = """
from natsctl import Controller, Object, kv, primary, secondary

class Thing(Object, frozen=True):
    spec: dict[str, str] = {}

class Shops(Controller):
    things = primary(kv(Thing, bucket="shops"))
    signs = secondary(kv(Thing, bucket="signs"))

    async def sync_handler(self, key):
        if self.things.get(key) is not None:
            await self.signs.apply(f"{key}-sign", Thing())

class Roads(Controller):
    things = primary(kv(Thing, bucket="roads"))
    posts = secondary(kv(Thing, bucket="posts"))

    async def sync_handler(self, key):
        if self.things.get(key) is not None:
            await self.posts.apply(f"{key}-post", Thing())

class Readers(Controller):
    things = primary(kv(Thing, bucket="readers"))

    async def sync_handler(self, key):
        return None
"""
LOST = {"natsctl.io/owner-kind": "Thing.roads", "natsctl.io/owner-key": "lost"}


async def test_commands_find_the_controller_that_has_the_key(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    (folder / "town.py").write_text(SHOPS)
    await daemon("town:Shops", "town:Roads")
    for name in ("shops/corner", "roads/main", "shops/twin", "roads/twin"):
        await natsctl.done("put", *name.split("/"), "spec: {}")
    for controller, key in (
        *(("shops", "corner"), ("roads", "main")),
        *(("shops", "twin"), ("roads", "twin")),
    ):
        await eventually(lambda name=controller, key=key: synced(natsctl, name, key))  # type: ignore[misc]
    assert "corner of shops" in await natsctl.done("describe", "shops/corner")

    async def is_drawn() -> bool:
        return "Thing.posts/main-post" in await natsctl.done("describe", "Thing.roads/main")

    await eventually(is_drawn)
    queued = await natsctl.done("resync", "shops/corner", "roads/main", "roads/twin")
    assert "1 key of shops queued" in queued
    assert "2 keys of roads queued" in queued
    assert "twin of roads" in await natsctl.done("describe", "roads", "twin")
    for command in ("describe", "resync"):
        elsewhere = await natsctl(command, "signs/twin")
        assert (elsewhere.status, elsewhere.err) == (
            3,
            (
                "natsctl: error: no controller has signs/twin: "
                "there are roads (of roads), shops (of shops)\n"
            ),
        )
        other_controller = await natsctl(command, "shops/twin", "-c", "roads")
        assert other_controller.status == 3
        assert (await natsctl(command, "shops/nobody")).status == 3
    partly_queued = await natsctl("resync", "shops", "corner", "nobody")
    assert (partly_queued.status, "1 key of shops queued" in partly_queued.out) == (3, True)


async def test_gc_plan_finds_the_controller_that_has_garbage(
    natsctl: Natsctl, daemon: Daemon, folder: Path
) -> None:
    (folder / "town.py").write_text(SHOPS)
    running = await daemon("town:Roads", "town:Readers")
    plan_output = await natsctl("gc", "plan")
    assert (plan_output.status, plan_output.err) == (0, "there are no orphans\n")
    assert await running.ends(signal.SIGTERM) == 0
    await daemon("town:Shops", "town:Roads")
    clean = await natsctl("gc", "plan")
    assert (clean.status, clean.err) == (0, "there are no orphans\n")
    await natsctl.done(
        "put", "posts", "lost-post", "--raw", json.dumps({"metadata": {"labels": LOST}})
    )

    async def planned() -> bool:
        return "lost-post" in (await natsctl("gc", "plan")).out

    await eventually(planned)


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


async def test_members_count_together_and_know_the_same_tree(
    natsctl: Natsctl, daemon: Daemon
) -> None:
    options = ("--shard",)
    await daemon("controllers.greetings:Greetings", options=options)
    await natsctl.done("put", "greetings/a", '{"spec": {"text": "hi"}}')
    for number in range(6):
        await natsctl.done("put", f"greetings/odd{number}", "[]", "--validate", "ignore")
    await daemon("controllers.greetings:Greetings", options=options)

    async def is_counted() -> bool:
        status = await natsctl("status")
        assert [row[-8] for row in status.rows] == ["6"], status.out
        assert "greetings: 2 members share the keys\n" in status.out
        return True

    await eventually(is_counted)
    trees = [await natsctl.done("describe", "greetings/a", "-o", "json") for _ in range(6)]
    assert len(set(trees)) == 1
    assert '"Unknown"' not in trees[0]
