"""Object identifiers: text, kind, key, validation and order."""

import pytest

from natsctl.dynamic import GroupVersionKind, ObjectIdentifier, kv_kind
from natsctl.errors import InvalidInputError

DEPLOYMENT = ObjectIdentifier(
    group="apps", version="v1", kind="Deployment", namespace="shop", name="web"
)
SELECTED = ObjectIdentifier(version="v1", kind="Secret", selector="a=b,c in (d,e)")
EVERY_SECRET = ObjectIdentifier(version="v1", kind="Secret", everything=True)
LIMIT = ObjectIdentifier(group="nats", version="kv", kind="limits", namespace="eu", name="west")


def test_an_identifier_and_a_kind_have_a_readable_text() -> None:
    assert str(DEPLOYMENT) == "apps/v1, Kind=Deployment, Namespace=shop, Name=web, Selector="
    assert str(SELECTED) == "/v1, Kind=Secret, Namespace=, Name=, Selector=a=b,c in (d,e)"
    deployments, secrets = DEPLOYMENT.group_version_kind(), SELECTED.group_version_kind()
    assert deployments == GroupVersionKind("apps", "v1", "Deployment")
    assert LIMIT.group_version_kind() == kv_kind("limits")
    assert (deployments.api_version, str(deployments)) == ("apps/v1", "apps/v1, Kind=Deployment")
    assert (secrets.api_version, str(secrets)) == ("v1", "/v1, Kind=Secret")


@pytest.mark.parametrize(
    ("identifier", "key"),
    [
        (DEPLOYMENT, "shop/web"),
        (ObjectIdentifier(version="v1", kind="Node", name="n1"), "n1"),
        (LIMIT, "eu.west"),
        (ObjectIdentifier(group="nats", version="kv", kind="limits", name="eu.west"), "eu.west"),
        (SELECTED, ""),
    ],
    ids=str,
)
def test_the_key_has_the_form_of_its_store(identifier: ObjectIdentifier, key: str) -> None:
    assert identifier.key == key


@pytest.mark.parametrize("identifier", [DEPLOYMENT, SELECTED, LIMIT, EVERY_SECRET], ids=str)
def test_an_identifier_that_selects_objects_is_valid(identifier: ObjectIdentifier) -> None:
    identifier.validate()


@pytest.mark.parametrize(
    "identifier",
    [
        ObjectIdentifier(),
        ObjectIdentifier(version="v1", name="x"),
        ObjectIdentifier(kind="Secret", name="x"),
        ObjectIdentifier(version="v1", kind="Secret"),
        ObjectIdentifier(version="v1", kind="Secret", namespace="shop"),
        ObjectIdentifier(version="v1", kind="Secret", name="x", selector="a=b"),
        ObjectIdentifier(version="v1", kind="Secret", name="x", everything=True),
        ObjectIdentifier(version="v1", kind="Secret", selector="a=b", everything=True),
        ObjectIdentifier(version="v1", kind="Secret", selector="a in"),
    ],
    ids=str,
)
def test_an_identifier_that_selects_nothing_is_refused(identifier: ObjectIdentifier) -> None:
    with pytest.raises(InvalidInputError):
        identifier.validate()


def test_equal_identifiers_have_equal_hashes_and_are_ordered() -> None:
    equal_identifier = ObjectIdentifier(
        group="apps", version="v1", kind="Deployment", namespace="shop", name="web"
    )
    assert {DEPLOYMENT, equal_identifier} == {DEPLOYMENT}
    assert min([DEPLOYMENT, SELECTED]) == SELECTED
