"""Discovery finds built-in and custom kinds of a real kube-apiserver."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from natsctl import KubeKind, KubeOptions, connect_kube, kube
from natsctl.core.informer import Informer
from natsctl.errors import NotFoundError, StoreError, StoreMissingError
from natsctl.kubernetes.api_errors import UnavailableError
from natsctl.kubernetes.cluster import Kube, connecting
from natsctl.kubernetes.discovery import ApiResource, Discovery
from natsctl.kubernetes.names import well_known
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.stores.custom_resources import DEFINITIONS, cluster, define
from tests.support.stores.sample_objects import informed


@pytest.fixture
async def discovery(kube_server: KubeServer) -> AsyncIterator[Discovery]:
    async with connecting(KubeOptions(kubeconfig=str(kube_server.kubeconfig()))) as transport:
        yield Discovery(transport)


async def test_the_error_for_a_missing_kind_suggests_existing_ones_until_it_is_defined(
    discovery: Discovery, kube_server: KubeServer
) -> None:
    for api_version, kind, message in (
        ("v1", "Configmap", "no kind Configmap in v1; the most similar kind is ConfigMap"),
        ("apps/v9", "Deployment", "no kind Deployment in apps/v9: .* no v9 of apps, but apps/v1"),
        ("no.such/v1", "Thing", "no API group no.such"),
        ("v9", "Pod", "the server has no v9"),
        ("shop.test/v1", "Rollout", "shop.test"),
    ):
        with pytest.raises(StoreMissingError, match=message):
            await discovery.find(api_version, kind)
    async with cluster(kube_server) as kube_cluster:
        await define(kube_cluster.transport, "shop.test", "Rollout", scope="Namespaced")

    async def find_rollout() -> ApiResource:
        try:
            return await discovery.find("shop.test/v1", "Rollout")
        except StoreMissingError as error:
            raise AssertionError from error

    assert (await eventually(find_rollout)).has_status


async def redefine(kube_cluster: Kube, group: str, *, scope: str) -> None:
    """Delete the kind Widget, and define it again with another plural in this scope."""
    path = f"{DEFINITIONS}/widgets.{group}"
    await kube_cluster.transport.call("DELETE", path)

    async def is_deleted() -> bool:
        try:
            await kube_cluster.transport.call("GET", path)
        except NotFoundError:
            return True
        return False

    await eventually(is_deleted)
    await define(kube_cluster.transport, group, "Widget", plural="gadgets", scope=scope)


async def test_an_informer_finds_a_kind_that_is_defined_and_defined_anew(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    """The new definition has another plural and another scope."""
    group = "redefined-watch.test"
    widgets: KubeKind[dict[str, Any]] = kube(f"{group}/v1", "Widget", optional=True)
    async with cluster(kube_server) as kube_cluster:
        transport, store = kube_cluster.transport, await kube_cluster.open(widgets)
        informer = Informer(store, widgets)
        async with informed(informer):
            assert informer.absent
            await define(transport, group, "Widget", scope="Namespaced")
            await store.create(f"{kube_namespace}/a", b'{"spec": {}}')
            await eventually(lambda: set(informer.table.keys()) == {f"{kube_namespace}/a"})
            assert not informer.absent
            await redefine(kube_cluster, group, scope="Cluster")
            widget = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "b"}}
            await kube_server.call("POST", f"/apis/{group}/v1/gadgets", widget)
            await eventually(lambda: set(informer.table.keys()) == {"b"})


async def test_an_optional_kind_whose_own_server_is_gone_counts_as_missing(
    kube_server: KubeServer,
) -> None:
    version = "v1.gone.test"
    registration = {
        "metadata": {"name": version},
        "spec": {
            "group": "gone.test",
            "version": "v1",
            "service": {"name": "gone", "namespace": "default"},
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "insecureSkipTLSVerify": True,
        },
    }
    path = "/apis/apiregistration.k8s.io/v1/apiservices"
    await kube_server.call("POST", path, registration)
    optional, required = (
        kube("gone.test/v1", "Node", optional=wanted, metadata_only=True)
        for wanted in (True, False)
    )
    try:
        options = KubeOptions(kubeconfig=str(kube_server.kubeconfig()), attempts_max=1)
        async with connect_kube(options) as kube_cluster:

            async def error_of(kind: KubeKind[Any]) -> StoreError:
                try:
                    async with (await kube_cluster.open(kind)).watch():
                        raise AssertionError("the server answers")
                except StoreError as error:
                    return error

            async def is_gone() -> bool:
                return isinstance(await error_of(required), UnavailableError)

            await eventually(is_gone)
            assert isinstance(await error_of(optional), StoreMissingError)
    finally:
        await kube_server.call("DELETE", f"{path}/{version}")


# ---- the table of well-known kinds equals the discovery of a real server


def served(server: KubeCluster) -> Iterator[tuple[str, str, str, bool]]:
    """Return the version, kind, plural and scope of each kind that supports watch."""
    groups = server.request("GET", "/apis")["groups"]
    versions = [version["groupVersion"] for group in groups for version in group["versions"]]
    for path, version in (
        ("/api/v1", "v1"),
        *((f"/apis/{version}", version) for version in versions),
    ):
        for resource in server.request("GET", path)["resources"]:
            if "watch" in resource["verbs"]:
                yield version, resource["kind"], resource["name"], resource["namespaced"]


def test_the_well_known_kinds_match_a_real_server(kube_server: KubeCluster) -> None:
    served_kinds = list(served(kube_server))
    known_names = {(version, kind): well_known(version, kind) for version, kind, *_ in served_kinds}
    known = {
        version_and_kind: (name.plural, name.namespaced)
        for version_and_kind, name in known_names.items()
        if name is not None
    }
    expected = {(version, kind): (plural, scoped) for version, kind, plural, scoped in served_kinds}
    assert known == {version_and_kind: expected[version_and_kind] for version_and_kind in known}
    assert len(known) > 30
