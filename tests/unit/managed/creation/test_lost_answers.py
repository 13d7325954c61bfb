"""A failed creation may have succeeded if its answer may be lost."""

import pytest

from natsctl.errors import StoreTimeoutError
from natsctl.managed.creation.lost_answers import may_have_created


class ReadTimeout(Exception):  # noqa: N818 - the names that HTTP libraries use
    """The error of a library whose request was sent."""


class ConnectTimeout(Exception):  # noqa: N818 - the names that HTTP libraries use
    """The error of a library that has no connection."""


def caused(error: Exception, cause: BaseException) -> Exception:
    """Return the error with an explicit cause."""
    error.__cause__ = cause
    return error


def during(error: Exception, context: BaseException) -> Exception:
    """Return the error as if it was raised while another one was handled."""
    error.__context__ = context
    return error


def from_none(context: BaseException) -> Exception:
    """Return an error that was raised `from None` while another one was handled."""
    error = during(ValueError("the quota is exhausted"), context)
    error.__suppress_context__ = True
    return error


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("no answer"),
        StoreTimeoutError("no answer"),
        ConnectionResetError(),
        BrokenPipeError(),
        caused(ReadTimeout(), TimeoutError()),
        during(ReadTimeout(), TimeoutError()),
        caused(RuntimeError(), caused(ReadTimeout(), TimeoutError())),
        caused(RuntimeError("disconnected"), ConnectionResetError()),
    ],
    ids=repr,
)
def test_a_lost_answer_may_have_created_the_resource(error: Exception) -> None:
    assert may_have_created(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the name is taken"),
        ConnectionRefusedError(),
        caused(ConnectTimeout(), TimeoutError()),
        caused(RuntimeError(), caused(ConnectTimeout(), TimeoutError())),
        from_none(TimeoutError()),
    ],
    ids=repr,
)
def test_any_other_error_created_nothing(error: Exception) -> None:
    assert not may_have_created(error)


def test_causes_in_a_circle_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert not may_have_created(first)
