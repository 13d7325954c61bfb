"""API paths of objects and collections of every kind, with quoted names."""

import pytest

from natsctl import kube
from natsctl.errors import InvalidKeyError, UsageError
from natsctl.kubernetes.discovery import ApiResource, Paths, paths_of


def resource(api_version: str, plural: str, *, namespaced: bool) -> ApiResource:
    return ApiResource(
        api_version=api_version,
        kind="Thing",
        plural=plural,
        namespaced=namespaced,
        verbs=frozenset(),
        has_status=True,
    )


def paths(api_version: str, plural: str, *, namespaced: bool) -> Paths:
    api_resource = resource(api_version, plural, namespaced=namespaced)
    return paths_of(api_resource, kube(api_version, "Thing"))


CONFIGS = paths("v1", "configmaps", namespaced=True)
APPS = paths("apps/v1", "deployments", namespaced=True)
NODES = paths("v1", "nodes", namespaced=False)
ROLES = paths("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False)


@pytest.mark.parametrize(
    ("actual", "path"),
    [
        (CONFIGS.all(), "/api/v1/configmaps"),
        (CONFIGS.all("a"), "/api/v1/namespaces/a/configmaps"),
        (CONFIGS.one("a/b"), "/api/v1/namespaces/a/configmaps/b"),
        (CONFIGS.collection("a/b"), "/api/v1/namespaces/a/configmaps"),
        (APPS.one("a/b", "status"), "/apis/apps/v1/namespaces/a/deployments/b/status"),
        (NODES.all(), "/api/v1/nodes"),
        (NODES.one("n-1"), "/api/v1/nodes/n-1"),
        (NODES.collection("n-1"), "/api/v1/nodes"),
        (
            ROLES.one("system:a?b#c+d"),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aa%3Fb%23c%2Bd",
        ),
    ],
)
def test_a_path_has_the_group_version_namespace_resource_and_name(actual: str, path: str) -> None:
    assert actual == path


@pytest.mark.parametrize(
    ("kind_paths", "key"),
    [(CONFIGS, "b"), (NODES, "a/b"), (CONFIGS, "a/.."), (CONFIGS, ""), (NODES, "."), (NODES, "")],
)
def test_an_invalid_key_has_no_path(kind_paths: Paths, key: str) -> None:
    with pytest.raises(InvalidKeyError):
        kind_paths.one(key)


def test_a_cluster_scoped_kind_cannot_have_a_namespace() -> None:
    with pytest.raises(UsageError, match=r"cluster-scoped.*'team-a'"):
        paths_of(resource("v1", "nodes", namespaced=False), kube("v1", "Node", namespace="team-a"))
