"""A plan for a Kubernetes cluster equals what the controller does there afterwards."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings

from natsctl import Controller, kube, primary, secondary
from natsctl.kubernetes.cluster import Kube
from natsctl.testing import MemoryStores
from tests.property.test_plan import STEPS, World
from tests.support.controllers.app_controller import APPS
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.stores.custom_resources import cluster


class KubeWorld(World):
    """Apps in memory, and their ConfigMaps in a namespace of a real cluster."""

    field = "data"

    def __init__(self, kube_stores: Kube, namespace: str) -> None:
        super().__init__(MemoryStores(), kube_stores)
        self.namespace = namespace
        self.children = self.maps = kube("v1", "ConfigMap", namespace=namespace)

    def child(self, key: str, name: str) -> str:
        return f"{self.namespace}/{key}-{name}"

    def controller(self) -> Controller:
        class Maps(Controller):
            apps = primary(APPS)
            maps = secondary(self.maps)

            async def sync_handler(self, key: str) -> None:
                app = self.apps.get(key)
                if app is None:
                    return
                desired = {f"{key}-{name}" for name in app.spec.parts}
                for name in sorted(desired):
                    data = {"text": app.spec.text}
                    await self.maps.apply({"metadata": {"name": name}, "data": data})
                for owned in self.maps.owned():
                    if owned.rpartition("/")[2] not in desired:
                        await self.maps.delete(owned)

        return Maps()


@pytest.mark.server
def test_a_plan_equals_the_next_run_in_a_cluster(kube_server: KubeServer) -> None:
    async def in_a_cluster(steps: list[tuple[Any, ...]]) -> None:
        async with cluster(kube_server) as kube_stores:
            await KubeWorld(kube_stores, kube_server.new_namespace()).check(steps)

    @settings(max_examples=8, deadline=None)
    @given(STEPS)
    def holds(steps: list[tuple[Any, ...]]) -> None:
        asyncio.run(in_a_cluster(steps))

    holds()
