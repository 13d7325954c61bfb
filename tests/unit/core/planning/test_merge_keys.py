"""The differences of a plan match the items of a list by the merge keys that the type names."""

from typing import Annotated

import msgspec
import pytest

from natsctl import Object, kv
from natsctl.core.plan.diff import declared_merge_keys, schema_of, value_differences

BY_NAME = msgspec.Meta(extra_json_schema={"x-kubernetes-list-map-keys": ["name"]})


class Port(msgspec.Struct, frozen=True):
    name: str
    number: int = 0


class Site(msgspec.Struct, frozen=True):
    ports: Annotated[tuple[Port, ...], BY_NAME] = ()
    other: tuple[Port, ...] = ()
    children: "Annotated[tuple[Site, ...], BY_NAME] | None" = None


class SiteSpec(msgspec.Struct, frozen=True):
    sites: dict[str, Site] = {}
    all: tuple[Site, ...] = ()


class Sites(Object, frozen=True):
    spec: SiteSpec


SITES = kv(Sites, bucket="sites")


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("spec.sites.north.ports", ["name"]),
        ("spec.all.ports", ["name"]),
        ("spec.all.children.children.ports", ["name"]),
        ("spec.sites.north.children", ["name"]),
        ("spec.all.other", []),
        ("spec.unknown.ports", []),
    ],
)
def test_merge_keys_are_found_at_their_path(path: str, keys: list[str]) -> None:
    assert list(declared_merge_keys(schema_of(Sites), tuple(path.split(".")))) == keys


def test_a_type_without_a_schema_has_no_merge_keys() -> None:
    assert list(declared_merge_keys(schema_of(bytes), ("spec",))) == []


def ports(field: str, *items: tuple[str, int]) -> bytes:
    site = {field: [{"name": name, "number": number} for name, number in items]}
    return msgspec.json.encode({"spec": {"sites": {"north": site}}})


def test_an_item_is_named_by_its_merge_keys_in_any_order() -> None:
    before = ports("ports", ("http", 80), ("dns", 53))
    after = ports("ports", ("dns", 53), ("http", 8080), ("ssh", 22))
    differences = value_differences(SITES, before, after)
    assert [(diff.path, diff.before, diff.after) for diff in differences] == [
        ("spec.sites.north.ports[name=http].number", 80, 8080),
        ("spec.sites.north.ports[name=ssh].name", None, "ssh"),
        ("spec.sites.north.ports[name=ssh].number", None, 22),
    ]


def test_a_list_without_merge_keys_is_compared_by_position() -> None:
    before = ports("other", ("http", 80), ("dns", 53))
    after = ports("other", ("dns", 53), ("http", 80))
    paths = [diff.path for diff in value_differences(SITES, before, after)]
    assert paths[0] == "spec.sites.north.other[0].name"
