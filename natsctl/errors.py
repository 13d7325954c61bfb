"""Every exception that natsctl raises on purpose."""

import numbers
from typing import Final, cast

import msgspec

DELAY_MAX_S = 1e12  # longer than anybody waits, and shorter than what a date can hold

DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bytes that are not what was expected.

They are invalid JSON, fields of a wrong type, text that is not UTF-8, and nesting that is too deep.
"""


class NatsctlError(Exception):
    """The base of all natsctl errors."""


class UsageError(NatsctlError):
    """What was asked for cannot be meant: a wrong declaration, option or call."""


class InformerAlreadyAddedError(UsageError):
    """A resource kind has an informer for exactly these objects already."""


class ConnectError(NatsctlError):
    """No connection to the server could be had."""


class StoreError(NatsctlError):
    """A store could not do what it was asked; the cause is chained."""


class NotFoundError(StoreError):
    """The object does not exist.

    `deleted_at` is the revision of the delete marker that proves it was deleted, or None where
    the store keeps no trace of the key.
    """

    def __init__(self, message: str, *, deleted_at: int | None = None) -> None:
        super().__init__(message)
        self.deleted_at = deleted_at


class ConflictError(StoreError):
    """The object exists already, or changed since it was read."""


class ExistsError(ConflictError):
    """The object exists and is not managed by this controller."""


class FieldConflictError(ConflictError):
    """Other managers own fields that an apply would change.

    `managers` names them, `fields` what they own, as in `.spec.replicas`.
    """

    def __init__(
        self, message: str, managers: tuple[str, ...], fields: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.managers = managers
        self.fields = fields


class InvalidKeyError(StoreError):
    """The key cannot name an object in this store."""


class InvalidObjectError(StoreError):
    """The stored bytes are no valid object of their kind."""


class ImmutableFieldError(InvalidObjectError):
    """The server changes these fields of an existing object never: only a new object has others.

    `fields` names them, as in `spec.selector`; empty if the server does not.
    """

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class TooLargeError(StoreError):
    """The object is larger than its store takes."""


class StoreMissingError(StoreError):
    """The store itself, a bucket or a kind, does not exist."""


class StoreDiffersError(StoreError):
    """The store exists, but is not as it was declared."""


class PermissionDeniedError(StoreError):
    """The server does not let this user do that."""


class StoreTimeoutError(StoreError):
    """The store did not answer in time; whether a write took effect is unknown."""


class NotLeadingError(StoreError):
    """Another process may be leading: this one writes nothing until it leads again."""


class WatchBrokenError(StoreError):
    """A watch ended and has to be established anew."""


class QueueShutDownError(NatsctlError):
    """The workqueue was shut down and hands out nothing more."""


class NoDaemonError(NatsctlError):
    """No daemon answers for what was asked."""


class TooManyRequestsError(NatsctlError):
    """A daemon refused a request because it has too many of them; it did nothing: retry later."""


class StoppedError(NatsctlError):
    """What was asked was stopped before it could answer."""


class WatchStoppingError(StoppedError):
    """The watch that would have answered was stopped before it had listed anything."""


class NotStartedError(UsageError):
    """The dynamic watcher must be started to do that."""


class InvalidInputError(UsageError):
    """What names an object lacks something, or contradicts itself."""


class CacheDisabledError(UsageError):
    """The dynamic watcher keeps no objects: its option `enable_cache` is off."""


class NoCacheEntryError(NatsctlError):
    """Nothing is known of the object, not even that it does not exist."""


class NoVersionedResourceError(StoreMissingError):
    """The system has no such kind in that version."""


class QueryBatchInProgressError(UsageError):
    """A query batch of this watcher is in progress, and decides alone what it watches."""


class QueryBatchNotStartedError(UsageError):
    """Objects are read for a watcher only within a query batch of its own."""


class EventNotDoneError(NatsctlError):
    """An event of a resource was dropped without being marked done, by the code that it names."""


class SyncTimeoutError(NatsctlError, TimeoutError):
    """A handler took longer than its limit."""


class HandlerError(NatsctlError):
    """A handler broke its contract; the message names the handler and what to do."""


class RetryAfter(NatsctlError):  # noqa: N818 - raised to ask for something, not to report
    """Raised by a sync handler: sync this key again after `delay_s` seconds.

    This is not counted as a failure, and the key's backoff stays as it is. Raises `UsageError` if
    `delay_s` is not a finite number of seconds, 0 or more.
    """

    def __init__(self, delay_s: float, message: str = "") -> None:
        if not is_delay(delay_s):
            raise UsageError(f"RetryAfter needs seconds, 0 or more, and got {delay_s!r:.100}")
        super().__init__(message or f"asked to be visited again after {delay_s:g} s")
        self.delay_s = delay_s


class PermanentError(NatsctlError):
    """Raised by a sync handler: do not retry until the object changes."""


def is_delay(value: object) -> bool:
    """Return whether the value is a number of seconds, 0 or more; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | numbers.Real):
        return False
    return 0 <= cast("float", value) < DELAY_MAX_S
