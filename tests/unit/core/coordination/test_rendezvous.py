"""Rendezvous hashing: even, deterministic and with minimal moves."""

import math
from collections import Counter

import pytest

from natsctl.core.coordination.rendezvous import MemberSet

KEYS = [f"team-{number % 7}.site-{number}" for number in range(10_000)]
SIGMAS = 5.0


def members(count: int) -> list[str]:
    return [f"host-{number}:{number + 100}:ab{number:02}" for number in range(count)]


@pytest.mark.parametrize("size", [2, 3, 5, 16])
def test_keys_are_spread_evenly(size: int) -> None:
    view = MemberSet(members(size))
    counts = Counter(view.owner(key) for key in KEYS)
    mean = len(KEYS) / size
    spread = SIGMAS * math.sqrt(mean * (1 - 1 / size))
    assert len(counts) == size
    assert all(abs(count - mean) <= spread for count in counts.values())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_only_keys_of_the_new_member_move(size: int) -> None:
    before, after = MemberSet(members(size)), MemberSet(members(size + 1))
    joined = members(size + 1)[-1]
    moved = {key: after.owner(key) for key in KEYS if before.owner(key) != after.owner(key)}
    assert set(moved.values()) == {joined}
    assert len(moved) == sum(after.owner(key) == joined for key in KEYS)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_an_owner_among_many_members_owns_the_key_among_fewer(size: int) -> None:
    large_set, small_set = MemberSet(members(7)), MemberSet(members(size))
    assert large_set.includes(small_set)
    assert not small_set.includes(large_set)
    own = {key for key in KEYS if large_set.owner(key) in small_set.names}
    assert {key for key in own if small_set.owner(key) != large_set.owner(key)} == set()
    assert len(own) > 0


def test_the_order_of_members_does_not_matter() -> None:
    ordered, reordered = MemberSet(members(5)), MemberSet(reversed([*members(5), *members(5)]))
    assert ordered == reordered
    assert [ordered.owner(key) for key in KEYS[:100]] == [
        reordered.owner(key) for key in KEYS[:100]
    ]


def test_the_owner_is_the_same_in_every_process_and_release() -> None:
    view = MemberSet(["a", "b", "c"])
    assert "".join(view.owner(f"k{number}") or "" for number in range(16)) == "bcbbbacbbccacccc"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_a_set_gives_a_key_to_its_owner_and_to_no_other_member(size: int) -> None:
    view = MemberSet(members(size))
    for key in KEYS[:300]:
        receivers = [name for name in members(size + 1) if view.gives(key, name)]
        assert receivers == [view.owner(key)]


def test_a_set_includes_itself_and_the_empty_set() -> None:
    members = MemberSet("ab")
    assert members.includes(MemberSet("ba"))
    assert members.includes(MemberSet())


def test_an_empty_set_gives_no_key() -> None:
    assert not MemberSet().gives("a", "b")


def test_without_members_a_key_has_no_owner() -> None:
    assert MemberSet().owner("a") is None


def test_sets_of_other_members_differ() -> None:
    assert MemberSet("ab") != MemberSet("abc")
    assert MemberSet("ab") != ("a", "b")


def test_equal_sets_have_the_same_hash() -> None:
    assert len({MemberSet("ab"), MemberSet("ba")}) == 1


def test_a_set_is_shown_with_its_members() -> None:
    assert repr(MemberSet("ba")) == "MemberSet(a, b)"


def test_a_single_member_is_given_every_key_and_others_none() -> None:
    assert MemberSet("a").gives("k", "a")
    assert not MemberSet("a").gives("k", "b")
