"""The number of reported keys is compared with the server's number at the same revision."""

import pytest

from natsctl.jetstream.bucket.bucket import StreamState
from natsctl.jetstream.bucket.key_count import KeyCount


def counted(last_seq: int, subjects: int) -> StreamState:
    return StreamState("2026-01-01", last_seq, subjects)


def begun(*events: tuple[int, int]) -> KeyCount:
    """Return a count that began at revision 10 with 3 keys, before the *events*."""
    count = KeyCount()
    count.begin(10, 3)
    for revision, size in events:
        count.note(revision, size)
    return count


def test_equal_numbers_at_the_same_revision_do_not_differ() -> None:
    assert not begun().differs(10, 3, counted(10, 3))


def test_no_numbers_are_noted_after_an_equal_answer() -> None:
    count = begun()
    count.differs(10, 3, counted(10, 3))
    assert not count.active


def test_other_numbers_at_the_same_revision_differ() -> None:
    assert begun().differs(10, 3, counted(10, 2))


@pytest.mark.parametrize(("last_seq", "subjects"), [(10, 3), (11, 4), (12, 4), (13, 5)])
def test_the_answer_is_compared_with_the_number_at_its_revision(
    last_seq: int, subjects: int
) -> None:
    events = ((11, 4), (12, 4), (13, 5), (14, 6))
    assert not begun(*events).differs(14, 6, counted(last_seq, subjects))
    assert begun(*events).differs(14, 6, counted(last_seq, subjects + 1))


def test_an_answer_from_before_the_count_is_ignored() -> None:
    assert not begun().differs(10, 3, counted(9, 7))


def test_an_answer_that_is_ahead_is_compared_when_its_revision_is_passed() -> None:
    count = begun()
    assert not count.differs(10, 3, counted(12, 4))
    count.note(12, 5)
    assert not count.miscounted
    count.note(13, 5)
    assert count.miscounted


def test_an_answer_that_is_ahead_and_equal_there_ends_the_count() -> None:
    count = begun()
    assert not count.differs(10, 3, counted(12, 4))
    count.note(12, 4)
    count.note(13, 9)
    assert not count.miscounted
    assert not count.active


def test_a_count_that_begins_while_an_answer_is_awaited_keeps_that_answer() -> None:
    count = begun()
    assert not count.differs(10, 3, counted(12, 4))
    count.note(11, 5)
    count.begin(11, 5)
    count.note(13, 6)
    assert count.miscounted
    assert not count.differs(13, 6, counted(13, 6))


def test_an_answer_differs_if_no_event_arrived_since_an_answer_that_was_ahead() -> None:
    count = begun()
    assert not count.differs(10, 3, counted(12, 4))
    count.begin(10, 3)
    assert count.differs(10, 3, counted(12, 4))


def test_an_answer_after_a_wrong_number_differs_even_if_it_is_ahead() -> None:
    count = begun()
    assert not count.differs(10, 3, counted(11, 4))
    count.note(12, 3)
    count.begin(12, 3)
    assert count.differs(12, 3, counted(13, 4))
    count.end()
    assert not count.miscounted


def test_an_awaited_answer_is_not_replaced_by_a_later_one() -> None:
    count = begun()
    count.differs(10, 3, counted(12, 4))
    count.note(11, 5)
    count.begin(11, 5)
    assert not count.differs(11, 5, counted(30, 9))
    count.note(13, 9)
    assert count.miscounted


def test_an_answer_that_was_awaited_does_not_matter_after_the_end() -> None:
    count = begun()
    count.differs(10, 3, counted(12, 4))
    count.end()
    count.note(13, 5)
    assert not count.miscounted


def test_an_answer_is_awaited_although_an_earlier_one_was_awaited_at_the_same_revision() -> None:
    count = begun()
    count.differs(10, 3, counted(12, 4))
    count.end()
    count.begin(10, 3)
    assert not count.differs(10, 3, counted(12, 4))
