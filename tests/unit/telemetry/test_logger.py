"""A log line is an event with its own fields and those of its task."""

import logging

import pytest

from natsctl.errors import StoreError
from natsctl.telemetry.logger import (
    HidingFormatter,
    LogEvent,
    get_logger,
)


def test_a_record_has_the_event_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("some")
    log.warning("lost leadership", controller="greetings", epoch=41, key=None, reason="100 % late")
    (record,) = caplog.records
    assert (record.name, record.funcName) == (
        "some",
        "test_a_record_has_the_event_and_its_fields",
    )
    assert record.msg == LogEvent(
        "lost leadership", {"controller": "greetings", "epoch": 41, "reason": "100 % late"}
    )
    assert caplog.messages == [
        "lost leadership controller=greetings epoch=41 reason='100 % late'",
    ]


def test_an_error_is_a_field_and_a_traceback_is_optional(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("some")
    log.error("sync failed", error=StoreError(), exc_info=ValueError("no luck"))
    assert caplog.messages == ["sync failed error=StoreError"]
    assert "ValueError: no luck" in caplog.text


def test_a_logger_formats_nothing_below_its_level() -> None:
    class Unread:
        def __str__(self) -> str:
            raise AssertionError("the field was formatted")

    get_logger("some").debug("cache synced", kind=Unread())


def test_the_formatter_hides_secrets_in_messages_and_tracebacks() -> None:
    formatter = HidingFormatter("natsctl: %(message)s")
    error = OSError("nats://u:hush@b")
    record = logging.makeLogRecord(
        {"msg": "at %s", "args": ("nats://u:hush@a",), "exc_info": (OSError, error, None)}
    )
    assert formatter.format(record) == "natsctl: at nats://***@a\n  OSError: nats://***@b"
