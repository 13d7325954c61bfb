"""Creation intents and results, read from and written to annotations."""

from datetime import UTC, datetime, timedelta

import pytest

from natsctl import AnnotationNames
from natsctl.managed.creation.creation import Creation, Mark, begun, ended

NAMES = AnnotationNames()
NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


def creation(annotations: dict[str, str]) -> Creation:
    return Creation.of(annotations, NAMES)


def test_an_object_without_annotations_has_no_unknown_creation() -> None:
    assert not creation({}).unknown
    assert creation({}).age_s(NOW) is None


def test_an_intent_without_a_result_is_unknown() -> None:
    assert creation(begun({}, NAMES, now=NOW, revision=7)).unknown


@pytest.mark.parametrize("created", [True, False])
def test_a_result_settles_its_intent(created: bool) -> None:  # noqa: FBT001 - a test parameter
    annotations = begun({}, NAMES, now=NOW, revision=7)
    assert not creation(ended(annotations, NAMES, now=NOW, created=created)).unknown


def test_a_new_intent_within_the_same_second_is_not_settled_by_an_earlier_result() -> None:
    annotations = ended(begun({}, NAMES, now=NOW, revision=7), NAMES, now=NOW, created=True)
    second_intent = begun(annotations, NAMES, now=NOW, revision=9)
    assert creation(second_intent).unknown
    late = {**second_intent, NAMES.create_succeeded: annotations[NAMES.create_succeeded]}
    assert creation(late).unknown


def test_a_result_with_an_earlier_time_than_its_intent_settles_it() -> None:
    annotations = begun({}, NAMES, now=NOW, revision=7)
    annotations = ended(annotations, NAMES, now=NOW - timedelta(hours=1), created=True)
    assert not creation(annotations).unknown


def test_intents_and_results_without_revisions_are_ordered_by_time() -> None:
    pending = {NAMES.create_pending: "2030-01-01T12:00:00Z"}
    earlier = {NAMES.create_succeeded: "2030-01-01T11:59:59Z"}
    later = {NAMES.create_failed: "2030-01-01T12:00:00Z"}
    assert creation(pending).unknown
    assert creation({**pending, **earlier}).unknown
    assert not creation({**pending, **earlier, **later}).unknown


def test_an_unreadable_intent_is_unknown() -> None:
    assert creation({NAMES.create_pending: "soon"}).unknown


def test_the_age_counts_from_the_success() -> None:
    annotations = ended(begun({}, NAMES, now=NOW, revision=7), NAMES, now=NOW, created=True)
    assert creation(annotations).age_s(NOW + timedelta(seconds=5)) == 5


def test_a_failure_has_no_age() -> None:
    annotations = ended(begun({}, NAMES, now=NOW, revision=7), NAMES, now=NOW, created=False)
    assert creation(annotations).age_s(NOW) is None


def test_a_creation_with_an_unknown_result_has_the_age_of_its_intent() -> None:
    annotations = begun({}, NAMES, now=NOW, revision=7)
    assert creation(annotations).age_s(NOW + timedelta(seconds=5)) == 5


def test_a_clock_that_runs_ahead_does_not_increase_the_age() -> None:
    annotations = begun({}, NAMES, now=NOW + timedelta(seconds=3), revision=7)
    assert creation(annotations).age_s(NOW) == 3


@pytest.mark.parametrize("mark", [Mark(NOW, 12), Mark(NOW)])
def test_a_mark_survives_a_round_trip(mark: Mark) -> None:
    assert Mark.parse(str(mark)) == mark


def test_a_mark_is_readable_text() -> None:
    assert str(Mark(NOW, 12)) == "2030-01-01T12:00:00Z revision 12"
