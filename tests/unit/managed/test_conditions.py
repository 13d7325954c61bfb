"""Conditions in the status of a managed object."""

from datetime import UTC, datetime, timedelta

import pytest

from natsctl.managed import (
    Condition,
)
from natsctl.managed.conditions import condition, with_conditions

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def test_a_condition_is_added_to_existing_ones() -> None:
    status = {"conditions": [{"type": "Other", "status": "True", "reason": "Theirs", "x": 1}]}
    conditions = with_conditions(status, [Condition.available()], NOW)
    assert conditions == [
        {"type": "Other", "status": "True", "reason": "Theirs", "x": 1},
        {
            "type": "Ready",
            "status": "True",
            "reason": "Available",
            "lastTransitionTime": "2030-01-01T12:00:00Z",
        },
    ]


def test_the_transition_time_changes_with_the_status() -> None:
    initial = with_conditions({}, [Condition.creating()], NOW)
    same_status = with_conditions({"conditions": initial}, [Condition.deleting()], LATER)
    changed_status = with_conditions({"conditions": same_status}, [Condition.available()], LATER)
    times = [
        condition({"conditions": after}, "Ready")
        for after in (initial, same_status, changed_status)
    ]
    assert [after and after.last_transition_time for after in times] == [
        "2030-01-01T12:00:00Z",
        "2030-01-01T12:00:00Z",
        "2030-01-01T12:01:00Z",
    ]


BROKEN = {"conditions": [{"type": "Ready", "status": 7, "reason": []}]}


@pytest.mark.parametrize("status", [{}, None, {"conditions": "x"}, {"conditions": [7, {}]}, BROKEN])
def test_a_status_without_the_condition_returns_none(status: object) -> None:
    assert condition(status, "Ready") is None
    assert len(with_conditions(status, [Condition.available()], NOW)) >= 1


@pytest.mark.parametrize(
    ("constructed", "facts"),
    [
        (Condition.available(), ("Ready", "True", "Available")),
        (Condition.unavailable("full"), ("Ready", "False", "Unavailable")),
        (Condition.creating(), ("Ready", "False", "Creating")),
        (Condition.deleting(), ("Ready", "False", "Deleting")),
        (Condition.reconcile_success(), ("Synced", "True", "ReconcileSuccess")),
        (Condition.reconcile_error("no"), ("Synced", "False", "ReconcileError")),
        (Condition.reconcile_paused(), ("Synced", "False", "ReconcilePaused")),
    ],
)
def test_conditions_have_fixed_types_and_reasons(
    constructed: Condition, facts: tuple[str, str, str]
) -> None:
    assert (constructed.type, constructed.status, constructed.reason) == facts


def test_a_message_has_a_maximum_length() -> None:
    assert len(Condition.reconcile_error("x" * 10_000).message) == 1024
