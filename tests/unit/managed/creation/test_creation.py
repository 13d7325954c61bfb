"""Intents and their results, as annotations tell them."""

from datetime import UTC, datetime, timedelta

import pytest

from natsctl.managed.creation.creation import Creation, Mark, begun, ended, timestamp
from natsctl.managed.names import AnnotationNames

NAMES = AnnotationNames()
NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


def creation(annotations: dict[str, str]) -> Creation:
    return Creation.of(annotations, NAMES)


def test_an_object_without_annotations_was_never_created_for() -> None:
    assert not creation({}).unknown
    assert creation({}).age_s(NOW) is None


def test_an_intent_without_a_result_is_unknown() -> None:
    assert creation(begun({}, NAMES, now=NOW, revision=7)).unknown


@pytest.mark.parametrize("created", [True, False])
def test_a_result_answers_its_intent(created: bool) -> None:  # noqa: FBT001 - a parameter
    said = begun({}, NAMES, now=NOW, revision=7)
    assert not creation(ended(said, NAMES, now=NOW, created=created)).unknown


def test_within_one_second_a_new_intent_is_not_answered_by_the_result_of_the_last() -> None:
    said = ended(begun({}, NAMES, now=NOW, revision=7), NAMES, now=NOW, created=True)
    again = begun(said, NAMES, now=NOW, revision=9)
    assert creation(again).unknown
    late = {**again, NAMES.create_succeeded: said[NAMES.create_succeeded]}
    assert creation(late).unknown


def test_a_result_from_before_its_intent_by_the_clock_answers_it_all_the_same() -> None:
    said = begun({}, NAMES, now=NOW, revision=7)
    said = ended(said, NAMES, now=NOW - timedelta(hours=1), created=True)
    assert not creation(said).unknown


def test_intents_and_results_of_the_seed_are_ordered_by_their_times() -> None:
    pending = {NAMES.create_pending: "2030-01-01T12:00:00Z"}
    earlier = {NAMES.create_succeeded: "2030-01-01T11:59:59Z"}
    later = {NAMES.create_failed: "2030-01-01T12:00:00Z"}
    assert creation(pending).unknown
    assert creation({**pending, **earlier}).unknown
    assert not creation({**pending, **earlier, **later}).unknown


def test_an_intent_that_nobody_can_read_is_unknown() -> None:
    assert creation({NAMES.create_pending: "soon"}).unknown


def test_the_age_is_that_of_the_success() -> None:
    said = ended(begun({}, NAMES, now=NOW, revision=7), NAMES, now=NOW, created=True)
    assert creation(said).age_s(NOW + timedelta(seconds=5)) == 5


def test_a_failure_has_no_age() -> None:
    said = ended(begun({}, NAMES, now=NOW, revision=7), NAMES, now=NOW, created=False)
    assert creation(said).age_s(NOW) is None


def test_what_may_have_succeeded_has_the_age_of_its_intent() -> None:
    said = begun({}, NAMES, now=NOW, revision=7)
    assert creation(said).age_s(NOW + timedelta(seconds=5)) == 5


def test_a_clock_that_runs_ahead_makes_nothing_older_than_it_is() -> None:
    said = begun({}, NAMES, now=NOW + timedelta(seconds=3), revision=7)
    assert creation(said).age_s(NOW) == 3


@pytest.mark.parametrize("mark", [Mark(NOW, 12), Mark(NOW)])
def test_a_mark_reads_as_it_was_written(mark: Mark) -> None:
    assert Mark.parse(str(mark)) == mark


def test_a_mark_is_for_people_too() -> None:
    assert str(Mark(NOW, 12)) == "2030-01-01T12:00:00Z revision 12"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2030-01-01T12:00:00Z", NOW),
        ("2030-01-01T12:00:00+00:00", NOW),
        ("2030-01-01T12:00:00", NOW),
        ("2030-01-01T13:00:00.5+01:00", NOW + timedelta(seconds=0.5)),
        ("now", None),
        ("", None),
    ],
)
def test_times_are_read_as_programs_write_them(text: str, time: datetime | None) -> None:
    assert timestamp(text) == time
