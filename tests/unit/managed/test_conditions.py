"""Conditions in a status."""

from datetime import UTC, datetime, timedelta

import pytest

from natsctl.managed import (
    Condition,
)
from natsctl.managed.conditions import condition, with_conditions

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def test_a_condition_is_added_next_to_others() -> None:
    status = {"conditions": [{"type": "Other", "status": "True", "reason": "Theirs", "x": 1}]}
    found = with_conditions(status, [Condition.available()], NOW)
    assert found == [
        {"type": "Other", "status": "True", "reason": "Theirs", "x": 1},
        {
            "type": "Ready",
            "status": "True",
            "reason": "Available",
            "lastTransitionTime": "2030-01-01T12:00:00Z",
        },
    ]


def test_its_time_moves_when_its_status_does() -> None:
    first = with_conditions({}, [Condition.creating()], NOW)
    same = with_conditions({"conditions": first}, [Condition.deleting()], LATER)
    other = with_conditions({"conditions": same}, [Condition.available()], LATER)
    times = [condition({"conditions": at}, "Ready") for at in (first, same, other)]
    assert [at and at.last_transition_time for at in times] == [
        "2030-01-01T12:00:00Z",
        "2030-01-01T12:00:00Z",
        "2030-01-01T12:01:00Z",
    ]


BROKEN = {"conditions": [{"type": "Ready", "status": 7, "reason": []}]}


@pytest.mark.parametrize("status", [{}, None, {"conditions": "x"}, {"conditions": [7, {}]}, BROKEN])
def test_a_status_without_it_has_none(status: object) -> None:
    assert condition(status, "Ready") is None
    assert len(with_conditions(status, [Condition.available()], NOW)) >= 1


@pytest.mark.parametrize(
    ("made", "facts"),
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
def test_conditions_are_the_seeds(made: Condition, facts: tuple[str, str, str]) -> None:
    assert (made.type, made.status, made.reason) == facts


def test_a_message_is_bounded() -> None:
    assert len(Condition.reconcile_error("x" * 10_000).message) == 1024
