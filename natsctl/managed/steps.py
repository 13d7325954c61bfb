"""What each action does: its external call, its writes in their order, and when to come back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Generic, TypeVar

from natsctl.core.deletion import release
from natsctl.core.slots import Primary
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    RetryAfter,
    StoreError,
    StoreTimeoutError,
)
from natsctl.managed.conditions import MESSAGE_MAX, READY, SYNCED, Condition
from natsctl.managed.creation import begun, ended
from natsctl.managed.critical import (
    CriticalAnnotationUpdateFn,
    CriticalAnnotationUpdater,
    annotated,
    updated_by,
)
from natsctl.managed.external import ExternalClient, NopClient
from natsctl.managed.names import AnnotationNames
from natsctl.managed.objects import Managed
from natsctl.managed.polling import Poll
from natsctl.managed.reports import Reports
from natsctl.managed.situation import Action
from natsctl.model.documents import Document
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Stored
from natsctl.telemetry.hiding import told

T = TypeVar("T")

AGAIN_S = 0.1  # until an object that was changed meanwhile, or by us, is looked at again


class Visit(Generic[T]):
    """One reconciliation of one object: until when external calls may take, and by which client."""

    def __init__(self, managed: Managed[T], timeout_s: float) -> None:
        self.managed = managed
        self.timeout_s = timeout_s
        self.deadline = asyncio.get_running_loop().time() + timeout_s
        self.client: ExternalClient[T] = NopClient()
        self.rejected = ""  # why its policies make no sense


class Steps(Generic[T]):
    """Takes the step that an action asks for. The arguments are `ManagedReconciler`'s."""

    def __init__(
        self,
        primary: Primary[T],
        reports: Reports,
        *,
        updater: CriticalAnnotationUpdater | CriticalAnnotationUpdateFn,
        names: AnnotationNames,
        finalizer: str,
        grace_s: float,
        poll: Poll[T],
        clock: Callable[[], datetime],
    ) -> None:
        self._primary = primary
        self._store = primary.informer.store
        self._reports = reports
        self._updater = updater
        self._names = names
        self._finalizer = finalizer
        self._grace_s = grace_s
        self._poll = poll
        self._clock = clock
        self._deleting: dict[str, float] = {}  # since when, by the loop's clock
        self._owed: dict[str, Managed[T]] = {}  # results that could not be stored yet
        self._steps: dict[Action, Callable[[Visit[T]], Awaitable[float | None]]] = {
            Action.PAUSE: self._pause,
            Action.REJECT: self._reject,
            Action.RELEASE: self._release,
            Action.TELL: self._tell,
            Action.WAIT: self._wait,
            Action.DELETE: self._delete,
            Action.CREATE: self._create,
            Action.MISS: self._miss,
            Action.SETTLE: self._settle,
            Action.LATE_INITIALIZE: self._late_initialize,
            Action.UPDATE: self._update,
            Action.REST: self._rest,
        }

    async def take(self, action: Action, visit: Visit[T]) -> float | None:
        """Take the step; return seconds until the next visit, or None."""
        return await self._steps[action](visit)

    # ---- around external calls

    @asynccontextmanager
    async def calling(self, visit: Visit[T], verb: str, reason: str) -> AsyncIterator[None]:
        """Give the call inside what is left of the time; tell of its failure, which passes."""
        async with self._told(visit, verb, reason), self._limited(visit, verb):
            yield

    @asynccontextmanager
    async def _told(self, visit: Visit[T], verb: str, reason: str) -> AsyncIterator[None]:
        try:
            yield
        except RetryAfter:
            raise
        except Exception as error:
            message = f"cannot {verb}: {told(error)}"[:MESSAGE_MAX]
            await self._reports.failed(visit.managed, reason, message)
            raise

    @asynccontextmanager
    async def _limited(self, visit: Visit[T], verb: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(visit.deadline) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            told = f"{verb} was cut short: external calls took longer than {visit.timeout_s:g} s"
            raise TimeoutError(told) from error

    # ---- where nothing is observed

    async def _pause(self, visit: Visit[T]) -> None:
        managed = visit.managed
        said, paused = managed.condition(SYNCED), Condition.reconcile_paused()
        if said is None or said.reason != paused.reason:
            text = "Reconciliation is paused via the pause annotation"
            self._reports.event(managed, "ReconciliationPaused", text)
        await self._reports.status(managed, paused)

    async def _reject(self, visit: Visit[T]) -> None:
        reason = "CannotInitializeManagedResource"
        await self._reports.trouble(visit.managed, reason, visit.rejected)

    async def _tell(self, visit: Visit[T]) -> None:
        managed = visit.managed
        reason, conditions = "CannotInitializeManagedResource", []
        if not managed.is_going:
            conditions.append(Condition.creating())
        await self._reports.trouble(managed, reason, self._advice(managed), *conditions)

    def _advice(self, managed: Managed[T]) -> str:
        look = "cannot determine creation result - look whether the external resource exists"
        if isinstance(managed.kind, KubeKind):
            names = self._names
            return (
                f"{look}; if so, set the {names.external_name} annotation to its name; "
                f"then remove the {names.create_pending} annotation"
            )
        return f"{look}; then say so: natsctl external resolve {managed.key}"

    async def _release(self, visit: Visit[T]) -> None:
        key = visit.managed.key
        with _fenced(key):
            if visit.managed.gone:
                await self._primary.forget(key)
            else:
                await release(self._store, key, self._finalizer)
        self.forget(key)

    # ---- after an observation

    async def _wait(self, visit: Visit[T]) -> float:
        age_s = visit.managed.creation.age_s(self._clock()) or 0.0
        return min(self._poll.soon_s(age_s), max(self._grace_s - age_s, 0.0) + AGAIN_S)

    async def _delete(self, visit: Visit[T]) -> float:
        managed = visit.managed
        managed.set_conditions(Condition.deleting())
        async with self.calling(visit, "delete", "CannotDeleteExternalResource"):
            await visit.client.delete(managed)
        text = "Successfully requested deletion of external resource"
        self._reports.event(managed, "DeletedExternalResource", text)
        await self._reports.status(managed, Condition.deleting(), Condition.reconcile_success())
        now = asyncio.get_running_loop().time()
        return self._poll.soon_s(now - self._deleting.setdefault(managed.key, now))

    async def _create(self, visit: Visit[T]) -> float:
        """Store the intent, create, store the result; cut short in between, nobody knows it."""
        managed = visit.managed
        await self._begin(managed)
        async with self._told(visit, "create", "CannotCreateExternalResource"):
            try:
                async with self._limited(visit, "create"):
                    await visit.client.create(managed)
            except (TimeoutError, StoreTimeoutError):
                raise  # it may have been created all the same
            except Exception:
                await self._end(managed, created=False)
                raise
        await self._end(managed, created=True)
        text = "Successfully requested creation of external resource"
        self._reports.event(managed, "CreatedExternalResource", text)
        await self._reports.status(managed, Condition.creating(), Condition.reconcile_success())
        return AGAIN_S

    async def _miss(self, visit: Visit[T]) -> float:
        text = "external resource does not exist, and its policies do not let it be created"
        await self._reports.trouble(visit.managed, "CannotObserveExternalResource", text)
        return self._poll.after_s(visit.managed)

    async def _settle(self, visit: Visit[T]) -> float:
        await self._end(visit.managed, created=True)
        text = "The creation of which no result was known has succeeded"
        self._reports.event(visit.managed, "CreatedExternalResource", text)
        return AGAIN_S

    async def _late_initialize(self, visit: Visit[T]) -> float:
        await self._store_object(visit.managed, visit.managed.additions())
        return AGAIN_S

    async def _update(self, visit: Visit[T]) -> float:
        managed = visit.managed
        await self._hold(managed)
        async with self.calling(visit, "update", "CannotUpdateExternalResource"):
            await visit.client.update(managed)
        text = "Successfully requested update of external resource"
        self._reports.event(managed, "UpdatedExternalResource", text)
        await self._reports.status(managed, Condition.reconcile_success())
        return self._poll.after_s(managed)

    async def _rest(self, visit: Visit[T]) -> float:
        managed = visit.managed
        await self._hold(managed)
        if READY not in managed.said:
            managed.set_conditions(Condition.available())
        await self._reports.status(managed, Condition.reconcile_success())
        return self._poll.after_s(managed)

    # ---- what is stored, and when

    async def _hold(self, managed: Managed[T]) -> None:
        if self._finalizer not in managed.metadata.finalizers:
            await self._store_object(managed)

    async def _store_object(self, managed: Managed[T], spec: Document | None = None) -> None:
        """Store finalizer, annotations and *spec*, upon exactly the state that was read."""
        await self._write(managed, managed.document(finalizer=self._finalizer, spec=spec))

    async def _write(self, managed: Managed[T], value: bytes) -> None:
        with _fenced(managed.key):
            revision = managed.stored.revision
            managed.advance(await self._store.update(managed.key, value, revision=revision))

    async def _begin(self, managed: Managed[T]) -> None:
        """Store the intent to create, upon exactly the state that was read."""
        key, revision = managed.key, managed.stored.revision
        managed.annotations = begun(
            managed.annotations, self._names, now=self._clock(), revision=revision
        )
        value = managed.document(finalizer=self._finalizer)
        try:
            await self._write(managed, value)
        except StoreError:
            # whether the intent was stored is unknown, but nothing is created now
            managed.reset(Stored(key, revision, value))
            self._result(managed, created=False)
            self._owed[key] = managed
            raise

    async def _end(self, managed: Managed[T], *, created: bool) -> None:
        """Store the result of a creation; what cannot be stored is owed to the next visit."""
        self._result(managed, created=created)
        self._owed[managed.key] = managed
        await updated_by(self._updater, managed)
        self.forget(managed.key)

    def _result(self, managed: Managed[T], *, created: bool) -> None:
        managed.annotations = ended(
            managed.annotations, self._names, now=self._clock(), created=created
        )

    async def catch_up(self, key: str) -> None:
        """Store a result that could not be stored before."""
        owed = self._owed.get(key)
        if owed is None:
            return
        try:
            await updated_by(self._updater, owed)
        except NotFoundError:
            return  # `known` tells who cleans up after it
        except ConflictError as error:
            self._reports.warning(owed, "CannotUpdateManagedResource", str(error))
        self.forget(key)

    def known(self, last: Stored) -> Stored:
        """Return the last state of an object that is gone, with the result that it has not."""
        owed = self._owed.get(last.key)
        if owed is None:
            return last
        return Stored(last.key, last.revision, annotated(last.value, owed.changed_annotations))

    def forget(self, key: str) -> None:
        """Owe nothing to the object any more, and wait for nothing."""
        self._owed.pop(key, None)
        self._deleting.pop(key, None)


@contextmanager
def _fenced(key: str) -> Iterator[None]:
    """Ask to come back to an object that somebody wrote since it was read."""
    try:
        yield
    except ConflictError as error:
        raise RetryAfter(AGAIN_S, f"{key} was written meanwhile, and is looked at again") from error
