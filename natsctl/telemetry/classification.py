"""Decides what an exception that ends a sync means.

The queue, metrics, journal, events, logs and traces all go by `classify`.
"""

from enum import Enum, auto

from natsctl.errors import InvalidKeyError, NatsctlError, PermanentError, RetryAfter


class ErrorClass(Enum):
    """The meaning of an exception that ends a sync."""

    DELAY = auto()
    """The handler asked for a delay: this is no failure, and the backoff stays as it is."""
    PERMANENT = auto()
    """The sync failed, and is not retried until the object changes."""
    EXPECTED = auto()
    """The sync failed, and the message explains why: one line, no traceback."""
    UNEXPECTED = auto()
    """The sync failed because of a mistake in code: the traceback is needed."""
    CANCELLED = auto()
    """The sync was stopped from outside: its key goes back to the queue as it was."""

    @property
    def failed(self) -> bool:
        """True if the sync counts as failed."""
        return self not in {ErrorClass.DELAY, ErrorClass.CANCELLED}

    @property
    def retried(self) -> bool:
        """True if the retry policy decides about a retry."""
        return self in {ErrorClass.EXPECTED, ErrorClass.UNEXPECTED}


def classify(error: BaseException) -> ErrorClass:
    """Return the meaning of an exception that ends a sync.

    An `Exception` is a failure, or asks for a delay. Any other exception stopped the sync from
    outside: `core/sync/calls.py` turns those that a handler raises by itself into failures.
    """
    match error:
        case RetryAfter():
            return ErrorClass.DELAY
        case PermanentError() | InvalidKeyError():
            return ErrorClass.PERMANENT
        case NatsctlError():
            return ErrorClass.EXPECTED
        case TimeoutError() if error.args:  # one without a text explains nothing
            return ErrorClass.EXPECTED
        case Exception():
            return ErrorClass.UNEXPECTED
        case _:
            return ErrorClass.CANCELLED
