"""Every exception that natsctl raises on purpose."""

import numbers
from typing import Final, cast

import msgspec

UNREAD_S = 0.5  # until a sync that read an object of another process is repeated
DELAY_MAX_S = 1e12  # delays are shorter than this, about 32,000 years

DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bytes that do not decode as the expected type.

The causes are invalid JSON, a field of the wrong type, text that is not UTF-8, and nesting that is
too deep.
"""


class NatsctlError(Exception):
    """The base class of all errors of natsctl.

    Catch this class to handle every error that natsctl raises on purpose.
    """


class UsageError(NatsctlError):
    """Raised for a wrong declaration, option, argument or call.

    Repeating the call does not help. Change the code, the option or the settings that the message
    names.
    """


class InformerAlreadyAddedError(UsageError):
    """Raised if a resource kind already has an informer for the same objects.

    Add one informer for each kind, bucket or namespace, and selector.
    """


class ConnectError(NatsctlError):
    """Raised if natsctl cannot connect to NATS or to a Kubernetes cluster.

    Check the address and the credentials that the message names, and whether the server runs.
    """


class StoreError(NatsctlError):
    """Raised if a store cannot carry out a request; the cause is chained.

    The base class of all errors of stores. A sync handler can let it propagate: the key is retried.
    """


class NotFoundError(StoreError):
    """Raised if an object does not exist.

    `deleted_at` is the revision of the delete marker that proves the deletion. It is None if the
    store has no trace of the key. Create the object, or check the key.
    """

    def __init__(self, message: str, *, deleted_at: int | None = None) -> None:
        super().__init__(message)
        self.deleted_at = deleted_at


class ConflictError(StoreError):
    """Raised if an object exists before its creation, or has changed since it was read.

    Nothing was written. Read the object again and repeat the change, or let the key be retried.
    """


class ExistsError(ConflictError):
    """Raised if a secondary exists and does not belong to this controller.

    Nothing was written. Choose another key, delete the object, or apply with `adopt=True`.
    """


class FieldConflictError(ConflictError):
    """Raised if an apply would change fields that other field managers own.

    Nothing was written. `managers` has the names of these field managers, and `fields` the fields,
    such as `.spec.replicas`. Leave these fields out of the manifest, or force the apply.
    """

    def __init__(
        self, message: str, managers: tuple[str, ...], fields: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.managers = managers
        self.fields = fields


class InvalidKeyError(StoreError):
    """Raised if a key cannot name an object in its store.

    Use a key of the form that the message states.
    """


class InvalidObjectError(StoreError):
    """Raised if stored bytes are not a valid object of their kind.

    Correct the stored object, or the type that the kind declares.
    """


class NewerVersionError(InvalidObjectError):
    """Raised if an object was stored by a newer version of its type, and cannot be read.

    Nothing is written. Run the newer version of the controller, or store the object in the older
    form.
    """


class ImmutableFieldError(InvalidObjectError):
    """Raised if an apply would change fields that the server never changes in an existing object.

    `fields` has their names, such as `spec.selector`; it is empty if the server does not name them.
    Delete the object so that it is created with the new fields.
    """

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class TooLargeError(StoreError):
    """Raised if an object or an answer is larger than the server accepts.

    Make the object smaller, or raise the server's limit.
    """


class StoreMissingError(StoreError):
    """Raised if the store itself does not exist: a bucket, or a kind of a cluster.

    Create the bucket, or install the CustomResourceDefinition.
    """


class StoreDiffersError(StoreError):
    """Raised if a store exists but differs from its declaration.

    Change the declaration, or change the store with the command that the message names.
    """


class PermissionDeniedError(StoreError):
    """Raised if the server denies the user a request.

    Grant the permission that the message names. `natsctl doctor` lists all missing permissions.
    """


class StoreTimeoutError(StoreError):
    """Raised if a store does not answer in time.

    It is unknown whether a write took effect. Read the object before the write is repeated, or let
    the key be retried.
    """


class NotLeadingError(StoreError):
    """Raised for a write by a process that may no longer be the leader.

    Nothing was written. Let the error propagate: the leader syncs the key.
    """


class NotStoredError(StoreError):
    """Raised for a write while a controller only plans; nothing was written."""


class PlanningError(NatsctlError):
    """Raised in a plan for a call that may have effects outside of the stores.

    Call `blocking` with `safe=True` if the function changes nothing, or ask `natsctl.planning()`
    and skip the call.
    """


class WatchBrokenError(StoreError):
    """Raised if a watch ends. The informer establishes the watch again."""


class QueueShutDownError(NatsctlError):
    """Raised by `WorkQueue.take` after a shutdown, if no key is left. End the worker."""


class NoDaemonError(NatsctlError):
    """Raised if no daemon answers a request.

    Start one with `natsctl run`, or check the permissions of the user.
    """


class TooManyRequestsError(NatsctlError):
    """Raised if a daemon rejects a request because it receives too many.

    The daemon did nothing. Send the request again later.
    """


class StoppedError(NatsctlError):
    """Raised if an operation ends without a result because its watcher or controller stops."""


class WatchStoppingError(StoppedError):
    """Raised if a watch stops before its first list is complete. Start the watch again."""


class NotStartedError(UsageError):
    """Raised by a dynamic watcher that is not started. Start the watcher before the call."""


class InvalidInputError(UsageError):
    """Raised if the identifier of an object is incomplete or contradicts itself.

    Set the fields that the message names.
    """


class CacheDisabledError(UsageError):
    """Raised if a dynamic watcher without a cache is asked for an object.

    Set its option `enable_cache`.
    """


class NoCacheEntryError(NatsctlError):
    """Raised if a dynamic watcher does not watch an object, so it cannot know whether it exists.

    Watch the object before it is read.
    """


class NoVersionedResourceError(StoreMissingError):
    """Raised if the server has no such kind in the requested version.

    Correct the version, or install the CustomResourceDefinition.
    """


class QueryBatchInProgressError(UsageError):
    """Raised if a watcher starts a query batch or changes its watches during its query batch.

    End the query batch first.
    """


class QueryBatchNotStartedError(UsageError):
    """Raised if a watcher reads an object, or ends a query batch, without having started one.

    Start a query batch of this watcher first.
    """


class EventNotDoneError(NatsctlError):
    """Raised by a resource's subscription if an event was discarded without being marked done.

    The message names the code that received the event. Call `done` for each event.
    """


class SyncTimeoutError(NatsctlError, TimeoutError):
    """Raised if a handler runs for longer than its time limit.

    The handler is cancelled and the key is retried. Make the handler faster, or raise
    `sync_timeout_s`.
    """


class HandlerError(NatsctlError):
    """Raised if a handler breaks its contract, for example by an invalid return value.

    The message names the handler and the correction.
    """


class NotRecordedError(NatsctlError):
    """Raised in a replay if a handler makes a read that was not recorded.

    Record a sync of the handler that makes this read, or leave the read out.
    """


class HookError(NatsctlError):
    """The service behind a hook gave no answer, an invalid one, or reported an error.

    The key is retried with backoff, unless the service said that its error is permanent.
    """


class PausedError(NatsctlError):
    """The key or its controller is paused; the message has the command that resumes it."""


class RetryAfter(NatsctlError):  # noqa: N818 - raised as a request, not as an error
    """Raised by a sync handler to sync the key again after `delay_s` seconds.

    The sync is not counted as a failure, and the backoff of the key does not change. Raises
    `UsageError` if `delay_s` is not a number of seconds from 0 to less than 1e12.
    """

    def __init__(self, delay_s: float, message: str = "") -> None:
        if not is_delay(delay_s):
            raise UsageError(f"RetryAfter needs seconds, 0 or more, and got {delay_s!r:.100}")
        super().__init__(message or f"sync again after {delay_s:g} s")
        self.delay_s = delay_s


class UnreadError(RetryAfter):
    """Raised if a sync reads an object of another process, and its value is not here.

    Processes that share keys keep only the values of their own primaries and secondaries, until a
    handler reads others. From then on they keep all values of that kind. The sync is repeated soon,
    and succeeds when these are read.
    """

    def __init__(self, kind: str, key: str) -> None:
        super().__init__(UNREAD_S, f"{key} of {kind} belongs to another process: it is read now")


class PermanentError(NatsctlError):
    """Raised by a sync handler to report that a retry cannot help.

    The key is not retried until the object changes, or a resync syncs every key.
    """


def is_delay(value: object) -> bool:
    """Return whether the value is a number from 0 to less than `DELAY_MAX_S`, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float | numbers.Real):
        return False
    return 0 <= cast("float", value) < DELAY_MAX_S
