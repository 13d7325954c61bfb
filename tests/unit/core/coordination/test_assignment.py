"""Held assignments: lost keys are released at once, gained keys are held after a drain."""

from collections.abc import Hashable

import pytest

from natsctl.core.coordination.assignment import (
    ALL,
    ASSIGNMENTS_MAX,
    NONE,
    Assignment,
    HeldAssignments,
    KeptKeys,
    OnlyKeys,
)


class Keys:
    def __init__(self, keys: str) -> None:
        self.keys = keys

    def has(self, key: Hashable) -> bool:
        return str(key) in self.keys

    def within(self, other: Assignment) -> bool:
        return isinstance(other, Keys) and set(self.keys) <= set(other.keys)


def held_keys(holdings: HeldAssignments) -> str:
    return "".join(key for key in "abcd" if holdings.has(key))


def test_every_key_is_held_by_default() -> None:
    assert held_keys(HeldAssignments()) == "abcd"


def test_lost_keys_are_released_at_once_and_gained_keys_wait() -> None:
    holdings = HeldAssignments(Keys("ab"))
    assignment = Keys("bc")
    holdings.moved(assignment)
    assert held_keys(holdings) == "b"
    is_new = holdings.settle(assignment)
    assert held_keys(holdings) == "bc"
    assert is_new is not None
    assert [key for key in "abcd" if is_new(key)] == ["c"]
    assert holdings.settled


def test_a_key_that_was_lost_and_returned_is_new() -> None:
    holdings = HeldAssignments(Keys("ab"))
    last = Keys("ab")
    holdings.moved(Keys("a"))
    holdings.moved(last)
    assert held_keys(holdings) == "a"
    is_new = holdings.settle(last)
    assert is_new is not None
    assert [key for key in "abcd" if is_new(key)] == ["b"]


@pytest.mark.parametrize(("before", "after"), [("ab", "a"), ("ab", "ab"), ("ab", "")])
def test_an_assignment_that_only_loses_keys_has_no_new_keys(before: str, after: str) -> None:
    holdings, assignment = HeldAssignments(Keys(before)), Keys(after)
    holdings.moved(assignment)
    assert holdings.settle(assignment) is None
    assert held_keys(holdings) == after
    assert holdings.settled


def test_a_second_rebalance_is_settled_after_the_first() -> None:
    holdings, first, second = HeldAssignments(NONE), Keys("ab"), Keys("bc")
    holdings.moved(first)
    holdings.moved(second)
    is_new = holdings.settle(first)
    assert held_keys(holdings) == "b"
    assert not holdings.settled
    assert is_new is not None
    assert [key for key in "abcd" if is_new(key)] == ["a", "b"]
    is_new_later = holdings.settle(holdings.newest)
    assert held_keys(holdings) == "bc"
    assert is_new_later is not None
    assert [key for key in "abcd" if is_new_later(key)] == ["c"]


def test_a_key_of_every_assignment_that_is_not_settled_may_be_held_later() -> None:
    holdings = HeldAssignments(Keys("ab"))
    holdings.moved(Keys("bc"))
    assert [key for key in "abcd" if holdings.may_have(key)] == ["a", "b", "c"]


def test_the_newest_assignment_is_the_last_of_several() -> None:
    holdings, newest = HeldAssignments(Keys("a")), Keys("c")
    assert not holdings.newest.has("c")
    holdings.moved(Keys("b"))
    holdings.moved(newest)
    assert holdings.newest is newest


def test_only_held_keys_are_counted() -> None:
    assert HeldAssignments().count("abcd") == 4
    assert HeldAssignments(NONE).count("abcd") == 0
    holdings = HeldAssignments(Keys("ab"))
    assert holdings.count("abcd") == 2
    holdings.moved(Keys("bc"))
    assert holdings.count("abcd") == 1


def test_no_key_arrives_if_every_key_was_held() -> None:
    holdings = HeldAssignments(ALL)
    holdings.moved(ALL)
    assert holdings.settle(ALL) is None
    assert holdings.settled


def test_no_key_arrives_if_every_key_is_lost() -> None:
    holdings = HeldAssignments(ALL)
    holdings.moved(NONE)
    assert held_keys(holdings) == ""
    assert holdings.settle(NONE) is None
    assert holdings.settled


def test_all_keys_arrive_after_none() -> None:
    holdings = HeldAssignments(NONE)
    holdings.moved(ALL)
    is_new = holdings.settle(ALL)
    assert is_new is not None
    assert all(map(is_new, "abcd"))
    assert held_keys(holdings) == "abcd"


def test_an_equal_assignment_does_not_settle_another_one() -> None:
    holdings, equal = HeldAssignments(NONE), OnlyKeys("ab")
    holdings.moved(OnlyKeys("ab"))
    assert holdings.settle(equal) is None
    assert held_keys(holdings) == ""


def test_as_many_assignments_as_allowed_are_settled_one_after_the_other() -> None:
    holdings = HeldAssignments(Keys("abcd"))
    assignments = [Keys("abc") for _ in range(ASSIGNMENTS_MAX - 1)]
    for assignment in assignments:
        holdings.moved(assignment)
    assert held_keys(holdings) == "abc"
    for assignment in assignments:
        assert holdings.settle(assignment) is None
    assert holdings.settled


@pytest.mark.parametrize("moves", [ASSIGNMENTS_MAX - 1, 3 * ASSIGNMENTS_MAX])
def test_after_too_many_rebalances_nothing_is_held_until_one_is_settled(moves: int) -> None:
    holdings, first = HeldAssignments(ALL), Keys("ab")
    holdings.moved(first)
    for _ in range(moves):
        holdings.moved(Keys("ab"))
    assert held_keys(holdings) == ""
    assert holdings.settle(first) is None  # an assignment that old is forgotten
    assert held_keys(holdings) == ""
    is_new = holdings.settle(holdings.newest)
    assert held_keys(holdings) == "ab"
    assert is_new is not None
    assert [key for key in "abcd" if is_new(key)] == ["a", "b"]


def test_a_set_of_keys_has_only_these_and_is_within_larger_sets() -> None:
    keys = OnlyKeys("ab")
    assert [keys.has(key) for key in "abc"] == [True, True, False]
    assert keys.within(OnlyKeys("abc"))
    assert not keys.within(OnlyKeys("ac"))


def test_after_a_reset_exactly_the_assignment_is_held_and_settled() -> None:
    held = HeldAssignments(OnlyKeys("ab"))
    held.moved(OnlyKeys("bc"))
    held.reset(OnlyKeys("c"))
    assert [held.has(key) for key in "abc"] == [False, False, True]
    assert held.settled


A, AB, BC = OnlyKeys(["a"]), OnlyKeys(["a", "b"]), OnlyKeys(["b", "c"])


def test_no_value_of_an_expected_key_is_missing() -> None:
    kept = KeptKeys(AB)
    kept.moved(A, older_held=True)
    assert not kept.lacks(A)
    assert kept.lacks(BC)


def test_every_value_may_be_missing_if_the_kept_keys_are_not_known() -> None:
    assert KeptKeys().lacks(A)
    assert KeptKeys().exceeds(AB)


def test_a_process_that_kept_every_value_lacks_none() -> None:
    assert not KeptKeys(ALL).lacks(BC)
    assert KeptKeys(ALL).exceeds(BC)


def test_no_value_is_missing_after_the_values_were_read() -> None:
    kept = KeptKeys(A)
    kept.moved(BC, older_held=True)
    assert kept.lacks(BC)
    kept.read(BC)
    assert not kept.lacks(BC)


def test_values_may_be_missing_if_the_assignment_moved_while_they_were_read() -> None:
    kept = KeptKeys(AB)
    kept.moved(A, older_held=True)
    kept.read(None)
    assert kept.lacks(A)


def test_values_may_be_missing_after_too_many_moves() -> None:
    kept = KeptKeys(AB)
    kept.moved(A, older_held=False)
    assert kept.lacks(A)


def test_only_the_values_of_the_expected_keys_are_kept_after_a_term() -> None:
    kept = KeptKeys(AB)
    kept.moved(A, older_held=True)
    kept.read(A)
    kept.ended(A)
    assert not kept.lacks(A)
    kept.ended(BC)
    assert kept.lacks(A)


def test_values_of_other_keys_are_kept_until_they_are_released() -> None:
    kept = KeptKeys(AB)
    kept.moved(A, older_held=True)
    assert kept.exceeds(A)
    kept.released(A)
    assert not kept.exceeds(A)


def test_no_values_are_spare_if_the_assignment_is_the_expected_one() -> None:
    kept = KeptKeys(AB)
    kept.moved(NONE, older_held=True)
    kept.moved(AB, older_held=True)
    assert not kept.exceeds(AB)
