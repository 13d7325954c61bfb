"""The duration of a pause is read from a text."""

from datetime import timedelta

import pytest

from natsctl.errors import UsageError
from natsctl.operate.pauses import duration_in, new_pause


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("1d12h", timedelta(days=1, hours=12)),
        ("36500d", timedelta(days=36_500)),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, duration: timedelta) -> None:
    assert duration_in(text) == duration
    assert new_pause(duration=duration).ends is not None


@pytest.mark.parametrize("text", ["0s", "0d0h", "36501d", "3000000d", "9" * 5000 + "s"])
def test_a_duration_has_limits(text: str) -> None:
    with pytest.raises(UsageError, match="must be above 0s and at most 36500d"):
        duration_in(text)


@pytest.mark.parametrize("text", ["", "2x", "-1h", "1e4s", "1h "])
def test_another_text_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration: write 90s, 30m, 2h or 1d12h"):
        duration_in(text)
