"""A plan for a Kubernetes cluster equals what the controller does there afterwards."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsctl import (
    Controller,
    ControllerRuntime,
    KubeKind,
    NotFoundError,
    Object,
    Plan,
    kube,
    kv,
    plan,
    primary,
    secondary,
)
from natsctl.core.plan.record import actions_of
from natsctl.kubernetes.cluster import Kube
from natsctl.model.plans import Action
from natsctl.model.store import Applied, Listed, ManifestStore
from natsctl.testing import MemoryStores
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.stores.custom_resources import cluster
from tests.support.stores.documents import put

KEYS = st.sampled_from(["a", "b"])
NAMES = st.sampled_from(["x", "y"])
TEXTS = st.sampled_from(["one", "two"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, TEXTS, st.lists(NAMES, unique=True)),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("edit a map"), KEYS, NAMES),
        st.tuples(st.just("delete a map"), KEYS, NAMES),
        st.just(("run",)),
    ),
    max_size=8,
)


class SiteSpec(msgspec.Struct, frozen=True):
    text: str
    maps: tuple[str, ...]


class Site(Object, frozen=True):
    spec: SiteSpec


SITES = kv(Site, bucket="sites")


class World:
    """Sites in memory, and their ConfigMaps in a namespace of a real cluster."""

    def __init__(self, kube_stores: Kube, namespace: str) -> None:
        self.nats = MemoryStores()
        self.kube = kube_stores
        self.maps: KubeKind[Any] = kube("v1", "ConfigMap", namespace=namespace)
        self.namespace = namespace

    def controller(self) -> Controller:
        class Sites(Controller):
            sites = primary(SITES)
            maps = secondary(self.maps)

            async def sync_handler(self, key: str) -> float | None:
                site = self.sites.get(key)
                if site is None:
                    return None
                desired = {f"{key}-{name}" for name in site.spec.maps}
                for name in sorted(desired):
                    data = {"text": site.spec.text}
                    await self.maps.apply({"metadata": {"name": name}, "data": data})
                for owned in self.maps.owned():
                    if owned.rpartition("/")[2] not in desired:
                        await self.maps.delete(owned)
                return None

        return Sites()

    async def run(self) -> None:
        """Run the controller until it has nothing to do."""
        runtime = ControllerRuntime(self.controller(), nats=self.nats, kube=self.kube)
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.run())
            await runtime.synced.wait()
            await eventually(lambda: runtime.idle)
            runtime.stop()

    async def plan(self) -> Plan:
        return await plan(self.controller(), nats=self.nats, kube=self.kube)

    async def take(self, step: tuple[Any, ...]) -> None:
        maps = await self.kube.open(self.maps)
        match step:
            case ("put", str(key), str(text), list(names)):
                await self._put(key, {"spec": {"text": text, "maps": names}})
            case ("delete", str(key)):
                with suppress(NotFoundError):
                    await self.nats.store(SITES).delete(key)
            case ("edit a map", str(key), str(name)):
                await self._edit(maps, f"{self.namespace}/{key}-{name}")
            case ("delete a map", str(key), str(name)):
                with suppress(NotFoundError):
                    await maps.delete(f"{self.namespace}/{key}-{name}")
            case ("run",):
                await self.run()

    async def state(self) -> dict[str, bytes]:
        """Return the values of the ConfigMaps."""
        values: dict[str, bytes] = {}
        async with (await self.kube.open(self.maps)).watch() as events:
            async for event in events:
                if isinstance(event, Listed):
                    break
                if isinstance(event, Applied):
                    values[event.stored.key] = event.stored.value
        return values

    async def _put(self, key: str, value: dict[str, Any]) -> None:
        await put(self.nats.store(SITES), key, value)

    async def _edit(self, maps: ManifestStore, key: str) -> None:
        try:
            stored = await maps.get(key)
        except NotFoundError:
            return
        edited = {**json.loads(stored.value), "data": {"text": "edited"}}
        await maps.update(key, json.dumps(edited).encode(), revision=stored.revision)


def planned_changes(planned: Plan) -> list[bytes]:
    """Return the planned changes of ConfigMaps, without reasons."""
    return sorted(encoded(action) for key in planned.keys.values() for action in key.actions)


def changes(kind: KubeKind[Any], before: dict[str, bytes], after: dict[str, bytes]) -> list[bytes]:
    """Return the actions that change one state to the other."""
    return sorted(
        encoded(action)
        for key in before.keys() | after.keys()
        for action in actions_of(kind, key, before.get(key), after.get(key), msgspec.UNSET)
    )


def encoded(action: Action) -> bytes:
    plain = msgspec.structs.replace(action, reason=msgspec.UNSET)
    return msgspec.json.encode(plain, order="deterministic")


async def check(server: KubeServer, steps: list[tuple[Any, ...]]) -> None:
    async with cluster(server) as kube_stores:
        world = World(kube_stores, server.new_namespace())
        for step in steps:
            await world.take(step)
        before = await world.state()
        planned = planned_changes(await world.plan())
        assert await world.state() == before
        await world.run()
        assert planned == changes(world.maps, before, await world.state())
        assert not (await world.plan()).summary.changes


@pytest.mark.server
def test_a_plan_equals_the_next_run_in_a_cluster(kube_server: KubeServer) -> None:
    @settings(max_examples=8, deadline=None)
    @given(STEPS)
    def holds(steps: list[tuple[Any, ...]]) -> None:
        asyncio.run(check(kube_server, steps))

    holds()
