"""Times as texts."""

from datetime import UTC, datetime, timedelta

import pytest

from natsctl.model.times import time_in, time_text

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2030-01-01T12:00:00Z", NOW),
        ("2030-01-01T12:00:00+00:00", NOW),
        ("2030-01-01T12:00:00", NOW),
        ("2030-01-01T13:00:00.5+01:00", NOW + timedelta(seconds=0.5)),
        ("now", None),
        ("", None),
    ],
)
def test_timestamps_are_parsed_in_common_formats(text: str, time: datetime | None) -> None:
    assert time_in(text) == time


def test_a_time_is_written_in_utc_with_the_precision_that_is_named() -> None:
    time = NOW + timedelta(milliseconds=250)
    assert time_text(time) == "2030-01-01T12:00:00Z"
    assert time_text(time, timespec="milliseconds") == "2030-01-01T12:00:00.250Z"
