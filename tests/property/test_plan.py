"""Plans: what they say is what the sync does, and items of lists have names."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natsctl
from natsctl import (
    Controller,
    ControllerRuntime,
    Kind,
    KubeKind,
    NotFoundError,
    Object,
    Plan,
    kv,
    plan,
)
from natsctl.core.plan.record import actions_of, declared_merge_keys, schema_of, value_differences
from natsctl.model.plans import Action, Difference
from natsctl.model.store import Applied, Listed, ManifestStores, Store, Stores
from natsctl.testing import MemoryStores, in_virtual_time
from natsctl.testing.harness import QUIET_STEPS, STEP_S
from tests.support.controllers.app_controller import APPS, PARTS, Apps
from tests.support.eventually import eventually
from tests.support.plugins.server_location import new_nats_server
from tests.support.stores.documents import put

# ---- a plan equals what a controller does afterwards, and a second plan is empty

KEYS = st.sampled_from(["a", "b", "c"])
PARTS_OF = st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.sampled_from(["one", "two"]), PARTS_OF),
        st.tuples(st.just("spoil"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("edit a child"), KEYS, st.sampled_from("xyz")),
        st.tuples(st.just("delete a child"), KEYS, st.sampled_from("xyz")),
        st.just(("run",)),
    ),
    max_size=12,
)
State = dict[tuple[str, str], bytes]


class World:
    """The stores of a controller that makes a child for each name in its primary."""

    children: Kind[Any] = PARTS
    field = "spec"  # of a child

    def __init__(self, nats: Stores, kube: ManifestStores | None = None) -> None:
        self.nats = nats
        self.kube = kube

    def controller(self) -> Controller:
        return Apps()

    def child(self, key: str, name: str) -> str:
        return f"{key}.{name}"

    async def open(self, kind: Kind[Any]) -> Store:
        if isinstance(kind, KubeKind):
            assert self.kube is not None
            return await self.kube.open(kind)
        return await self.nats.open(kind)

    async def run(self) -> None:
        """Run the controller until it has nothing to do."""
        runtime = ControllerRuntime(self.controller(), nats=self.nats, kube=self.kube)
        task = asyncio.create_task(runtime.run())
        await runtime.synced.wait()
        for _ in range(QUIET_STEPS):
            await eventually(lambda: runtime.idle)
            await asyncio.sleep(STEP_S)
        runtime.stop()
        await task

    async def planned(self) -> Plan:
        return await plan(self.controller(), nats=self.nats, kube=self.kube)

    async def take(self, step: tuple[Any, ...]) -> None:
        apps, children = await self.open(APPS), await self.open(self.children)
        with suppress(NotFoundError):
            match step:
                case ("put", str(key), str(text), list(names)):
                    await put(apps, key, {"spec": {"text": text, "parts": names}})
                case ("spoil", str(key)):
                    await put(apps, key, {"spec": {"text": 1}})
                case ("delete", str(key)):
                    await apps.delete(key)
                case ("edit a child", str(key), str(name)):
                    child = self.child(key, name)
                    current = json.loads((await children.get(child)).value)
                    await put(children, child, {**current, self.field: {"text": "edited"}})
                case ("delete a child", str(key), str(name)):
                    await children.delete(self.child(key, name))
                case ("run",):
                    await self.run()

    async def state(self) -> State:
        values: State = {}
        for kind in (APPS, self.children):
            async with (await self.open(kind)).watch() as events:
                async for event in events:
                    if isinstance(event, Listed):
                        break
                    if isinstance(event, Applied):
                        values[kind.name, event.stored.key] = event.stored.value
        return values

    def actions_between(self, before: State, after: State) -> list[bytes]:
        kinds: dict[str, Kind[Any]] = {kind.name: kind for kind in (APPS, self.children)}
        return sorted(
            encoded(action)
            for name, key in before.keys() | after.keys()
            for action in actions_of(
                kinds[name], key, before.get((name, key)), after.get((name, key)), msgspec.UNSET
            )
        )

    async def check(self, steps: list[tuple[Any, ...]]) -> None:
        await self.run()
        for step in steps:
            await self.take(step)
        before = await self.state()
        planned = await self.planned()
        assert await self.state() == before
        await self.run()
        actions = [encoded(action) for key in planned.keys.values() for action in key.actions]
        assert sorted(actions) == self.actions_between(before, await self.state())
        second = await self.planned()
        assert not any(key.actions for key in second.keys.values())
        assert not second.summary.changes


def encoded(action: Action) -> bytes:
    plain = msgspec.structs.replace(action, reason=msgspec.UNSET)
    return msgspec.json.encode(plain, order="deterministic")


@settings(deadline=None)
@given(STEPS)
@in_virtual_time
async def test_a_plan_equals_the_next_run_in_memory(steps: list[tuple[Any, ...]]) -> None:
    await World(MemoryStores()).check(steps)


@pytest.mark.server
@settings(max_examples=8, deadline=None)
@given(STEPS)
def test_a_plan_equals_the_next_run_on_a_server(steps: list[tuple[Any, ...]]) -> None:
    async def on_server(folder: Path) -> None:
        async with new_nats_server(folder) as server, natsctl.connect(server.url) as stores:
            await World(stores).check(steps)

    with TemporaryDirectory() as folder:
        asyncio.run(on_server(Path(folder)))


# ---- the differences of a plan match the items of a list by the merge keys that the type names

BY_NAME = msgspec.Meta(extra_json_schema={"x-kubernetes-list-map-keys": ["name"]})


class Port(msgspec.Struct, frozen=True):
    name: str
    number: int = 0


class Site(msgspec.Struct, frozen=True):
    ports: Annotated[tuple[Port, ...], BY_NAME] = ()
    other: tuple[Port, ...] = ()
    children: "Annotated[tuple[Site, ...], BY_NAME] | None" = None


class SiteSpec(msgspec.Struct, frozen=True):
    sites: dict[str, Site] = {}
    all: tuple[Site, ...] = ()


class Sites(Object, frozen=True):
    spec: SiteSpec


SITES = kv(Sites, bucket="sites")


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("spec.sites.north.ports", ["name"]),
        ("spec.all.ports", ["name"]),
        ("spec.all.children.children.ports", ["name"]),
        ("spec.sites.north.children", ["name"]),
        ("spec.all.other", []),
        ("spec.unknown.ports", []),
    ],
)
def test_merge_keys_are_found_at_their_path(path: str, keys: list[str]) -> None:
    assert list(declared_merge_keys(schema_of(Sites), tuple(path.split(".")))) == keys


def test_a_type_without_a_schema_has_no_merge_keys() -> None:
    assert list(declared_merge_keys(schema_of(bytes), ("spec",))) == []


def ports(field: str, *items: tuple[str, int]) -> bytes:
    site = {field: [{"name": name, "number": number} for name, number in items]}
    return msgspec.json.encode({"spec": {"sites": {"north": site}}})


def test_an_item_is_named_by_its_merge_keys_in_any_order() -> None:
    before = ports("ports", ("http", 80), ("dns", 53))
    after = ports("ports", ("dns", 53), ("http", 8080), ("ssh", 22))
    differences = value_differences(SITES, before, after)
    assert [(diff.path, diff.before, diff.after) for diff in differences] == [
        ("spec.sites.north.ports[name=http].number", 80, 8080),
        ("spec.sites.north.ports[name=ssh].name", None, "ssh"),
        ("spec.sites.north.ports[name=ssh].number", None, 22),
    ]


def changed(before: object, after: object) -> list[Difference]:
    return list(value_differences(SITES, msgspec.json.encode(before), msgspec.json.encode(after)))


def test_secrets_are_masked_and_those_that_differ_are_told_apart() -> None:
    one, two = ({"spec": {"url": f"nats://ann:{word}@host"}} for word in ("hunter1", "hunter2"))
    assert changed(one, two) == [
        Difference("spec.url", "nats://***@host (before)", "nats://***@host (after)")
    ]
    assert changed(one, {"spec": {"url": [two["spec"]["url"], 1]}}) == [
        Difference("spec.url", "nats://***@host", ["nats://***@host", 1])
    ]


def test_own_labels_are_shown_if_nothing_else_differs() -> None:
    owned = [{"metadata": {"labels": {"natsctl.io/owner-key": key}}} for key in ("a", "b")]
    path = 'metadata.labels["natsctl.io/owner-key"]'
    assert changed(*owned) == [Difference(path, "a", "b")]
    added = {**owned[1], "spec": {"sites": 1}}
    assert [diff.path for diff in changed(owned[0], added)] == ["spec.sites"]


def test_a_list_without_merge_keys_is_compared_by_position() -> None:
    before = ports("other", ("http", 80), ("dns", 53))
    after = ports("other", ("dns", 53), ("http", 80))
    paths = [diff.path for diff in value_differences(SITES, before, after)]
    assert paths[0] == "spec.sites.north.other[0].name"
