"""The decision table of the managed reconciler, and its guarantees in every situation."""

import itertools
from typing import Any

import pytest

from natsctl.managed.situation import TABLE, Observed, ReconcileAction, Situation, decide

ROWS: list[tuple[str, dict[str, Any], ReconcileAction]] = [
    ("a paused object", {"paused": True}, ReconcileAction.PAUSE),
    ("a paused object marked deleted", {"paused": True, "deleting": True}, ReconcileAction.PAUSE),
    (
        "a paused object with invalid policies",
        {"paused": True, "valid": False},
        ReconcileAction.PAUSE,
    ),
    ("invalid policies", {"valid": False}, ReconcileAction.REJECT),
    (
        "invalid policies, marked deleted",
        {"valid": False, "deleting": True},
        ReconcileAction.REJECT,
    ),
    (
        "marked deleted, without our finalizer",
        {"deleting": True, "held": False},
        ReconcileAction.RELEASE,
    ),
    (
        "marked deleted, to be orphaned",
        {"deleting": True, "may_delete": False},
        ReconcileAction.RELEASE,
    ),
    (
        "marked deleted, to be orphaned, unknown creation",
        {"deleting": True, "may_delete": False, "unknown": True},
        ReconcileAction.RELEASE,
    ),
    ("an unknown creation", {"unknown": True}, ReconcileAction.ASK),
    (
        "an unknown creation, marked deleted",
        {"unknown": True, "deleting": True},
        ReconcileAction.ASK,
    ),
    ("not yet observed", {}, ReconcileAction.OBSERVE),
    ("marked deleted, not yet observed", {"deleting": True}, ReconcileAction.OBSERVE),
    ("an unknown creation with a name", {"unknown": True, "named": True}, ReconcileAction.OBSERVE),
    ("absent, just created", {"observed": Observed.ABSENT, "recent": True}, ReconcileAction.WAIT),
    (
        "absent, just created, marked deleted",
        {"observed": Observed.ABSENT, "recent": True, "deleting": True},
        ReconcileAction.WAIT,
    ),
    (
        "absent, marked deleted",
        {"observed": Observed.ABSENT, "deleting": True},
        ReconcileAction.RELEASE,
    ),
    (
        "present, marked deleted, of somebody else",
        {"observed": Observed.CURRENT, "deleting": True, "owned": False, "may_adopt": True},
        ReconcileAction.KEEP,
    ),
    (
        "present, of somebody else",
        {"observed": Observed.DIFFERENT, "owned": False},
        ReconcileAction.DISOWN,
    ),
    (
        "present, of somebody else, with permission",
        {"observed": Observed.DIFFERENT, "owned": False, "may_adopt": True},
        ReconcileAction.ADOPT,
    ),
    (
        "present, marked deleted",
        {"observed": Observed.CURRENT, "deleting": True},
        ReconcileAction.DELETE,
    ),
    (
        "present, marked deleted, with finalizers of others",
        {"observed": Observed.CURRENT, "deleting": True, "shared": True},
        ReconcileAction.DELAY,
    ),
    (
        "absent, marked deleted, with finalizers of others",
        {"observed": Observed.ABSENT, "deleting": True, "shared": True},
        ReconcileAction.RELEASE,
    ),
    (
        "different, marked deleted",
        {"observed": Observed.DIFFERENT, "deleting": True},
        ReconcileAction.DELETE,
    ),
    (
        "present, unknown creation, marked deleted",
        {"observed": Observed.CURRENT, "deleting": True, "unknown": True, "named": True},
        ReconcileAction.DELETE,
    ),
    ("absent", {"observed": Observed.ABSENT}, ReconcileAction.CREATE),
    (
        "absent after an unknown creation with a name",
        {"observed": Observed.ABSENT, "unknown": True, "named": True},
        ReconcileAction.CREATE,
    ),
    (
        "absent, may not be created",
        {"observed": Observed.ABSENT, "may_create": False},
        ReconcileAction.REPORT_ABSENT,
    ),
    (
        "present after an unknown creation with a name",
        {"observed": Observed.DIFFERENT, "unknown": True, "named": True},
        ReconcileAction.SETTLE,
    ),
    ("late initialized", {"observed": Observed.LATE_INITIALIZED}, ReconcileAction.LATE_INITIALIZE),
    ("different", {"observed": Observed.DIFFERENT}, ReconcileAction.UPDATE),
    (
        "different, may not be updated",
        {"observed": Observed.DIFFERENT, "may_update": False},
        ReconcileAction.REST,
    ),
    ("up to date", {"observed": Observed.CURRENT}, ReconcileAction.REST),
]

FLAGS = [name for name in Situation.__struct_fields__ if name != "observed"]
ALL_SITUATIONS = [
    Situation(observed=observed, **dict(zip(FLAGS, flags, strict=True)))
    for flags in itertools.product((False, True), repeat=len(FLAGS))
    for observed in Observed
]


@pytest.mark.parametrize(("facts", "action"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_each_row_decides_its_action(facts: dict[str, Any], action: ReconcileAction) -> None:
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
    assert {decide(situation) for situation in ALL_SITUATIONS} == set(ReconcileAction)


def test_a_paused_object_is_never_acted_on() -> None:
    paused = [situation for situation in ALL_SITUATIONS if situation.paused]
    assert {decide(situation) for situation in paused} == {ReconcileAction.PAUSE}


def test_deletion_never_violates_a_policy() -> None:
    orphans = [situation for situation in ALL_SITUATIONS if not situation.may_delete]
    assert ReconcileAction.DELETE not in {decide(situation) for situation in orphans}


def test_nothing_is_created_while_an_unnamed_creation_is_unknown() -> None:
    unknown = [
        situation for situation in ALL_SITUATIONS if situation.unknown and not situation.named
    ]
    assert ReconcileAction.CREATE not in {decide(situation) for situation in unknown}


def test_nothing_is_created_within_the_grace_period() -> None:
    recent = [situation for situation in ALL_SITUATIONS if situation.recent]
    assert ReconcileAction.CREATE not in {decide(situation) for situation in recent}


def test_an_object_marked_deleted_is_neither_created_nor_updated() -> None:
    deleting_actions = {decide(situation) for situation in ALL_SITUATIONS if situation.deleting}
    assert not deleting_actions & {
        ReconcileAction.CREATE,
        ReconcileAction.UPDATE,
        ReconcileAction.LATE_INITIALIZE,
        ReconcileAction.SETTLE,
    }


def test_a_finalizer_is_removed_only_after_the_resource_is_gone() -> None:
    for situation in ALL_SITUATIONS:
        if situation.held and situation.may_delete and decide(situation) is ReconcileAction.RELEASE:
            assert situation.deleting
            assert situation.observed is Observed.ABSENT


def test_a_resource_of_somebody_else_is_never_changed() -> None:
    others = [
        situation
        for situation in ALL_SITUATIONS
        if not situation.owned and situation.observed not in (Observed.NOT_YET, Observed.ABSENT)
    ]
    assert not {decide(situation) for situation in others} & {
        ReconcileAction.UPDATE,
        ReconcileAction.DELETE,
        ReconcileAction.SETTLE,
        ReconcileAction.LATE_INITIALIZE,
    }


def test_nothing_is_changed_before_the_first_observation() -> None:
    unseen = {
        decide(situation) for situation in ALL_SITUATIONS if situation.observed is Observed.NOT_YET
    }
    assert unseen == {
        ReconcileAction.PAUSE,
        ReconcileAction.REJECT,
        ReconcileAction.RELEASE,
        ReconcileAction.ASK,
        ReconcileAction.OBSERVE,
    }
