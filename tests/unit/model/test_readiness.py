"""What an object's status says of being ready, and why."""

import pytest

from natsctl.model.documents import Document
from natsctl.model.readiness import ready, reason


def conditions(*found: object) -> Document:
    return {"status": {"conditions": list(found)}}


READY = {"type": "Ready", "status": "False", "reason": "Creating"}
AVAILABLE = {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}


@pytest.mark.parametrize(
    ("document", "word", "why"),
    [
        (conditions(READY), "False", "Creating"),
        (conditions(AVAILABLE), "True", "MinimumReplicasAvailable"),
        (conditions(AVAILABLE, READY), "False", "Creating"),
        (conditions({"type": "Ready", "status": "Unknown", "reason": 5}), "Unknown", ""),
        (conditions({"type": "Progressing", "status": "True", "reason": "x"}), "-", ""),
        (conditions("odd", READY), "False", "Creating"),
        ({"status": {"conditions": {"type": "Ready"}}}, "-", ""),
        ({"status": {"ready": True, "conditions": [READY]}}, "True", "Creating"),
        ({}, "-", ""),
        (None, "-", ""),
    ],
)
def test_a_condition_tells(document: Document | None, word: str, why: str) -> None:
    assert (ready(document), reason(document)) == (word, why)
