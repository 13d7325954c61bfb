"""The decision table of the managed reconciler, and its guarantees in every situation."""

import itertools
from typing import Any

import pytest

from natsctl.managed.situation import TABLE, Action, Observed, Situation, decide

ROWS: list[tuple[str, dict[str, Any], Action]] = [
    ("a paused object", {"paused": True}, Action.PAUSE),
    ("a paused object marked deleted", {"paused": True, "deleting": True}, Action.PAUSE),
    ("a paused object with invalid policies", {"paused": True, "valid": False}, Action.PAUSE),
    ("invalid policies", {"valid": False}, Action.REJECT),
    ("invalid policies, marked deleted", {"valid": False, "deleting": True}, Action.REJECT),
    ("marked deleted, without our finalizer", {"deleting": True, "held": False}, Action.RELEASE),
    ("marked deleted, to be orphaned", {"deleting": True, "may_delete": False}, Action.RELEASE),
    (
        "marked deleted, to be orphaned, unknown creation",
        {"deleting": True, "may_delete": False, "unknown": True},
        Action.RELEASE,
    ),
    ("an unknown creation", {"unknown": True}, Action.ASK),
    ("an unknown creation, marked deleted", {"unknown": True, "deleting": True}, Action.ASK),
    ("not yet observed", {}, Action.OBSERVE),
    ("marked deleted, not yet observed", {"deleting": True}, Action.OBSERVE),
    ("an unknown creation with a name", {"unknown": True, "named": True}, Action.OBSERVE),
    ("absent, just created", {"observed": Observed.ABSENT, "recent": True}, Action.WAIT),
    (
        "absent, just created, marked deleted",
        {"observed": Observed.ABSENT, "recent": True, "deleting": True},
        Action.WAIT,
    ),
    ("absent, marked deleted", {"observed": Observed.ABSENT, "deleting": True}, Action.RELEASE),
    ("present, marked deleted", {"observed": Observed.CURRENT, "deleting": True}, Action.DELETE),
    (
        "present, marked deleted, with finalizers of others",
        {"observed": Observed.CURRENT, "deleting": True, "shared": True},
        Action.DELAY,
    ),
    (
        "absent, marked deleted, with finalizers of others",
        {"observed": Observed.ABSENT, "deleting": True, "shared": True},
        Action.RELEASE,
    ),
    (
        "different, marked deleted",
        {"observed": Observed.DIFFERENT, "deleting": True},
        Action.DELETE,
    ),
    (
        "present, unknown creation, marked deleted",
        {"observed": Observed.CURRENT, "deleting": True, "unknown": True, "named": True},
        Action.DELETE,
    ),
    ("absent", {"observed": Observed.ABSENT}, Action.CREATE),
    (
        "absent after an unknown creation with a name",
        {"observed": Observed.ABSENT, "unknown": True, "named": True},
        Action.CREATE,
    ),
    (
        "absent, may not be created",
        {"observed": Observed.ABSENT, "may_create": False},
        Action.REPORT_ABSENT,
    ),
    (
        "present after an unknown creation with a name",
        {"observed": Observed.DIFFERENT, "unknown": True, "named": True},
        Action.SETTLE,
    ),
    ("late initialized", {"observed": Observed.LATE_INITIALIZED}, Action.LATE_INITIALIZE),
    ("different", {"observed": Observed.DIFFERENT}, Action.UPDATE),
    (
        "different, may not be updated",
        {"observed": Observed.DIFFERENT, "may_update": False},
        Action.REST,
    ),
    ("up to date", {"observed": Observed.CURRENT}, Action.REST),
]

FLAGS = [name for name in Situation.__struct_fields__ if name != "observed"]
ALL_SITUATIONS = [
    Situation(observed=observed, **dict(zip(FLAGS, flags, strict=True)))
    for flags in itertools.product((False, True), repeat=len(FLAGS))
    for observed in Observed
]


@pytest.mark.parametrize(("facts", "action"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_each_row_decides_its_action(facts: dict[str, Any], action: Action) -> None:
    assert decide(Situation(**facts)) is action


def test_every_row_of_the_table_is_reachable() -> None:
    deciding = {
        next(number for number, row in enumerate(TABLE) if row.matches(situation))
        for situation in ALL_SITUATIONS
    }
    assert deciding == set(range(len(TABLE)))


def test_every_row_of_the_table_is_tested() -> None:
    tested = {
        next(number for number, row in enumerate(TABLE) if row.matches(Situation(**facts)))
        for _, facts, _ in ROWS
    }
    assert tested == set(range(len(TABLE)))


def test_every_action_is_reachable() -> None:
    assert {decide(situation) for situation in ALL_SITUATIONS} == set(Action)


def test_a_paused_object_is_never_acted_on() -> None:
    paused = [situation for situation in ALL_SITUATIONS if situation.paused]
    assert {decide(situation) for situation in paused} == {Action.PAUSE}


def test_deletion_never_violates_a_policy() -> None:
    orphans = [situation for situation in ALL_SITUATIONS if not situation.may_delete]
    assert Action.DELETE not in {decide(situation) for situation in orphans}


def test_nothing_is_created_while_an_unnamed_creation_is_unknown() -> None:
    unknown = [
        situation for situation in ALL_SITUATIONS if situation.unknown and not situation.named
    ]
    assert Action.CREATE not in {decide(situation) for situation in unknown}


def test_nothing_is_created_within_the_grace_period() -> None:
    recent = [situation for situation in ALL_SITUATIONS if situation.recent]
    assert Action.CREATE not in {decide(situation) for situation in recent}


def test_an_object_marked_deleted_is_neither_created_nor_updated() -> None:
    deleting_actions = {decide(situation) for situation in ALL_SITUATIONS if situation.deleting}
    assert not deleting_actions & {
        Action.CREATE,
        Action.UPDATE,
        Action.LATE_INITIALIZE,
        Action.SETTLE,
    }


def test_a_finalizer_is_removed_only_after_the_resource_is_gone() -> None:
    for situation in ALL_SITUATIONS:
        if situation.held and situation.may_delete and decide(situation) is Action.RELEASE:
            assert situation.deleting
            assert situation.observed is Observed.ABSENT


def test_nothing_is_changed_before_the_first_observation() -> None:
    unseen = {
        decide(situation) for situation in ALL_SITUATIONS if situation.observed is Observed.NOT_YET
    }
    assert unseen == {Action.PAUSE, Action.REJECT, Action.RELEASE, Action.ASK, Action.OBSERVE}
