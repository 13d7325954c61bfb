"""The API endpoints of a controller: status, explain, tree, resync and garbage collection."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from natsctl import (
    Controller,
    GarbageLimits,
    NatsOptions,
    Object,
    Plan,
    kv,
    planning,
    primary,
    secondary,
)
from natsctl.core.environment import enter, within
from natsctl.core.quarantine import ClaimedKeys
from natsctl.core.record.recordings import Recordings
from natsctl.daemon.client import Daemons
from natsctl.daemon.messages import (
    ORPHANS_MAX,
    OWNED_MAX,
    SHOWN_MAX,
    ControllerPlan,
    ControllerStatus,
    DaemonProcess,
    KeyExplanation,
    KeyPlans,
    Queuing,
    Verb,
    fitting,
)
from natsctl.daemon.plan import KEYS_MAX as PLANNED_MAX
from natsctl.daemon.plan import LIMIT_S, Planner
from natsctl.daemon.service import KEYS_MAX, ControllerEndpoints
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.connection import PAYLOAD_MAX, Connection
from natsctl.model.plans import Action, KeyPlan, PlanSummary, Removed
from natsctl.model.reports import Branch, PrimarySource
from natsctl.operate.fleet import Fleet, Statuses
from natsctl.operate.objects import Name
from natsctl.operate.statuses import combined
from natsctl.slices import ITEMS_MAX
from natsctl.telemetry.hiding import Hider, Secrets
from natsctl.testing import Harness, running

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
        if app is not None and app.spec.do == "fail":
            raise ValueError("no\nluck")
        if app is not None and app.spec.do == "hang" and planning():
            await asyncio.sleep(1e6)
        if app is not None:
            await self.reads.get(self.tertiary, "all")
            await self.parts.apply(key, App(spec=app.spec))
        return None


def app(**spec: str) -> bytes:
    return msgspec.json.encode({"spec": spec})


class Client:
    """Calls the endpoints of one controller and decodes the responses."""

    def __init__(self, harness: Harness) -> None:
        endpoints = ControllerEndpoints(
            harness.runtime,
            PROCESS,
            Connection(NatsOptions()),
            planner=Planner(nats=harness.stores),
        )
        self.handlers = {
            endpoint.metadata["verb"]: endpoint.handler for endpoint in endpoints.endpoints()
        }

    async def __call__(self, verb: Verb, request: str | bytes, response_type: type[Any]) -> Any:
        text = request if isinstance(request, bytes) else request.encode()
        return msgspec.json.decode(await self.handlers[verb](text), type=response_type)

    async def status(self) -> ControllerStatus:
        status: ControllerStatus = await self(Verb.STATUS, "", ControllerStatus)
        return status

    async def plan(self, *keys: str) -> KeyPlans:
        plans: KeyPlans = await self(Verb.PLAN, " ".join(keys), KeyPlans)
        return plans


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[int]]:
    """Yield how often another task of the event loop has had its turn, in a list of one number."""
    turns = [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    yield turns
    counting.cancel()


async def test_a_status_counts_all_invalid_and_failing_keys_and_names_the_first() -> None:
    masked, odd = 0, 4 * ITEMS_MAX

    def count_masked(frame: FrameType, event: str, _: object) -> None:
        nonlocal masked
        masked += event == "call" and frame.f_code is Hider.__call__.__code__

    async with running(Apps()) as harness:
        store = harness.stores.store(Apps.apps.kind)
        for number in range(odd):
            await store.create(f"odd-{number:04}", b'{"spec": 5}')
        await store.create("bad", app(do="fail"))
        await store.create("good", app())
        await asyncio.sleep(60)
        client = Client(harness)
        async with counted_turns() as turns:
            status = await client.status()
            assert turns[0] >= 3  # while it masks the errors
        assert (status.state, status.controller, status.daemon) == ("syncing", "apps", PROCESS)
        assert (status.invalid_count, len(status.invalid)) == (odd, SHOWN_MAX)
        assert list(status.invalid)[-1] == f"odd-{SHOWN_MAX - 1:04}"
        assert (status.failing_count, status.failing) == (1, {"bad": "ValueError: no\nluck"})
        assert status.queue is not None
        assert (status.queue.depth, status.queue.held, status.queue.waiting) == (0, 0, 1)
        assert status.failures == status.queue.retries > 1
        sys.setprofile(count_masked)
        second = await client.status()
        sys.setprofile(None)
        assert second.invalid == status.invalid
        assert masked < SHOWN_MAX  # it masks no error again


async def test_a_status_masks_a_secret_that_became_known_after_the_error() -> None:
    class Indexed(Apps):
        name = "apps"
        apps = primary(kv(App, bucket=APPS), indexes={"first": lambda app: {"": ()}[app.spec.do]})

    async with running(Indexed()) as harness:
        await harness.stores.store(Apps.apps.kind).create("odd", app(do="wait"))
        await harness.run_until_idle()
        client = Client(harness)
        assert (await client.status()).invalid == {"odd": "index first fails: KeyError('wait')"}
        with Secrets(["wait"]):
            assert (await client.status()).invalid == {"odd": "index first fails: KeyError('***')"}


async def test_other_tasks_run_while_many_keys_are_resynced_and_more_are_rejected() -> None:
    async with running(Apps()) as harness, counted_turns() as turns:
        client, keys = Client(harness), [f"k{number}" for number in range(KEYS_MAX)]
        answer = await client(Verb.RESYNC, " ".join(keys), Queuing)
        assert (len(answer.unknown), answer.queued) == (KEYS_MAX, 0)
        assert turns[0] >= KEYS_MAX / ITEMS_MAX - 1
        with pytest.raises(UsageError, match="at most 10000 keys at a time"):
            await client(Verb.RESYNC, " ".join([*keys, "more"]), object)


async def test_gc_accept_needs_the_current_reason_of_the_plan() -> None:
    async with running(Apps()) as harness:
        apps = harness.stores.store(Apps.apps.kind)
        for key in ("a", "b"):
            await apps.create(key, app())
        await harness.run_until_idle()
        apps.recreate()
        await asyncio.sleep(1)
        await harness.runtime.collect_garbage()
        client = Client(harness)
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


async def test_a_large_plan_lists_the_first_orphans_and_counts_the_others() -> None:
    async with running(Apps()) as harness:
        apps, parts = [harness.stores.store(slot.kind) for slot in (Apps.apps, Apps.parts)]
        await apps.create("a", app())
        for number in range(ORPHANS_MAX + 100):
            owner = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": f"o{number:05}"}
            lost = {"metadata": {"labels": owner}, "spec": {}}
            await parts.create(f"p{number:05}", msgspec.json.encode(lost))
        await harness.run_until_idle()
        client = Client(harness)
        plan = await client(Verb.GC_PLAN, "", ControllerPlan)
        assert ([orphan.key for orphan in plan.orphans[:2]], len(plan.orphans)) == (
            ["p00000", "p00001"],
            ORPHANS_MAX,
        )
        assert plan.more == 100
        assert f"{ORPHANS_MAX + 100} objects would go" in plan.refused
        removed = await client(Verb.GC_APPLY, msgspec.json.encode(plan), Removed)
        assert len(removed.orphans) == ORPHANS_MAX
        await asyncio.sleep(1)  # the cache sees the last deletion
        second_plan = await client(Verb.GC_PLAN, "", ControllerPlan)
        assert (len(second_plan.orphans), second_plan.more) == (100, 0)


async def test_explain_and_tree_fit_into_a_message_for_a_primary_with_3000_secondaries() -> None:
    async with running(Apps()) as harness:
        apps, parts = [harness.stores.store(slot.kind) for slot in (Apps.apps, Apps.parts)]
        await apps.create("a", app())
        owner = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "a"}
        mine = msgspec.json.encode({"metadata": {"labels": owner}, "spec": {}})
        for number in range(3_000):
            await parts.create(f"{number:0400}", mine)
        await harness.run_until_idle()
        client = Client(harness)
        explanation = await client(Verb.EXPLAIN, "a", KeyExplanation)
        assert len(explanation.owned["App.parts"]) + explanation.owned_more == 3_001
        assert len(explanation.owned["App.parts"]) == OWNED_MAX
        top = await client(Verb.TREE, "a", Branch)
        assert len(top.branches) + top.more == 3_001
        assert top.more > 0
        assert len(msgspec.json.encode(top)) <= PAYLOAD_MAX


async def test_a_plan_neither_records_its_syncs_nor_notes_held_keys(tmp_path: Path) -> None:
    recordings = Recordings(1_000_000)
    enter(claims=ClaimedKeys(tmp_path))
    with within(recordings=recordings):
        async with running(Apps()) as harness:
            await harness.stores.store(Apps.apps.kind).create("corner", app(do="hang"))
            await harness.run_until_idle()
            request = asyncio.create_task(Client(harness).plan("corner"))
            await asyncio.sleep(1)
            held = os.listdir(tmp_path)  # noqa: PTH208 - the loop runs in virtual time
            with pytest.raises(NatsctlError, match="longer than"):
                await request
    assert len(held) == 1  # the file of the daemon
    assert recordings.of("apps", "corner") == []


async def test_one_plan_of_a_few_keys_is_made_at_a_time_and_ends_if_it_takes_too_long() -> None:
    async with running(Apps()) as harness:
        await harness.stores.store(Apps.apps.kind).create("corner", app(do="hang"))
        await harness.run_until_idle()
        client, clock = Client(harness), asyncio.get_running_loop().time
        for keys in ([], [f"k{number}" for number in range(PLANNED_MAX + 1)]):
            with pytest.raises(UsageError, match=r"name 1 to 20 keys: .*; run natsctl plan"):
                await client.plan(*keys)
        begun = clock()
        first = asyncio.create_task(client.plan("corner"))
        await asyncio.sleep(1)
        with pytest.raises(NatsctlError, match="the daemon is making another plan: try again"):
            await client.plan("corner")
        with pytest.raises(NatsctlError, match=r"longer than 20 s: run natsctl plan -c .*:Apps"):
            await first
        assert clock() - begun < LIMIT_S + 1
        assert "plan" not in {task.get_name() for task in asyncio.all_tasks()}


def test_a_plan_that_does_not_fit_counts_the_actions_that_it_leaves_out() -> None:
    actions = tuple(Action(action="create", kind="K", key=str(number)) for number in range(100))
    plan = Plan(controller="c", summary=PlanSummary(), keys={"a": KeyPlan(actions=actions)})
    answer = fitting(
        1000, len(actions), KeyPlans(**msgspec.structs.asdict(plan), daemon=PROCESS).limited
    )
    limited = msgspec.json.decode(answer, type=KeyPlans)
    assert len(limited.keys["a"].actions) + limited.more == len(actions)
    assert limited.more > 0


class FailingFleet(Fleet):
    """A fleet of one controller, whose keys a and b fail."""

    def __init__(self, *sources: PrimarySource) -> None:
        super().__init__(AsyncMock(Connection))
        self.sources = list(sources)
        self.found = AsyncMock(Daemons)
        self.found.resync.return_value = [Queuing(controller="shops", daemon=PROCESS, queued=2)]

    async def statuses(self, name: str | None = None) -> Statuses:
        status = ControllerStatus(
            controller="shops",
            daemon=PROCESS,
            sources=self.sources,
            failing={"edge.a": "no disk", "core.b": "no disk"},
            state="syncing",
        )
        return Statuses([combined("shops", [status])])

    async def daemons(self) -> Daemons:
        return self.found

    async def controller_with(self, name: Name, named: str | None = None) -> str:
        return "shops"


async def test_a_failing_key_is_named_by_each_place_that_may_have_it_and_asked_for_once() -> None:
    fleet = FailingFleet(PrimarySource("sites", "edge.*"), PrimarySource("shops"))
    names = await fleet.failing()
    assert names == [Name("sites", "edge.a"), Name("shops", "edge.a"), Name("shops", "core.b")]
    await fleet.resync(names)
    fleet.found.resync.assert_awaited_once_with("shops", ["edge.a", "core.b"])
