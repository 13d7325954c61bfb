"""Reconciles external resources with their objects.

A reconciliation reads the object at its store's leader. The table in `situation.py` selects an
action. If that action is to observe, a client observes the external resource, and the table selects
the next action. `Steps` takes it.

Seed: krateo provider-runtime `reconciler`, which is Crossplane's.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from natsctl.core.options import SECONDS, check_options
from natsctl.core.readers import Primary
from natsctl.core.sync import blocking, current_tape
from natsctl.errors import InvalidObjectError, NatsctlError, NotFoundError, RetryAfter, StoreError
from natsctl.managed.calls import ExternalCalls, Reconciliation
from natsctl.managed.creation.backoff import BACKOFF_S, CreationBackoff
from natsctl.managed.creation.links import Links
from natsctl.managed.creation.results import Results
from natsctl.managed.critical import CriticalAnnotationUpdateFn, CriticalAnnotationUpdater
from natsctl.managed.external import (
    ExternalConnecter,
    ExternalConnectorFn,
    NopConnecter,
    Observation,
    connect_disconnecter,
    observed,
)
from natsctl.managed.memory import ReconcilerMemory
from natsctl.managed.names import AnnotationNames
from natsctl.managed.objects import Managed
from natsctl.managed.policies import DeletionPolicy, ManagementPolicy, Permissions, permissions
from natsctl.managed.polling import Poll, PollIntervalHook
from natsctl.managed.recorded import ExternalConnection
from natsctl.managed.reports import KeyEventRecorder, Reports
from natsctl.managed.situation import Observed, ReconcileAction, Situation, decide
from natsctl.managed.steps import Steps
from natsctl.model.kinds import KvKind
from natsctl.model.pause import Pause, active_pause
from natsctl.model.store import Stored
from natsctl.telemetry.hiding import error_text
from natsctl.telemetry.logger import EventLogger

log = logging.getLogger(__name__)

T = TypeVar("T")

DISCONNECT_S = 10.0
PEEK_S = 1.0  # how long a failed sync may wait for the link record in its recording


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
    replaces the whole object does not cause a second external resource. A reconciliation without
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
        self._primary, store = managed, managed.informer.store
        names = AnnotationNames() if names is None else names
        self._names = AnnotationNames(names.domain, finalizer or names.finalizer)
        self._external = connect_disconnecter(NopConnecter() if connecter is None else connecter)
        self._management, self._deletion = management_policy, deletion_policy
        self._external_name, self._grace_s = external_name, creation_grace_period_s
        self._adopt = adopt
        self._diff_level = logging.DEBUG
        self._diffs: dict[str, str] = {}  # what differs, by key, as it was logged last
        self._log = EventLogger(logger, {})
        self._timeout_s, self._clock = timeout_s, clock
        self._backoff = CreationBackoff(limit_s=max(poll_interval_s, BACKOFF_S))
        self._links = _links(managed, self._names)
        self._reports = Reports(store=store, recorder=recorder, log=self._log, names=self._names)
        self._results = Results(
            objects=store,
            reports=self._reports,
            names=self._names,
            links=self._links,
            updater=critical_annotation_updater,
        )
        self._memory = ReconcilerMemory(
            backoff=self._backoff, results=self._results, links=self._links, makes=self._stored
        )
        self._calls = ExternalCalls[T](self._reports)
        self._steps = Steps(
            primary=managed,
            calls=self._calls,
            reports=self._reports,
            results=self._results,
            links=self._links,
            names=self._names,
            grace_s=creation_grace_period_s,
            deletions=self._memory.deletions,
            poll=Poll(poll_interval_s, poll_interval_hook, poll_jitter_s),
            asks=self.asks,
            clock=clock,
        )

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await reconciler.blocking(function, *args)`."""

    def asks(self) -> bool:
        """Return whether a resource that natsctl didn't create needs somebody's word."""
        return self._adopt is not None

    def of_controller(self, *, adopt: bool) -> None:
        """Behave as in a `ManagedController`: with its *adopt* by default, and log differences."""
        if self._adopt is None:
            self._adopt = adopt
        self._diff_level = logging.INFO

    async def reconcile(self, key: str) -> float | None:
        """Reconcile the object *key*; return the seconds until the next reconciliation, or None.

        This is a sync handler. It reports errors of an `ExternalClient` and raises them. It raises
        `RetryAfter` if the object has changed since it was read.
        """
        await self._memory.noted(key)
        try:
            return await self._reconcile(key)
        except Exception as error:
            if current_tape() is not None and not isinstance(error, StoreError | RetryAfter):
                await self._read_link(key)
            raise

    async def _read_link(self, key: str) -> None:
        """Read the link record of a failed object, which a corrected client leads to."""
        if self._links is not None:
            with suppress(NatsctlError, TimeoutError):
                async with asyncio.timeout(PEEK_S):
                    await self._links.peek(key)

    async def _reconcile(self, key: str) -> float | None:
        await self._results.catch_up(key)
        managed = await self._find(key)
        if managed is None:
            self._steps.forget(key)
            self._backoff.forget(key)
            self._diffs.pop(key, None)
            self._memory.creations.pop(key, None)
            return None
        reconciliation = Reconciliation(managed, self._timeout_s)
        situation = self._situation(reconciliation)
        action = decide(situation)
        if action is not ReconcileAction.OBSERVE:
            return await self._steps.take(action, reconciliation)
        async with self._connected(reconciliation):
            state = await self._observed(reconciliation)
            action = decide(msgspec.structs.replace(situation, observed=state))
            with self._backoff.attempt(action, managed):
                return await self._steps.take(action, reconciliation)

    # ---- reading the object

    async def _find(self, key: str) -> Managed[T] | None:
        """Return the object, or its last state if it was deleted despite its finalizer."""
        try:
            stored = await self._primary.informer.store.get(key)
        except NotFoundError as missing:
            return None if missing.deleted_at is None else await self._find_deleted(key)
        return await self._managed(stored, gone=False)

    async def _find_deleted(self, key: str) -> Managed[T] | None:
        last = await self._primary.last_state(key)
        if last is None:
            return None
        managed = await self._managed(self._results.with_pending_result(last), gone=True)
        return managed if self._holds(managed) else None

    async def _managed(self, stored: Stored, *, gone: bool) -> Managed[T]:
        """Return the object with its link, from the record if the object lacks it."""
        managed = self._stored(stored, gone=gone)
        if self._links is not None and (not managed.link or managed.creation.unknown):
            recorded = await self._links.read(managed.key)
            if not managed.link and recorded:
                managed.relink(recorded)
                managed.recovered = True
            elif recorded.answers(managed.link):
                managed.relink(recorded)
        if self._external_name is not None and not managed.external_name:
            managed.suggest_name(self._external_name(managed))
        return managed

    def _stored(self, stored: Stored, *, gone: bool = False) -> Managed[T]:
        names, clock = self._names, self._clock
        return Managed(self._primary.kind, stored, names=names, clock=clock, gone=gone)

    def _holds(self, managed: Managed[T]) -> bool:
        return managed.recovered or self._reports.held(managed)

    def _situation(self, reconciliation: Reconciliation[T]) -> Situation:
        managed = reconciliation.managed
        creation, ours = managed.creation, self._names.finalizers
        may = self._permissions(reconciliation)
        return Situation(
            paused=self._pause(managed) is not None,
            valid=not reconciliation.rejected,
            deleting=managed.is_going,
            held=self._holds(managed),
            shared=not managed.gone and not ours.issuperset(managed.finalizers),
            may_create=may.create,
            may_update=may.update,
            may_delete=may.delete,
            unknown=creation.unknown,
            named=self._external_name is not None,
            recent=self._is_recent(managed) and not self._is_deletion_requested(managed),
            owned=self._adopt is None or managed.owned or not may.changes,
            may_adopt=self._may_adopt(managed),
        )

    def _may_adopt(self, managed: Managed[T]) -> bool:
        """Return whether somebody said that a resource that natsctl didn't create is adopted."""
        said = managed.policies.get(self._names.adopt, "").lower()
        if said:
            return said == "true"
        return bool(self._adopt) or (managed.named_by_user and not self._has_own_name(managed))

    def _has_own_name(self, managed: Managed[T]) -> bool:
        """Return whether version 0.2 may have written the name, and the finalizer with it."""
        if self._external_name is None or not self._reports.held(managed):
            return False
        return managed.external_name == self._external_name(managed)

    def _is_recent(self, managed: Managed[T]) -> bool:
        """Return whether the last creation is within its grace period.

        The period ends by the clock of the event loop too, if the time of day does not go on.
        """
        age_s = managed.creation.age_s(self._clock())
        if age_s is None or age_s >= self._grace_s:
            self._memory.creations.pop(managed.key, None)
            return False
        return self._memory.seen_s(managed.key, managed.creation) < self._grace_s

    def _is_deletion_requested(self, managed: Managed[T]) -> bool:
        """Return whether a missing resource is gone, although its creation is recent.

        An observation may be older than the one before. So only a requested deletion, and not an
        earlier observation, shows that a missing resource is not one that appears again.
        """
        return managed.is_going and managed.key in self._memory.deletions

    def _pause(self, managed: Managed[T]) -> Pause | None:
        return active_pause(managed.policies.get(self._names.paused), self._clock())

    def _permissions(self, reconciliation: Reconciliation[T]) -> Permissions:
        try:
            return permissions(
                reconciliation.managed.policies,
                reconciliation.managed.spec,
                self._names,
                management=self._management,
                deletion=self._deletion,
            )
        except InvalidObjectError as error:
            reconciliation.rejected = str(error)
            return Permissions(create=False, update=False, delete=False)

    # ---- the external system

    @asynccontextmanager
    async def _connected(self, reconciliation: Reconciliation[T]) -> AsyncIterator[None]:
        reconciliation.client = connection = ExternalConnection(self._external)
        async with self._calls.calling(reconciliation, "connect", "CannotConnectToProvider"):
            await connection.connect(reconciliation.managed)
        try:
            yield
        finally:
            await self._disconnect(connection, reconciliation.managed)

    async def _disconnect(self, connection: ExternalConnection[T], managed: Managed[T]) -> None:
        try:
            async with asyncio.timeout(DISCONNECT_S):
                await connection.disconnect()
        except Exception as error:  # noqa: BLE001 - the reconciliation itself has succeeded
            self._reports.warning(
                managed, "CannotDisconnectFromProvider", f"cannot disconnect: {error_text(error)}"
            )

    async def _observed(self, reconciliation: Reconciliation[T]) -> Observed:
        async with self._calls.calling(reconciliation, "observe", "CannotObserveExternalResource"):
            managed = reconciliation.managed
            observation = await observed(reconciliation.client, managed)
            if self._adopt is not None and not managed.owned:
                managed.drop_name()
            state = _state(observation, managed)
            if state is Observed.DIFFERENT:
                reconciliation.diff = observation.diff
            self._log_diff(managed.key, observation.diff)
            return state

    def _log_diff(self, key: str, diff: str) -> None:
        """Log what differs, once for each difference."""
        if not diff:
            self._diffs.pop(key, None)
        elif self._diffs.get(key) != diff:
            self._diffs[key] = diff
            self._log.log(self._diff_level, "external resource differs", key=key, difference=diff)


def _state(observation: Observation, managed: Managed[T]) -> Observed:
    """Return the observed state for the table."""
    if not observation.exists:
        return Observed.ABSENT
    if observation.late_initialized and (managed.additions() or managed.annotations_differ):
        return Observed.LATE_INITIALIZED
    return Observed.CURRENT if observation.up_to_date else Observed.DIFFERENT


def _links(managed: Primary[Any], names: AnnotationNames) -> Links | None:
    """Return the link records of the objects, or None for objects in a cluster."""
    if managed.open_store is None or not isinstance(managed.kind, KvKind):
        return None
    store, kind = managed.informer.store, managed.kind
    return Links(objects=store, kind=kind, names=names, open_records=managed.open_store)
