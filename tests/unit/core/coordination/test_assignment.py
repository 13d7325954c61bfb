"""Held assignments: lost keys are released at once, gained keys are held after a drain."""

from collections.abc import Hashable

import pytest

from natsctl.core.coordination.assignment import (
    ALL,
    ASSIGNMENTS_MAX,
    NONE,
    Assignment,
    HeldAssignments,
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


@pytest.mark.parametrize("moves", [ASSIGNMENTS_MAX, 3 * ASSIGNMENTS_MAX])
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
