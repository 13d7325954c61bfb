"""`classify` gives each exception of a sync handler one error class."""

import asyncio

import pytest

from natsctl.errors import (
    HandlerError,
    InvalidKeyError,
    NatsctlError,
    PermanentError,
    RetryAfter,
    StoreTimeoutError,
    SyncTimeoutError,
)
from natsctl.telemetry.classification import ErrorClass, classify


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RetryAfter(5), ErrorClass.DELAY),
        (PermanentError("no such region"), ErrorClass.PERMANENT),
        (InvalidKeyError("no key"), ErrorClass.PERMANENT),
        (NatsctlError("it is away"), ErrorClass.EXPECTED),
        (StoreTimeoutError("it is slow"), ErrorClass.EXPECTED),
        (SyncTimeoutError("too long"), ErrorClass.EXPECTED),
        (HandlerError("it returned 'soon'"), ErrorClass.EXPECTED),
        (TimeoutError("the API took longer than 5 s"), ErrorClass.EXPECTED),
        (TimeoutError(), ErrorClass.UNEXPECTED),
        (ValueError("no luck"), ErrorClass.UNEXPECTED),
        (RecursionError(), ErrorClass.UNEXPECTED),
        (MemoryError(), ErrorClass.UNEXPECTED),
        (asyncio.CancelledError(), ErrorClass.CANCELLED),
    ],
    ids=repr,
)
def test_an_exception_has_one_class(error: BaseException, expected: ErrorClass) -> None:
    assert classify(error) is expected


def test_delays_and_cancellations_are_not_failures() -> None:
    failed = {error_class for error_class in ErrorClass if error_class.failed}
    assert failed == {ErrorClass.PERMANENT, ErrorClass.EXPECTED, ErrorClass.UNEXPECTED}


def test_only_failures_that_are_not_permanent_are_retried() -> None:
    retried = {error_class for error_class in ErrorClass if error_class.retried}
    assert retried == {ErrorClass.EXPECTED, ErrorClass.UNEXPECTED}
