"""What goes is gone at once; what comes is held once it is settled in."""

from collections.abc import Hashable

import pytest

from natsctl.core.coordination.assignment import (
    ALL,
    ASSIGNMENTS_MAX,
    NONE,
    Assignment,
    HeldAssignments,
)


class Some:
    def __init__(self, keys: str) -> None:
        self.keys = keys

    def has(self, key: Hashable) -> bool:
        return str(key) in self.keys

    def within(self, other: Assignment) -> bool:
        return isinstance(other, Some) and set(self.keys) <= set(other.keys)


def held(holdings: HeldAssignments) -> str:
    return "".join(key for key in "abcd" if holdings.has(key))


def test_alone_everything_is_held() -> None:
    assert held(HeldAssignments()) == "abcd"


def test_what_goes_is_gone_at_once_and_what_comes_waits() -> None:
    holdings = HeldAssignments(Some("ab"))
    assignment = Some("bc")
    holdings.moved(assignment)
    assert held(holdings) == "b"
    came = holdings.settle(assignment)
    assert held(holdings) == "bc"
    assert came is not None
    assert [key for key in "abcd" if came(key)] == ["c"]
    assert holdings.settled


def test_what_went_and_came_back_has_come() -> None:
    holdings = HeldAssignments(Some("ab"))
    last = Some("ab")
    holdings.moved(Some("a"))
    holdings.moved(last)
    assert held(holdings) == "a"
    came = holdings.settle(last)
    assert came is not None
    assert [key for key in "abcd" if came(key)] == ["b"]


@pytest.mark.parametrize(("before", "after"), [("ab", "a"), ("ab", "ab"), ("ab", "")])
def test_where_keys_only_go_nobody_has_to_look_for_what_came(before: str, after: str) -> None:
    holdings, assignment = HeldAssignments(Some(before)), Some(after)
    holdings.moved(assignment)
    assert holdings.settle(assignment) is None
    assert held(holdings) == after
    assert holdings.settled


def test_what_moves_meanwhile_is_settled_later() -> None:
    holdings, first, second = HeldAssignments(NONE), Some("ab"), Some("bc")
    holdings.moved(first)
    holdings.moved(second)
    came = holdings.settle(first)
    assert held(holdings) == "b"
    assert not holdings.settled
    assert came is not None
    assert [key for key in "abcd" if came(key)] == ["a", "b"]
    later = holdings.settle(holdings.newest)
    assert held(holdings) == "bc"
    assert later is not None
    assert [key for key in "abcd" if later(key)] == ["c"]


@pytest.mark.parametrize("moves", [ASSIGNMENTS_MAX, 3 * ASSIGNMENTS_MAX])
def test_who_moves_too_often_holds_nothing_until_it_has_settled(moves: int) -> None:
    holdings, first = HeldAssignments(ALL), Some("ab")
    holdings.moved(first)
    for _ in range(moves):
        holdings.moved(Some("ab"))
    assert held(holdings) == ""
    assert holdings.settle(first) is None  # that was too long ago
    assert held(holdings) == ""
    came = holdings.settle(holdings.newest)
    assert held(holdings) == "ab"
    assert came is not None
    assert [key for key in "abcd" if came(key)] == ["a", "b"]
