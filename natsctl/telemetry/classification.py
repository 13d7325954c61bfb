"""Classifies the exception that ends a sync.

The queue, metrics, journal, events, logs and traces all use `classify`.
"""

from enum import Enum, auto

from natsctl.errors import InvalidKeyError, NatsctlError, PermanentError, RetryAfter


class ErrorClass(Enum):
    """The class of an exception that ends a sync."""

    DELAY = auto()
    """The handler requested a delay. This is not a failure, and the backoff does not change."""
    PERMANENT = auto()
    """The sync failed and is not retried until the object changes."""
    EXPECTED = auto()
    """The sync failed, and the message explains the failure: no traceback is logged."""
    UNEXPECTED = auto()
    """The sync failed because of an error in the code: the traceback is logged."""
    CANCELLED = auto()
    """The sync was cancelled: its key returns to the queue unchanged."""

    @property
    def failed(self) -> bool:
        """True if the sync counts as failed."""
        return self not in {ErrorClass.DELAY, ErrorClass.CANCELLED}

    @property
    def retried(self) -> bool:
        """True if the retry policy decides about a retry."""
        return self in {ErrorClass.EXPECTED, ErrorClass.UNEXPECTED}


def classify(error: BaseException) -> ErrorClass:
    """Return the class of an exception that ends a sync.

    An `Exception` is a failure or a requested delay. Any other exception cancelled the sync;
    `core/sync/calls.py` converts those that a handler raises by itself into failures.
    """
    match error:
        case RetryAfter():
            return ErrorClass.DELAY
        case PermanentError() | InvalidKeyError():
            return ErrorClass.PERMANENT
        case NatsctlError():
            return ErrorClass.EXPECTED
        case TimeoutError() if error.args:  # without a message it explains nothing
            return ErrorClass.EXPECTED
        case Exception():
            return ErrorClass.UNEXPECTED
        case _:
            return ErrorClass.CANCELLED
