"""Which keys a change concerns, and why they are visited.

Whatever happens to objects ends here as keys on a queue, each with a reason. A key that is not this
process's own is neither queued nor remembered: whoever has it sees the same change, and once it
comes here, it is visited.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeGuard

from natsctl.controller.slots.open_slots import Listeners, Opened
from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.controller.slots.owners import Owner
from natsctl.controller.sync.events import Reports
from natsctl.controller.sync.sync_run import Visits
from natsctl.core.cache.cache import Invalid
from natsctl.core.cache.deletion_markers import deleted
from natsctl.core.queue.workqueue import Priority
from natsctl.core.sync.changes import operation_for
from natsctl.core.sync.loop import Has, SyncLoop
from natsctl.core.sync.operation import Operation
from natsctl.core.sync.reasons import Reasons
from natsctl.model.kinds import Kind
from natsctl.model.store import Change

log = logging.getLogger(__name__)

BATCH = 500  # keys that are looked at before other tasks get their turn


class Mapper(Protocol):
    """What says which primaries a change of a secondary concerns; a `Controller`."""

    name: str

    def handle_secondary(self, change: Change[Any]) -> Iterable[str]:
        """Return the keys of the primaries."""
        ...


class Wakes:
    """Puts the keys of one controller on its queue; `Moves` of its loop.

    Args:
        controller: whose keys they are.
        loop: visits them.
        reports: who is told of what is no valid object.
    """

    def __init__(
        self,
        controller: Mapper,
        loop: SyncLoop[str],
        *,
        reports: Reports,
    ) -> None:
        self.reasons = Reasons()
        self._controller = controller
        self._loop = loop
        self._reports = reports
        self._opened: Opened
        self._visits: Visits

    @property
    def listeners(self) -> Listeners:
        """Who is to be told of what happens to the controller's objects."""
        return Listeners(
            primary_changed=self._primary_changed,
            primary_invalid=self._reports.invalid,
            secondary_changed=self._secondary_changed,
            secondary_invalid=self._secondary_invalid,
            secondary_undone=self._visit_again,
            read_changed=self._visit_again,
            # what failed is tried again at once: its store may have been lost, and is here again
            listed=self._loop.queue.hasten_retries,
            appeared=self._kind_appeared,
            visit_later=self._visit_later,
            report=self._reports.report,
        )

    def begin(self, opened: Opened, visits: Visits) -> None:
        """Wake the keys of these slots, from the first change on."""
        self._opened, self._visits = opened, visits

    def wake(
        self,
        key: str,
        operation: Operation,
        *,
        priority: Priority | None = None,
        after: float = 0.0,
    ) -> None:
        """Visit the key, if it is this process's own, *after* seconds from now."""
        if self._loop.holdings.has(key):
            priority = operation.priority if priority is None else priority
            self._wake(key, operation, priority, after)

    def _wake(self, key: str, operation: Operation, priority: Priority, after: float = 0.0) -> None:
        self.reasons.add(key, operation, after=after)
        self._loop.queue.add(key, after=after, priority=priority)

    def owners(self, change: Change[Any]) -> list[str]:
        """Return the primaries that own the changed object, as it is and as it was."""
        states = [stored for stored in (change.after, change.before) if stored is not None]
        found = [self._opened.owner_of(change.kind, stored) for stored in states]
        return list(dict.fromkeys(owner.key for owner in found if self._is_ours(owner)))

    # ---- keys that come and go

    def went(self, has: Has) -> None:
        """See `Moves.went`."""
        self.reasons.keep(has)
        self._visits.keep(has)
        self._opened.reads.keep(has)
        self._opened.primary.keep(has)

    async def came(self, came: Has) -> None:
        """See `Moves.came`: visits what is there, and what is gone and may have left something."""
        primary = self._opened.primary.informer
        await self._visit_those(primary.cache.keys(), came)
        for secondary in self._opened.secondaries:
            owners = secondary.informer.cache.index_values(OWNER_INDEX)
            gone = [owner for owner in owners if owner not in primary.cache]
            await self._visit_those(filter(primary.cache.kind.holds, gone), came)
        gone = await deleted(primary.store, came)
        await self._visit_those(gone, lambda key: key not in primary.cache)

    async def _visit_those(self, keys: Iterable[str], wanted: Callable[[str], bool]) -> None:
        for number, key in enumerate(list(keys), 1):
            if wanted(key):
                self.wake(key, Operation.RESYNC)
            if number % BATCH == 0:
                await asyncio.sleep(0)

    # ---- what changes

    def _primary_changed(self, change: Change[Any]) -> None:
        """Enqueue the key unless only its status changed."""
        self._visits.evidence.note()
        key = change.key
        if not self._loop.holdings.has(key):
            return
        operation = operation_for(change, self._opened.primary)
        if operation is not None:
            self._wake(key, operation, Priority.RESYNC if change.initial else Priority.USER)
            self._note_change(key)

    def _note_change(self, key: str) -> None:
        """Begin to measure how soon a change is answered, if it is to be answered here."""
        if self._loop.queue.place(key) is not None:
            self._loop.tally.changed(key, asyncio.get_running_loop().time())

    def _secondary_changed(self, change: Change[Any], writer: str | None) -> None:
        """Visit the keys that the change concerns, but not the one whose sync made it.

        A change of another installation's object concerns no key.
        """
        if self._opened.is_foreign(change):
            return
        try:
            keys: Iterable[str] = list(self._controller.handle_secondary(change))
        except (Exception, SystemExit):
            log.exception("%s: handle_secondary failed on %s", self._controller.name, change.key)
            keys = self.owners(change)
        priority = Priority.RESYNC if change.initial else Priority.SECONDARY
        for key in keys:
            if key != writer:
                self.wake(key, Operation.SECONDARY, priority=priority)

    def _kind_appeared(self) -> None:
        """Sync every primary: it may want objects of the optional kind that is there now."""
        for key in list(self._opened.primary.informer.cache.keys()):
            self.wake(key, Operation.RESYNC)

    def _visit_again(self, key: str) -> None:
        """Have the key see that what its sync wrote is gone, or what it read is another."""
        self.wake(key, Operation.SECONDARY)

    def _visit_later(self, key: str, after_s: float) -> None:
        self.wake(key, Operation.RETRY, after=after_s)

    def _secondary_invalid(self, kind: Kind[Any], invalid: Invalid) -> None:
        """Have the owner put right what somebody wrote over."""
        if invalid.last is not None:
            owner = self._opened.owner_of(kind, invalid.last)
            if self._is_ours(owner):
                self.wake(owner.key, Operation.SECONDARY)

    def _is_ours(self, owner: Owner | None) -> TypeGuard[Owner]:
        """Say whether it is one of the primaries that are synced here."""
        kind = self._opened.primary.kind
        return owner is not None and kind.holds(owner.key)
