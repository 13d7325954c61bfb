"""A long text is cut in the middle."""

import pytest

from natsctl.telemetry.shortening import shortened


def test_a_short_text_stays_as_it_is() -> None:
    assert shortened("x" * 20, 20) == "x" * 20


@pytest.mark.parametrize("limit", [20, 21, 500])
def test_a_long_text_keeps_its_beginning_and_its_end(limit: int) -> None:
    text = shortened(f"begin{'x' * 1000}end", limit)
    assert len(text) == limit
    assert text.startswith("begin")
    assert text.endswith("end")
