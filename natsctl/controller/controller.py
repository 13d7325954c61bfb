"""The class that users subclass to write a controller."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from natsctl.controller.reads import Reads
from natsctl.controller.slots import only_primary
from natsctl.core.options import POLICY, RATE, SECONDS, TEXT, WORKERS, Option, check_class
from natsctl.core.readers import Primary
from natsctl.core.retry import RateLimit, RetryPolicy, always_retry
from natsctl.core.sync import blocking
from natsctl.model.kinds import Kind
from natsctl.model.plans import GarbageLimits
from natsctl.model.store import Change

if TYPE_CHECKING:
    from natsctl.controller.runtime import ControllerRuntime


DeletionPolicy = Literal["delete", "orphan"]

_OPTIONS = {
    "name": TEXT,
    "version": TEXT,
    "workers": WORKERS,
    "resync_s": SECONDS,
    "sync_timeout_s": SECONDS,
    "retry": POLICY,
    "rate_limit": RATE,
    "deletion_policy": Option(
        "'delete' or 'orphan'", lambda value: value in get_args(DeletionPolicy)
    ),
    "garbage": Option("GarbageLimits(…)", lambda value: isinstance(value, GarbageLimits)),
    "kinds": Option(
        "a list of kinds, as kv(…) and kube(…) make them",
        lambda value: (
            isinstance(value, list | tuple) and all(isinstance(kind, Kind) for kind in value)
        ),
    ),
}

_METHODS = {
    "sync_handler": "async def sync_handler(self, key)",
    "handle_secondary": "def handle_secondary(self, change)",
    "garbage_secondaries": "async def garbage_secondaries(self)",
    "start": "async def start(self)",
    "clean": "async def clean(self)",
}


class Controller:
    """Makes the world match what its primaries say.

    Subclass it, declare one `primary` and as many `secondary` and `tertiary` slots as you like, and
    write `sync_handler`. Class attributes are options:

    - `name`: the name in logs, events and subjects; by default the class's name in lower case.
    - `version`: the version of the controller, such as `1.4.0`; published with its schemas.
    - `workers`: how many keys are synced at once.
    - `resync_s`: every primary is synced again once per so many seconds.
    - `sync_timeout_s`: a sync that takes longer fails.
    - `retry`: what follows a failure.
    - `rate_limit`: how many syncs begin in a second, over all keys; None means no limit.
    - `deletion_policy`: `delete` removes the objects of a deleted primary, `orphan` keeps them.
    - `garbage`: when orphans are collected.
    - `kinds`: the kinds in a cluster that the controller reads with `reads`; natsctl connects to
      the cluster for them, and grants permissions for them.
    """

    name: str = ""
    version: str = ""
    workers: int = 4
    resync_s: float = 600.0
    sync_timeout_s: float = 60.0
    retry: RetryPolicy = staticmethod(always_retry)
    rate_limit: RateLimit | None = None
    deletion_policy: DeletionPolicy = "delete"
    garbage: GarbageLimits = GarbageLimits()
    kinds: Sequence[Kind[Any]] = ()

    runtime: "ControllerRuntime"
    """The runtime that runs this controller, from `start` to `clean`."""

    reads: Reads
    """Reads objects of any kind in a sync; a change of an object that was read enqueues the key."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__dict__.get("name") or cls.__name__.lower()
        if isfunction(cls.__dict__.get("retry")):
            cls.retry = staticmethod(cls.retry)  # a policy is not a method

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await self.blocking(function, *args)`."""

    async def sync_handler(self, key: str) -> float | None:
        """Make the world match the primary *key*; return seconds until the next sync, or None.

        If `get` returns None, the primary was deleted, and its secondaries go after you return.
        Make it idempotent: it may be called at any time. If it raises, the key is retried with
        backoff; `RetryAfter` sets the delay, and after `PermanentError` there's no retry until the
        object changes. Don't catch `asyncio.CancelledError`.
        """
        raise NotImplementedError

    def handle_secondary(self, change: Change[Any]) -> Iterable[str]:
        """Return the keys of the primaries that a secondary's change enqueues.

        By default these are the owners of the object before and after the change.
        """
        return self.runtime.owners(change)

    async def garbage_secondaries(self) -> None:
        """Collect secondaries whose owner doesn't exist; called once per GC cycle."""
        await self.runtime.collect_garbage()

    async def start(self) -> None:
        """Prepare, once all objects are read and before the first sync."""

    async def clean(self) -> None:
        """Release what `start` acquired, after the last sync."""


def check_controller(controller: Controller) -> None:
    """Raise `UsageError` if the controller cannot run as it is written.

    The errors are: not exactly one primary, an option of a wrong type or out of range, a class
    attribute that looks like a misspelt option, and a method that is not `async def` or takes
    other arguments.
    """
    only_primary(type(controller))
    check_class(controller, Controller, _OPTIONS, _METHODS)


T = TypeVar("T")
Step = Callable[[str, T], Awaitable[float | None]]


async def finalized(
    primary: Primary[T], key: str, name: str, *, apply: Step[T], cleanup: Step[T]
) -> float | None:
    """Run *apply* while the object exists, and *cleanup* once it is marked deleted.

    *Guarantees.* The finalizer *name* is stored before *apply* first runs, and is removed only
    after *cleanup* succeeded, so whatever *apply* did is cleaned up. Finalizers of others stay. If
    somebody deletes the object past its finalizers (`nats kv del`), *cleanup* gets its last state
    from the cache or the store's history. An object that was lost without a delete marker (a
    recreated bucket, a purged stream) isn't cleaned up: nothing proves that anybody deleted it.

    Returns the result of *apply*: seconds until the next sync, or None.
    """
    obj = primary.get(key)
    if obj is None:
        last = await primary.last(key)
        held = last is not None and name in primary.kind.metadata_of(last).finalizers
        if last is not None and held and await primary.deleted_at(key) is not None:
            await cleanup(key, last)
            await primary.forget(key)
        return None
    metadata = primary.kind.metadata_of(obj)
    held = name in metadata.finalizers
    if metadata.deletion_timestamp is None:
        if not held:
            await primary.add_finalizer(key, name)
        return await apply(key, obj)
    if held:
        await cleanup(key, obj)
    await primary.remove_finalizer(key, name)  # also if a person removed ours
    return None
