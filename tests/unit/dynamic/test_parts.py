from typing import Any

import pytest

from natsctl.dynamic import ObjectCacheOptions, ObjectIdentifier
from natsctl.dynamic.parts import Parts
from natsctl.dynamic.resources import Resources
from natsctl.model.kinds import KvKind
from natsctl.model.manifests import KubeKind
from natsctl.testing.memory import MemoryStores

SECRET = ObjectIdentifier(version="v1", kind="Secret", namespace="x", name="a")


def parts(*, metadata_only: bool = False) -> Parts:
    stores = MemoryStores()
    resources = Resources(stores.kube, ObjectCacheOptions())
    return Parts(resources, nats=stores, kube=stores.kube, metadata_only=metadata_only)


@pytest.mark.parametrize("metadata_only", [True, False])
async def test_of_what_nobody_reads_only_metadata_is_watched(*, metadata_only: bool) -> None:
    on = await parts(metadata_only=metadata_only).of(SECRET)
    assert isinstance(on.kind, KubeKind)
    assert on.kind.metadata_only == metadata_only


async def test_a_single_object_is_watched_by_its_name_alone() -> None:
    on = await parts().of(SECRET)
    assert isinstance(on.kind, KubeKind)
    assert (on.kind.namespace, on.kind.object_name) == ("x", "a")


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({"name": "a.b"}, "a.b"),
        ({"namespace": "a", "name": "b"}, "a.b"),
        ({"namespace": "a", "everything": True}, "a.>"),
        ({"everything": True}, ">"),
    ],
)
async def test_a_part_of_a_bucket_is_watched_by_its_keys(given: dict[str, Any], keys: str) -> None:
    on = await parts().of(ObjectIdentifier(group="nats", version="kv", kind="limits", **given))
    assert isinstance(on.kind, KvKind)
    assert (on.kind.bucket, on.kind.keys) == ("limits", keys)


async def test_a_bucket_is_neither_made_nor_asked_to_be_as_declared() -> None:
    on = await parts().of(ObjectIdentifier(group="nats", version="kv", kind="limits", name="a"))
    assert isinstance(on.kind, KvKind)
    assert not on.kind.create
