"""What the doctor makes of what it measures, and of what controllers say that they use."""

from datetime import UTC, datetime, timedelta

import pytest

from controllers.greetings import Greetings
from controllers.streams import Streams
from natsctl.daemon.doctor.finding import Result, skew
from natsctl.daemon.doctor.used_buckets import used_by
from natsctl.jetstream.bucket.permission_probe import unused_key
from natsctl.model.keys import check_key, matches

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize("theirs", [-2.0, 0.0, 0.5, 1.0, 3.0])
def test_a_clock_that_may_be_as_ours_is_well(theirs: float) -> None:
    found = skew("clock", NOON, after(theirs), after(1), 2.0)
    assert (found.result, found.found, found.advice) == (Result.OK, "equal to the local clock", "")


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (4.0, "3 s ahead of the local clock"),
        (-3.0, "3 s behind the local clock"),
        (3601.0, "3600 s ahead of the local clock"),
    ],
)
def test_a_clock_that_cannot_be_as_ours_is_told(theirs: float, told: str) -> None:
    found = skew("clock", NOON, after(theirs), after(1), 2.0)
    assert (found.result, found.found) == (Result.WARNING, told)
    assert "NTP" in found.advice


@pytest.mark.parametrize("keys", [">", "*", "sites.>", "sites.*.north", "*.*", "one.key"])
def test_a_probe_writes_to_a_key_of_the_part_that_is_declared(keys: str) -> None:
    assert matches(keys, check_key(unused_key(keys)))


def test_what_is_only_read_is_not_written() -> None:
    used = {each.bucket: each.written for each in used_by([Greetings()])}
    assert used == {"greetings": True, "routes": True, "defaults": False, "natsctl": True}


def test_kinds_of_other_surfaces_are_used_too() -> None:
    assert ("streams", True) in {(each.bucket, each.written) for each in used_by([Streams()])}
