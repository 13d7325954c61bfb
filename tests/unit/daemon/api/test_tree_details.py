"""What a managed object's annotations tell of its external resource."""

import pytest

from natsctl.daemon.api.tree_details import externals

BEGUN = {"natsctl.io/external-create-pending": "2026-01-01T00:00:00Z revision 4"}
DONE = {**BEGUN, "natsctl.io/external-create-succeeded": "2026-01-01T00:00:02Z revision 4"}
NAMED = {"natsctl.io/external-name": "vol-1"}


@pytest.mark.parametrize(
    ("annotations", "shown"),
    [
        ({}, []),
        ({"natsctl.io/paused": "true"}, []),
        (NAMED, [("vol-1", "True", "Available", "")]),
        (BEGUN, [("(unnamed)", "Unknown", "CreationUnknown", "")]),
        ({**DONE, **NAMED}, [("vol-1", "True", "Available", "2026-01-01T00:00:02+00:00")]),
        ({"natsctl.io/external-name": 5}, []),
    ],
)
def test_an_external_resource_is_shown_as_it_is_known(
    annotations: dict[str, object], shown: list[tuple[str, ...]]
) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Available"}
    document = {"metadata": {"annotations": annotations}, "status": {"conditions": [ready]}}
    found = [(each.key, each.ready, each.reason, each.created) for each in externals(document)]
    assert found == shown


def test_every_domain_of_annotations_is_read() -> None:
    annotations = {"acme.io/external-name": "x", "b.io/external-name": "y"}
    found = externals({"metadata": {"annotations": annotations}})
    assert [(each.key, each.ready) for each in found] == [("x", "-"), ("y", "-")]


def test_what_is_no_annotation_tells_nothing() -> None:
    assert list(externals({})) == []
    assert list(externals({"metadata": {"annotations": "odd"}})) == []
