"""Reconciles external resources with their objects.

A reconciliation reads the object at its store's leader. The table in `situation.py` selects a step.
If that step is to observe, a client observes the external resource, and the table selects the next
step. Each step is a method of `ManagedReconciler`, with its external call, writes and reports.

Seed: krateo provider-runtime `reconciler`, which is Crossplane's.
"""

import asyncio
import copy
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec

from natsctl.core.environment import environment
from natsctl.core.options import SECONDS, check_options
from natsctl.core.readers import Primary
from natsctl.core.retry import backoff
from natsctl.core.sync import blocking, current_tape
from natsctl.core.table import is_read
from natsctl.core.tape import place_of
from natsctl.errors import (
    ConflictError,
    HandlerError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    RetryAfter,
    StoreError,
    UsageError,
    is_delay,
)
from natsctl.managed.external import (
    ExternalConnecter,
    ExternalConnection,
    ExternalConnectorFn,
    NopConnecter,
    Observation,
    connect_disconnecter,
)
from natsctl.managed.links import (
    AnnotationNames,
    CreationLink,
    Links,
    Memory,
    Unstored,
    may_have_created,
)
from natsctl.managed.objects import (
    MESSAGE_MAX,
    READY,
    SYNCED,
    Condition,
    CriticalAnnotationUpdateFn,
    CriticalAnnotationUpdater,
    Managed,
    RetryingCriticalAnnotationUpdater,
    retry_store_errors,
)
from natsctl.managed.situation import (
    DeletionPolicy,
    Facts,
    ManagementPolicy,
    Observed,
    decide,
    permissions,
)
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import DOMAIN
from natsctl.model.pause import active_pause
from natsctl.model.store import Change, EventType, ManifestStore, Stored
from natsctl.telemetry.hiding import error_text, shown
from natsctl.telemetry.logger import EventLogger

log = logging.getLogger(__name__)

T = TypeVar("T")

PollIntervalHook: TypeAlias = Callable[[Managed[T], float], float]
"""Returns the seconds until the next reconciliation, from an object and the usual interval."""

DISCONNECT_S = 10.0
PEEK_S = 1.0  # how long a failed sync may wait for the link record in its recording
BACKOFF_S = 1.0  # after the first failed creation; it doubles up to the poll interval
EARLY_S = 0.001  # a timer fires up to this early; a shorter wait would be repeated at once
AGAIN_S = 0.1  # until the next reconciliation of an object that was just written
SOON_S = 1.0
INTERVAL_MIN_S = 0.1  # between two reconciliations, with any hook or jitter
REPORT_S = 30.0  # beyond `timeout_s`, for storing the results of a reconciliation

CANNOT_UPDATE = "CannotUpdateManagedResource"  # an object that can't be written
CANNOT_START = "CannotInitializeManagedResource"


class KeyEventRecorder(Protocol):
    """Takes events: a `ControllerRuntime`, or any `Recorder`. Never blocks, never raises."""

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        ...


class Round(msgspec.Struct, Generic[T], eq=False):
    """One reconciliation of one object, and the deadline of its external calls in loop time."""

    managed: Managed[T]
    memory: Memory
    connection: ExternalConnection[T]
    deadline: float
    rejected: str = ""  # the error in the object's policies
    diff: str = ""  # what differs, if the external resource is not up to date


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
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        managed.kind.require_writable()
        seconds = {"timeout_s": timeout_s, "poll_interval_s": poll_interval_s}
        check_options("ManagedReconciler", dict.fromkeys(seconds, SECONDS), seconds)
        if poll_interval_hook is not None and poll_jitter_s:
            raise UsageError("set poll_interval_hook or poll_jitter_s, not both")
        self._primary, self._store, self._kind = managed, managed.informer.store, managed.kind
        names = AnnotationNames() if names is None else names
        self._names = names = AnnotationNames(names.domain, finalizer or names.finalizer)
        self._connecter = connect_disconnecter(connecter or NopConnecter())
        self._links, self._updater = None, critical_annotation_updater
        if managed.open_store is not None and isinstance(managed.kind, KvKind):
            self._links = Links(self._store, managed.kind.bucket, names, managed.open_store)
        elif critical_annotation_updater is None:
            self._updater = RetryingCriticalAnnotationUpdater(self._store, names=names)
        self._management, self._deletion, self._adopts = management_policy, deletion_policy, adopt
        self._external_name, self._recorder, self._clock = external_name, recorder, clock
        self._log, self._diff_level = EventLogger(logger, {}), logging.DEBUG
        self._grace_s, self._timeout_s = creation_grace_period_s, timeout_s
        self._poll_interval_s, self._poll_jitter_s = poll_interval_s, poll_jitter_s
        self._poll_interval_hook = poll_interval_hook
        self._counts_statuses = False  # every status increments the generation, in a cluster
        self._memories: dict[str, Memory] = {}

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await reconciler.blocking(function, *args)`."""

    def of_controller(self, *, adopt: bool) -> None:
        """Behave as in a `ManagedController`: with its *adopt* by default, and log differences."""
        if self._adopts is None:
            self._adopts = adopt
        self._diff_level = logging.INFO

    def replaced(self, change: Change[T]) -> bool:
        """Remember the link of an object in a cluster that a client has replaced without it.

        Nothing else has it then. Returns whether the object has just lost it. A name that only its
        user wrote is the user's to take back. Whoever removes only an intent without a result has
        found out that nothing was created.
        """
        before, after, metadata_in = change.before, change.after, self._kind.metadata
        if self._links is not None or after is None or not is_read(after):
            return False
        new, memory = metadata_in(after.value), self._memories.get(change.key)
        if CreationLink.of(new.annotations, self._names):
            if memory is not None:
                memory.replaced, memory.link = "", CreationLink()
            return False
        if before is None or not is_read(before):
            return False
        old = metadata_in(before.value)
        link = CreationLink.of(old.annotations, self._names)
        resolved = link.unknown and old.generation == new.generation
        if not link.owns(link.external_name) or resolved or old.uid != new.uid:
            return False
        memory = self._memories.setdefault(change.key, Memory())
        memory.replaced, memory.link = new.uid, link
        return True

    def forget(self, change: Change[T]) -> None:
        """Forget what is out of date after a change of an object that another process holds."""
        memory = self._memories.get(change.key)
        if memory is None:
            return
        if change.after is None:
            del self._memories[change.key]
        elif memory.replaced:
            memory.replaced, memory.link = "", CreationLink()

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
            run = await self._find(key, memory)
            if run is None:
                self._memories.pop(key, None)
                return None
            return await self._reconcile(run)
        except Exception as error:
            failed = not isinstance(error, StoreError | RetryAfter)
            if tape is not None and failed and self._links is not None:
                # a corrected client leads to the record, so a recording needs it
                with suppress(NatsctlError, TimeoutError):
                    async with asyncio.timeout(PEEK_S):
                        await self._links.recorded(key)
            raise
        finally:
            if memory == Memory():
                self._memories.pop(key, None)

    async def _find(self, key: str, memory: Memory) -> Round[T] | None:
        """Read the object, or its last state if it was deleted despite its finalizer.

        Its link comes from the record, if the object lacks it.
        """
        gone = False
        try:
            stored = await self._store.get(key)
        except NotFoundError as missing:
            known = missing.deleted_at is not None or memory.replaced
            last = await self._primary.last_state(key) if known else None
            if last is None:
                return None
            stored, gone = last, True
        managed = Managed(self._kind, stored, names=self._names, clock=self._clock, gone=gone)
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        run = Round(managed, memory, ExternalConnection(self._connecter, managed), deadline)
        if self._links is not None and (not managed.link or managed.link.unknown):
            recorded = await self._links.read(key, memory)
            managed.recovered = bool(recorded) and not managed.link
            if managed.recovered or recorded.answers(managed.link):
                managed.relink(recorded)
        elif memory.replaced and memory.replaced == managed.metadata.uid and not managed.link:
            managed.recovered = True
            managed.relink(memory.link)
        await self._catch_up(run)
        if self._external_name is not None and not managed.external_name:
            managed.suggest_name(self._external_name(managed))
        return None if gone and not (managed.recovered or managed.held) else run

    async def _reconcile(self, run: Round[T]) -> float | None:
        managed, memory, facts = run.managed, run.memory, self._facts(run)
        action = decide(facts)
        if action != "observe":
            return await self._take(action, run)
        async with self._connected(run):
            facts["observed"] = await self._observed(run)
            action, clock = decide(facts), asyncio.get_running_loop().time
            revision, until = memory.creation_waits or (0, 0.0)
            left_s, creates = until - clock(), action == "create"
            if creates and left_s > EARLY_S and managed.stored.revision == revision:
                raise RetryAfter(
                    left_s, f"the creation for {managed.key} failed and is retried later"
                )
            try:
                after_s = await self._take(action, run)
            except Exception as error:
                if creates:
                    # the queue can't delay the retry: storing the result on the object enqueues it
                    memory.failures += 1
                    limit_s = max(self._poll_interval_s, BACKOFF_S)
                    wait_s = backoff(memory.failures, base_s=BACKOFF_S, limit_s=limit_s)
                    wait_s = error.delay_s if isinstance(error, RetryAfter) else wait_s
                    memory.creation_waits = managed.stored.revision, clock() + wait_s
                raise
            memory.failures, memory.creation_waits = 0, None
            return after_s

    async def _take(self, action: str, run: Round[T]) -> float | None:
        step: Callable[[Round[T]], Awaitable[float | None]] = getattr(self, f"_{action}")
        return await step(run)

    # ---- the situation

    def _facts(self, run: Round[T]) -> Facts:
        managed, memory, names, link = run.managed, run.memory, self._names, run.managed.link
        try:
            may = permissions(managed, names, self._management, self._deletion)
        except InvalidObjectError as error:
            run.rejected, may = str(error), frozenset()
        # the grace period ends by the clock of the event loop too, if the time of day doesn't go on
        age_s, now = link.age_s(self._clock()), asyncio.get_running_loop().time()
        creation = link.pending + link.succeeded
        if age_s is None or age_s >= self._grace_s:
            memory.seen = None
        elif memory.seen is None or memory.seen[0] != creation:
            memory.seen = creation, now
        recent = memory.seen is not None and now - memory.seen[1] < self._grace_s
        pause = active_pause(managed.policies.get(names.paused), self._clock())
        return {
            "paused": pause is not None,
            "valid": not run.rejected,
            "deleting": managed.is_going,
            "held": managed.recovered or managed.held,
            "shared": not managed.gone
            and not names.finalizers.issuperset(managed.metadata.finalizers),
            "may_create": "create" in may,
            "may_update": "update" in may,
            "may_delete": "delete" in may,
            "unknown": link.unknown,
            "named": self._external_name is not None,
            # An observation may be older than the one before. So only a requested deletion, and not
            # an earlier observation, shows that a missing resource isn't one that appears again.
            "recent": recent and not (managed.is_going and memory.deletion_at is not None),
            "owned": self._adopts is None or managed.owned or not may,
            "may_adopt": self._may_adopt(managed),
            "observed": "not yet",
        }

    def _may_adopt(self, managed: Managed[T]) -> bool:
        said, name = managed.policies.get(self._names.adopt, "").lower(), self._external_name
        if said:
            return said == "true"
        if self._adopts:
            return True
        # version 0.2 may have written the name, and the finalizer with it
        own = name is not None and managed.held and managed.external_name == name(managed)
        return managed.named_by_user and not own

    @asynccontextmanager
    async def _connected(self, run: Round[T]) -> AsyncIterator[None]:
        async with self._calling(run, "connect", "CannotConnectToProvider"):
            await run.connection.connect()
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(DISCONNECT_S):
                    await run.connection.disconnect()
            except Exception as error:  # noqa: BLE001 - the reconciliation itself has succeeded
                text = f"cannot disconnect: {error_text(error)}"
                self._event(run, "CannotDisconnectFromProvider", text, warns=True)

    async def _observed(self, run: Round[T]) -> Observed:
        managed, memory = run.managed, run.memory
        async with self._calling(run, "observe", "CannotObserveExternalResource"):
            observation = await run.connection.observe()
            if self._adopts is not None and not managed.owned:
                managed.drop_name()
            initialized = observation.exists and observation.late_initialized
            initialized = initialized and bool(managed.additions() or managed.annotations_differ)
        diff = observation.diff
        if diff and diff != memory.diff:
            text = "external resource differs"
            self._log.log(self._diff_level, text, key=managed.key, difference=diff)
        memory.diff = diff
        if not observation.exists:
            return "absent"
        if initialized:
            return "late-initialized"
        if observation.up_to_date:
            return "current"
        run.diff = diff
        return "different"

    # ---- steps without an observation

    async def _pause(self, run: Round[T]) -> None:
        synced, paused = run.managed.condition(SYNCED), Condition.reconcile_paused()
        if synced is None or synced.reason != paused.reason:
            text = "Reconciliation is paused via the pause annotation"
            self._event(run, "ReconciliationPaused", text)
        await self._status(run, paused)

    async def _reject(self, run: Round[T]) -> None:
        await self._not_synced(run, CANNOT_START, run.rejected)

    async def _ask(self, run: Round[T]) -> None:
        managed, names = run.managed, self._names
        advice = "cannot determine creation result - check whether the external resource exists"
        if isinstance(managed.kind, KubeKind):
            advice = (
                f"{advice}; if so, set the {names.external_name} annotation to its name; "
                f"then remove the {names.create_pending} annotation"
            )
        else:
            advice = f"{advice}; then run: natsctl repair external resolve {_place(managed)}"
        conditions = () if managed.is_going else (Condition.creating(),)
        await self._not_synced(run, CANNOT_START, advice, *conditions)

    async def _release(self, run: Round[T]) -> None:
        """Remove the record and then the finalizer, so that a crash leaves no record behind."""
        key, memory = run.managed.key, run.memory
        async with self._storing(run, "the removal of the finalizer", Condition.deleting()):
            if self._links is not None:
                await self._links.forget(key)
            if run.managed.gone:
                await self._primary.forget(key)
            else:
                await self._primary.remove_finalizer(key, *self._names.finalizers)
        memory.link_revision, memory.link, memory.replaced = None, CreationLink(), ""
        memory.unstored, memory.deletion_at = None, None

    # ---- steps after an observation

    async def _wait(self, run: Round[T]) -> float:
        managed, grace_s = run.managed, self._grace_s
        age_s = managed.link.age_s(self._clock()) or 0.0
        ready = managed.condition(READY)
        if ready is not None and ready.status == "True" and not managed.is_going:
            text = (
                "The external resource is missing, and is created again if it is missing "
                f"{grace_s:g} s after its creation"
            )
            self._event(run, "WaitingForExternalResource", text)
        return min(self._soon_s(age_s), max(grace_s - age_s, 0.0) + AGAIN_S)

    async def _delete(self, run: Round[T]) -> float:
        memory = run.memory
        run.managed.set_conditions(Condition.deleting())
        async with self._calling(run, "delete", "CannotDeleteExternalResource"):
            await run.connection.write("delete")
        text = "Successfully requested deletion of external resource"
        self._event(run, "DeletedExternalResource", text)
        await self._status(run, Condition.deleting(), Condition.reconcile_success())
        now = asyncio.get_running_loop().time()
        if memory.deletion_at is None:
            memory.deletion_at = now
        return self._soon_s(now - memory.deletion_at)

    async def _keep(self, run: Round[T]) -> None:
        key, name = run.managed.key, _name(run.managed)
        text = f"{key} is deleted, and {name} stays, because natsctl didn't create it"
        self._event(run, "KeptExternalResource", text)
        await self._release(run)

    async def _delay(self, run: Round[T]) -> float:
        finalizers, ours = run.managed.metadata.finalizers, self._names.finalizers
        others = ", ".join(name for name in finalizers if name not in ours)
        waits = Condition.deleting(f"waiting for the finalizers of others: {others}")
        await self._status(run, waits, Condition.reconcile_success())
        return self._poll_s(run)

    async def _create(self, run: Round[T]) -> float | None:
        """Store the intent, create the external resource, and store the result.

        After a crash before the result is stored, the result is unknown.
        """
        managed, links, creating = run.managed, self._links, Condition.creating()
        given = managed.given_name
        managed.accept_name()
        run.memory.deletion_at = None
        async with self._storing(run, "the intent to create", creating):
            recorded = CreationLink()
            if links is not None:
                recorded = await links.read(managed.key, run.memory)
            if recorded.contradicts(managed.link):
                return await self._refuse(run, recorded)
            await self._store_intent(run, given)
        async with self._reported(run, "create", "CannotCreateExternalResource", creating):
            try:
                async with self._limited(run, "create"):
                    await run.connection.write("create")
            except Exception as error:
                if not may_have_created(error):
                    await self._store_failure(run, error)
                raise
            managed.check(status=False)  # if it raises, the result stays unknown
        await self._store_success(run)
        text = "Successfully requested creation of external resource"
        self._event(run, "CreatedExternalResource", text)
        if links is None:
            await self._status(run, creating, Condition.reconcile_success())
            return AGAIN_S
        # observe, so that one write stores the result and the status; the record has the result
        try:
            async with self._limited(run, "observe"):
                observation = await run.connection.observe()
        except Exception:  # noqa: BLE001 - the next reconciliation observes again and reports it
            observation = Observation()
        if observation.exists and observation.up_to_date and not observation.late_initialized:
            return await self._rest(run)
        managed.keep_only()
        if not managed.linked_only:
            await self._status(run)
        return AGAIN_S

    async def _refuse(self, run: Round[T], recorded: CreationLink) -> float | None:
        managed = run.managed
        if recorded.unknown:
            managed.relink(recorded)
            await self._ask(run)
            return None
        text = (
            f"cannot create: {managed.key} is linked to {recorded.external_name}, but names "
            f"{managed.external_name or 'nothing'}, which does not exist; set the annotation "
            f"{self._names.external_name} to the right name, or let natsctl create another "
            f"resource: natsctl repair external forget {_place(managed)}"
        )
        await self._not_synced(run, "CannotCreateExternalResource", text, Condition.creating())
        return self._poll_s(run)

    async def _report_absent(self, run: Round[T]) -> float:
        text = "external resource does not exist, and its policies do not let it be created"
        await self._not_synced(run, "CannotObserveExternalResource", text)
        return self._poll_s(run)

    async def _adopt(self, run: Round[T]) -> float:
        """Store that the resource is taken over, in the object first: its writer decides."""
        managed, plan = run.managed, environment().plan
        managed.adopt()
        async with self._storing(run, "the adoption"):
            await self._replace(managed, managed.document())
            await self._link(run)
        if plan is not None:
            plan.called(place_of(managed.kind), managed.kind, managed.key, "adopt")
        text = f"{_name(managed)}, which existed before: it's changed and deleted with this object"
        self._event(run, "AdoptedExternalResource", f"Adopted {text}")
        return AGAIN_S

    async def _disown(self, run: Round[T]) -> float:
        managed, kind, names = run.managed, self._kind, self._names
        advice = f'set the annotation {names.adopt} to "true"'
        if isinstance(kind, KubeKind):
            namespace, _, name = managed.key.rpartition("/")
            place = f" -n {namespace}" if namespace else ""
            advice = f"run: kubectl annotate {kind.kind} {name}{place} {names.adopt}=true"
        elif isinstance(kind, KvKind) and DOMAIN in names.domains:
            advice = f"run: natsctl repair external adopt {_place(managed)}"
        text = (
            f"{_name(managed)} exists, and natsctl didn't create it, so nothing is changed; to "
            f"adopt it, so that it's changed and deleted with {managed.key}, {advice}"
        )
        await self._not_synced(run, "NotOwned", text, Condition.not_owned(text))
        return self._poll_s(run)

    async def _settle(self, run: Round[T]) -> float:
        await self._store_success(run)
        text = "The creation with the unknown result has succeeded"
        self._event(run, "CreatedExternalResource", text)
        return AGAIN_S

    async def _late_initialize(self, run: Round[T]) -> float:
        additions = run.managed.additions()
        async with self._storing(run, "late initialization"):
            await self._link(run)
            await self._replace(run.managed, run.managed.document(spec=additions))
        return AGAIN_S

    async def _update(self, run: Round[T]) -> float:
        managed = run.managed
        async with self._storing(run, "the finalizer"):
            await self._link(run)
            if not managed.held:
                await self._replace(managed, managed.document())
        async with self._calling(run, "update", "CannotUpdateExternalResource"):
            await run.connection.write("update")
        differs = run.diff and f": {run.diff}"
        text = f"Successfully requested update of external resource{differs}"
        self._event(run, "UpdatedExternalResource", text)
        await self._status(run, Condition.reconcile_success())
        return self._poll_s(run)

    async def _rest(self, run: Round[T]) -> float:
        managed, success = run.managed, Condition.reconcile_success()
        if run.diff:
            text = f"its policies don't permit an update: {run.diff}"
            success, before = Condition.reconcile_success(text), managed.condition(SYNCED)
            if before is None or before.message != success.message:
                self._event(run, "ExternalResourceDiffers", text)
        if READY not in managed.set_types:
            managed.set_conditions(Condition.available())
        async with self._storing(run, "the finalizer"):
            await self._link(run)
            if not managed.held:
                await self._status(run, success, hold=True)
        await self._status(run, success)
        return self._poll_s(run)

    # ---- the next reconciliation

    def _poll_s(self, run: Round[T]) -> float:
        hook, interval_s = self._poll_interval_hook, self._poll_interval_s
        if hook is not None:
            after_s = hook(run.managed, interval_s)
            if not is_delay(after_s):
                raise HandlerError(f"poll_interval_hook returned {shown(after_s)}: return seconds")
            return max(INTERVAL_MIN_S, after_s)
        jitter_s = random.uniform(-self._poll_jitter_s, self._poll_jitter_s)  # noqa: S311 - spreads load
        return max(INTERVAL_MIN_S, interval_s + jitter_s)

    def _soon_s(self, age_s: float) -> float:
        """Return the interval for an operation in progress: as long as it has already taken."""
        return min(max(age_s, SOON_S), max(self._poll_interval_s, SOON_S))

    # ---- reports

    def _event(self, run: Round[T], reason: str, message: str, *, warns: bool = False) -> None:
        """Record an event and log it, as a warning if it *warns* of a problem."""
        key, write = run.managed.key, self._log.warning if warns else self._log.info
        write("managed resource event", key=key, reason=reason, note=message)
        if self._recorder is not None:
            type_ = EventType.WARNING if warns else EventType.NORMAL
            self._recorder.event(key, type_, reason, message)

    async def _not_synced(
        self, run: Round[T], reason: str, message: str, *conditions: Condition
    ) -> None:
        failed, before = Condition.reconcile_error(message), run.managed.condition(SYNCED)
        if before is None or (before.reason, before.message) != (failed.reason, failed.message):
            self._event(run, reason, message, warns=True)
        await self._status(run, *conditions, failed)

    async def _failed(
        self, run: Round[T], reason: str, message: str, *conditions: Condition
    ) -> None:
        """Report a failure that is also raised; a status that cannot be stored is logged."""
        self._event(run, reason, message, warns=True)
        try:
            async with asyncio.timeout(REPORT_S):
                await self._status(run, *conditions, Condition.reconcile_error(message))
        except (StoreError, TimeoutError) as error:
            self._log.warning("cannot store the status", key=run.managed.key, error=error)

    async def _status(self, run: Round[T], *conditions: Condition, hold: bool = False) -> None:
        """Store the status with these conditions, if it differs from the stored one.

        The write also stores changes of the link, and if *hold*, the finalizer. Does nothing for an
        object that is gone.
        """
        managed, key = run.managed, run.managed.key
        managed.set_conditions(*conditions)
        if managed.gone:
            return
        hold = hold or managed.held
        with suppress(NotFoundError):
            if isinstance(managed.kind, KubeKind):
                managed.reset(await self._patched(managed, hold=hold))
                return
            status = self._patch(managed)

            def change(current: Stored | None) -> bytes:
                if current is None:
                    raise NotFoundError(f"{key} is gone")
                return managed.over(current.value, hold=hold, status=status)

            managed.reset(await self._primary.rewrite(key, change, seen=managed.stored))

    def _patch(self, managed: Managed[T]) -> Document:
        generation, patch = managed.metadata.generation, managed.status_patch
        counts = not generation or self._counts_statuses
        return patch if counts else {**patch, "observedGeneration": generation}

    async def _patched(self, managed: Managed[T], *, hold: bool) -> Stored:
        """Patch the status in a cluster, even if the object has changed since it was read."""
        key = managed.key
        if managed.unsettled(hold=hold):
            await self._replace(managed, managed.over(managed.stored.value, hold=hold, status={}))
        patch, document = self._patch(managed), documents.parse(managed.stored.value)
        if documents.with_status(document, patch) == document:
            return managed.stored
        store = cast("ManifestStore", self._store)  # its kind is a `KubeKind`
        send, revision = partial(store.patch_status, key, patch), managed.stored.revision
        try:
            stored = await self._primary.write(key, partial(send, revision=revision))
        except ConflictError:
            return await self._primary.write(key, send)
        # without a status subresource, storing the observed generation would never end
        if managed.kind.metadata(stored.value).generation > managed.metadata.generation:
            self._counts_statuses = True
        return stored

    # ---- limits

    @asynccontextmanager
    async def _calling(self, run: Round[T], verb: str, reason: str) -> AsyncIterator[None]:
        """Limit the external call inside to the remaining time; reports and raises its errors."""
        async with self._reported(run, verb, reason), self._limited(run, verb):
            yield

    @asynccontextmanager
    async def _reported(
        self, run: Round[T], verb: str, reason: str, *conditions: Condition
    ) -> AsyncIterator[None]:
        try:
            yield
        except RetryAfter:
            raise
        except Exception as error:
            differs = f" ({run.diff})" if verb == "update" and run.diff else ""
            message = f"cannot {verb}: {error_text(error)}{differs}"[:MESSAGE_MAX]
            await self._failed(run, reason, message, *conditions)
            raise

    @asynccontextmanager
    async def _limited(self, run: Round[T], verb: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(run.deadline) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            limit_s = self._timeout_s
            message = f"{verb} was cut short: external calls took longer than {limit_s:g} s"
            raise TimeoutError(message) from error

    @asynccontextmanager
    async def _storing(
        self, run: Round[T], change: str, *conditions: Condition
    ) -> AsyncIterator[None]:
        """Report and raise a failure to store *change*.

        Raises `RetryAfter` instead if the object has changed since it was read.
        """
        try:
            yield
        except (ConflictError, NotFoundError) as error:
            text = f"{run.managed.key} has changed since it was read and is reconciled again"
            raise RetryAfter(AGAIN_S, text) from error
        except (StoreError, UsageError) as error:
            message = f"cannot store {change}: {error_text(error)}"[:MESSAGE_MAX]
            await self._failed(run, CANNOT_UPDATE, message, *conditions)
            raise

    # ---- writes

    async def _link(self, run: Round[T]) -> None:
        """Record the link, unless it's only a name: its user may take that back."""
        managed = run.managed
        if not managed.owned and self._adopts is not None:
            return
        managed.accept_name()
        if self._links is not None and managed.link:
            await self._links.write(managed.key, managed.link, run.memory)

    async def _replace(self, managed: Managed[T], value: bytes) -> None:
        key, revision = managed.key, managed.stored.revision
        update = partial(self._store.update, key, value, revision=revision)
        managed.advance(await self._primary.write(key, update))

    async def _store_intent(self, run: Round[T], given: str) -> None:
        managed, revision = run.managed, run.managed.stored.revision
        managed.begin(given)
        managed.set_conditions(Condition.creating())
        status = None if isinstance(managed.kind, KubeKind) else self._patch(managed)
        value = managed.document(status=status)
        try:
            await self._replace(managed, value)
            await self._link(run)
        except ConflictError:
            raise
        except StoreError:
            # the intent may be stored, but nothing is created now
            withdrawn = copy.copy(managed)
            withdrawn.reset(Stored(managed.key, revision, value))
            run.memory.unstored = _ended(withdrawn, created=False, withdrawn=True)
            managed.reset(managed.stored)
            raise

    async def _store_success(self, run: Round[T]) -> None:
        async with self._storing(run, "the result of the creation", Condition.creating()):
            run.memory.unstored = _ended(run.managed, created=True)
            await self._store_result(run)

    async def _store_failure(self, run: Round[T], error: Exception) -> None:
        """Store that nothing was created; log a failure to store, because *error* is raised."""
        try:
            run.memory.unstored = _ended(run.managed, created=False)
            await self._store_result(run)
            if isinstance(error, RetryAfter):
                await self._status(run, Condition.creating())
        except StoreError as unstored:
            message = f"cannot store the result of the creation: {error_text(unstored)}"
            self._event(run, CANNOT_UPDATE, message[:MESSAGE_MAX], warns=True)

    async def _catch_up(self, run: Round[T]) -> None:
        """Store the result of a creation that could not be stored before."""
        managed, memory, unstored = run.managed, run.memory, run.memory.unstored
        if unstored is None:
            return
        lost = f"{managed.key} was replaced, or another creation has begun"
        lost = "" if unstored.withdrawn else lost
        if managed.link.pending == unstored.pending:
            annotations: Document = {**managed.annotations}
            patched = documents.merge_patch(annotations, {**unstored.annotations})
            managed.annotations = {name: str(text) for name, text in patched.items()}
            managed.keep()
            try:
                await self._store_result(run)
            except NotFoundError:
                return  # its last state has the result now, so the external resource is deleted
            except ConflictError as error:
                lost = str(error)
            else:
                return
        memory.unstored = None
        if lost:
            name = unstored.annotations.get(self._names.external_name) or "none"
            text = f"{lost}; the result of the last one is lost: {name}"
            self._event(run, CANNOT_UPDATE, text, warns=True)

    async def _store_result(self, run: Round[T]) -> None:
        """Store the result of a creation, which the object's annotations have.

        It goes to the record first, and to the object with its next write. Without records, an
        updater stores it in the object at once.
        """
        managed, memory, links, updater = run.managed, run.memory, self._links, self._updater
        if links is not None:
            await retry_store_errors(lambda: links.write(managed.key, managed.link, memory))
            managed.keep_only()
        if updater is not None:

            async def update() -> Stored:
                if isinstance(updater, CriticalAnnotationUpdater):
                    await updater.update_critical_annotations(managed)
                else:
                    await updater(managed)
                return managed.stored

            await self._primary.write(managed.key, update)
        memory.unstored = None


def _ended(managed: Managed[Any], *, created: bool, withdrawn: bool = False) -> Unstored:
    """Give the intent its result; a process remembers what this returns until it's stored."""
    managed.end(created=created)
    return Unstored(managed.link.pending, managed.changed_annotations, withdrawn)


def _place(managed: Managed[Any]) -> str:
    kind = managed.kind
    return f"{kind.bucket if isinstance(kind, KvKind) else kind.name}/{managed.key}"


def _name(managed: Managed[Any]) -> str:
    return managed.external_name or "its external resource"
