"""Every exception that natsctl raises on purpose."""

import numbers
from typing import Final, cast

import msgspec

UNREAD_S = 0.5  # until a sync that read an object of another process is repeated
DELAY_MAX_S = 1e12  # delays are shorter than this, about 32,000 years

DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that don't decode as the expected type.

The causes are invalid JSON, a field of the wrong type, text that isn't UTF-8, and nesting that's
too deep.
"""


class NatsctlError(Exception):
    """The base class of all errors of natsctl: catch it to handle every one of them."""


class UsageError(NatsctlError):
    """A declaration, option, argument or call is wrong.

    Repeating it doesn't help. Change what the message names.
    """


class InformerAlreadyAddedError(UsageError):
    """The resource kind already has an informer for the same objects.

    Add one informer for each kind, bucket or namespace, and selector.
    """


class ConnectError(NatsctlError):
    """natsctl can't connect to NATS or to a Kubernetes cluster.

    Does the server run, and are the address and the credentials right that the message names?
    """


class StoreError(NatsctlError):
    """A store can't carry out a request. The base class of all errors of stores.

    The cause is chained. Let it pass in a sync handler: the key is retried.
    """


class NotFoundError(StoreError):
    """The object doesn't exist.

    `deleted_at` is the revision of the delete marker that proves the deletion, or None if the store
    has no trace of the key.
    """

    def __init__(self, message: str, *, deleted_at: int | None = None) -> None:
        super().__init__(message)
        self.deleted_at = deleted_at


class ConflictError(StoreError):
    """Somebody created or changed the object since you read it. Nothing was written.

    Read it again and repeat the change, or let the key be retried.
    """


class ExistsError(ConflictError):
    """A secondary exists, and belongs to somebody else or to nobody. Nothing was written.

    Choose another key, delete the object, or apply with `adopt=True`.
    """


class FieldConflictError(ConflictError):
    """An apply would change fields that others manage. Nothing was written.

    `managers` has the names of these field managers, and `fields` the fields, such as
    `.spec.replicas`. Leave these fields out of the manifest, or force the apply.
    """

    def __init__(
        self, message: str, managers: tuple[str, ...], fields: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.managers = managers
        self.fields = fields


class InvalidKeyError(StoreError):
    """The key can't name an object in its store; the message has the form that it needs."""


class InvalidObjectError(StoreError):
    """Stored bytes, or a manifest, aren't a valid object of their kind.

    Correct the object, or the type that the kind declares.
    """


class NewerVersionError(InvalidObjectError):
    """A newer version of the type stored the object, and this one can't read it.

    Nothing is written. Run the newer version of the controller, or store the object in the older
    form.
    """


class ImmutableFieldError(InvalidObjectError):
    """An apply would change fields that the server never changes in an existing object.

    `fields` has their names, such as `spec.selector`, if the server says them. Delete the object,
    so that it's created with the new fields, or declare the slot with `on_immutable="recreate"`.
    """

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class TooLargeError(StoreError):
    """An object or an answer is larger than the server accepts.

    Make the object smaller, or raise the server's limit.
    """


class StoreMissingError(StoreError):
    """The store itself doesn't exist: a bucket, or a kind of a cluster.

    Create the bucket, or install the CustomResourceDefinition.
    """


class StoreDiffersError(StoreError):
    """A store exists, and differs from its declaration.

    Change the declaration, or change the store with the command that the message names.
    """


class PermissionDeniedError(StoreError):
    """The server refuses the user a request.

    Grant the permission that the message names. `natsctl doctor` lists all that are missing.
    """


class StoreTimeoutError(StoreError):
    """A store doesn't answer in time, so nobody knows whether a write took effect.

    Read the object before you repeat the write, or let the key be retried.
    """


class NotLeadingError(StoreError):
    """This process may no longer be the leader. Nothing was written.

    Let the error pass: the leader syncs the key.
    """


class NotStoredError(StoreError):
    """The controller only plans. Nothing was written."""


class PlanningError(NatsctlError):
    """A plan doesn't make a call that may have effects outside of the stores.

    Call `blocking` with `safe=True` if the function changes nothing, or ask `natsctl.planning()`
    and skip the call.
    """


class WatchBrokenError(StoreError):
    """A watch has ended. The informer establishes it again."""


class QueueShutDownError(NatsctlError):
    """The queue was shut down, and no key is left: end the worker."""


class NoDaemonError(NatsctlError):
    """No daemon answers a request.

    Start one with `natsctl run`, or check the permissions of the user.
    """


class TooManyRequestsError(NatsctlError):
    """A daemon gets too many requests, and did nothing for this one. Send it again later."""


class StoppedError(NatsctlError):
    """An operation ends without a result, because its watcher or controller stops."""


class WatchStoppingError(StoppedError):
    """A watch stops before its first list is complete. Start it again."""


class NotStartedError(UsageError):
    """A dynamic watcher isn't started. Start it before the call."""


class InvalidInputError(UsageError):
    """The identifier of an object is incomplete, or contradicts itself.

    Set the fields that the message names.
    """


class CacheDisabledError(UsageError):
    """A dynamic watcher without a cache is asked for an object: set its option `enable_cache`."""


class NoCacheEntryError(NatsctlError):
    """A dynamic watcher doesn't watch the object, so it can't know whether it exists.

    Watch the object before you read it.
    """


class NoVersionedResourceError(StoreMissingError):
    """The server has no such kind in this version.

    Correct the version, or install the CustomResourceDefinition.
    """


class QueryBatchInProgressError(UsageError):
    """A watcher has a query batch in progress. End it first."""


class QueryBatchNotStartedError(UsageError):
    """A watcher has no query batch in progress. Start one first."""


class EventNotDoneError(NatsctlError):
    """An event of a resource's subscription was dropped without being marked done.

    The message names the code that got it. Call `done` for each event.
    """


class SyncTimeoutError(NatsctlError, TimeoutError):
    """A handler ran for longer than its time limit, and was cancelled. The key is retried.

    Make the handler faster, or raise `sync_timeout_s`.
    """


class HandlerError(NatsctlError):
    """A handler breaks its contract, for example by what it returns.

    The message names the handler and what to write.
    """


class NotRecordedError(NatsctlError):
    """A handler in a replay reads or does what wasn't recorded.

    Record a sync of the handler that does it, or leave it out.
    """


class HookError(NatsctlError):
    """The service behind a hook gave no answer, an invalid one, or reported an error.

    The key is retried with backoff, unless the service said that its error is permanent.
    """


class PausedError(NatsctlError):
    """The key or its controller is paused; the message has the command that resumes it."""


class RetryAfter(NatsctlError):  # noqa: N818 - raised as a request, not as an error
    """Raise it in a sync handler to have the key synced again after `delay_s` seconds.

    It isn't a failure, and the backoff of the key stays as it is. Raises `UsageError` if `delay_s`
    isn't a number of seconds from 0 to less than 1e12.
    """

    def __init__(self, delay_s: float, message: str = "") -> None:
        if not is_delay(delay_s):
            raise UsageError(f"RetryAfter needs seconds, 0 or more, and got {delay_s!r:.100}")
        super().__init__(message or f"sync again after {delay_s:g} s")
        self.delay_s = delay_s


class UnreadError(RetryAfter):
    """A sync reads an object of another process, and its value isn't here yet.

    Processes that share keys keep only the values of their own primaries and secondaries, until a
    handler reads others. From then on they keep all values of that kind, and the sync is repeated
    half a second later. Don't catch it.
    """

    def __init__(self, kind: str, key: str) -> None:
        super().__init__(UNREAD_S, f"{key} of {kind} belongs to another process: it is read now")


class PermanentError(NatsctlError):
    """Raise it in a sync handler to say that a retry can't help.

    The key isn't retried until the object changes, or somebody resyncs it.
    """


def is_delay(value: object) -> bool:
    """Return whether the value is a number from 0 to less than `DELAY_MAX_S`, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float | numbers.Real):
        return False
    return 0 <= cast("float", value) < DELAY_MAX_S
