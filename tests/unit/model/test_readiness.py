"""Readiness of an object and its reason, read from its status."""

import pytest

from natsctl.model.documents import Document
from natsctl.model.readiness import ready, reason


def conditions(*items: object) -> Document:
    return {"status": {"conditions": list(items)}}


READY = {"type": "Ready", "status": "False", "reason": "Creating"}
UNSYNCED = {"type": "Synced", "status": "False", "reason": "ReconcileError"}
AVAILABLE = {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}


@pytest.mark.parametrize(
    ("document", "expected_status", "expected_reason"),
    [
        (conditions(READY), "False", "Creating"),
        (conditions(AVAILABLE), "True", "MinimumReplicasAvailable"),
        (conditions(AVAILABLE, READY), "False", "Creating"),
        (conditions({"type": "Ready", "status": "Unknown", "reason": 5}), "Unknown", ""),
        (conditions({"type": "Progressing", "status": "True", "reason": "x"}), "-", ""),
        (conditions("odd", READY), "False", "Creating"),
        (conditions(UNSYNCED), "False", "ReconcileError"),
        (conditions(UNSYNCED, {"type": "Ready", "status": "True"}), "True", ""),
        (conditions({"type": "Synced", "status": "True"}), "-", ""),
        ({"status": {"conditions": {"type": "Ready"}}}, "-", ""),
        ({"status": {"ready": True, "conditions": [READY]}}, "True", "Creating"),
        ({}, "-", ""),
        (None, "-", ""),
    ],
)
def test_readiness_comes_from_the_conditions(
    document: Document | None, expected_status: str, expected_reason: str
) -> None:
    assert (ready(document), reason(document)) == (expected_status, expected_reason)
