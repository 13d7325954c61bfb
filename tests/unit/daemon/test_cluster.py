"""A cluster is looked for where a controller has kinds of one, and nowhere else."""

from contextlib import nullcontext
from typing import Any

import pytest

from natsctl import (
    Controller,
    InformerController,
    KubeKind,
    Object,
    UsageError,
    kube,
    kv,
    primary,
    secondary,
)
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.operator import Operator
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.testing.memory import MemoryStores

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


async def test_without_kinds_of_a_cluster_none_is_looked_for() -> None:
    async with cluster_for([Plain()], NOWHERE) as found:
        assert found is None


async def test_one_controller_with_such_kinds_is_enough_to_look() -> None:
    with pytest.raises(UsageError, match="/nowhere/at/all"):
        async with cluster_for([Plain(), Clustered()], NOWHERE):
            pass


async def test_where_none_may_be_looked_for_the_slot_that_needs_one_is_named() -> None:
    with pytest.raises(UsageError, match=r"Clustered\.configs is kept in Kubernetes.*--no-kube"):
        async with cluster_for([Plain(), Clustered()], None):
            pass


async def test_an_operator_hands_the_cluster_to_its_controllers() -> None:
    stores = MemoryStores()
    with pytest.raises(UsageError, match=r"Clustered\.configs"):
        Operator([Plain(), Clustered()], nats=stores)
    names = [at.name for at in Operator([Clustered()], nats=stores, kube=stores.kube).runtimes]
    assert names == ["clustered"]


@pytest.mark.parametrize("kinds", [[], [kube("v1", "ConfigMap")]])
async def test_a_guest_says_by_its_kinds_whether_it_needs_one(kinds: list[KubeKind[Any]]) -> None:
    watching = InformerController(name="watching")
    for kind in kinds:
        watching.add_informer(kind)
    refused = pytest.raises(UsageError, match="ConfigMap, which watching reads, is kept in Kub")
    with refused if kinds else nullcontext():
        async with cluster_for([watching], None) as found:
            assert found is None


async def test_a_controller_may_name_kinds_that_it_reads_beside_its_slots() -> None:
    class Reading(Plain):
        kinds = (kube("v1", "Secret"),)

    with pytest.raises(UsageError, match="Secret, which reading reads"):
        async with cluster_for([Reading()], None):
            pass
