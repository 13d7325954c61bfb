"""What a daemon answers for each of its controllers, and what only the one that leads does."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import primary, secondary
from natsctl.core.coordination.election import Election, elections
from natsctl.core.coordination.own_record import Workload
from natsctl.core.coordination.sharding import Shard, shards
from natsctl.core.insight.tree import Branch
from natsctl.daemon.api.endpoints import KEYS_MAX, ControllerEndpoints
from natsctl.daemon.api.messages import (
    ORPHANS_MAX,
    OWNED_MAX,
    SHOWN_MAX,
    ControllerPlan,
    ControllerStatus,
    KeyExplanation,
    Process,
    Queuing,
)
from natsctl.daemon.api.mode import Mode
from natsctl.daemon.api.peers import Presence
from natsctl.daemon.api.verbs import Verb
from natsctl.daemon.operator import Operator
from natsctl.errors import InvalidKeyError, NatsctlError, PermanentError, UsageError
from natsctl.jetstream.bucket.leases import LEASES
from natsctl.jetstream.connection.connection import PAYLOAD_MAX, Connection
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.garbage import GarbageLimits, Removed
from natsctl.model.kinds import kv
from natsctl.model.objects import Object
from natsctl.testing.harness import running
from natsctl.testing.memory import MemoryStores
from tests.support.eventually import eventually

APPS, PARTS = "apps", "parts"
PROCESS = Process(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")


class AppSpec(msgspec.Struct, frozen=True):
    do: str = ""


class App(Object, frozen=True):
    spec: AppSpec = AppSpec()


class Apps(Controller):
    garbage = GarbageLimits(interval_s=1e6)
    resync_s = 1e6
    apps = primary(kv(App, bucket=APPS))
    parts = secondary(kv(App, bucket=PARTS))
    tertiary = kv(App, bucket="defaults")

    async def sync_handler(self, key: str) -> float | None:
        app = self.apps.get(key)
        match app and app.spec.do:
            case "fail":
                raise ValueError("no\nluck")
            case "give up":
                raise PermanentError("never")
            case "sleep":
                await asyncio.sleep(5)
        if app is not None:
            await self.reads.get(self.tertiary, "all")
            await self.parts.apply(key, App(spec=app.spec))
        return None


def app(**spec: str) -> bytes:
    return msgspec.json.encode({"spec": spec})


class Asked:
    """A desk, and what it answers."""

    def __init__(
        self,
        runtime: Any,
        leads: Callable[[str], bool] = lambda _: True,
        shard: Shard | None = None,
        election: Election | None = None,
    ) -> None:
        unconnected = Connection(NatsOptions())
        self.desk = ControllerEndpoints(
            runtime, PROCESS, unconnected, leads, shard=shard, election=election
        )

    async def __call__(self, verb: Verb, asked: str | bytes, of: type[Any]) -> Any:
        handlers = {each.metadata["verb"]: each.handler for each in self.desk.endpoints()}
        text = asked if isinstance(asked, bytes) else asked.encode()
        return msgspec.json.decode(await handlers[verb](text), type=of)

    async def status(self) -> ControllerStatus:
        found: ControllerStatus = await self(Verb.STATUS, "", ControllerStatus)
        return found

    async def explain(self, key: str) -> KeyExplanation:
        found: KeyExplanation = await self(Verb.EXPLAIN, key, KeyExplanation)
        return found


async def test_every_daemon_tells_and_only_one_that_leads_acts() -> None:
    led = {"apps"}
    runtime = ControllerRuntime(Apps(), nats=MemoryStores())
    desk = Asked(runtime, led.__contains__).desk
    assert {each.subject: each.group for each in desk.endpoints()} == {
        "natsctl.api.status.apps": "",
        "natsctl.api.explain.apps": "",
        "natsctl.api.tree.apps": "natsctl",
        "natsctl.api.resync.apps": "",
        "natsctl.api.gc.plan.apps": "natsctl",
        "natsctl.api.gc.apply.apps": "natsctl",
        "natsctl.api.gc.accept.apps": "natsctl",
    }
    led.clear()
    assert [each.name for each in desk.endpoints()] == ["status", "explain", "tree"]
    assert desk.status().state == "standby"


async def test_before_its_slots_are_open_a_controller_says_that_it_starts() -> None:
    asked = Asked(ControllerRuntime(Apps(), nats=MemoryStores()))
    found = await asked.status()
    assert (found.state, found.primaries, found.queue) == ("starting", None, None)
    with pytest.raises(NatsctlError, match="apps is starting: try again"):
        await asked.explain("a")


async def test_what_is_no_controller_of_ours_tells_only_whether_it_runs() -> None:
    class Guest:
        name = "guest"
        synced = asyncio.Event()

    asked = Asked(Guest())
    assert [each.name for each in asked.desk.endpoints()] == ["status"]
    assert (await asked.status()).state == "starting"
    Guest.synced.set()
    assert (await asked.status()).state == "syncing"


async def test_a_status_counts_all_that_is_wrong_and_names_the_beginning() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        for number in range(SHOWN_MAX + 5):
            await store.create(f"odd-{number:03}", b'{"spec": 5}')
        await store.create("bad", app(do="fail"))
        await store.create("good", app())
        await asyncio.sleep(60)
        found = await Asked(harness.runtime).status()
        assert (found.state, found.controller, found.daemon) == ("syncing", "apps", PROCESS)
        assert (found.invalid_count, len(found.invalid)) == (SHOWN_MAX + 5, SHOWN_MAX)
        assert list(found.invalid)[-1] == f"odd-{SHOWN_MAX - 1:03}"
        assert (found.failing_count, found.failing) == (1, {"bad": "ValueError: no\nluck"})
        assert found.queue is not None
        assert (found.queue.depth, found.queue.held, found.queue.waiting) == (0, 0, 1)
        assert found.failures == found.queue.retries > 1


async def test_an_explanation_says_when_a_failing_key_is_tried_again() -> None:
    async with running(Apps()) as harness:
        await harness.stores.store(Apps.apps.kind).create("bad", app(do="fail"))
        await asyncio.sleep(100)
        asked = Asked(harness.runtime)
        first = await asked.explain("bad")
        assert first.queued is not None
        assert (first.queued.place, first.queued.priority) == ("waiting", "")
        assert first.failures > len(first.syncs) == 5
        assert {each.error for each in first.syncs} == {"ValueError: no\nluck"}
        await asyncio.sleep(first.queued.s - 1)
        later = await asked.explain("bad")
        assert later.queued is not None
        assert later.queued.s == pytest.approx(1)
        await asyncio.sleep(1.1)
        assert (await asked.explain("bad")).failures == first.failures + 1


async def test_an_explanation_says_what_is_under_way_what_is_owned_and_what_was_read() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        await store.create("slow", app(do="sleep"))
        await asyncio.sleep(2)
        asked = Asked(harness.runtime)
        held = (await asked.explain("slow")).queued
        assert held is not None
        assert (held.place, held.priority) == ("held", "user")
        assert held.s == pytest.approx(2, abs=0.1)
        await harness.run_until_idle()
        done = await asked.explain("slow")
        assert (done.exists, done.revision, done.queued, done.failures) == (True, 1, None, 0)
        assert done.owned == {"App.parts": ["slow"]}
        assert done.reads == ["App.defaults all"]
        assert [(each.operation, each.created, each.revision) for each in done.syncs] == [
            ("put", 1, 1)
        ]
        assert "not connected to NATS" in done.events_error


async def test_of_a_key_that_nobody_knows_there_is_nothing_to_explain() -> None:
    async with running(Apps()) as harness:
        found = await Asked(harness.runtime).explain("nobody")
        assert (found.exists, found.queued, found.syncs) == (False, None, [])
        assert found.owned == {"App.parts": []}


async def test_resync_queues_what_is_named_and_says_what_it_does_not() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        await store.create("doomed", app(do="give up"))
        await store.create("odd", b"5")
        await harness.run_until_idle()
        asked = Asked(harness.runtime)
        syncs = harness.runtime.status().syncs
        found = await asked(Verb.RESYNC, "doomed  odd nobody doomed\n", Queuing)
        assert (found.controller, found.queued, found.unknown) == ("apps", 1, ["nobody"])
        assert list(found.invalid) == ["odd"]
        await harness.run_until_idle()
        assert harness.runtime.status().syncs == syncs + 1
        operations = [each.operation for each in (await asked.explain("doomed")).syncs]
        assert operations[-1] == "manual"


async def test_resync_without_keys_queues_all_of_them() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        for key in ("a", "b", "c"):
            await store.create(key, app())
        await harness.run_until_idle()
        found = await Asked(harness.runtime)(Verb.RESYNC, "", Queuing)
        assert found.queued == 3
        await harness.run_until_idle()
        assert harness.runtime.status().syncs == 6


@pytest.mark.parametrize("asked", ["", "a b"])
async def test_one_key_is_explained_at_a_time(asked: str) -> None:
    async with running(Apps()) as harness:
        for verb in (Verb.EXPLAIN, Verb.TREE):
            with pytest.raises(UsageError, match="send one key"):
                await Asked(harness.runtime)(verb, asked, object)


async def test_what_is_no_key_is_refused() -> None:
    async with running(Apps()) as harness:
        with pytest.raises(InvalidKeyError):
            await Asked(harness.runtime).explain("a..b")
        with pytest.raises(UsageError, match="keys as UTF-8 text"):
            await Asked(harness.runtime)(Verb.RESYNC, b"\xff", object)


async def test_a_tree_is_the_primary_with_what_was_made_for_it() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        managed = {
            "metadata": {
                "annotations": {
                    "natsctl.io/external-name": "vol-1",
                    "natsctl.io/external-create-pending": "2026-01-01T00:00:00Z revision 1",
                    "natsctl.io/external-create-succeeded": "2026-01-01T00:00:01Z revision 1",
                }
            },
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Creating"}]},
        }
        await store.create("disk", msgspec.json.encode(managed))
        await harness.run_until_idle()
        top = await Asked(harness.runtime)(Verb.TREE, "disk", Branch)
        assert (top.kind, top.key, top.ready, top.reason) == (
            "App.apps",
            "disk",
            "False",
            "Creating",
        )
        part, external = top.branches
        assert (part.kind, part.key, part.bucket, part.revision) == ("App.parts", "disk", PARTS, 1)
        assert (external.kind, external.key, external.ready) == ("External", "vol-1", "False")


async def test_a_tree_shows_what_is_left_of_a_primary_that_is_gone_or_invalid() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        await store.create("a", app())
        await harness.run_until_idle()
        await store.update("a", b'{"spec": 5}', revision=1)
        await harness.run_until_idle()
        asked = Asked(harness.runtime)
        top = await asked(Verb.TREE, "a", Branch)
        assert (top.ready, top.revision) == ("Invalid", 2)
        assert "not a valid App" in top.reason
        assert [branch.key for branch in top.branches] == ["a"]
        top = await asked(Verb.TREE, "nobody", Branch)
        assert (top.ready, top.revision, top.branches) == ("Missing", None, ())


async def test_a_plan_has_no_grace_and_what_it_says_is_removed() -> None:
    async with running(Apps()) as harness:
        apps, parts = [harness.stores.store(slot.kind) for slot in (Apps.apps, Apps.parts)]
        await apps.create("a", app())
        await harness.run_until_idle()
        labels = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "nobody"}
        lost = msgspec.json.encode({"metadata": {"labels": labels}, "spec": {}})
        await parts.create("lost", lost)
        await harness.run_until_idle()
        asked = Asked(harness.runtime)
        plan = await asked(Verb.GC_PLAN, "", ControllerPlan)
        assert [(at.key, at.owner, at.due) for at in plan.orphans] == [("lost", "nobody", True)]
        others = msgspec.structs.replace(plan, controller="others")
        with pytest.raises(UsageError, match="a plan of others, not of apps"):
            await asked(Verb.GC_APPLY, msgspec.json.encode(others), Removed)
        with pytest.raises(UsageError, match=r"send the plan that gc\.plan returned"):
            await asked(Verb.GC_APPLY, "", Removed)
        assert parts.keys() == ["a", "lost"]
        removed = await asked(Verb.GC_APPLY, msgspec.json.encode(plan), Removed)
        assert removed.orphans == plan.orphans
        assert parts.keys() == ["a"]


async def test_more_keys_than_one_request_may_have_are_refused() -> None:
    async with running(Apps()) as harness:
        many = " ".join(f"k{number}" for number in range(KEYS_MAX + 1))
        with pytest.raises(UsageError, match="at most 10000 keys at a time"):
            await Asked(harness.runtime)(Verb.RESYNC, many, object)


async def test_a_bucket_is_accepted_only_for_the_reason_that_the_plan_shows() -> None:
    async with running(Apps()) as harness:
        apps = harness.stores.store(Apps.apps.kind)
        for key in ("a", "b"):
            await apps.create(key, app())
        await harness.run_until_idle()
        apps.recreate()
        await asyncio.sleep(1)
        await harness.runtime.collect_garbage()
        asked = Asked(harness.runtime)
        held = harness.runtime.garbage_held
        plan = await asked(Verb.GC_PLAN, "", ControllerPlan)
        assert held
        assert plan.refused == held
        for nothing in ("", "{", "[" * 100_000):
            with pytest.raises(UsageError, match=r"send the plan that gc\.plan returned"):
                await asked(Verb.GC_ACCEPT, nothing, ControllerPlan)
        other = msgspec.structs.replace(plan, refused="another reason")
        with pytest.raises(UsageError, match="held for another reason than the plan shows"):
            await asked(Verb.GC_ACCEPT, msgspec.json.encode(other), ControllerPlan)
        assert harness.runtime.garbage_held == held
        await asked(Verb.GC_ACCEPT, msgspec.json.encode(plan), ControllerPlan)
        assert harness.runtime.garbage_held == ""


async def test_status_and_explain_show_why_garbage_collection_is_held() -> None:
    async with running(Apps()) as harness:
        apps = harness.stores.store(Apps.apps.kind)
        for key in ("a", "b"):
            await apps.create(key, app())
        await harness.run_until_idle()
        apps.recreate()
        await asyncio.sleep(1)
        await harness.runtime.collect_garbage()
        asked = Asked(harness.runtime)
        status = await asked(Verb.STATUS, "", ControllerStatus)
        known = await asked(Verb.EXPLAIN, "a", KeyExplanation)
        assert "was recreated" in status.garbage_held
        assert known.garbage_held == status.garbage_held
        for key in ("a", "b"):
            await apps.create(key, app())
        await harness.run_until_idle()
        seen = await asked(Verb.GC_PLAN, "", ControllerPlan)
        plan = await asked(Verb.GC_ACCEPT, msgspec.json.encode(seen), ControllerPlan)
        assert (plan.refused, plan.orphans) == ("", ())
        assert (await asked(Verb.STATUS, "", ControllerStatus)).garbage_held == ""


async def test_of_very_much_garbage_a_plan_shows_the_beginning_and_counts_the_rest() -> None:
    async with running(Apps()) as harness:
        apps, parts = [harness.stores.store(slot.kind) for slot in (Apps.apps, Apps.parts)]
        await apps.create("a", app())
        for number in range(ORPHANS_MAX + 500):
            owner = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": f"o{number:05}"}
            lost = {"metadata": {"labels": owner}, "spec": {}}
            await parts.create(f"p{number:05}", msgspec.json.encode(lost))
        await harness.run_until_idle()
        asked = Asked(harness.runtime)
        plan = await asked(Verb.GC_PLAN, "", ControllerPlan)
        assert ([at.key for at in plan.orphans[:2]], len(plan.orphans)) == (
            ["p00000", "p00001"],
            ORPHANS_MAX,
        )
        assert plan.more == 500
        assert f"{ORPHANS_MAX + 500} objects would go" in plan.refused
        removed = await asked(Verb.GC_APPLY, msgspec.json.encode(plan), Removed)
        assert len(removed.orphans) == ORPHANS_MAX
        await asyncio.sleep(1)  # the cache sees the last deletion
        again = await asked(Verb.GC_PLAN, "", ControllerPlan)
        assert (len(again.orphans), again.more) == (500, 0)


async def test_a_primary_that_owns_very_much_is_explained_and_shown_as_far_as_a_message_goes() -> (
    None
):
    async with running(Apps()) as harness:
        apps, parts = [harness.stores.store(slot.kind) for slot in (Apps.apps, Apps.parts)]
        await apps.create("a", app())
        owner = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "a"}
        mine = msgspec.json.encode({"metadata": {"labels": owner}, "spec": {}})
        for number in range(20_000):
            await parts.create(f"{number:0200}", mine)
        await harness.run_until_idle()
        asked = Asked(harness.runtime)
        found = await asked.explain("a")
        assert len(found.owned["App.parts"]) + found.owned_more == 20_001
        assert len(found.owned["App.parts"]) == OWNED_MAX
        top = await asked(Verb.TREE, "a", Branch)
        assert len(top.branches) + top.more == 20_001
        assert len(msgspec.json.encode(top)) <= PAYLOAD_MAX


async def test_of_members_that_share_the_keys_each_answers_for_its_own() -> None:
    stores = MemoryStores()
    clock = asyncio.get_running_loop().time
    make = [shards(stores.store, LEASES.bucket, ttl_s=10, clock=clock) for _ in range(2)]
    operators = [Operator([Apps()], nats=stores, shard=each) for each in make]
    tasks = [asyncio.create_task(operator.run()) for operator in operators]
    await eventually(lambda: all(len(at.shards["apps"].state().members) > 1 for at in operators))
    keys = [f"a{number}" for number in range(20)]
    for key in keys:
        await stores.store(Apps.apps.kind).create(key, app())
    await asyncio.sleep(20)
    desks = [Asked(at.runtimes[0], at.leads, shard=at.shards["apps"]) for at in operators]

    found = [await asked.status() for asked in desks]
    assert [(len(each.members), each.state) for each in found] == [(2, "syncing")] * 2
    assert sorted(each.mode for each in found) == ["shard 1 of 2", "shard 2 of 2"]
    assert sum(each.keys or 0 for each in found) == len(keys)
    assert [each.primaries for each in found] == [len(keys)] * 2

    for key in keys:
        told = [await asked.explain(key) for asked in desks]
        (has,) = (each for each in told if each.here)
        assert has.syncs
        assert {each.member for each in told} == {has.member}
        assert [each.syncs for each in told if not each.here] == [[]]

    named = [await asked(Verb.RESYNC, " ".join([*keys, "none"]), Queuing) for asked in desks]
    assert [each.queued for each in named] == [each.keys for each in found]
    assert [each.unknown for each in named] == [["none"]] * 2
    assert sorted(key for each in named for key in each.elsewhere) == sorted(keys)
    everything = [await asked(Verb.RESYNC, "", Queuing) for asked in desks]
    assert sum(each.queued for each in everything) == len(keys)

    for asked in desks:
        groups = {each.metadata["verb"]: each.group for each in asked.desk.endpoints()}
        assert {verb for verb, group in groups.items() if group} == {"tree", "gc.plan"}
    for operator, task in zip(operators, tasks, strict=True):
        operator.stop()
        await task


async def test_each_member_collects_the_garbage_of_its_own_keys() -> None:
    stores = MemoryStores()
    clock = asyncio.get_running_loop().time
    make = [shards(stores.store, LEASES.bucket, ttl_s=10, clock=clock) for _ in range(2)]
    operators = [Operator([Apps()], nats=stores, shard=each) for each in make]
    tasks = [asyncio.create_task(operator.run()) for operator in operators]
    await eventually(lambda: all(len(at.shards["apps"].state().members) > 1 for at in operators))
    apps, parts = stores.store(Apps.apps.kind), stores.store(Apps.parts.kind)
    keys = [f"a{number}" for number in range(20)]
    for key in keys:
        await apps.create(key, app())
    await asyncio.sleep(20)
    assert parts.keys() == sorted(keys)
    apps.vanish(*keys)
    apps.break_watches()
    await asyncio.sleep(1)
    desks = [Asked(at.runtimes[0], at.leads, shard=at.shards["apps"]) for at in operators]
    plan = await desks[0](Verb.GC_PLAN, "", ControllerPlan)
    assert {orphan.key for orphan in plan.orphans} == set(keys)
    removed = [await asked(Verb.GC_APPLY, msgspec.json.encode(plan), Removed) for asked in desks]
    gone = [orphan.key for each in removed for orphan in each.orphans]
    assert sorted(gone) == sorted(keys)
    assert all(each.orphans for each in removed)
    assert parts.keys() == []
    for operator, task in zip(operators, tasks, strict=True):
        operator.stop()
        await task


async def test_a_daemon_without_an_election_or_shards_runs_alone() -> None:
    assert (await Asked(ControllerRuntime(Apps(), nats=MemoryStores())).status()).mode == "alone"


async def test_one_leads_and_the_other_stands_by() -> None:
    stores, clock = MemoryStores(), asyncio.get_running_loop().time
    leases = stores.store(kv(bytes, bucket=LEASES.bucket, history=1))
    make = [elections(leases, ttl_s=10, clock=clock) for _ in range(2)]
    operators = [Operator([Apps()], nats=stores, election=each) for each in make]
    tasks = [asyncio.create_task(operator.run()) for operator in operators]
    await asyncio.sleep(5)
    desks = [Asked(at.runtimes[0], at.leads, election=at.elections["apps"]) for at in operators]
    assert sorted([(await asked.status()).mode for asked in desks]) == ["leader", "standby"]
    for operator, task in zip(operators, tasks, strict=True):
        operator.stop()
        await task


async def test_a_daemon_that_introduces_itself_is_answered_likewise() -> None:
    asked = Asked(ControllerRuntime(Apps(), nats=MemoryStores()))
    other = Presence(daemon=PROCESS, mode=Mode.SHARED, work=Workload("App.apps"))
    answer = await asked(Verb.STATUS, msgspec.json.encode(other), Presence)
    assert (answer.mode, answer.work) == (Mode.ALONE, Workload("App.apps"))
