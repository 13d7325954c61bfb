"""A daemon plans a few keys on request, with a new instance of the controller that it runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

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
from natsctl.daemon.messages import DaemonProcess, KeyPlans, Verb, fitting
from natsctl.daemon.operator import Runnable
from natsctl.daemon.plan import KEYS_MAX, LIMIT_S, Planner
from natsctl.daemon.service import ControllerEndpoints
from natsctl.errors import NatsctlError, PermanentError, UsageError
from natsctl.jetstream.connection import Connection
from natsctl.model.plans import Action, KeyPlan, PlanSummary
from natsctl.testing import Harness, MemoryStores, running

PROCESS = DaemonProcess(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")
SHOPS, SIGNS = "shops", "signs"


class Shop(Object, frozen=True):
    spec: str = ""


class Shops(Controller):
    garbage = GarbageLimits(interval_s=1e6)
    resync_s = 1e6
    shops = primary(kv(Shop, bucket=SHOPS))
    signs = secondary(kv(Shop, bucket=SIGNS))

    async def sync_handler(self, key: str) -> None:
        shop = self.shops.get(key)
        match None if shop is None else shop.spec:
            case None:
                return
            case "fail":
                raise ValueError("no luck")
            case "new" if not planning():
                raise PermanentError("the sign is not made yet")
            case "sleep" if planning():
                await asyncio.sleep(1e6)
        await self.signs.apply(key, Shop(spec="open"))


class Client:
    """Sends plan requests to the endpoints of one controller."""

    def __init__(self, runnable: Runnable, stores: MemoryStores) -> None:
        endpoints = ControllerEndpoints(
            runnable,
            PROCESS,
            Connection(NatsOptions()),
            planner=Planner(nats=stores),
        ).endpoints()
        handlers = {endpoint.metadata["verb"]: endpoint.handler for endpoint in endpoints}
        self._plan = handlers[Verb.PLAN]

    async def __call__(self, *keys: str) -> KeyPlans:
        return msgspec.json.decode(await self._plan(" ".join(keys).encode()), type=KeyPlans)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with running(Shops()) as harness:
        yield harness


def client(harness: Harness) -> Client:
    return Client(harness.runtime, harness.stores)


async def test_a_plan_neither_records_its_syncs_nor_notes_held_keys(tmp_path: Path) -> None:
    recordings = Recordings(1_000_000)
    enter(claims=ClaimedKeys(tmp_path))
    with within(recordings=recordings):
        async with running(Shops()) as harness:
            await harness.stores.store(Shops.shops.kind).create("corner", b'{"spec": "sleep"}')
            await harness.run_until_idle()
            request = asyncio.create_task(client(harness)("corner"))
            await asyncio.sleep(1)
            held = os.listdir(tmp_path)  # noqa: PTH208 - the loop runs in virtual time
            with pytest.raises(NatsctlError, match="longer than"):
                await request
    assert len(held) == 1  # the file of the daemon
    assert recordings.of("shops", "corner") == []


async def test_a_plan_that_takes_too_long_ends(harness: Harness) -> None:
    await harness.stores.store(Shops.shops.kind).create("corner", b'{"spec": "sleep"}')
    await harness.run_until_idle()
    clock = asyncio.get_running_loop().time
    begun = clock()
    with pytest.raises(NatsctlError, match=r"longer than 20 s: run natsctl plan -c .*:Shops"):
        await client(harness)("corner")
    assert clock() - begun < LIMIT_S + 1
    assert "plan" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_one_plan_is_made_at_a_time(harness: Harness) -> None:
    await harness.stores.store(Shops.shops.kind).create("corner", b'{"spec": "sleep"}')
    await harness.run_until_idle()
    plan = client(harness)
    first = asyncio.create_task(plan("corner"))
    await asyncio.sleep(1)
    with pytest.raises(NatsctlError, match="the daemon is making another plan: try again"):
        await plan("corner")
    with pytest.raises(NatsctlError, match="longer than"):
        await first


@pytest.mark.parametrize("keys", [[], [f"k{number}" for number in range(KEYS_MAX + 1)]])
async def test_a_plan_is_for_a_few_keys(harness: Harness, keys: list[str]) -> None:
    with pytest.raises(UsageError, match=r"name 1 to 20 keys: .*; run natsctl plan"):
        await client(harness)(*keys)


def test_a_plan_that_does_not_fit_counts_the_actions_that_it_leaves_out() -> None:
    actions = tuple(Action(action="create", kind="K", key=str(number)) for number in range(100))
    plan = Plan(controller="c", summary=PlanSummary(), keys={"a": KeyPlan(actions=actions)})
    answer = fitting(
        1000, len(actions), KeyPlans(**msgspec.structs.asdict(plan), daemon=PROCESS).limited
    )
    limited = msgspec.json.decode(answer, type=KeyPlans)
    assert len(limited.keys["a"].actions) + limited.more == len(actions)
    assert limited.more > 0
