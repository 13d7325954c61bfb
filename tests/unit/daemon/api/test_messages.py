"""Whatever there is to tell, an answer fits into a message."""

import msgspec
import pytest

from natsctl.core.insight.explain import Status
from natsctl.core.sync.journal import Journal
from natsctl.daemon.api.messages import (
    SHOWN_MAX,
    TEXT_MAX,
    ControllerStatus,
    Process,
    fitting,
)
from natsctl.telemetry.hiding import ERROR_MAX

PROCESS = Process(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")
MANY = 100_000
CUT_NOTE_MAX = 40  # characters of "… (8012 more characters)"


class Listed(msgspec.Struct):
    names: list[str]


def listed(count: int) -> Listed:
    return Listed(["x" * 8] * count)


def fail() -> None:
    raise ValueError("x" * 10_000)


def test_what_fits_is_told_whole() -> None:
    assert msgspec.json.decode(fitting(1000, 5, listed), type=Listed) == listed(5)


def test_of_what_does_not_fit_the_beginning_is_told() -> None:
    told = fitting(1000, MANY, listed)
    assert len(told) <= 1000
    assert 40 < len(msgspec.json.decode(told, type=Listed).names) < 100


def test_what_fits_in_no_way_is_told_without_its_lists() -> None:
    assert fitting(1, 10, listed) == b'{"names":[]}'


async def test_many_failing_keys_are_counted_and_some_are_named() -> None:
    journal, many = Journal(), 20 * SHOWN_MAX
    for number in range(many):
        with pytest.raises(ValueError, match="x"), journal.recording(f"k{number:06}", "put", 1):
            fail()
    failing = {key: record.error for key, record in journal.failing().items()}
    assert all(len(error) <= ERROR_MAX + CUT_NOTE_MAX for error in failing.values())
    found = ControllerStatus.of(Status(controller="apps", failing=failing), PROCESS).limited()
    assert found.failing_count == many
    assert list(found.failing) == [f"k{number:06}" for number in range(SHOWN_MAX)]
    assert {len(why) for why in found.failing.values()} == {TEXT_MAX}


async def test_a_status_names_contested_keys_with_both_ends_of_a_long_text() -> None:
    contested = {"shop": f"ConfigMap default/shop: {'x' * 1000} waits 5 s"}
    found = ControllerStatus.of(Status(controller="apps", contested=contested), PROCESS).limited()
    assert found.contested_count == 1
    assert found.contested["shop"].startswith("ConfigMap default/shop: ")
    assert found.contested["shop"].endswith(" waits 5 s")
