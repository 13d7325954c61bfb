"""The decision table, row by row, and what it promises in every situation."""

import itertools
from typing import Any

import pytest

from natsctl.managed.situation import TABLE, Action, Observed, Situation, decide

ROWS: list[tuple[str, dict[str, Any], Action]] = [
    ("a paused object", {"paused": True}, Action.PAUSE),
    ("a pause of what is going", {"paused": True, "deleting": True}, Action.PAUSE),
    ("a pause of what has no sense", {"paused": True, "valid": False}, Action.PAUSE),
    ("policies that make no sense", {"valid": False}, Action.REJECT),
    ("the same on its way out", {"valid": False, "deleting": True}, Action.REJECT),
    ("one that is going and not ours", {"deleting": True, "held": False}, Action.RELEASE),
    ("an orphan to be", {"deleting": True, "may_delete": False}, Action.RELEASE),
    (
        "an orphan to be, of an unknown creation",
        {"deleting": True, "may_delete": False, "unknown": True},
        Action.RELEASE,
    ),
    ("an unknown creation", {"unknown": True}, Action.ASK),
    ("an unknown creation that is going", {"unknown": True, "deleting": True}, Action.ASK),
    ("one never looked at", {}, Action.OBSERVE),
    ("one that is going, not looked at", {"deleting": True}, Action.OBSERVE),
    ("an unknown creation with a name", {"unknown": True, "named": True}, Action.OBSERVE),
    ("absent, just created", {"observed": Observed.ABSENT, "recent": True}, Action.WAIT),
    (
        "absent, just created, and going",
        {"observed": Observed.ABSENT, "recent": True, "deleting": True},
        Action.WAIT,
    ),
    ("absent and going", {"observed": Observed.ABSENT, "deleting": True}, Action.RELEASE),
    ("there and going", {"observed": Observed.CURRENT, "deleting": True}, Action.DELETE),
    (
        "there, going, and held by others",
        {"observed": Observed.CURRENT, "deleting": True, "shared": True},
        Action.DELAY,
    ),
    (
        "absent, going, and held by others",
        {"observed": Observed.ABSENT, "deleting": True, "shared": True},
        Action.RELEASE,
    ),
    ("different and going", {"observed": Observed.DIFFERENT, "deleting": True}, Action.DELETE),
    (
        "there, of an unknown creation, and going",
        {"observed": Observed.CURRENT, "deleting": True, "unknown": True, "named": True},
        Action.DELETE,
    ),
    ("absent", {"observed": Observed.ABSENT}, Action.CREATE),
    (
        "absent after a creation nobody knew the result of",
        {"observed": Observed.ABSENT, "unknown": True, "named": True},
        Action.CREATE,
    ),
    (
        "absent, not to be created",
        {"observed": Observed.ABSENT, "may_create": False},
        Action.REPORT_ABSENT,
    ),
    (
        "there after a creation nobody knew the result of",
        {"observed": Observed.DIFFERENT, "unknown": True, "named": True},
        Action.SETTLE,
    ),
    ("it has more than is said", {"observed": Observed.LATE_INITIALIZED}, Action.LATE_INITIALIZE),
    ("different", {"observed": Observed.DIFFERENT}, Action.UPDATE),
    ("different, to stay so", {"observed": Observed.DIFFERENT, "may_update": False}, Action.REST),
    ("up to date", {"observed": Observed.CURRENT}, Action.REST),
]

FLAGS = [name for name in Situation.__struct_fields__ if name != "observed"]
EVERY = [
    Situation(observed=observed, **dict(zip(FLAGS, flags, strict=True)))
    for flags in itertools.product((False, True), repeat=len(FLAGS))
    for observed in Observed
]


@pytest.mark.parametrize(("facts", "action"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_the_table_decides(facts: dict[str, Any], action: Action) -> None:
    assert decide(Situation(**facts)) is action


def test_every_row_decides_something_that_no_earlier_row_does() -> None:
    deciding = {
        next(number for number, row in enumerate(TABLE) if row.matches(situation))
        for situation in EVERY
    }
    assert deciding == set(range(len(TABLE)))


def test_there_is_a_test_of_every_row() -> None:
    tested = {
        next(number for number, row in enumerate(TABLE) if row.matches(Situation(**facts)))
        for _, facts, _ in ROWS
    }
    assert tested == set(range(len(TABLE)))


def test_every_action_is_decided_somewhere() -> None:
    assert {decide(situation) for situation in EVERY} == set(Action)


def test_a_paused_object_is_left_alone_in_every_situation() -> None:
    paused = [situation for situation in EVERY if situation.paused]
    assert {decide(situation) for situation in paused} == {Action.PAUSE}


def test_nothing_is_deleted_against_a_policy_in_any_situation() -> None:
    orphans = [situation for situation in EVERY if not situation.may_delete]
    assert Action.DELETE not in {decide(situation) for situation in orphans}


def test_nothing_is_created_while_an_earlier_creation_is_unknown_and_has_no_name() -> None:
    unknown = [situation for situation in EVERY if situation.unknown and not situation.named]
    assert Action.CREATE not in {decide(situation) for situation in unknown}


def test_nothing_is_created_again_within_the_grace_period() -> None:
    recent = [situation for situation in EVERY if situation.recent]
    assert Action.CREATE not in {decide(situation) for situation in recent}


def test_what_is_going_is_neither_created_nor_changed() -> None:
    going = {decide(situation) for situation in EVERY if situation.deleting}
    assert not going & {Action.CREATE, Action.UPDATE, Action.LATE_INITIALIZE, Action.SETTLE}


def test_an_object_we_hold_is_let_go_only_when_nothing_is_left_to_delete() -> None:
    for situation in EVERY:
        if situation.held and situation.may_delete and decide(situation) is Action.RELEASE:
            assert situation.deleting
            assert situation.observed is Observed.ABSENT


def test_nothing_is_done_outside_before_it_is_observed() -> None:
    unseen = {decide(at) for at in EVERY if at.observed is Observed.NOT_YET}
    assert unseen == {Action.PAUSE, Action.REJECT, Action.RELEASE, Action.ASK, Action.OBSERVE}
