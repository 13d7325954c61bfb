"""Resource names of kinds without a cluster: the well-known ones and guesses."""

import pytest

from natsctl.kubernetes.names import ResourceName, guessed, plural, well_known


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Widget", "widgets"),
        ("NetworkPolicy", "networkpolicies"),
        ("Gateway", "gateways"),
        ("Ingress", "ingresses"),
        ("Box", "boxes"),
        ("Switch", "switches"),
        ("Mesh", "meshes"),
    ],
)
def test_a_guessed_plural_is_regular(kind: str, expected: str) -> None:
    assert plural(kind) == expected


def test_kinds_of_every_cluster_are_well_known() -> None:
    assert well_known("v1", "Endpoints") == ResourceName("", "endpoints", namespaced=True)
    assert well_known("apps/v1", "Deployment") == ResourceName(
        "apps", "deployments", namespaced=True
    )
    assert well_known("v1", "Node") == ResourceName("", "nodes", namespaced=False)


def test_a_kind_of_another_group_is_not_well_known() -> None:
    assert well_known("serving.example.com/v1", "Service") is None
    assert well_known("apps/v1", "Node") is None


def test_a_guess_has_its_reason() -> None:
    name = guessed("example.com/v1", "Widget", "no cluster")
    assert name == ResourceName("example.com", "widgets", None, "no cluster")
