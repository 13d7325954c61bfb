"""Responses of the daemon API fit into one NATS message."""

import msgspec

from natsctl import Status
from natsctl.core.history import SyncHistory
from natsctl.daemon.messages import (
    SHOWN_MAX,
    TEXT_MAX,
    ControllerStatus,
    DaemonProcess,
    fitting,
)
from natsctl.telemetry.hiding import ERROR_MAX

PROCESS = DaemonProcess(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")
MANY = 100_000
CUT_NOTE_MAX = 40  # characters of "… (8012 more characters)"


class Listed(msgspec.Struct):
    names: list[str]


def listed(count: int) -> Listed:
    return Listed(["x" * 8] * count)


def test_a_response_that_fits_is_complete() -> None:
    assert msgspec.json.decode(fitting(1000, 5, listed), type=Listed) == listed(5)


def test_a_response_that_does_not_fit_keeps_the_beginning_of_its_lists() -> None:
    response = fitting(1000, MANY, listed)
    assert len(response) <= 1000
    assert 40 < len(msgspec.json.decode(response, type=Listed).names) < 100


def test_a_response_that_never_fits_has_empty_lists() -> None:
    assert fitting(1, 10, listed) == b'{"names":[]}'


async def test_many_failing_keys_are_counted_and_some_are_named() -> None:
    history, failing_count = SyncHistory("apps"), 2 * SHOWN_MAX
    for number in range(failing_count):
        run = history.begin(f"k{number:06}", "put", None)
        history.failed(run, ValueError("x" * 10_000), 0.0, failures=1)
    failing = history.journal.failing()
    assert all(len(error) <= ERROR_MAX + CUT_NOTE_MAX for error in failing.values())
    status = ControllerStatus.of(Status(controller="apps", failing=failing), PROCESS).limited()
    assert status.failing_count == failing_count
    assert list(status.failing) == [f"k{number:06}" for number in range(SHOWN_MAX)]
    assert {len(error) for error in status.failing.values()} == {TEXT_MAX}


async def test_a_status_names_contested_keys_with_both_ends_of_a_long_text() -> None:
    contested = {"shop": f"ConfigMap default/shop: {'x' * 1000} waits 5 s"}
    status = ControllerStatus.of(Status(controller="apps", contested=contested), PROCESS).limited()
    assert status.contested_count == 1
    assert status.contested["shop"].startswith("ConfigMap default/shop: ")
    assert status.contested["shop"].endswith(" waits 5 s")
