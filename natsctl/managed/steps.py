"""Takes the step of each action: its external call, its writes and the next interval."""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from natsctl.core.compare_and_set import release
from natsctl.core.planning.record import current_plan, place_of
from natsctl.core.readers import Primary
from natsctl.core.sync import awaitable
from natsctl.errors import ConflictError, RetryAfter, StoreError
from natsctl.managed.calls import AGAIN_S, ExternalCalls, Reconciliation
from natsctl.managed.conditions import MESSAGE_MAX, READY, SYNCED, Condition
from natsctl.managed.creation.creation import begun, ended
from natsctl.managed.creation.links import CreationLink, Links
from natsctl.managed.creation.lost_answers import may_have_created
from natsctl.managed.creation.results import Results
from natsctl.managed.external import Observation, observed
from natsctl.managed.names import AnnotationNames
from natsctl.managed.objects import Managed
from natsctl.managed.polling import Poll
from natsctl.managed.reports import CANNOT_UPDATE, Reports
from natsctl.managed.situation import ReconcileAction
from natsctl.model.documents import Document
from natsctl.model.kinds import KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import DOMAIN
from natsctl.model.store import Stored
from natsctl.telemetry.hiding import error_text

T = TypeVar("T")


class Steps(msgspec.Struct, Generic[T], frozen=True, eq=False, kw_only=True):
    """Takes the step of an action. `ManagedReconciler` documents the other parts.

    `asks` returns whether a resource that natsctl didn't create needs somebody's word. `deletions`
    has the times at which deletions of resources were requested first, by key.
    """

    primary: Primary[T]
    calls: ExternalCalls[T]
    reports: Reports
    results: Results
    links: Links | None
    names: AnnotationNames
    grace_s: float
    deletions: dict[str, float]
    poll: Poll[T]
    asks: Callable[[], bool]
    clock: Callable[[], datetime]

    async def take(
        self, action: ReconcileAction, reconciliation: Reconciliation[T]
    ) -> float | None:
        """Take the step; return the seconds until the next reconciliation, or None."""
        steps: dict[ReconcileAction, Callable[[Reconciliation[T]], Awaitable[float | None]]] = {
            ReconcileAction.PAUSE: self._pause,
            ReconcileAction.REJECT: self._reject,
            ReconcileAction.RELEASE: self._release,
            ReconcileAction.ASK: self._ask,
            ReconcileAction.WAIT: self._wait,
            ReconcileAction.DELAY: self._delay,
            ReconcileAction.KEEP: self._keep,
            ReconcileAction.DELETE: self._delete,
            ReconcileAction.CREATE: self._create,
            ReconcileAction.ADOPT: self._adopt,
            ReconcileAction.DISOWN: self._disown,
            ReconcileAction.REPORT_ABSENT: self._report_absent,
            ReconcileAction.SETTLE: self._settle,
            ReconcileAction.LATE_INITIALIZE: self._late_initialize,
            ReconcileAction.UPDATE: self._update,
            ReconcileAction.REST: self._rest,
        }
        return await steps[action](reconciliation)

    # ---- without an observation

    async def _pause(self, reconciliation: Reconciliation[T]) -> None:
        managed = reconciliation.managed
        synced, paused = managed.condition(SYNCED), Condition.reconcile_paused()
        if synced is None or synced.reason != paused.reason:
            text = "Reconciliation is paused via the pause annotation"
            self.reports.event(managed, "ReconciliationPaused", text)
        await self.reports.status(managed, paused)

    async def _reject(self, reconciliation: Reconciliation[T]) -> None:
        reason = "CannotInitializeManagedResource"
        await self.reports.not_synced(reconciliation.managed, reason, reconciliation.rejected)

    async def _ask(self, reconciliation: Reconciliation[T]) -> None:
        managed = reconciliation.managed
        reason, conditions = "CannotInitializeManagedResource", []
        if not managed.is_going:
            conditions.append(Condition.creating())
        await self.reports.not_synced(managed, reason, self._advice(managed), *conditions)

    def _advice(self, managed: Managed[T]) -> str:
        advice = "cannot determine creation result - check whether the external resource exists"
        if isinstance(managed.kind, KubeKind):
            names = self.names
            return (
                f"{advice}; if so, set the {names.external_name} annotation to its name; "
                f"then remove the {names.create_pending} annotation"
            )
        return f"{advice}; then run: natsctl repair external resolve {_named(managed)}"

    async def _release(self, reconciliation: Reconciliation[T]) -> None:
        """Remove the record and then the finalizer, so that a crash leaves no record behind."""
        managed, key = reconciliation.managed, reconciliation.managed.key
        change = "the removal of the finalizer"
        async with self.calls.storing(managed, change, Condition.deleting()):
            if self.links is not None:
                await self.links.forget(key)
            if managed.gone:
                await self.primary.forget(key)
            else:
                await release(self.primary.informer.store, key, *self.names.finalizers)
        self.forget(key)

    # ---- after an observation

    async def _wait(self, reconciliation: Reconciliation[T]) -> float:
        managed = reconciliation.managed
        age_s = managed.creation.age_s(self.clock()) or 0.0
        ready = managed.condition(READY)
        if ready is not None and ready.status == "True" and not managed.is_going:
            text = (
                "The external resource is missing, and is created again if it is missing "
                f"{self.grace_s:g} s after its creation"
            )
            self.reports.event(managed, "WaitingForExternalResource", text)
        return min(self.poll.soon_s(age_s), max(self.grace_s - age_s, 0.0) + AGAIN_S)

    async def _delete(self, reconciliation: Reconciliation[T]) -> float:
        managed = reconciliation.managed
        managed.set_conditions(Condition.deleting())
        async with self.calls.calling(reconciliation, "delete", "CannotDeleteExternalResource"):
            await awaitable(reconciliation.client.delete, managed)
        text = "Successfully requested deletion of external resource"
        self.reports.event(managed, "DeletedExternalResource", text)
        await self.reports.status(managed, Condition.deleting(), Condition.reconcile_success())
        now = asyncio.get_running_loop().time()
        return self.poll.soon_s(now - self.deletions.setdefault(managed.key, now))

    async def _keep(self, reconciliation: Reconciliation[T]) -> None:
        managed = reconciliation.managed
        name = managed.external_name or "its external resource"
        text = f"{managed.key} is deleted, and {name} stays, because natsctl didn't create it"
        self.reports.event(managed, "KeptExternalResource", text)
        await self._release(reconciliation)

    async def _delay(self, reconciliation: Reconciliation[T]) -> float:
        managed = reconciliation.managed
        ours = self.names.finalizers
        foreign_finalizers = ", ".join(name for name in managed.finalizers if name not in ours)
        waits = Condition.deleting(f"waiting for the finalizers of others: {foreign_finalizers}")
        await self.reports.status(managed, waits, Condition.reconcile_success())
        return self.poll.after_s(managed)

    async def _create(self, reconciliation: Reconciliation[T]) -> float | None:
        """Store the intent, create the external resource, and store the result.

        After a crash before the result is stored, the result is unknown.
        """
        managed = reconciliation.managed
        given = managed.given_name
        managed.accept_name()
        self.deletions.pop(managed.key, None)
        async with self.calls.storing(managed, "the intent to create", Condition.creating()):
            recorded = CreationLink()
            if self.links is not None:
                recorded = await self.links.read(managed.key)
            if recorded.contradicts(managed.link):
                return await self._refuse(reconciliation, recorded)
            await self._store_intent(managed, given)
        reason = "CannotCreateExternalResource"
        async with self.calls.reported(reconciliation, "create", reason, Condition.creating()):
            try:
                async with self.calls.limited(reconciliation, "create"):
                    await awaitable(reconciliation.client.create, managed)
            except Exception as error:
                if not may_have_created(error):
                    await self._fail(managed, error)
                raise
            managed.check(status=False)  # if it raises, the result stays unknown
        async with self._storing_result(managed):
            await self._end(managed, created=True)
        text = "Successfully requested creation of external resource"
        self.reports.event(managed, "CreatedExternalResource", text)
        if self.links is not None:
            return await self._observe_created(reconciliation)
        await self.reports.status(managed, Condition.creating(), Condition.reconcile_success())
        return AGAIN_S

    async def _observe_created(self, reconciliation: Reconciliation[T]) -> float:
        """Observe the new external resource, so that one write stores the result and the status.

        If the resource is not visible yet, the record keeps the result.
        """
        managed = reconciliation.managed
        try:
            async with self.calls.limited(reconciliation, "observe"):
                observation = await observed(reconciliation.client, managed)
        except Exception:  # noqa: BLE001 - the next reconciliation observes again and reports it
            observation = Observation()
        if observation.exists and observation.up_to_date and not observation.late_initialized:
            return await self._rest(reconciliation)
        managed.keep_only()
        if not managed.linked_only:
            await self.reports.status(managed)
        return AGAIN_S

    async def _refuse(
        self, reconciliation: Reconciliation[T], recorded: CreationLink
    ) -> float | None:
        """Create nothing, and report that the record contradicts the object's link."""
        managed = reconciliation.managed
        if recorded.creation.unknown:
            managed.relink(recorded)
            await self._ask(reconciliation)
            return None
        text = (
            f"cannot create: {managed.key} is linked to {recorded.external_name}, but names "
            f"{managed.external_name or 'nothing'}, which does not exist; set the annotation "
            f"{self.names.external_name} to the right name, or let natsctl create another "
            f"resource: natsctl repair external forget {_named(managed)}"
        )
        reason = "CannotCreateExternalResource"
        await self.reports.not_synced(managed, reason, text, Condition.creating())
        return self.poll.after_s(managed)

    async def _report_absent(self, reconciliation: Reconciliation[T]) -> float:
        text = "external resource does not exist, and its policies do not let it be created"
        await self.reports.not_synced(reconciliation.managed, "CannotObserveExternalResource", text)
        return self.poll.after_s(reconciliation.managed)

    async def _adopt(self, reconciliation: Reconciliation[T]) -> float:
        """Store that the resource is taken over, in the object first: its writer decides."""
        managed = reconciliation.managed
        managed.adopt()
        async with self.calls.storing(managed, "the adoption"):
            await self._store_object(managed)
            await self._link(managed)
        plan = current_plan.get()
        if plan is not None:
            plan.called(place_of(managed.kind), managed.kind, managed.key, "adopt")
        name = managed.external_name or "its external resource"
        text = f"Adopted {name}, which existed before: it's changed and deleted with this object"
        self.reports.event(managed, "AdoptedExternalResource", text)
        return AGAIN_S

    async def _disown(self, reconciliation: Reconciliation[T]) -> float:
        managed = reconciliation.managed
        text = (
            f"{managed.external_name or 'its external resource'} exists, and natsctl didn't create "
            "it, so nothing is changed; to adopt it, so that it's changed and deleted with "
            f"{managed.key}, {self._adoption(managed)}"
        )
        await self.reports.not_synced(managed, "NotOwned", text, Condition.not_owned(text))
        return self.poll.after_s(managed)

    def _adoption(self, managed: Managed[T]) -> str:
        """Return what a person does to adopt the resource of an object."""
        kind, names = managed.kind, self.names
        if isinstance(kind, KubeKind):
            namespace, _, name = managed.key.rpartition("/")
            place = f" -n {namespace}" if namespace else ""
            return f"run: kubectl annotate {kind.kind} {name}{place} {names.adopt}=true"
        if isinstance(kind, KvKind) and DOMAIN in names.domains:
            return f"run: natsctl repair external adopt {_named(managed)}"
        return f'set the annotation {names.adopt} to "true"'

    async def _settle(self, reconciliation: Reconciliation[T]) -> float:
        managed = reconciliation.managed
        async with self._storing_result(managed):
            await self._end(managed, created=True)
        text = "The creation with the unknown result has succeeded"
        self.reports.event(managed, "CreatedExternalResource", text)
        return AGAIN_S

    async def _late_initialize(self, reconciliation: Reconciliation[T]) -> float:
        managed = reconciliation.managed
        additions = managed.additions()
        async with self.calls.storing(managed, "late initialization"):
            await self._link(managed)
            await self._store_object(managed, spec=additions)
        return AGAIN_S

    async def _update(self, reconciliation: Reconciliation[T]) -> float:
        managed = reconciliation.managed
        async with self.calls.storing(managed, "the finalizer"):
            await self._link(managed)
            if not self.reports.held(managed):
                await self._store_object(managed)
        async with self.calls.calling(reconciliation, "update", "CannotUpdateExternalResource"):
            await awaitable(reconciliation.client.update, managed)
        differs = reconciliation.diff and f": {reconciliation.diff}"
        text = f"Successfully requested update of external resource{differs}"
        self.reports.event(managed, "UpdatedExternalResource", text)
        await self.reports.status(managed, Condition.reconcile_success())
        return self.poll.after_s(managed)

    async def _rest(self, reconciliation: Reconciliation[T]) -> float:
        managed, success = reconciliation.managed, self._success(reconciliation)
        if READY not in managed.set_types:
            managed.set_conditions(Condition.available())
        async with self.calls.storing(managed, "the finalizer"):
            await self._link(managed)
            if not self.reports.held(managed):
                await self.reports.status(managed, success, hold=True)
        await self.reports.status(managed, success)
        return self.poll.after_s(managed)

    def _success(self, reconciliation: Reconciliation[T]) -> Condition:
        """Return the condition of an object whose resource may differ, but not be updated."""
        if not reconciliation.diff:
            return Condition.reconcile_success()
        managed = reconciliation.managed
        text = f"its policies don't permit an update: {reconciliation.diff}"
        success, before = Condition.reconcile_success(text), managed.condition(SYNCED)
        if before is None or before.message != success.message:
            self.reports.event(managed, "ExternalResourceDiffers", text)
        return success

    # ---- writes

    async def _link(self, managed: Managed[T]) -> None:
        """Record the link to an existing external resource."""
        if managed.owned or not self.asks():
            managed.accept_name()
        if self.links is not None and managed.link:
            await self.links.write(managed.key, managed.link)

    async def _store_object(self, managed: Managed[T], *, spec: Document | None = None) -> None:
        """Store all changes of metadata and *spec* upon exactly the read revision."""
        value = managed.document(spec=spec)
        revision = managed.stored.revision
        managed.advance(
            await self.primary.informer.store.update(managed.key, value, revision=revision)
        )

    async def _store_intent(self, managed: Managed[T], given: str) -> None:
        """Store the intent to create upon exactly the read revision, and in the link record."""
        revision = managed.stored.revision
        managed.annotations = begun(
            managed.annotations, self.names, now=self.clock(), revision=revision, given=given
        )
        managed.keep()
        managed.set_conditions(Condition.creating())
        status = None if isinstance(managed.kind, KubeKind) else self.reports.patch(managed)
        value = managed.document(status=status)
        try:
            stored = await self.primary.informer.store.update(managed.key, value, revision=revision)
            managed.advance(stored)
            await self._link(managed)
        except ConflictError:
            raise
        except StoreError:
            # the intent may be stored, but nothing is created now
            withdrawn = copy.copy(managed)
            withdrawn.reset(Stored(managed.key, revision, value))
            self._result(withdrawn, created=False)
            self.results.withdraw(withdrawn)
            managed.reset(managed.stored)
            raise

    @asynccontextmanager
    async def _storing_result(self, managed: Managed[T]) -> AsyncIterator[None]:
        """Report and raise a failure to store the result; the next reconciliation stores it."""
        try:
            yield
        except StoreError as error:
            message = f"cannot store the result of the creation: {error_text(error)}"[:MESSAGE_MAX]
            await self.reports.failed(managed, CANNOT_UPDATE, message, Condition.creating())
            raise

    async def _fail(self, managed: Managed[T], error: Exception) -> None:
        """Store that nothing was created; log a failure to store, because *error* is raised."""
        try:
            await self._end(managed, created=False)
            if isinstance(error, RetryAfter):
                await self.reports.status(managed, Condition.creating())
        except StoreError as unstored:
            message = f"cannot store the result of the creation: {error_text(unstored)}"
            self.reports.warning(managed, CANNOT_UPDATE, message[:MESSAGE_MAX])

    async def _end(self, managed: Managed[T], *, created: bool) -> None:
        self._result(managed, created=created)
        await self.results.store(managed)

    def _result(self, managed: Managed[T], *, created: bool) -> None:
        name = managed.external_name if created else managed.given_name
        managed.annotations = ended(
            managed.annotations, self.names, now=self.clock(), created=created, name=name
        )
        managed.keep()

    def forget(self, key: str) -> None:
        """Drop the pending result and the deletion time of the object."""
        self.results.forget(key)
        self.deletions.pop(key, None)


def _named(managed: Managed[Any]) -> str:
    """Return an object as commands name it."""
    kind = managed.kind
    return f"{kind.bucket if isinstance(kind, KvKind) else kind.name}/{managed.key}"
