"""Objects of every kind are found at their path, however odd their names."""

import pytest

from natsctl.errors import InvalidKeyError, UsageError
from natsctl.kubernetes.resources.discovery import ApiResource
from natsctl.kubernetes.resources.paths import Paths, paths_of
from natsctl.model.manifests import kube


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
    found = resource(api_version, plural, namespaced=namespaced)
    return paths_of(found, kube(api_version, "Thing"))  # type: ignore[arg-type]


CONFIGS = paths("v1", "configmaps", namespaced=True)
APPS = paths("apps/v1", "deployments", namespaced=True)
NODES = paths("v1", "nodes", namespaced=False)
ROLES = paths("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False)


@pytest.mark.parametrize(
    ("found", "path"),
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
def test_a_path_names_group_version_place_and_object(found: str, path: str) -> None:
    assert found == path


@pytest.mark.parametrize(
    ("of", "key"),
    [(CONFIGS, "b"), (NODES, "a/b"), (CONFIGS, "a/.."), (CONFIGS, ""), (NODES, "."), (NODES, "")],
)
def test_a_key_that_no_object_can_have_has_no_path(of: Paths, key: str) -> None:
    with pytest.raises(InvalidKeyError):
        of.one(key)


def test_a_kind_without_namespaces_cannot_be_declared_with_one() -> None:
    with pytest.raises(UsageError, match=r"cluster-scoped.*'team-a'"):
        paths_of(resource("v1", "nodes", namespaced=False), kube("v1", "Node", namespace="team-a"))  # type: ignore[arg-type]
