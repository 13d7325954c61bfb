"""The tree shows an external resource from the annotations of its managed object."""

import pytest

from natsctl.daemon.service import externals

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
def test_annotations_give_the_name_and_the_state_of_the_external_resource(
    annotations: dict[str, object], shown: list[tuple[str, ...]]
) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Available"}
    document = {"metadata": {"annotations": annotations}, "status": {"conditions": [ready]}}
    branches = [
        (branch.key, branch.ready, branch.reason, branch.created) for branch in externals(document)
    ]
    assert branches == shown


def test_annotations_of_every_domain_are_read() -> None:
    annotations = {"acme.io/external-name": "x", "b.io/external-name": "y"}
    branches = externals({"metadata": {"annotations": annotations}})
    assert [(branch.key, branch.ready) for branch in branches] == [("x", "-"), ("y", "-")]


def test_a_document_without_annotations_has_no_external_resource() -> None:
    assert list(externals({})) == []
    assert list(externals({"metadata": {"annotations": "odd"}})) == []
