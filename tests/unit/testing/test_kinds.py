"""The Kubernetes kinds that the memory cluster knows."""

import pytest

from natsctl import StoreMissingError
from natsctl.testing import MemoryKinds, MemoryResource


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("Secret", "secrets"),
        ("Ingress", "ingresses"),
        ("Policy", "policies"),
        ("Gateway", "gateways"),
        ("Box", "boxes"),
    ],
)
def test_a_kind_has_a_regular_plural(kind: str, plural: str) -> None:
    assert MemoryKinds().resource("v1", kind).plural == plural


def test_a_well_known_cluster_scoped_kind_has_no_namespace() -> None:
    assert not MemoryKinds().resource("v1", "Node").namespaced
    assert MemoryKinds().resource("v1", "Secret").namespaced


def test_an_irregular_kind_can_be_defined_and_removed() -> None:
    kinds = MemoryKinds()
    sheep = MemoryResource("sheep", namespaced=False)
    kinds.define("farm.io/v1", "Sheep", sheep)
    assert kinds.resource("farm.io/v1", "Sheep") == sheep
    assert kinds.resource("farm.io/v2", "Sheep").plural == "sheeps"
    kinds.remove("farm.io/v1", "Sheep")
    with pytest.raises(StoreMissingError, match="Sheep"):
        kinds.resource("farm.io/v1", "Sheep")
