"""`did_you_mean` suggests the nearest known name if it is similar enough."""

import pytest

from natsctl.daemon.settings.did_you_mean import did_you_mean, edit_distance

KNOWN = ("get", "list", "history", "status", "shop", "greetings", "NATSCTL_WORKERS")


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("gte", "get"),
        ("Get", "get"),
        ("lsit", "list"),
        ("shpo", "shop"),
        ("hist", "history"),
        ("greetngs", "greetings"),
        ("NATSCTL_WORKRES", "NATSCTL_WORKERS"),
    ],
)
def test_a_near_name_is_suggested(typed: str, near: str) -> None:
    assert did_you_mean(typed, KNOWN) == f"; did you mean {near}?"


@pytest.mark.parametrize("typed", ["start", "ls", "g", "", "frobnicate", "ship-it", "greek"])
def test_a_far_name_is_not_suggested(typed: str) -> None:
    assert did_you_mean(typed, KNOWN) == ""


@pytest.mark.parametrize(
    ("word", "other_word", "distance"),
    [("", "", 0), ("a", "", 1), ("ab", "ba", 1), ("abc", "abd", 1), ("kitten", "sitting", 3)],
)
def test_the_edit_distance_counts_changes_and_swaps(
    word: str, other_word: str, distance: int
) -> None:
    assert edit_distance(word, other_word) == edit_distance(other_word, word) == distance
