"""Holds the changes of one object that watchers have not processed yet."""

from collections import deque

import msgspec

from natsctl.watchers.failed_calls import Registration
from natsctl.watchers.merged_changes import ObjectChange


class PendingRetry(msgspec.Struct, frozen=True):
    """The changes of an object that one watcher has not processed, because the first one failed.

    `due` is the time of the next call, by the event loop's clock.
    """

    registration: Registration
    changes: tuple[ObjectChange, ...]
    failures: int
    error: Exception
    due: float


class FailedCall(msgspec.Struct, frozen=True):
    """A failed call, the failures in a row, and the delay of its retry; None if it is dropped."""

    error: Exception
    failures: int
    delay_s: float | None


RetryKey = tuple[Registration, str]  # with the name of the kind, which all its parts share


class Pending:
    """The pending changes and retries of one object, which has had some since a loop time.

    A delivery without a failure sets the time again.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.changes: deque[tuple[ObjectChange, tuple[Registration, ...]]] = deque()
        self.retries: dict[RetryKey, PendingRetry] = {}
