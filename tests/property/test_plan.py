"""A plan equals what a controller does afterwards, and a second plan is empty."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natsctl
from natsctl import ControllerRuntime, Kind, NotFoundError, Plan, plan
from natsctl.core.plan.diff import actions_of
from natsctl.model.plans import Action
from natsctl.model.store import Applied, Listed, Store, Stores
from natsctl.testing import MemoryStores, VirtualTimeLoop
from natsctl.testing.harness import QUIET_STEPS, STEP_S
from tests.support.controllers.app_controller import APPS, PARTS, Apps
from tests.support.eventually import eventually
from tests.support.plugins.server_location import new_nats_server

KEYS = st.sampled_from(["a", "b", "c"])
PARTS_OF = st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.sampled_from(["one", "two"]), PARTS_OF),
        st.tuples(st.just("spoil"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("edit a part"), KEYS, st.sampled_from("xyz")),
        st.tuples(st.just("delete a part"), KEYS, st.sampled_from("xyz")),
        st.just(("run",)),
    ),
    max_size=12,
)
State = dict[tuple[str, str], bytes]


async def put(store: Store, key: str, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    try:
        await store.update(key, body, revision=(await store.get(key)).revision)
    except NotFoundError:
        await store.create(key, body)


async def delete(store: Store, key: str) -> None:
    with suppress(NotFoundError):
        await store.delete(key)


async def run(stores: Stores) -> None:
    """Run the controller until it has nothing to do."""
    runtime = ControllerRuntime(Apps(), nats=stores)
    task = asyncio.create_task(runtime.run())
    await runtime.synced.wait()
    for _ in range(QUIET_STEPS):
        await eventually(lambda: runtime.idle)
        await asyncio.sleep(STEP_S)
    runtime.stop()
    await task


async def take(stores: Stores, step: tuple[Any, ...]) -> None:
    apps, parts = await stores.open(APPS), await stores.open(PARTS)
    match step:
        case ("put", str(key), str(text), list(names)):
            await put(apps, key, {"spec": {"text": text, "parts": names}})
        case ("spoil", str(key)):
            await put(apps, key, {"spec": {"text": 1}})
        case ("delete", str(key)):
            await delete(apps, key)
        case ("edit a part", str(key), str(name)):
            try:
                current = json.loads((await parts.get(f"{key}.{name}")).value)
            except NotFoundError:
                return
            await put(parts, f"{key}.{name}", {**current, "spec": {"text": "edited"}})
        case ("delete a part", str(key), str(name)):
            await delete(parts, f"{key}.{name}")
        case ("run",):
            await run(stores)


async def state(stores: Stores) -> State:
    """Return the values of both buckets."""
    values: State = {}
    for kind in (APPS, PARTS):
        async with (await stores.open(kind)).watch() as events:
            async for event in events:
                if isinstance(event, Listed):
                    break
                if isinstance(event, Applied):
                    values[kind.name, event.stored.key] = event.stored.value
    return values


def actions_between(before: State, after: State) -> set[bytes]:
    """Return the actions that change one state to the other."""
    kinds: dict[str, Kind[Any]] = {kind.name: kind for kind in (APPS, PARTS)}
    return {
        encoded(action)
        for name, key in before.keys() | after.keys()
        for action in actions_of(
            kinds[name], key, before.get((name, key)), after.get((name, key)), msgspec.UNSET
        )
    }


def encoded(action: Action) -> bytes:
    plain = msgspec.structs.replace(action, reason=msgspec.UNSET)
    return msgspec.json.encode(plain, order="deterministic")


def planned_actions(planned: Plan) -> list[bytes]:
    return [encoded(action) for key in planned.keys.values() for action in key.actions]


async def check(stores: Stores, steps: list[tuple[Any, ...]]) -> None:
    await run(stores)
    for step in steps:
        await take(stores, step)
    before = await state(stores)
    first_plan = await plan(Apps(), nats=stores)
    assert await state(stores) == before
    await run(stores)
    actions = planned_actions(first_plan)
    assert sorted(actions) == sorted(actions_between(before, await state(stores)))
    second_plan = await plan(Apps(), nats=stores)
    assert planned_actions(second_plan) == []
    assert not second_plan.summary.changes


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_plan_equals_the_next_run_in_memory(steps: list[tuple[Any, ...]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(check(MemoryStores(), steps))


@pytest.mark.server
@settings(max_examples=8, deadline=None)
@given(STEPS)
def test_a_plan_equals_the_next_run_on_a_server(steps: list[tuple[Any, ...]]) -> None:
    async def on_server(folder: Path) -> None:
        async with new_nats_server(folder) as server, natsctl.connect(server.url) as stores:
            await check(stores, steps)

    with TemporaryDirectory() as folder:
        asyncio.run(on_server(Path(folder)))
