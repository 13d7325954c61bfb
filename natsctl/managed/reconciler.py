"""Reconciles external resources with their objects.

A reconciliation reads the object at its store's leader. The table in `situation.py` selects an
action. If that action is to observe, a client observes the external resource, and the table selects
the next action. `Reconciliation` takes its step.

Seed: krateo provider-runtime `reconciler`, which is Crossplane's.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Generic, TypeVar

from natsctl.core.options import SECONDS, check_options
from natsctl.core.readers import Primary
from natsctl.core.retry import backoff
from natsctl.core.sync import blocking, current_tape
from natsctl.errors import (
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    RetryAfter,
    StoreError,
    UsageError,
)
from natsctl.managed.external import (
    ExternalConnecter,
    ExternalConnectorFn,
    NopConnecter,
    connect_disconnecter,
)
from natsctl.managed.links import AnnotationNames, Links, Memory
from natsctl.managed.objects import (
    CriticalAnnotationUpdateFn,
    CriticalAnnotationUpdater,
    Managed,
    RetryingCriticalAnnotationUpdater,
)
from natsctl.managed.situation import (
    DeletionPolicy,
    Facts,
    ManagementPolicy,
    Observed,
    decide,
    permissions,
)
from natsctl.managed.steps import (
    KeyEventRecorder,
    PollIntervalHook,
    ReconcilerParts,
    Reconciliation,
)
from natsctl.model.kinds import KvKind
from natsctl.model.pause import active_pause
from natsctl.telemetry.hiding import error_text
from natsctl.telemetry.logger import EventLogger

log = logging.getLogger(__name__)

T = TypeVar("T")

DISCONNECT_S = 10.0
PEEK_S = 1.0  # how long a failed sync may wait for the link record in its recording
BACKOFF_S = 1.0  # after the first failed creation; it doubles up to the poll interval
EARLY_S = 0.001  # a timer fires up to this early; a shorter wait would be repeated at once


def _now() -> datetime:
    return datetime.now(UTC)


class ManagedReconciler(Generic[T]):
    """Creates, updates and deletes the external resources of managed objects.

    *Guarantees.* An object gets the finalizer before its external resource is created, updated or
    reported as existing. It loses the finalizer only after the resource is observed to be gone, or
    if the resource may not be deleted. While other finalizers hold the object, nothing is deleted.
    Before a creation, it stores an intent upon exactly the revision that was read, and afterwards
    the result. While a result is unknown, it creates nothing else, until you
    (`natsctl repair external resolve`) or an observation by a name known beforehand resolves the
    creation. For objects in NATS, a separate record also has intent and result, so a client that
    replaces the whole object doesn't cause a second external resource. A reconciliation without
    differences writes nothing. Every external call has a deadline.

    Args:
        managed: the managed objects: the primary of a controller.
        connecter: makes the clients of the external system: an object, whose `disconnect` (if any)
            is called after each reconciliation, or a function `connect(managed)`.
        creation_grace_period_s: seconds until a new resource must be observable.
        critical_annotation_updater: an object or function that stores the results of creations on
            their objects at once. By default, only objects without link records have one.
        deletion_policy: the policy of objects that set none.
        external_name: returns the name of an object's resource, if it is known before the creation.
            An observation then resolves a creation with an unknown result.
        finalizer: the name of the finalizer; by default that of *names*.
        adopt: whether a resource that existed before is taken over, so that it's changed, and
            deleted with its object. With False, only if the object says so: by the annotation
            `natsctl.io/adopt: "true"` or by a name that the user wrote on it. With None, a
            `ManagedController` decides; elsewhere every resource that is observed is taken over
            without a word, as the seed does. *Warning*: objects then delete what others made.
        logger: receives log lines.
        management_policy: the policy of objects that set none.
        names: the names of annotations and finalizer; `KRATEO` has those of krateo's
            provider-runtime.
        poll_interval_s: seconds between observations of a resource that is up to date.
        poll_interval_hook: returns that interval for an object and `poll_interval_s`.
        poll_jitter_s: the maximum random change of the interval in seconds, up or down.
        recorder: receives events: a controller's `runtime`, or any `Recorder`.
        timeout_s: the time limit in seconds for all external calls of one reconciliation. Storing
            their results may take `REPORT_S` more, which `Controller.sync_timeout_s` must include.
        clock: returns the present time.

    Raises `UsageError` for a hook and a jitter together, and for a kind without metadata or with
    metadata only.
    """

    def __init__(
        self,
        managed: Primary[T],
        *,
        connecter: ExternalConnecter[T] | ExternalConnectorFn[T] | None = None,
        creation_grace_period_s: float = 30.0,
        critical_annotation_updater: CriticalAnnotationUpdater
        | CriticalAnnotationUpdateFn
        | None = None,
        deletion_policy: DeletionPolicy = "delete",
        external_name: Callable[[Managed[T]], str] | None = None,
        finalizer: str = "",
        adopt: bool | None = None,
        logger: logging.Logger = log,
        management_policy: ManagementPolicy = "default",
        names: AnnotationNames | None = None,
        poll_interval_s: float = 60.0,
        poll_interval_hook: PollIntervalHook[T] | None = None,
        poll_jitter_s: float = 0.0,
        recorder: KeyEventRecorder | None = None,
        timeout_s: float = 60.0,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        managed.kind.require_writable()
        seconds = {"timeout_s": timeout_s, "poll_interval_s": poll_interval_s}
        check_options("ManagedReconciler", dict.fromkeys(seconds, SECONDS), seconds)
        if poll_interval_hook is not None and poll_jitter_s:
            raise UsageError("set poll_interval_hook or poll_jitter_s, not both")
        self._primary, self._store, kind = managed, managed.informer.store, managed.kind
        names = AnnotationNames() if names is None else names
        names = AnnotationNames(names.domain, finalizer or names.finalizer)
        links = None
        if managed.open_store is not None and isinstance(kind, KvKind):
            links = Links(self._store, kind.bucket, names, managed.open_store)
        elif critical_annotation_updater is None:
            critical_annotation_updater = RetryingCriticalAnnotationUpdater(
                self._store, names=names
            )
        self._management, self._deletion = management_policy, deletion_policy
        self._external_name = external_name
        self._diff_level = logging.DEBUG
        self._memories: dict[str, Memory] = {}
        self._parts = ReconcilerParts(
            primary=managed,
            external=connect_disconnecter(NopConnecter() if connecter is None else connecter),
            recorder=recorder,
            log=EventLogger(logger, {}),
            links=links,
            updater=critical_annotation_updater,
            names=names,
            adopt=adopt,
            grace_s=creation_grace_period_s,
            poll_interval_s=poll_interval_s,
            poll_interval_hook=poll_interval_hook,
            poll_jitter_s=poll_jitter_s,
            timeout_s=timeout_s,
            clock=clock,
        )

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await reconciler.blocking(function, *args)`."""

    def of_controller(self, *, adopt: bool) -> None:
        """Behave as in a `ManagedController`: with its *adopt* by default, and log differences."""
        if self._parts.adopt is None:
            self._parts.adopt = adopt
        self._diff_level = logging.INFO

    async def reconcile(self, key: str) -> float | None:
        """Reconcile the object *key*; return the seconds until the next reconciliation, or None.

        This is a sync handler. It reports errors of an `ExternalClient` and raises them. It raises
        `RetryAfter` if the object has changed since it was read.
        """
        tape, now = current_tape(), asyncio.get_running_loop().time()
        memory = self._memories.setdefault(key, Memory())
        if tape is not None:

            def restore(recorded: Memory) -> None:
                nonlocal memory
                memory = self._memories[key] = recorded.shifted(now)

            await tape.remembered(
                "external memory", lambda: memory.shifted(-now), restore, kind=Memory
            )
        try:
            return await self._reconcile(key, memory)
        except Exception as error:
            links, failed = self._parts.links, not isinstance(error, StoreError | RetryAfter)
            if tape is not None and failed and links is not None:
                # a corrected client leads to the record, so a recording needs it
                with suppress(NatsctlError, TimeoutError):
                    async with asyncio.timeout(PEEK_S):
                        await links.recorded(key)
            raise
        finally:
            if memory == Memory():
                self._memories.pop(key, None)

    async def _reconcile(self, key: str, memory: Memory) -> float | None:
        run = await self._find(key, memory)
        if run is None:
            self._memories.pop(key, None)
            return None
        managed, facts = run.managed, self._facts(run)
        action = decide(facts)
        if action != "observe":
            return await run.take(action)
        async with self._connected(run):
            observed = await self._observed(run)
            action = decide({**facts, "observed": observed})
            clock, creates = asyncio.get_running_loop().time, action == "create"
            revision, until = memory.creation_waits or (0, 0.0)
            left_s = until - clock()
            if creates and left_s > EARLY_S and managed.stored.revision == revision:
                raise RetryAfter(left_s, f"the creation for {key} failed and is retried later")
            try:
                after_s = await run.take(action)
            except Exception as error:
                if creates:
                    # the queue can't delay the retry: storing the result on the object enqueues it
                    memory.failures += 1
                    limit_s = max(self._parts.poll_interval_s, BACKOFF_S)
                    wait_s = backoff(memory.failures, base_s=BACKOFF_S, limit_s=limit_s)
                    wait_s = error.delay_s if isinstance(error, RetryAfter) else wait_s
                    memory.creation_waits = managed.stored.revision, clock() + wait_s
                raise
            memory.failures, memory.creation_waits = 0, None
            return after_s

    async def _find(self, key: str, memory: Memory) -> Reconciliation[T] | None:
        """Read the object, or its last state if it was deleted despite its finalizer.

        Its link comes from the record, if the object lacks it.
        """
        parts, kind, gone = self._parts, self._primary.kind, False
        try:
            stored = await self._store.get(key)
        except NotFoundError as missing:
            last = None if missing.deleted_at is None else await self._primary.last_state(key)
            if last is None:
                return None
            stored, gone = last, True
        managed = Managed(kind, stored, names=parts.names, clock=parts.clock, gone=gone)
        run = Reconciliation(parts, managed, memory)
        if parts.links is not None and (not managed.link or managed.link.unknown):
            recorded = await parts.links.read(key, memory)
            managed.recovered = bool(recorded) and not managed.link
            if managed.recovered or recorded.answers(managed.link):
                managed.relink(recorded)
        await run.catch_up()
        if self._external_name is not None and not managed.external_name:
            managed.suggest_name(self._external_name(managed))
        return None if gone and not (managed.recovered or managed.held) else run

    def _facts(self, run: Reconciliation[T]) -> Facts:
        managed, memory, parts = run.managed, run.memory, self._parts
        try:
            may = permissions(managed, parts.names, self._management, self._deletion)
        except InvalidObjectError as error:
            run.rejected, may = str(error), frozenset()
        # An observation may be older than the one before. So only a requested deletion, and not an
        # earlier observation, shows that a missing resource isn't one that appears again.
        recent = self._is_recent(managed, memory)
        return {
            "paused": active_pause(managed.policies.get(parts.names.paused), parts.clock())
            is not None,
            "valid": not run.rejected,
            "deleting": managed.is_going,
            "held": managed.recovered or managed.held,
            "shared": not managed.gone
            and not parts.names.finalizers.issuperset(managed.metadata.finalizers),
            "may_create": "create" in may,
            "may_update": "update" in may,
            "may_delete": "delete" in may,
            "unknown": managed.link.unknown,
            "named": self._external_name is not None,
            "recent": recent and not (managed.is_going and memory.deletion_at is not None),
            "owned": parts.adopt is None or managed.owned or not may,
            "may_adopt": self._may_adopt(managed),
            "observed": "not yet",
        }

    def _may_adopt(self, managed: Managed[T]) -> bool:
        said = managed.policies.get(self._parts.names.adopt, "").lower()
        if said:
            return said == "true"
        # version 0.2 may have written the name, and the finalizer with it
        own = self._external_name is not None and managed.held
        if own and self._external_name is not None:
            own = managed.external_name == self._external_name(managed)
        return bool(self._parts.adopt) or (managed.named_by_user and not own)

    def _is_recent(self, managed: Managed[T], memory: Memory) -> bool:
        """Return whether the last creation is within its grace period.

        The period ends by the clock of the event loop too, if the time of day does not go on.
        """
        link, grace_s = managed.link, self._parts.grace_s
        age_s, now = link.age_s(self._parts.clock()), asyncio.get_running_loop().time()
        if age_s is None or age_s >= grace_s:
            memory.seen = None
            return False
        creation = link.pending + link.succeeded
        if memory.seen is None or memory.seen[0] != creation:
            memory.seen = creation, now
        return now - memory.seen[1] < grace_s

    # ---- the external system

    @asynccontextmanager
    async def _connected(self, run: Reconciliation[T]) -> AsyncIterator[None]:
        async with run.calling("connect", "CannotConnectToProvider"):
            await run.connection.connect()
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(DISCONNECT_S):
                    await run.connection.disconnect()
            except Exception as error:  # noqa: BLE001 - the reconciliation itself has succeeded
                text = f"cannot disconnect: {error_text(error)}"
                run.event("CannotDisconnectFromProvider", text, warns=True)

    async def _observed(self, run: Reconciliation[T]) -> Observed:
        managed, memory = run.managed, run.memory
        async with run.calling("observe", "CannotObserveExternalResource"):
            observation = await run.connection.observe()
            if self._parts.adopt is not None and not managed.owned:
                managed.drop_name()
            initialized = observation.exists and observation.late_initialized
            initialized = initialized and bool(managed.additions() or managed.annotations_differ)
        diff = observation.diff
        if diff and diff != memory.diff:
            text = "external resource differs"
            self._parts.log.log(self._diff_level, text, key=managed.key, difference=diff)
        memory.diff = diff
        if not observation.exists:
            return "absent"
        if initialized:
            return "late-initialized"
        if observation.up_to_date:
            return "current"
        run.diff = diff
        return "different"
