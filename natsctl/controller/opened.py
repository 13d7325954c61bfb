"""A controller whose stores are open: its slots, which keys their changes enqueue, and its syncs.

A change of a primary adds its key to the work queue; a change of a secondary adds its owner's key.
A worker takes the key, waits until the tables show the writes of this key's last sync, and calls
the sync handler. If the primary was deleted, the objects that it owned are removed.
"""

import asyncio
import logging
import threading
from asyncio import current_task
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from inspect import iscoroutinefunction
from sys import modules
from time import time
from typing import Any, NoReturn

from natsctl.controller.controller import Controller
from natsctl.controller.garbage import MEMORY, Evidence, GarbageCollector
from natsctl.controller.kube_secondary import KubeSecondary
from natsctl.controller.owned import (
    OWNER_INDEX,
    MirroredPrimary,
    Owned,
    Owners,
    Secondary,
    metadata_of,
)
from natsctl.controller.owners import OwnerNames
from natsctl.controller.reads import Reads
from natsctl.controller.slots import STATUSES, Predicate, Slot, only_primary, slots
from natsctl.core.backends import Backends
from natsctl.core.coordination.term import KeyFilter
from natsctl.core.host import Host
from natsctl.core.informer import Informer
from natsctl.core.installation import installation
from natsctl.core.loop import KeyLoop, skips_invalid
from natsctl.core.plan.record import because
from natsctl.core.readers import CacheReader, Primary, Tertiary
from natsctl.core.record.recordings import listed
from natsctl.core.reports import source_of
from natsctl.core.sync import (
    Calls,
    Sync,
    awaitable,
    current_sync,
    delay_of,
    failed_by,
    running,
)
from natsctl.core.table import Invalid, Keeping, is_read, read_state
from natsctl.core.tape import ReadStep
from natsctl.core.task_group import Rest, first_step
from natsctl.core.workqueue import Operation, Place, Priority, Work
from natsctl.core.writes import Writes
from natsctl.errors import NewerVersionError, NotFoundError, UnreadError
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.plans import orphan_reason
from natsctl.model.store import Change, EventType, Stored, Stores
from natsctl.slices import in_slices
from natsctl.telemetry.exceptions import ErrorClass, classify
from natsctl.telemetry.logger import get_logger, log_context
from natsctl.telemetry.tracing import SDK, records_spans, sync_span

log = get_logger(__name__)

REASON_INVALID = "InvalidObject"
_MANUAL, _RETRY = Operation.MANUAL, Operation.RETRY  # Python looks up enum members slowly


class OpenController:
    """The open slots of one controller; a `ShareListener`.

    `readers` has the reader of every slot by name, `secondaries` those that the controller writes,
    in the order of declaration.
    """

    def __init__(
        self,
        controller: Controller,
        host: Host,
        loop: KeyLoop,
        *,
        backends: Backends,
        writes: Writes,
    ) -> None:
        self._controller, self._host, self._loop = controller, host, loop
        self._backends, self._writes = backends, writes
        self._history, self._queue, self._paused = host.history, loop.queue, loop.paused
        self._failures, handler = loop.queue.failures, controller.sync_handler
        self._handler: Callable[[str], Coroutine[Any, Any, float | None]] = (
            handler if iscoroutinefunction(handler) else partial(awaitable, handler)
        )
        overridden = type(controller).handle_secondary is not Controller.handle_secondary
        self._maps: Callable[[Change[Any]], Iterable[str]] | None = (
            controller.handle_secondary if overridden else None
        )
        recorder = host.environment.recordings
        self._tape, writes.notes = None if recorder is None else recorder.tape, recorder is not None
        self._calls = Calls(
            controller.name,
            "sync_handler",
            limit_s=controller.sync_timeout_s,
            setting="sync_timeout_s",
        )
        self._name = controller.name
        self._clock = asyncio.get_running_loop().time
        self._thread = threading.get_ident()
        self.readers: dict[str, CacheReader[Any]] = {}
        self.secondaries: list[Owned[Any]] = []
        self.reads = Reads(
            backends,
            lambda key: loop.enqueue(key, Operation.SECONDARY),
            lambda key: key in loop.queue.claimed,
        )

    # ---- opening

    async def open(self, nats: Stores, names: OwnerNames) -> None:
        """Open every slot, and assign its reader to the attribute of the controller."""
        controller, loop, cls = self._controller, self._loop, type(self._controller)
        self.installation = await installation(nats)
        slot, sharing = only_primary(cls), self._host.environment.sharing

        def on_listed() -> None:
            loop.queue.hasten_retries()
            for key in self._writes.undone(informer):
                loop.enqueue(key, Operation.PUT)

        informer: Informer[Any] = Informer(
            await self._backends.open(slot.kind),
            slot.kind,
            indexes=slot.indexes,
            on_invalid=self._report_invalid,
            on_listed=on_listed,
            keeping=None if sharing is None else Keeping(sharing.keeps),
            notes_deleted=sharing is not None,
        )
        mirrored = isinstance(slot.kind, KvKind) and slot.kind.statuses is not None
        role = MirroredPrimary if mirrored else Primary
        loop.primary = primary = role(informer, self._writes, self._backends.open, loop.queue)
        self._primary, self._table = primary, informer.table
        self._owners = Owners(names, self.installation, informer.table)
        for each in slots(cls):
            is_primary = each.role is Primary
            self.readers[each.name] = primary if is_primary else await self._open_slot(each)
        statuses = self.readers.get(f"{slot.name}{STATUSES}")
        if isinstance(primary, MirroredPrimary) and isinstance(statuses, Secondary):
            primary.statuses = statuses
        evidence = Evidence(informer, await self._backends.open(MEMORY), controller.name)
        self.garbage = GarbageCollector(
            evidence, informer, self.secondaries, controller.garbage, self._why_paused
        )
        self._history.regarding = self._references
        self._history.around = lambda key, steps: (*listed(steps), *self._around(key))
        vars(controller).update(self.readers, reads=self.reads)

    async def _open_slot(self, slot: Slot[Any]) -> CacheReader[Any]:
        kind, loop, backends, writes = slot.kind, self._loop, self._backends, self._writes
        if slot.role is Tertiary:
            informer: Informer[Any] = Informer(
                await backends.open(kind),
                kind,
                indexes=slot.indexes,
                on_listed=loop.queue.hasten_retries,  # its store may have been lost, and is back
                on_appeared=self._kind_appeared,
            )
            return Tertiary(informer, writes)
        owners, in_cluster = self._owners, isinstance(kind, KubeKind)
        store: Any
        if isinstance(kind, KubeKind):
            kind = kind.labelled(owners.names.selector(owners.kind))  # no others are watched
            store = await backends.open(kind)
        else:
            store = await backends.open(kind)

        def owners_of(obj: Any) -> Iterable[str]:
            key = owners.key(kind, kind.metadata_of(obj))
            return () if key is None else (key,)

        def owner_of(stored: Stored) -> str | None:
            """Return the owner if a value may be forgotten: not while a cluster deletes it."""
            metadata = metadata_of(kind, stored)
            is_terminating = in_cluster and metadata.deletion_timestamp is not None
            return None if is_terminating else owners.key(kind, metadata)

        def on_listed() -> None:
            loop.queue.hasten_retries()
            writes.listed(informer)

        keeping, sharing = None, self._host.environment.sharing
        if sharing and self._maps is None:  # a function of the user may need every value
            keeping = Keeping(sharing.keeps, owner_of, OWNER_INDEX)
        informer = Informer(
            store,
            kind,
            indexes={**slot.indexes, OWNER_INDEX: owners_of},
            on_invalid=lambda invalid: self._invalid(kind, invalid),
            on_listed=on_listed,
            on_appeared=self._kind_appeared,
            keeping=keeping,
        )
        undone = partial(loop.enqueue, operation=Operation.SECONDARY)
        writes.follow(informer, partial(self._changed, slot.predicate), undone)
        secondary: Owned[Any] = (
            KubeSecondary(
                informer,
                writes,
                owners,
                manifests=store,
                manager=f"natsctl/{self._controller.name}",
                on_immutable=slot.on_immutable,
                sync_later=lambda key, s: loop.enqueue(key, Operation.RETRY, after=s),
                report=self._report,
            )
            if in_cluster
            else Secondary(informer, writes, owners)
        )
        self.secondaries.append(secondary)
        return secondary

    def watch(self) -> None:
        for reader in self.readers.values():
            if reader is self._primary:
                self._loop.watch_primary()
            else:
                see = reader.see if isinstance(reader, Owned) else lambda _: None
                self._loop.watch(reader.informer, see)

    # ---- what slots own

    def owners(self, change: Change[Any]) -> list[str]:
        """Return the keys of the primaries that owned the object before or after the change."""
        states = [stored for stored in (change.after, change.before) if stored is not None]
        owners = (self._owners.of(change.kind, stored) for stored in states)
        return list(dict.fromkeys(owner for owner in owners if owner is not None))

    def owned(self, key: str) -> Iterator[tuple[Owned[Any], Stored]]:
        for secondary in self.secondaries:
            for stored in secondary.owned_stored(key):
                yield secondary, stored

    def contests(self) -> dict[str, list[str]]:
        """Return the objects that other writers change back repeatedly, by the owner's key."""
        texts: dict[str, list[str]] = {}
        for slot in self._in_cluster():
            for key, contest in slot.contested().items():
                texts.setdefault(contest.owner, []).append(f"{slot.kind.name} {key}: {contest}")
        return texts

    @property
    def undone(self) -> int:
        """The number of times that other writers changed an applied object back."""
        return sum(slot.undone for slot in self._in_cluster())

    def _in_cluster(self) -> list[KubeSecondary[Any]]:
        return [slot for slot in self.secondaries if isinstance(slot, KubeSecondary)]

    def _references(self, key: str) -> list[Reference]:
        return [reference for slot in self._in_cluster() for reference in slot.references(key)]

    def _around(self, key: str) -> Iterator[ReadStep]:
        """Yield what the primary *key* owns, and the object of the same key in each slot."""
        for slot in self.secondaries:
            table = slot.informer.table
            for name in {key, *(stored.key for stored in table.by_index(OWNER_INDEX, key))}:
                yield ReadStep(slot.informer, name, read_state(table.get(name)))

    # ---- changes

    async def lost(self, holds: KeyFilter) -> None:
        await self.reads.keep(holds)

    async def gained(self, gained: KeyFilter) -> None:
        """Enqueue primaries, and missing primaries that have secondaries."""
        for secondary in self.secondaries:
            missing: list[str] = []

            def note(owner: str, missing: list[str] = missing) -> None:
                if owner not in self._table and self._table.kind.holds(owner):
                    missing.append(owner)

            await in_slices(secondary.informer.table.index_values(OWNER_INDEX), note)
            self._loop.enqueue_all(missing, gained)

    def _changed(
        self, predicate: Predicate | None, change: Change[Any], writer: str | None
    ) -> None:
        """Enqueue the keys that the change concerns, but not the *writer*, whose sync made it.

        A change of another installation's object concerns no key. A sync creates objects of one
        key, its own.
        """
        if writer is not None and change.before is None and self._maps is None:
            return
        kind, foreign = change.kind, self._owners.foreign
        states = [stored for stored in (change.before, change.after) if stored is not None]
        if (
            isinstance(kind, KubeKind)
            and states
            and all(foreign(kind, metadata_of(kind, stored)) for stored in states)
        ):
            return
        if predicate is not None and all(map(is_read, states)):
            try:
                if not predicate(change):
                    return
            except (Exception, SystemExit):
                log.exception(
                    "a predicate failed; enqueuing the owner", kind=kind.name, key=change.key
                )
        try:
            keys = self.owners(change) if self._maps is None else list(self._maps(change))
        except UnreadError:  # all keys are enqueued when the values are read
            keys = self.owners(change)
        except (Exception, SystemExit):
            log.exception(
                "handle_secondary failed; enqueuing the owners",
                controller=self._controller.name,
                kind=kind.name,
                secondary=change.key,
            )
            keys = self.owners(change)
        priority = Priority.RESYNC if change.initial else Priority.SECONDARY
        for key in keys:
            if key != writer:
                self._loop.enqueue(key, Operation.SECONDARY, priority=priority)

    def _invalid(self, kind: Kind[Any], invalid: Invalid) -> None:
        """Enqueue the owner of an object that was overwritten with an invalid value."""
        owner = None if invalid.last is None else self._owners.of(kind, invalid.last)
        if owner is not None:
            self._loop.enqueue(owner, Operation.SECONDARY)

    def _kind_appeared(self) -> None:
        """Enqueue every primary: it may want objects of the optional kind that exists now."""
        self._loop.enqueue_all(self._table.read_keys())

    def _report_invalid(self, invalid: Invalid) -> None:
        """Record an event about a primary that is skipped because it is invalid.

        A member that can read its newer version gets the key.
        """
        key, leadership = invalid.stored.key, self._host.environment.leadership
        message = f"revision {invalid.stored.revision} is invalid and skipped: {invalid.error}"
        self._history.event(key, EventType.WARNING, REASON_INVALID, message)
        if leadership is not None and isinstance(invalid.error, NewerVersionError):
            leadership.unreadable(key)

    def _report(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        level = logging.WARNING if type is EventType.WARNING else logging.INFO
        name = self._controller.name
        log.log(level, "recording an event", controller=name, key=key, reason=reason, note=message)
        self._history.event(key, type, reason, message)

    # ---- syncs

    async def sync(self, key: str) -> float | None:
        """Sync the key now, outside the loop, because a person requests it; raises its failure."""
        before, noted = current_sync.set(None), self._queue.noted(key)
        try:
            now = self._clock()
            work = Work(key, Place.CLAIMED, now, Priority.USER, _MANUAL, trouble=noted)
            step = self.start(work)
            return await step if isinstance(step, Rest) else step
        finally:
            current_sync.reset(before)

    def start(  # noqa: C901 - one straight line: a call per step takes longer than most syncs
        self, work: Work[str]
    ) -> float | Rest[float | None] | None:
        """Sync a claimed key; return the seconds until its next sync, or the rest of a sync.

        A key is skipped if its newest state is invalid, or if it failed permanently and has the
        same state, unless a person requests the sync. Raises the failure of the sync.
        """
        key, operation, notes = work.key, work.reason or _RETRY, work.trouble
        if (notes is not None or self._table.invalid) and self._skips(key, operation):
            return None
        parts = self._table.kept.parts  # a call takes too long
        stored = parts[hash(key) % len(parts)].get(key)
        if stored is None and self._table.partial:
            stored = self._table.get(key)
        last = None if notes is None else notes.last
        table, failures, thread = self._table, self._failures, self._thread
        sync = Sync(
            key, self._name, operation, time(), work.at, stored, last, table, failures, thread
        )
        current_sync.set(sync)  # until the next sync of the worker: a reset takes as long
        if SDK in modules and records_spans():
            return first_step(self._traced(sync))
        if stored is None or key in self._writes.unseen:
            return first_step(self._recorded(sync, self._wait_and_call(sync)))
        if self._tape is not None:
            sync.tape = self._tape()
        rest, after_s = None, None
        running[sync] = None
        try:
            sync.work = handled = self._handler(key)
            future = handled.send(None)
            rest = self._finish(sync, self._calls.finish(sync, Rest(handled, future)))
        except StopIteration as end:
            after_s = end.value
        except BaseException as error:  # noqa: BLE001 - recorded, and raised again
            sync.end_call()
            rest = _raised(failed_by(error, current_task()))
        if rest is not None:
            return first_step(self._recorded(sync, rest))
        sync.over = True
        del running[sync]
        if after_s is not None:
            return first_step(self._recorded(sync, self._end(sync, after_s)))
        if sync.read is not None or key in self.reads.dependents:
            self.reads.end(sync)
        failed = notes is not None and notes.failures > 0
        if notes is not None:
            self._note_success(sync)
        self._history.succeeded(sync, self._clock(), failed=failed)
        return None

    async def _traced(self, sync: Sync) -> float | None:
        with sync_span(self._name, log_context):
            return await self._recorded(sync, self._wait_and_call(sync))

    async def _recorded(self, sync: Sync, work: Awaitable[float | None]) -> float | None:
        """Do the work as part of the sync, and record its failure."""
        with sync:
            try:
                return await work
            except BaseException as error:
                await self._history.recall(sync.key, error, self._queue)
                failures = self._failures(sync.key) + 1
                self._history.failed(sync, error, self._clock(), failures=failures)
                if classify(error) is ErrorClass.PERMANENT and sync.stored is not None:
                    self._queue.note(sync.key).failed = sync.stored
                raise

    async def _wait_and_call(self, sync: Sync) -> float | None:
        """Sync a key whose writes the tables may lack, or that may not exist.

        The key may be paused by the end of the wait.
        """
        key = sync.key
        if key in self._writes.unseen:
            await self._writes.wait(key)
            if self._paused.holds_back(key):
                return None
            sync.stored = self._writes.read(self._primary.informer, key)
            noted = self._queue.noted(key)
            sync.last = None if noted is None else noted.last
        if (noted := self._queue.noted(key)) is not None:
            sync.missing, noted.missing = noted.missing or None, ""
        if sync.stored is None and await self._was_paused(sync):
            return None
        if self._tape is not None:
            sync.tape = self._tape()
        return await self._end(sync, await self._calls.call(key, self._handler))

    async def _finish(self, sync: Sync, work: Awaitable[float | None]) -> float | None:
        """Wait for the handler, and write what follows from its success."""
        return await self._end(sync, await work)

    async def _end(self, sync: Sync, value: float | None) -> float | None:
        after_s = None if value is None else delay_of(value, "sync_handler")
        self.reads.end(sync)
        if sync.stored is None:
            await self._remove_secondaries(sync)
        self._note_success(sync)
        failed = self._failures(sync.key) > 0
        self._history.succeeded(sync, self._clock(), failed=failed, after_s=after_s)
        return after_s

    def _skips(self, key: str, operation: Operation) -> bool:
        if skips_invalid(self._primary, key):
            return True
        noted = self._queue.noted(key)
        failed = None if noted is None else noted.failed
        if failed is None or operation is Operation.MANUAL:
            return False
        stored = self._table.get(key)
        return stored is not None and not self._table.kind.differs(failed.value, stored.value)

    async def _was_paused(self, sync: Sync) -> bool:
        """Return whether a primary was deleted while it was paused and no process ran.

        The bucket's history shows that. A primary without secondaries needs no such check.
        """
        key, table = sync.key, self._table
        if sync.last is not None or table.kind.plain or key in table or not any(self.owned(key)):
            return False
        await self._paused.recall(key, self._primary.informer.store)
        return self._paused.holds_back(key)

    async def _why_paused(self, owner: str, *, has_history: bool = True) -> str:
        """Return why the objects of a missing owner are kept; its history may show a pause."""
        if has_history:
            await self._paused.recall(owner, self._primary.informer.store)
        return self._host.pausing.advice(owner, source_of(self._primary.kind))

    async def _remove_secondaries(self, sync: Sync) -> None:
        """Remove the secondaries of a primary that was deleted or confirmed as missing."""
        key, reason = sync.key, ""
        if key in self._table or self._controller.deletion_policy != "delete":
            return
        owned = list(self.owned(key))
        if not owned:
            return
        try:
            await self._primary.informer.store.get(key)
        except NotFoundError as error:
            at, evidence = error.deleted_at, self.garbage.evidence
            proven = at is not None and await evidence.proves(at)
            if proven or (sync.missing == self._table.incarnation and not evidence.held):
                reason = orphan_reason(key, at)
        if reason:
            with because(reason):
                for secondary, stored in owned:
                    await secondary.delete_owned(key, stored)

    def _note_success(self, sync: Sync) -> None:
        noted = self._queue.noted(sync.key)
        if noted is not None:
            noted.failed = None
            if noted.last is sync.last:
                noted.last = None
            self._queue.tidy(sync.key)


async def _raised(error: BaseException) -> NoReturn:
    raise error
