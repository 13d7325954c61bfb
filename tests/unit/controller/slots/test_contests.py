"""Contests: the wait between applies grows while another manager reverts them."""

import pytest

from natsctl.controller.slots.contests import CALM_S, CONTESTED, LIMIT_S, REMEMBERED_MAX, Contests
from natsctl.model.managed_fields import LostField

LOST = (LostField(".data.a", ("kubectl",)),)


class Clock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contests(clock: Clock) -> Contests:
    return Contests(clock)


def undo(contests: Contests, clock: Clock, times: int) -> list[float]:
    """Apply the object repeatedly, each time as soon as allowed; return the waits in seconds."""
    waits = []
    for _ in range(times + 1):
        contests.applied("a", "shop", "digest", LOST)
        waits.append(contests.wait_s("a", "digest"))
        clock.now += waits[-1]
    return waits[1:]


def test_the_first_apply_of_a_manifest_sets_no_wait(contests: Contests) -> None:
    assert contests.applied("a", "shop", "digest") is None
    assert contests.wait_s("a", "digest") == 0.0


def test_each_reverted_apply_doubles_the_wait_up_to_the_limit(
    contests: Contests, clock: Clock
) -> None:
    waits = undo(contests, clock, 30)
    assert waits[0] < 0.01
    assert waits[10] == pytest.approx(0.005 * 2**10, rel=0.11)
    assert LIMIT_S <= waits[-1] <= 1.1 * LIMIT_S


def test_another_manifest_has_no_wait(contests: Contests, clock: Clock) -> None:
    undo(contests, clock, 20)
    contests.applied("a", "shop", "digest", LOST)
    assert contests.wait_s("a", "digest") > 0
    assert contests.wait_s("a", "another") == 0.0


def test_another_manifest_restarts_the_count(contests: Contests, clock: Clock) -> None:
    undo(contests, clock, 20)
    contests.applied("a", "shop", "another", LOST)
    assert contests.current() == {}


def test_a_state_that_lasts_for_the_calm_period_ends_the_contest(
    contests: Contests, clock: Clock
) -> None:
    undo(contests, clock, CONTESTED)
    assert list(contests.current()) == ["a"]
    clock.now += CALM_S + 1
    assert contests.current() == {}
    contests.applied("a", "shop", "digest", LOST)
    assert contests.wait_s("a", "digest") == 0.0


def test_an_object_is_contested_from_the_third_reverted_apply_on(
    contests: Contests, clock: Clock
) -> None:
    undo(contests, clock, CONTESTED - 1)
    assert contests.current() == {}
    contest = contests.applied("a", "shop", "digest", LOST)
    assert contest is not None
    assert contests.current() == {"a": contest}
    assert contests.undone == CONTESTED


def test_a_contest_names_the_field_and_the_other_manager(contests: Contests, clock: Clock) -> None:
    undo(contests, clock, CONTESTED)
    text = str(contests.current()["a"])
    assert '"kubectl" changed .data.a back 3 times in a row' in text


def test_a_contest_over_many_fields_names_a_few_and_counts_the_rest(
    contests: Contests, clock: Clock
) -> None:
    undo(contests, clock, CONTESTED)
    lost_fields = [LostField(f".data.k{number}", ()) for number in range(9)]
    contests.applied("a", "shop", "digest", lost_fields)
    text = str(contests.current()["a"])
    assert text.startswith("another writer changed .data.k0")
    assert "and 4 more" in text


def test_only_the_most_recently_applied_objects_are_remembered(contests: Contests) -> None:
    for number in range(REMEMBERED_MAX + 1):
        contests.applied(f"k{number}", "shop", "digest")
    contests.applied("k0", "shop", "digest")
    assert contests.undone == 0
    contests.applied(f"k{REMEMBERED_MAX}", "shop", "digest")
    assert contests.undone == 1


def test_an_object_that_we_delete_is_forgotten(contests: Contests, clock: Clock) -> None:
    undo(contests, clock, 20)
    contests.forget("a")
    assert contests.wait_s("a", "digest") == 0.0
