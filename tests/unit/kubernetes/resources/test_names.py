"""What kinds are called where nobody can be asked."""

import pytest

from natsctl.kubernetes.resources.names import ResourceName, guessed, plural, well_known


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
def test_a_plural_is_the_regular_one(kind: str, expected: str) -> None:
    assert plural(kind) == expected


def test_kinds_that_every_cluster_has_are_known() -> None:
    assert well_known("v1", "Endpoints") == ResourceName("", "endpoints", namespaced=True)
    assert well_known("apps/v1", "Deployment") == ResourceName(
        "apps", "deployments", namespaced=True
    )
    assert well_known("v1", "Node") == ResourceName("", "nodes", namespaced=False)


def test_a_kind_of_another_group_is_not_the_known_one() -> None:
    assert well_known("serving.example.com/v1", "Service") is None
    assert well_known("apps/v1", "Node") is None


def test_a_guess_says_why_it_is_one() -> None:
    found = guessed("example.com/v1", "Widget", "nobody answers")
    assert found == ResourceName("example.com", "widgets", None, "nobody answers")
