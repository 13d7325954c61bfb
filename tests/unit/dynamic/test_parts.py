"""The part of a kind that an object identifier selects for a watch."""

from typing import Any

import pytest

from natsctl import KubeKind, KvKind
from natsctl.dynamic import ObjectCacheOptions, ObjectIdentifier
from natsctl.dynamic.parts import Parts
from natsctl.dynamic.resources import Resources
from natsctl.testing import MemoryStores

SECRET = ObjectIdentifier(version="v1", kind="Secret", namespace="x", name="a")


def parts(*, metadata_only: bool = False) -> Parts:
    stores = MemoryStores()
    resources = Resources(stores.kube, ObjectCacheOptions())
    return Parts(resources, nats=stores, kube=stores.kube, metadata_only=metadata_only)


@pytest.mark.parametrize("metadata_only", [True, False])
async def test_only_metadata_is_watched_if_the_option_is_set(*, metadata_only: bool) -> None:
    selection = await parts(metadata_only=metadata_only).dependency_on(SECRET)
    assert isinstance(selection.kind, KubeKind)
    assert selection.kind.metadata_only == metadata_only


async def test_a_single_object_is_watched_by_name() -> None:
    selection = await parts().dependency_on(SECRET)
    assert isinstance(selection.kind, KubeKind)
    assert (selection.kind.namespace, selection.kind.object_name) == ("x", "a")


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"name": "a.b"}, "a.b"),
        ({"namespace": "a", "name": "b"}, "a.b"),
        ({"namespace": "a", "everything": True}, "a.>"),
        ({"everything": True}, ">"),
    ],
)
async def test_a_part_of_a_bucket_is_watched_by_its_keys(fields: dict[str, Any], keys: str) -> None:
    selection = await parts().dependency_on(
        ObjectIdentifier(group="nats", version="kv", kind="limits", **fields)
    )
    assert isinstance(selection.kind, KvKind)
    assert (selection.kind.bucket, selection.kind.keys) == ("limits", keys)


async def test_a_watched_bucket_is_not_created() -> None:
    selection = await parts().dependency_on(
        ObjectIdentifier(group="nats", version="kv", kind="limits", name="a")
    )
    assert isinstance(selection.kind, KvKind)
    assert not selection.kind.create
