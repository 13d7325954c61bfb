"""The failures of handlers are logged: one traceback, then one line per retry with the count."""

import asyncio
import logging
import traceback
from collections.abc import Callable

import pytest

from natsctl.core.history import COUNTED_MAX, ERRORS_MAX, TRACEBACK_S, HandlerFailures
from natsctl.core.sync import Calls
from natsctl.errors import NatsctlError, PermanentError, RetryAfter
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)


def fail(error: Exception) -> Exception:
    """Return an error that was raised."""
    with pytest.raises(type(error)) as raised:
        raise error
    return raised.value


def fail_elsewhere(error: Exception) -> Exception:
    """Return an error that was raised at another line."""
    with pytest.raises(type(error)) as raised:
        raise error
    return raised.value


@pytest.fixture
def failures() -> HandlerFailures:
    return HandlerFailures(log)


@pytest.fixture
def tracebacks(caplog: pytest.LogCaptureFixture) -> Callable[[], list[bool]]:
    """Return whether each log line has a traceback."""
    return lambda: [bool(record.exc_info) for record in caplog.records]


async def test_a_failure_is_logged_with_its_fields_and_its_error(
    failures: HandlerFailures, caplog: pytest.LogCaptureFixture
) -> None:
    text = failures.failed("shop", "sync failed", fail(ValueError("mine")), key="shop")
    assert "mine" in text
    assert caplog.messages[0].startswith("sync failed key=shop error=")


async def test_the_traceback_begins_with_the_code_of_the_user(
    failures: HandlerFailures, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(key: str) -> None:
        raise ValueError(key)

    with pytest.raises(ValueError, match="shop") as raised:
        await Calls("apps", "sync_handler").call("shop", handler)
    own = raised.value.__traceback__
    failures.failed("shop", "sync failed", raised.value.with_traceback(own and own.tb_next))
    assert caplog.records[0].exc_info is not None
    frames = traceback.extract_tb(caplog.records[0].exc_info[2])
    assert [frame.name for frame in frames] == ["handler"]


async def test_a_secret_is_hidden(
    failures: HandlerFailures, caplog: pytest.LogCaptureFixture
) -> None:
    text = failures.failed("shop", "sync failed", NatsctlError("nats://joe:hunter2@host"))
    assert "hunter2" not in text + caplog.text


async def test_the_same_error_has_one_traceback_for_all_keys(
    failures: HandlerFailures, tracebacks: Callable[[], list[bool]]
) -> None:
    for key in ("shop", "shop", "bank"):
        failures.failed(key, "sync failed", fail(ValueError(key)))
    assert tracebacks() == [True, False, False]


async def test_an_error_at_another_line_has_its_own_traceback(
    failures: HandlerFailures, tracebacks: Callable[[], list[bool]]
) -> None:
    for raised in (fail(ValueError()), fail_elsewhere(ValueError()), fail(KeyError())):
        failures.failed("shop", "sync failed", raised)
    assert tracebacks() == [True, True, True]


async def test_an_error_that_goes_on_has_a_traceback_now_and_then(
    failures: HandlerFailures, tracebacks: Callable[[], list[bool]]
) -> None:
    for _ in range(4):
        failures.failed("shop", "sync failed", fail(ValueError()))
        await asyncio.sleep(TRACEBACK_S / 2)
    assert tracebacks() == [True, False, True, False]


async def test_only_the_last_errors_are_remembered(
    failures: HandlerFailures, tracebacks: Callable[[], list[bool]]
) -> None:
    types = [type(f"Error{number}", (Exception,), {}) for number in range(ERRORS_MAX + 1)]
    for error_type in (*types, types[1], types[0]):
        failures.failed("shop", "sync failed", fail(error_type()))
    assert tracebacks()[-2:] == [False, True]


async def test_an_expected_error_has_no_traceback(
    failures: HandlerFailures, tracebacks: Callable[[], list[bool]]
) -> None:
    failures.failed("shop", "sync failed", fail(NatsctlError("no such bucket")))
    assert tracebacks() == [False]


async def test_a_delay_is_not_logged(
    failures: HandlerFailures, caplog: pytest.LogCaptureFixture
) -> None:
    failures.failed("shop", "sync failed", fail(RetryAfter(5)))
    assert caplog.messages == []


class TestCounts:
    """A repeated failure of a key is logged with its count."""

    @pytest.fixture
    def counts(self, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
        """Return the count in each log line; empty if it has none."""
        return lambda: [
            message.partition("failures=")[2].partition(" ")[0] for message in caplog.messages
        ]

    async def test_the_first_failure_has_no_count(
        self, failures: HandlerFailures, counts: Callable[[], list[str]]
    ) -> None:
        for _ in range(3):
            failures.failed("shop", "sync failed", fail(NatsctlError("no")))
        assert counts() == ["", "2", "3"]

    async def test_a_success_resets_the_count(
        self, failures: HandlerFailures, counts: Callable[[], list[str]]
    ) -> None:
        for _ in range(2):
            failures.failed("shop", "sync failed", fail(NatsctlError("no")))
            failures.succeeded("shop")
        assert counts() == ["", ""]

    async def test_a_permanent_failure_resets_the_count(
        self, failures: HandlerFailures, counts: Callable[[], list[str]]
    ) -> None:
        for _ in range(2):
            failures.failed("shop", "sync failed", fail(PermanentError("no")))
        assert counts() == ["", ""]

    async def test_only_so_many_keys_are_counted(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.ERROR)
        failures = HandlerFailures(log, logging.DEBUG)  # these lines are not logged
        error = NatsctlError("no")
        for number in range(COUNTED_MAX + 1):
            failures.failed(number, "sync failed", error)
        failures.failed(0, "sync failed", error)
        caplog.set_level(logging.DEBUG)
        for key in (2, 0, 1):
            failures.failed(key, "sync failed", error)
        assert ["failures=2" in message for message in caplog.messages] == [True, True, False]
