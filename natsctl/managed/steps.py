"""One reconciliation: the step of each action, with its external call, writes and reports."""

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec

from natsctl.core.environment import environment
from natsctl.core.plan.record import place_of
from natsctl.core.readers import Primary
from natsctl.errors import (
    ConflictError,
    HandlerError,
    NotFoundError,
    RetryAfter,
    StoreError,
    UsageError,
    is_delay,
)
from natsctl.managed.external import (
    ExternalConnectDisconnecter,
    ExternalConnection,
    Observation,
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
    retry_store_errors,
)
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import DOMAIN
from natsctl.model.store import EventType, ManifestStore, Stored
from natsctl.telemetry.hiding import error_text, shown
from natsctl.telemetry.logger import EventLogger

T = TypeVar("T")

PollIntervalHook: TypeAlias = Callable[[Managed[T], float], float]
"""Returns the seconds until the next reconciliation, from an object and the usual interval."""

AGAIN_S = 0.1  # until the next reconciliation of an object that was just written
SOON_S = 1.0
INTERVAL_MIN_S = 0.1  # between two reconciliations, with any hook or jitter

REPORT_S = 30.0
"""The time in seconds beyond `timeout_s` for storing the results of a reconciliation."""

CANNOT_UPDATE = "CannotUpdateManagedResource"
"""The reason of events about an object that cannot be written."""


class KeyEventRecorder(Protocol):
    """Takes events: a `ControllerRuntime`, or any `Recorder`. Never blocks, never raises."""

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record an event about the object *key*."""
        ...


class ReconcilerParts(msgspec.Struct, Generic[T], eq=False, kw_only=True):
    """The options and stores of a reconciler. `ManagedReconciler` documents the options.

    `adopt` is None if every resource that is observed is taken over without a word. In a cluster,
    `counts_statuses` says that every status increments the generation.
    """

    primary: Primary[T]
    external: ExternalConnectDisconnecter[T]
    recorder: KeyEventRecorder | None
    log: EventLogger
    links: Links | None
    updater: CriticalAnnotationUpdater | CriticalAnnotationUpdateFn | None
    names: AnnotationNames
    adopt: bool | None
    grace_s: float
    poll_interval_s: float
    poll_interval_hook: PollIntervalHook[T] | None
    poll_jitter_s: float
    timeout_s: float
    clock: Callable[[], datetime]
    counts_statuses: bool = False


class Reconciliation(Generic[T]):
    """One reconciliation of one object: its connection, and the deadline of its external calls."""

    def __init__(self, parts: ReconcilerParts[T], managed: Managed[T], memory: Memory) -> None:
        self._parts, self._primary = parts, parts.primary
        self._store = parts.primary.informer.store
        self.managed, self.memory = managed, memory
        self.connection = ExternalConnection(parts.external, managed)
        self.deadline = asyncio.get_running_loop().time() + parts.timeout_s
        self.rejected = ""  # the error in the object's policies
        self.diff = ""  # what differs, if the external resource is not up to date

    async def take(self, action: str) -> float | None:
        """Take the step; returns the seconds until the next reconciliation, or None."""
        step: Callable[[], Awaitable[float | None]] = getattr(self, f"_{action}")
        return await step()

    # ---- without an observation

    async def _pause(self) -> None:
        synced, paused = self.managed.condition(SYNCED), Condition.reconcile_paused()
        if synced is None or synced.reason != paused.reason:
            text = "Reconciliation is paused via the pause annotation"
            self.event("ReconciliationPaused", text)
        await self._status(paused)

    async def _reject(self) -> None:
        await self._not_synced("CannotInitializeManagedResource", self.rejected)

    async def _ask(self) -> None:
        managed, names = self.managed, self._parts.names
        advice = "cannot determine creation result - check whether the external resource exists"
        if isinstance(managed.kind, KubeKind):
            advice = (
                f"{advice}; if so, set the {names.external_name} annotation to its name; "
                f"then remove the {names.create_pending} annotation"
            )
        else:
            advice = f"{advice}; then run: natsctl repair external resolve {_named(managed)}"
        conditions = () if managed.is_going else (Condition.creating(),)
        await self._not_synced("CannotInitializeManagedResource", advice, *conditions)

    async def _release(self) -> None:
        """Remove the record and then the finalizer, so that a crash leaves no record behind."""
        parts, key = self._parts, self.managed.key
        async with self._storing("the removal of the finalizer", Condition.deleting()):
            if parts.links is not None:
                await parts.links.forget(key)
            if self.managed.gone:
                await self._primary.forget(key)
            else:
                await self._primary.remove_finalizer(key, *parts.names.finalizers)
        memory = self.memory
        memory.link_revision, memory.link = None, CreationLink()
        memory.unstored, memory.deletion_at = None, None

    # ---- after an observation

    async def _wait(self) -> float:
        managed, grace_s = self.managed, self._parts.grace_s
        age_s = managed.link.age_s(self._parts.clock()) or 0.0
        ready = managed.condition(READY)
        if ready is not None and ready.status == "True" and not managed.is_going:
            text = (
                "The external resource is missing, and is created again if it is missing "
                f"{grace_s:g} s after its creation"
            )
            self.event("WaitingForExternalResource", text)
        return min(self._soon_s(age_s), max(grace_s - age_s, 0.0) + AGAIN_S)

    async def _delete(self) -> float:
        self.managed.set_conditions(Condition.deleting())
        async with self.calling("delete", "CannotDeleteExternalResource"):
            await self.connection.write("delete")
        text = "Successfully requested deletion of external resource"
        self.event("DeletedExternalResource", text)
        await self._status(Condition.deleting(), Condition.reconcile_success())
        now = asyncio.get_running_loop().time()
        if self.memory.deletion_at is None:
            self.memory.deletion_at = now
        return self._soon_s(now - self.memory.deletion_at)

    async def _keep(self) -> None:
        name = self.managed.external_name or "its external resource"
        text = f"{self.managed.key} is deleted, and {name} stays, because natsctl didn't create it"
        self.event("KeptExternalResource", text)
        await self._release()

    async def _delay(self) -> float:
        managed, ours = self.managed, self._parts.names.finalizers
        foreign_finalizers = ", ".join(
            name for name in managed.metadata.finalizers if name not in ours
        )
        waits = Condition.deleting(f"waiting for the finalizers of others: {foreign_finalizers}")
        await self._status(waits, Condition.reconcile_success())
        return self._poll_s()

    async def _create(self) -> float | None:
        """Store the intent, create the external resource, and store the result.

        After a crash before the result is stored, the result is unknown.
        """
        managed, links = self.managed, self._parts.links
        given = managed.given_name
        managed.accept_name()
        self.memory.deletion_at = None
        async with self._storing("the intent to create", Condition.creating()):
            recorded = CreationLink()
            if links is not None:
                recorded = await links.read(managed.key, self.memory)
            if recorded.contradicts(managed.link):
                return await self._refuse(recorded)
            await self._store_intent(given)
        async with self._reported("create", "CannotCreateExternalResource", Condition.creating()):
            try:
                async with self._limited("create"):
                    await self.connection.write("create")
            except Exception as error:
                if not may_have_created(error):
                    await self._fail(error)
                raise
            managed.check(status=False)  # if it raises, the result stays unknown
        await self._store_success()
        self.event(
            "CreatedExternalResource", "Successfully requested creation of external resource"
        )
        if links is None:
            await self._status(Condition.creating(), Condition.reconcile_success())
            return AGAIN_S
        # observe, so that one write stores the result and the status; the record has the result
        try:
            async with self._limited("observe"):
                observation = await self.connection.observe()
        except Exception:  # noqa: BLE001 - the next reconciliation observes again and reports it
            observation = Observation()
        if observation.exists and observation.up_to_date and not observation.late_initialized:
            return await self._rest()
        managed.keep_only()
        if not managed.linked_only:
            await self._status()
        return AGAIN_S

    async def _refuse(self, recorded: CreationLink) -> float | None:
        managed = self.managed
        if recorded.unknown:
            managed.relink(recorded)
            await self._ask()
            return None
        text = (
            f"cannot create: {managed.key} is linked to {recorded.external_name}, but names "
            f"{managed.external_name or 'nothing'}, which does not exist; set the annotation "
            f"{self._parts.names.external_name} to the right name, or let natsctl create another "
            f"resource: natsctl repair external forget {_named(managed)}"
        )
        await self._not_synced("CannotCreateExternalResource", text, Condition.creating())
        return self._poll_s()

    async def _report_absent(self) -> float:
        text = "external resource does not exist, and its policies do not let it be created"
        await self._not_synced("CannotObserveExternalResource", text)
        return self._poll_s()

    async def _adopt(self) -> float:
        """Store that the resource is taken over, in the object first: its writer decides."""
        managed = self.managed
        managed.adopt()
        async with self._storing("the adoption"):
            await self._replace(managed.document())
            await self._link()
        plan = environment().plan
        if plan is not None:
            plan.called(place_of(managed.kind), managed.kind, managed.key, "adopt")
        name = managed.external_name or "its external resource"
        text = f"Adopted {name}, which existed before: it's changed and deleted with this object"
        self.event("AdoptedExternalResource", text)
        return AGAIN_S

    async def _disown(self) -> float:
        managed, kind, names = self.managed, self.managed.kind, self._parts.names
        advice = f'set the annotation {names.adopt} to "true"'
        if isinstance(kind, KubeKind):
            namespace, _, name = managed.key.rpartition("/")
            place = f" -n {namespace}" if namespace else ""
            advice = f"run: kubectl annotate {kind.kind} {name}{place} {names.adopt}=true"
        elif isinstance(kind, KvKind) and DOMAIN in names.domains:
            advice = f"run: natsctl repair external adopt {_named(managed)}"
        text = (
            f"{managed.external_name or 'its external resource'} exists, and natsctl didn't create "
            "it, so nothing is changed; to adopt it, so that it's changed and deleted with "
            f"{managed.key}, {advice}"
        )
        await self._not_synced("NotOwned", text, Condition.not_owned(text))
        return self._poll_s()

    async def _settle(self) -> float:
        await self._store_success()
        text = "The creation with the unknown result has succeeded"
        self.event("CreatedExternalResource", text)
        return AGAIN_S

    async def _late_initialize(self) -> float:
        managed = self.managed
        additions = managed.additions()
        async with self._storing("late initialization"):
            await self._link()
            await self._replace(managed.document(spec=additions))
        return AGAIN_S

    async def _update(self) -> float:
        managed = self.managed
        async with self._storing("the finalizer"):
            await self._link()
            if not managed.held:
                await self._replace(managed.document())
        async with self.calling("update", "CannotUpdateExternalResource"):
            await self.connection.write("update")
        differs = self.diff and f": {self.diff}"
        text = f"Successfully requested update of external resource{differs}"
        self.event("UpdatedExternalResource", text)
        await self._status(Condition.reconcile_success())
        return self._poll_s()

    async def _rest(self) -> float:
        managed, success = self.managed, Condition.reconcile_success()
        if self.diff:
            text = f"its policies don't permit an update: {self.diff}"
            success, before = Condition.reconcile_success(text), managed.condition(SYNCED)
            if before is None or before.message != success.message:
                self.event("ExternalResourceDiffers", text)
        if READY not in managed.set_types:
            managed.set_conditions(Condition.available())
        async with self._storing("the finalizer"):
            await self._link()
            if not managed.held:
                await self._status(success, hold=True)
        await self._status(success)
        return self._poll_s()

    # ---- the next reconciliation

    def _poll_s(self) -> float:
        parts = self._parts
        if parts.poll_interval_hook is not None:
            after_s = parts.poll_interval_hook(self.managed, parts.poll_interval_s)
            if not is_delay(after_s):
                raise HandlerError(f"poll_interval_hook returned {shown(after_s)}: return seconds")
            return max(INTERVAL_MIN_S, after_s)
        jitter_s = random.uniform(-parts.poll_jitter_s, parts.poll_jitter_s)  # noqa: S311 - spreads load
        return max(INTERVAL_MIN_S, parts.poll_interval_s + jitter_s)

    def _soon_s(self, age_s: float) -> float:
        """Return the interval for an operation in progress: as long as it has already taken."""
        return min(max(age_s, SOON_S), max(self._parts.poll_interval_s, SOON_S))

    # ---- reports

    def event(self, reason: str, message: str, *, warns: bool = False) -> None:
        """Record an event and log it, as a warning if it *warns* of a problem."""
        key, parts = self.managed.key, self._parts
        write = parts.log.warning if warns else parts.log.info
        write("managed resource event", key=key, reason=reason, note=message)
        if parts.recorder is not None:
            type_ = EventType.WARNING if warns else EventType.NORMAL
            parts.recorder.event(key, type_, reason, message)

    async def _not_synced(self, reason: str, message: str, *conditions: Condition) -> None:
        failed, before = Condition.reconcile_error(message), self.managed.condition(SYNCED)
        if before is None or (before.reason, before.message) != (failed.reason, failed.message):
            self.event(reason, message, warns=True)
        await self._status(*conditions, failed)

    async def _failed(self, reason: str, message: str, *conditions: Condition) -> None:
        """Report a failure that is also raised; a status that cannot be stored is logged."""
        self.event(reason, message, warns=True)
        try:
            async with asyncio.timeout(REPORT_S):
                await self._status(*conditions, Condition.reconcile_error(message))
        except (StoreError, TimeoutError) as error:
            self._parts.log.warning("cannot store the status", key=self.managed.key, error=error)

    async def _status(self, *conditions: Condition, hold: bool = False) -> None:
        """Store the status with these conditions, if it differs from the stored one.

        The write also stores changes of the link, and if *hold*, the finalizer. Does nothing for an
        object that is gone.
        """
        managed, key = self.managed, self.managed.key
        managed.set_conditions(*conditions)
        if managed.gone:
            return
        hold = hold or managed.held
        with suppress(NotFoundError):
            if isinstance(managed.kind, KubeKind):
                managed.reset(await self._patched(hold=hold))
                return
            status = self._patch()

            def change(current: Stored | None) -> bytes:
                if current is None:
                    raise NotFoundError(f"{key} is gone")
                return managed.over(current.value, hold=hold, status=status)

            managed.reset(await self._primary.rewrite(key, change, seen=managed.stored))

    def _patch(self) -> Document:
        generation, patch = self.managed.metadata.generation, self.managed.status_patch
        counts = not generation or self._parts.counts_statuses
        return patch if counts else {**patch, "observedGeneration": generation}

    async def _patched(self, *, hold: bool) -> Stored:
        """Patch the status in a cluster, even if the object has changed since it was read."""
        managed, key = self.managed, self.managed.key
        if managed.unsettled(hold=hold):
            await self._replace(managed.over(managed.stored.value, hold=hold, status={}))
        patch, document = self._patch(), documents.parse(managed.stored.value)
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
            self._parts.counts_statuses = True
        return stored

    # ---- limits

    @asynccontextmanager
    async def calling(self, verb: str, reason: str) -> AsyncIterator[None]:
        """Limit the external call inside to the remaining time; reports and raises its errors."""
        async with self._reported(verb, reason), self._limited(verb):
            yield

    @asynccontextmanager
    async def _reported(
        self, verb: str, reason: str, *conditions: Condition
    ) -> AsyncIterator[None]:
        """Report and raise errors of the block, except `RetryAfter`."""
        try:
            yield
        except RetryAfter:
            raise
        except Exception as error:
            differs = f" ({self.diff})" if verb == "update" and self.diff else ""
            message = f"cannot {verb}: {error_text(error)}{differs}"[:MESSAGE_MAX]
            await self._failed(reason, message, *conditions)
            raise

    @asynccontextmanager
    async def _limited(self, verb: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(self.deadline) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            limit_s = self._parts.timeout_s
            message = f"{verb} was cut short: external calls took longer than {limit_s:g} s"
            raise TimeoutError(message) from error

    @asynccontextmanager
    async def _storing(self, change: str, *conditions: Condition) -> AsyncIterator[None]:
        """Report and raise a failure to store *change*.

        Raises `RetryAfter` instead if the object has changed since it was read.
        """
        try:
            yield
        except (ConflictError, NotFoundError) as error:
            text = f"{self.managed.key} has changed since it was read and is reconciled again"
            raise RetryAfter(AGAIN_S, text) from error
        except (StoreError, UsageError) as error:
            message = f"cannot store {change}: {error_text(error)}"[:MESSAGE_MAX]
            await self._failed(CANNOT_UPDATE, message, *conditions)
            raise

    # ---- writes

    async def _link(self) -> None:
        managed, links = self.managed, self._parts.links
        if managed.owned or self._parts.adopt is None:
            managed.accept_name()
        if links is not None and managed.link:
            await links.write(managed.key, managed.link, self.memory)

    async def _replace(self, value: bytes) -> None:
        key, revision = self.managed.key, self.managed.stored.revision
        update = partial(self._store.update, key, value, revision=revision)
        self.managed.advance(await self._primary.write(key, update))

    async def _store_intent(self, given: str) -> None:
        managed, revision = self.managed, self.managed.stored.revision
        managed.begin(given)
        managed.set_conditions(Condition.creating())
        status = None if isinstance(managed.kind, KubeKind) else self._patch()
        value = managed.document(status=status)
        try:
            await self._replace(value)
            await self._link()
        except ConflictError:
            raise
        except StoreError:
            # the intent may be stored, but nothing is created now
            withdrawn = copy.copy(managed)
            withdrawn.reset(Stored(managed.key, revision, value))
            self._end(withdrawn, created=False, withdrawn=True)
            managed.reset(managed.stored)
            raise

    async def _store_success(self) -> None:
        async with self._storing("the result of the creation", Condition.creating()):
            await self._store_result(created=True)

    async def _fail(self, error: Exception) -> None:
        """Store that nothing was created; log a failure to store, because *error* is raised."""
        try:
            await self._store_result(created=False)
            if isinstance(error, RetryAfter):
                await self._status(Condition.creating())
        except StoreError as unstored:
            message = f"cannot store the result of the creation: {error_text(unstored)}"
            self.event(CANNOT_UPDATE, message[:MESSAGE_MAX], warns=True)

    async def _store_result(self, *, created: bool) -> None:
        self._end(self.managed, created=created)
        await self._store_annotations()

    def _end(self, managed: Managed[T], *, created: bool, withdrawn: bool = False) -> None:
        """Give the intent its result, which this process remembers until it is stored."""
        managed.end(created=created)
        pending, changes = managed.link.pending, managed.changed_annotations
        self.memory.unstored = Unstored(pending, changes, withdrawn)

    async def catch_up(self) -> None:
        """Store the result of a creation that could not be stored before."""
        managed, unstored = self.managed, self.memory.unstored
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
                await self._store_annotations()
            except NotFoundError:
                return  # its last state has the result now, so the external resource is deleted
            except ConflictError as error:
                lost = str(error)
            else:
                return
        self.memory.unstored = None
        if lost:
            name = unstored.annotations.get(self._parts.names.external_name) or "none"
            text = f"{lost}; the result of the last one is lost: {name}"
            self.event(CANNOT_UPDATE, text, warns=True)

    async def _store_annotations(self) -> None:
        """Store the result of a creation, which the object's annotations have.

        It goes to the record first, and to the object with its next write. Without records, an
        updater stores it in the object at once.
        """
        managed, memory, parts = self.managed, self.memory, self._parts
        links, updater = parts.links, parts.updater
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


def _named(managed: Managed[Any]) -> str:
    kind = managed.kind
    return f"{kind.bucket if isinstance(kind, KvKind) else kind.name}/{managed.key}"
