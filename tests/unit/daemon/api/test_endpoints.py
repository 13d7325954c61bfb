"""The API endpoints of a controller: status, explain, tree, resync and garbage collection."""

import asyncio
import math
from typing import Any

import msgspec
import pytest

from natsctl import (
    Controller,
    ControllerRuntime,
    GarbageLimits,
    NatsOptions,
    Object,
    Operator,
    kv,
    primary,
    secondary,
)
from natsctl.core.coordination.lease import Workload
from natsctl.core.coordination.shares import Participation, participations
from natsctl.core.coordination.term import SHARES
from natsctl.core.tree import Branch
from natsctl.daemon.doctor.doctor import verbs_of
from natsctl.daemon.messages import (
    ORPHANS_MAX,
    OWNED_MAX,
    SHOWN_MAX,
    ControllerPlan,
    ControllerStatus,
    DaemonProcess,
    KeyExplanation,
    Queuing,
    Verb,
)
from natsctl.daemon.peers import Mode, Presence
from natsctl.daemon.service import KEYS_MAX, ControllerEndpoints
from natsctl.errors import InvalidKeyError, NatsctlError, PermanentError, UsageError
from natsctl.jetstream.connection import PAYLOAD_MAX, Connection
from natsctl.model.garbage import Removed
from natsctl.testing import MemoryStores, running
from tests.support.controllers.programs import Streamed
from tests.support.eventually import eventually

APPS, PARTS = "apps", "parts"
PROCESS = DaemonProcess(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")


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


class Client:
    """Calls the endpoints of one controller and decodes the responses."""

    def __init__(
        self,
        runtime: Any,
        participation: Participation | None = None,
    ) -> None:
        unconnected = Connection(NatsOptions())
        self.endpoints = ControllerEndpoints(
            runtime, PROCESS, unconnected, participation=participation
        )

    async def __call__(self, verb: Verb, request: str | bytes, response_type: type[Any]) -> Any:
        handlers = {
            endpoint.metadata["verb"]: endpoint.handler for endpoint in self.endpoints.endpoints()
        }
        text = request if isinstance(request, bytes) else request.encode()
        return msgspec.json.decode(await handlers[verb](text), type=response_type)

    async def status(self) -> ControllerStatus:
        status: ControllerStatus = await self(Verb.STATUS, "", ControllerStatus)
        return status

    async def explain(self, key: str) -> KeyExplanation:
        explanation: KeyExplanation = await self(Verb.EXPLAIN, key, KeyExplanation)
        return explanation


async def test_every_daemon_serves_status_and_only_the_leader_serves_changes() -> None:
    stores = MemoryStores()
    election = participations(stores.store, count=1, ttl_s=10)("apps", "")
    election.leadership.begin(1, math.inf)
    runtime = ControllerRuntime(Apps(), nats=stores)
    controller_endpoints = Client(runtime, participation=election).endpoints
    assert {endpoint.subject: endpoint.group for endpoint in controller_endpoints.endpoints()} == {
        "natsctl.api.status.apps": "",
        "natsctl.api.explain.apps": "",
        "natsctl.api.tree.apps": "natsctl",
        "natsctl.api.manifest.apps": "",
        "natsctl.api.resync.apps": "",
        "natsctl.api.record.apps": "",
        "natsctl.api.recording.apps": "",
        "natsctl.api.recording.unmasked.apps": "",
        "natsctl.api.gc.plan.apps": "natsctl",
        "natsctl.api.gc.apply.apps": "natsctl",
        "natsctl.api.gc.accept.apps": "natsctl",
    }
    election.leadership.lose()
    assert [endpoint.name for endpoint in controller_endpoints.endpoints()] == [
        "status",
        "explain",
        "tree",
        "manifest",
        "record",
        "recording",
        "recording-unmasked",
    ]
    assert controller_endpoints.status().state == "standby"


async def test_a_controller_without_opened_slots_is_starting() -> None:
    client = Client(ControllerRuntime(Apps(), nats=MemoryStores()))
    status = await client.status()
    assert (status.state, status.primaries, status.queue) == ("starting", None, None)
    with pytest.raises(NatsctlError, match="apps is starting: try again"):
        await client.explain("a")


async def test_a_runnable_that_is_no_controller_serves_only_its_status() -> None:
    class Guest:
        name = "guest"
        synced = asyncio.Event()

    client = Client(Guest())
    assert [endpoint.name for endpoint in client.endpoints.endpoints()] == ["status"]
    assert (await client.status()).state == "starting"
    Guest.synced.set()
    assert (await client.status()).state == "syncing"


async def test_a_program_serves_the_verbs_that_the_doctor_checks() -> None:
    program = Streamed()
    client = Client(program)
    served = {endpoint.metadata["verb"] for endpoint in client.endpoints.endpoints()}
    assert served == {str(verb) for verb in verbs_of([program])["streamed"]}
    assert served == {"status"}


async def test_a_status_counts_all_invalid_and_failing_keys_and_names_the_first() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        for number in range(SHOWN_MAX + 5):
            await store.create(f"odd-{number:03}", b'{"spec": 5}')
        await store.create("bad", app(do="fail"))
        await store.create("good", app())
        await asyncio.sleep(60)
        status = await Client(harness.runtime).status()
        assert (status.state, status.controller, status.daemon) == ("syncing", "apps", PROCESS)
        assert (status.invalid_count, len(status.invalid)) == (SHOWN_MAX + 5, SHOWN_MAX)
        assert list(status.invalid)[-1] == f"odd-{SHOWN_MAX - 1:03}"
        assert (status.failing_count, status.failing) == (1, {"bad": "ValueError: no\nluck"})
        assert status.queue is not None
        assert (status.queue.depth, status.queue.held, status.queue.waiting) == (0, 0, 1)
        assert status.failures == status.queue.retries > 1


async def test_an_explanation_has_the_time_of_the_next_retry() -> None:
    async with running(Apps()) as harness:
        await harness.stores.store(Apps.apps.kind).create("bad", app(do="fail"))
        await asyncio.sleep(100)
        client = Client(harness.runtime)
        first = await client.explain("bad")
        assert first.queued is not None
        assert (first.queued.place, first.queued.priority) == ("waiting", "")
        assert first.failures > len(first.syncs) == 5
        assert {sync.error for sync in first.syncs} == {"ValueError: no\nluck"}
        await asyncio.sleep(first.queued.s - 1)
        later = await client.explain("bad")
        assert later.queued is not None
        assert later.queued.s == pytest.approx(1)
        await asyncio.sleep(1.1)
        assert (await client.explain("bad")).failures == first.failures + 1


async def test_an_explanation_has_the_running_sync_the_owned_objects_and_the_reads() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        await store.create("slow", app(do="sleep"))
        await asyncio.sleep(2)
        client = Client(harness.runtime)
        held = (await client.explain("slow")).queued
        assert held is not None
        assert (held.place, held.priority) == ("held", "user")
        assert held.s == pytest.approx(2, abs=0.1)
        await harness.run_until_idle()
        done = await client.explain("slow")
        assert (done.exists, done.revision, done.queued, done.failures) == (True, 1, None, 0)
        assert done.owned == {"App.parts": ["slow"]}
        assert done.reads == ["App.defaults all"]
        assert [(sync.operation, sync.created, sync.revision) for sync in done.syncs] == [
            ("put", 1, 1)
        ]
        assert "not connected to NATS" in done.events_error


async def test_an_explanation_of_an_unknown_key_is_empty() -> None:
    async with running(Apps()) as harness:
        explanation = await Client(harness.runtime).explain("nobody")
        assert (explanation.exists, explanation.queued, explanation.syncs) == (False, None, [])
        assert explanation.owned == {"App.parts": []}


async def test_resync_enqueues_known_keys_and_reports_unknown_and_invalid_keys() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        await store.create("doomed", app(do="give up"))
        await store.create("odd", b"5")
        await harness.run_until_idle()
        client = Client(harness.runtime)
        syncs = harness.runtime.status().syncs
        response = await client(Verb.RESYNC, "doomed  odd nobody doomed\n", Queuing)
        assert (response.controller, response.queued, response.unknown) == ("apps", 1, ["nobody"])
        assert list(response.invalid) == ["odd"]
        await harness.run_until_idle()
        assert harness.runtime.status().syncs == syncs + 1
        operations = [sync.operation for sync in (await client.explain("doomed")).syncs]
        assert operations[-1] == "manual"


async def test_resync_without_keys_enqueues_all_keys() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        for key in ("a", "b", "c"):
            await store.create(key, app())
        await harness.run_until_idle()
        response = await Client(harness.runtime)(Verb.RESYNC, "", Queuing)
        assert response.queued == 3
        await harness.run_until_idle()
        assert harness.runtime.status().syncs == 6


@pytest.mark.parametrize("request_text", ["", "a b"])
async def test_explain_and_tree_need_exactly_one_key(request_text: str) -> None:
    async with running(Apps()) as harness:
        for verb in (Verb.EXPLAIN, Verb.TREE):
            with pytest.raises(UsageError, match="send one key"):
                await Client(harness.runtime)(verb, request_text, object)


async def test_an_invalid_key_is_rejected() -> None:
    async with running(Apps()) as harness:
        with pytest.raises(InvalidKeyError):
            await Client(harness.runtime).explain("a..b")
        with pytest.raises(UsageError, match="keys as UTF-8 text"):
            await Client(harness.runtime)(Verb.RESYNC, b"\xff", object)


async def test_a_tree_has_the_primary_its_secondaries_and_its_external_resource() -> None:
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
        top = await Client(harness.runtime)(Verb.TREE, "disk", Branch)
        assert (top.kind, top.key, top.ready, top.reason) == (
            "App.apps",
            "disk",
            "False",
            "Creating",
        )
        part, external = top.branches
        assert (part.kind, part.key, part.bucket, part.revision) == ("App.parts", "disk", PARTS, 1)
        assert (external.kind, external.key, external.ready) == ("External", "vol-1", "False")


async def test_a_tree_shows_the_secondaries_of_a_missing_or_invalid_primary() -> None:
    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        await store.create("a", app())
        await harness.run_until_idle()
        await store.update("a", b'{"spec": 5}', revision=1)
        await harness.run_until_idle()
        client = Client(harness.runtime)
        top = await client(Verb.TREE, "a", Branch)
        assert (top.ready, top.revision) == ("Invalid", 2)
        assert "not a valid App" in top.reason
        assert [branch.key for branch in top.branches] == ["a"]
        top = await client(Verb.TREE, "nobody", Branch)
        assert (top.ready, top.revision, top.branches) == ("Missing", None, ())


async def test_gc_apply_removes_the_orphans_of_the_plan_without_a_grace_period() -> None:
    async with running(Apps()) as harness:
        apps, parts = [harness.stores.store(slot.kind) for slot in (Apps.apps, Apps.parts)]
        await apps.create("a", app())
        await harness.run_until_idle()
        labels = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "nobody"}
        lost = msgspec.json.encode({"metadata": {"labels": labels}, "spec": {}})
        await parts.create("lost", lost)
        await harness.run_until_idle()
        client = Client(harness.runtime)
        plan = await client(Verb.GC_PLAN, "", ControllerPlan)
        assert [(orphan.key, orphan.owner, orphan.due) for orphan in plan.orphans] == [
            ("lost", "nobody", True)
        ]
        other_plan = msgspec.structs.replace(plan, controller="others")
        with pytest.raises(UsageError, match="a plan of others, not of apps"):
            await client(Verb.GC_APPLY, msgspec.json.encode(other_plan), Removed)
        with pytest.raises(UsageError, match=r"send the plan that gc\.plan returned"):
            await client(Verb.GC_APPLY, "", Removed)
        assert parts.keys() == ["a", "lost"]
        removed = await client(Verb.GC_APPLY, msgspec.json.encode(plan), Removed)
        assert removed.orphans == plan.orphans
        assert parts.keys() == ["a"]


async def test_resync_rejects_too_many_keys() -> None:
    async with running(Apps()) as harness:
        too_many_keys = " ".join(f"k{number}" for number in range(KEYS_MAX + 1))
        with pytest.raises(UsageError, match="at most 10000 keys at a time"):
            await Client(harness.runtime)(Verb.RESYNC, too_many_keys, object)


async def test_gc_accept_needs_the_current_reason_of_the_plan() -> None:
    async with running(Apps()) as harness:
        apps = harness.stores.store(Apps.apps.kind)
        for key in ("a", "b"):
            await apps.create(key, app())
        await harness.run_until_idle()
        apps.recreate()
        await asyncio.sleep(1)
        await harness.runtime.collect_garbage()
        client = Client(harness.runtime)
        held = harness.runtime.garbage_held
        plan = await client(Verb.GC_PLAN, "", ControllerPlan)
        assert held
        assert plan.refused == held
        for invalid_plan in ("", "{", "[" * 100_000):
            with pytest.raises(UsageError, match=r"send the plan that gc\.plan returned"):
                await client(Verb.GC_ACCEPT, invalid_plan, ControllerPlan)
        outdated_plan = msgspec.structs.replace(plan, refused="another reason")
        with pytest.raises(UsageError, match="held for another reason than the plan shows"):
            await client(Verb.GC_ACCEPT, msgspec.json.encode(outdated_plan), ControllerPlan)
        assert harness.runtime.garbage_held == held
        await client(Verb.GC_ACCEPT, msgspec.json.encode(plan), ControllerPlan)
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
        client = Client(harness.runtime)
        status = await client(Verb.STATUS, "", ControllerStatus)
        explanation = await client(Verb.EXPLAIN, "a", KeyExplanation)
        assert "was recreated" in status.garbage_held
        assert explanation.garbage_held == status.garbage_held
        for key in ("a", "b"):
            await apps.create(key, app())
        await harness.run_until_idle()
        held_plan = await client(Verb.GC_PLAN, "", ControllerPlan)
        plan = await client(Verb.GC_ACCEPT, msgspec.json.encode(held_plan), ControllerPlan)
        assert (plan.refused, plan.orphans) == ("", ())
        assert (await client(Verb.STATUS, "", ControllerStatus)).garbage_held == ""


async def test_a_large_plan_lists_the_first_orphans_and_counts_the_others() -> None:
    async with running(Apps()) as harness:
        apps, parts = [harness.stores.store(slot.kind) for slot in (Apps.apps, Apps.parts)]
        await apps.create("a", app())
        for number in range(ORPHANS_MAX + 500):
            owner = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": f"o{number:05}"}
            lost = {"metadata": {"labels": owner}, "spec": {}}
            await parts.create(f"p{number:05}", msgspec.json.encode(lost))
        await harness.run_until_idle()
        client = Client(harness.runtime)
        plan = await client(Verb.GC_PLAN, "", ControllerPlan)
        assert ([orphan.key for orphan in plan.orphans[:2]], len(plan.orphans)) == (
            ["p00000", "p00001"],
            ORPHANS_MAX,
        )
        assert plan.more == 500
        assert f"{ORPHANS_MAX + 500} objects would go" in plan.refused
        removed = await client(Verb.GC_APPLY, msgspec.json.encode(plan), Removed)
        assert len(removed.orphans) == ORPHANS_MAX
        await asyncio.sleep(1)  # the cache sees the last deletion
        second_plan = await client(Verb.GC_PLAN, "", ControllerPlan)
        assert (len(second_plan.orphans), second_plan.more) == (500, 0)


async def test_explain_and_tree_fit_into_a_message_for_a_primary_with_6000_secondaries() -> None:
    async with running(Apps()) as harness:
        apps, parts = [harness.stores.store(slot.kind) for slot in (Apps.apps, Apps.parts)]
        await apps.create("a", app())
        owner = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "a"}
        mine = msgspec.json.encode({"metadata": {"labels": owner}, "spec": {}})
        for number in range(6_000):
            await parts.create(f"{number:0200}", mine)
        await harness.run_until_idle()
        client = Client(harness.runtime)
        explanation = await client.explain("a")
        assert len(explanation.owned["App.parts"]) + explanation.owned_more == 6_001
        assert len(explanation.owned["App.parts"]) == OWNED_MAX
        top = await client(Verb.TREE, "a", Branch)
        assert len(top.branches) + top.more == 6_001
        assert top.more > 0
        assert len(msgspec.json.encode(top)) <= PAYLOAD_MAX


async def test_each_shard_member_answers_for_its_own_keys() -> None:
    stores = MemoryStores()
    clock = asyncio.get_running_loop().time
    shard_factories = [
        participations(stores.store, count=SHARES, ttl_s=10, clock=clock) for _ in range(2)
    ]
    operators = [Operator([Apps()], nats=stores, participate=shard) for shard in shard_factories]
    tasks = [asyncio.create_task(operator.run()) for operator in operators]
    await eventually(
        lambda: all(
            len(operator.participations["apps"].state().members) > 1 for operator in operators
        )
    )
    keys = [f"a{number}" for number in range(20)]
    for key in keys:
        await stores.store(Apps.apps.kind).create(key, app())
    await asyncio.sleep(20)
    clients = [
        Client(operator.runtimes[0], participation=operator.participations["apps"])
        for operator in operators
    ]

    statuses = [await client.status() for client in clients]
    assert [(len(status.members), status.state) for status in statuses] == [(2, "syncing")] * 2
    assert sorted(status.mode for status in statuses) == [
        "shard 1 of 2, 128 shares",
        "shard 2 of 2, 128 shares",
    ]
    assert [status.shares for status in statuses] == [128, 128]
    assert sum(status.keys or 0 for status in statuses) == len(keys)
    assert [status.primaries for status in statuses] == [len(keys)] * 2

    for key in keys:
        explanations = [await client.explain(key) for client in clients]
        (local,) = (explanation for explanation in explanations if explanation.here)
        assert local.syncs
        assert {explanation.member for explanation in explanations} == {local.member}
        assert [explanation.syncs for explanation in explanations if not explanation.here] == [[]]

    responses = [
        await client(Verb.RESYNC, " ".join([*keys, "none"]), Queuing) for client in clients
    ]
    assert [response.queued for response in responses] == [status.keys for status in statuses]
    assert [response.unknown for response in responses] == [["none"]] * 2
    assert sorted(key for response in responses for key in response.elsewhere) == sorted(keys)
    responses = [await client(Verb.RESYNC, "", Queuing) for client in clients]
    assert sum(response.queued for response in responses) == len(keys)

    for client in clients:
        groups = {
            endpoint.metadata["verb"]: endpoint.group for endpoint in client.endpoints.endpoints()
        }
        assert {verb for verb, group in groups.items() if group} == {"gc.plan"}
    for operator, task in zip(operators, tasks, strict=True):
        operator.stop()
        await task


async def test_each_member_collects_the_garbage_of_its_own_keys() -> None:
    stores = MemoryStores()
    clock = asyncio.get_running_loop().time
    shard_factories = [
        participations(stores.store, count=SHARES, ttl_s=10, clock=clock) for _ in range(2)
    ]
    operators = [Operator([Apps()], nats=stores, participate=shard) for shard in shard_factories]
    tasks = [asyncio.create_task(operator.run()) for operator in operators]
    await eventually(
        lambda: all(
            len(operator.participations["apps"].state().members) > 1 for operator in operators
        )
    )
    apps, parts = stores.store(Apps.apps.kind), stores.store(Apps.parts.kind)
    keys = [f"a{number}" for number in range(20)]
    for key in keys:
        await apps.create(key, app())
    await asyncio.sleep(20)
    assert parts.keys() == sorted(keys)
    apps.vanish(*keys)
    apps.break_watches()
    await asyncio.sleep(1)
    clients = [
        Client(operator.runtimes[0], participation=operator.participations["apps"])
        for operator in operators
    ]
    plan = await clients[0](Verb.GC_PLAN, "", ControllerPlan)
    assert {orphan.key for orphan in plan.orphans} == set(keys)
    removed = [
        await client(Verb.GC_APPLY, msgspec.json.encode(plan), Removed) for client in clients
    ]
    removed_keys = [orphan.key for part in removed for orphan in part.orphans]
    assert sorted(removed_keys) == sorted(keys)
    assert all(part.orphans for part in removed)
    assert parts.keys() == []
    for operator, task in zip(operators, tasks, strict=True):
        operator.stop()
        await task


async def test_a_daemon_without_an_election_or_shards_runs_alone() -> None:
    assert (await Client(ControllerRuntime(Apps(), nats=MemoryStores())).status()).mode == "alone"


async def test_one_daemon_is_the_leader_and_the_other_is_standby() -> None:
    stores, clock = MemoryStores(), asyncio.get_running_loop().time
    election_factories = [
        participations(stores.store, count=1, ttl_s=10, clock=clock) for _ in range(2)
    ]
    operators = [
        Operator([Apps()], nats=stores, participate=election) for election in election_factories
    ]
    tasks = [asyncio.create_task(operator.run()) for operator in operators]
    await asyncio.sleep(5)
    clients = [
        Client(operator.runtimes[0], participation=operator.participations["apps"])
        for operator in operators
    ]
    assert sorted([(await client.status()).mode for client in clients]) == ["leader", "standby"]
    for operator, task in zip(operators, tasks, strict=True):
        operator.stop()
        await task


async def test_the_status_response_to_a_presence_is_a_presence() -> None:
    client = Client(ControllerRuntime(Apps(), nats=MemoryStores()))
    presence = Presence(daemon=PROCESS, mode=Mode.SHARED, work=Workload("App.apps"))
    response = await client(Verb.STATUS, msgspec.json.encode(presence), Presence)
    assert (response.mode, response.work) == (Mode.ALONE, Workload("App.apps"))
