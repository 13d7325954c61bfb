"""`did_you_mean` suggests the nearest known name if it is similar enough."""

import pytest

from natsctl.daemon.settings.did_you_mean import did_you_mean

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
