"""A cluster is connected only if a controller has Kubernetes kinds."""

from contextlib import nullcontext
from typing import Any

import pytest

from natsctl import (
    Controller,
    InformerController,
    KubeKind,
    KubeOptions,
    Object,
    Operator,
    UsageError,
    kube,
    kv,
    primary,
    secondary,
)
from natsctl.daemon.kinds import cluster_for
from natsctl.testing import MemoryStores

NOWHERE = KubeOptions(kubeconfig="/nowhere/at/all")


class App(Object, frozen=True):
    pass


class Plain(Controller):
    apps = primary(kv(App, bucket="plain"))

    async def sync_handler(self, key: str) -> float | None:
        return None


class Clustered(Plain):
    apps = primary(kv(App, bucket="clustered"))
    configs = secondary(kube("v1", "ConfigMap"))


async def test_controllers_without_kubernetes_kinds_need_no_cluster() -> None:
    async with cluster_for([Plain()], NOWHERE) as cluster:
        assert cluster is None


async def test_one_controller_with_kubernetes_kinds_needs_a_cluster() -> None:
    with pytest.raises(UsageError, match="/nowhere/at/all"):
        async with cluster_for([Plain(), Clustered()], NOWHERE):
            pass


async def test_without_a_cluster_the_error_names_the_slot_that_needs_one() -> None:
    with pytest.raises(UsageError, match=r"Clustered\.configs is kept in Kubernetes.*--no-kube"):
        async with cluster_for([Plain(), Clustered()], None):
            pass


async def test_an_operator_passes_the_cluster_to_its_controllers() -> None:
    stores = MemoryStores()
    with pytest.raises(UsageError, match=r"Clustered\.configs"):
        Operator([Plain(), Clustered()], nats=stores)
    names = [
        runtime.name for runtime in Operator([Clustered()], nats=stores, kube=stores.kube).runtimes
    ]
    assert names == ["clustered"]


@pytest.mark.parametrize("kinds", [[], [kube("v1", "ConfigMap")]])
async def test_an_informer_controller_needs_a_cluster_for_kubernetes_kinds(
    kinds: list[KubeKind[Any]],
) -> None:
    watching = InformerController(name="watching")
    for kind in kinds:
        watching.add_informer(kind)
    refused = pytest.raises(UsageError, match="ConfigMap, which watching reads, is kept in Kub")
    with refused if kinds else nullcontext():
        async with cluster_for([watching], None) as cluster:
            assert cluster is None


async def test_kinds_beside_the_slots_need_a_cluster() -> None:
    class Reading(Plain):
        kinds = (kube("v1", "Secret"),)

    with pytest.raises(UsageError, match="Secret, which reading reads"):
        async with cluster_for([Reading()], None):
            pass
