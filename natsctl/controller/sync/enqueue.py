"""Enqueues the primaries that a change of a secondary, or of an object that was read, concerns."""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from natsctl.controller.slots.open_slots import Listeners
from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.controller.slots.owners import Owner
from natsctl.controller.slots.reads import Reads
from natsctl.controller.slots.secondaries import Secondaries
from natsctl.controller.sync.events import SyncReports
from natsctl.controller.sync.sync_run import SyncRuns
from natsctl.core.coordination.term import KeyFilter
from natsctl.core.loop import KeyQueue, PrimaryListener
from natsctl.core.readers import Primary
from natsctl.core.table import Invalid, is_read
from natsctl.core.workqueue import Operation, Priority
from natsctl.errors import UnreadError
from natsctl.model.kinds import Kind
from natsctl.model.store import Change
from natsctl.slices import in_slices
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)


class Mapper(Protocol):
    """Maps a change of a secondary to primaries; a `Controller` is one."""

    name: str

    def handle_secondary(self, change: Change[Any]) -> Iterable[str]:
        """Return the keys of the primaries."""
        ...


class Enqueuer(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Puts the keys of one controller on its queue; a `ShareListener`.

    If *maps* is False, changes of secondaries enqueue their owners only.
    """

    controller: Mapper
    maps: bool
    keys: KeyQueue
    primary: Primary[Any]
    secondaries: Secondaries
    reads: Reads
    runs: SyncRuns
    reports: SyncReports

    @property
    def listeners(self) -> Listeners:
        """The functions to call with events of secondaries and tertiaries."""
        return Listeners(
            changed=self._secondary_changed,
            invalid=self._secondary_invalid,
            undone=self._sync_again,
            # a failed key is retried at once: its store may have been lost, and is back
            listed=self.keys.queue.hasten_retries,
            appeared=self._kind_appeared,
            sync_later=lambda key, after_s: self.keys.enqueue(key, Operation.RETRY, after=after_s),
            report=self.reports.report,
        )

    def owners(self, change: Change[Any]) -> list[str]:
        """Return the keys of the primaries that owned the object before or after the change."""
        states = [stored for stored in (change.after, change.before) if stored is not None]
        owners = [self.secondaries.owner_of(change.kind, stored) for stored in states]
        return list(dict.fromkeys(owner.key for owner in owners if owner and self._may_have(owner)))

    async def lost(self, holds: KeyFilter) -> None:
        """See `ShareListener.lost`."""
        await self.runs.history.keep_only(holds)
        await self.reads.keep(holds)

    async def gained(self, gained: KeyFilter) -> None:
        """See `ShareListener.gained`: also enqueues missing primaries with secondaries."""
        primaries = self.primary.informer.cache
        for secondary in self.secondaries:
            missing: list[str] = []

            def note(owner: str, missing: list[str] = missing) -> None:
                if owner not in primaries and primaries.kind.holds(owner):
                    missing.append(owner)

            await in_slices(secondary.informer.cache.index_values(OWNER_INDEX), note)
            self.keys.enqueue_all(missing, gained)
        await PrimaryListener(self.keys, self.primary).gained(gained)

    def _secondary_changed(self, change: Change[Any], writer: str | None) -> None:
        """Enqueue the keys that the change concerns, but not the *writer*, whose sync made it.

        A change of another installation's object concerns no key, and one of an object whose value
        is not kept concerns a key of another process. A sync creates objects of one key, its own.
        """
        if writer is not None and change.before is None and not self.maps:
            return
        if not self._has_value(change) or self.secondaries.is_foreign(change):
            return
        try:
            keys: Iterable[str] = list(self.controller.handle_secondary(change))
        except UnreadError:  # all keys are enqueued when the values are read
            keys = self.owners(change)
        except (Exception, SystemExit):
            log.exception(
                "handle_secondary failed; enqueuing the owners",
                controller=self.controller.name,
                kind=change.kind.name,
                secondary=change.key,
            )
            keys = self.owners(change)
        priority = Priority.RESYNC if change.initial else Priority.SECONDARY
        for key in keys:
            if key != writer:
                self.keys.enqueue(key, Operation.SECONDARY, priority=priority)

    @staticmethod
    def _has_value(change: Change[Any]) -> bool:
        """Return whether a value is kept; a deletion that no state precedes has none to keep."""
        before, after = change.before, change.after
        if after is not None and is_read(after):
            return True
        return is_read(before) if before is not None else after is None

    def _secondary_invalid(self, kind: Kind[Any], invalid: Invalid) -> None:
        """Enqueue the owner of an object that was overwritten with an invalid value."""
        if invalid.last is not None:
            owner = self.secondaries.owner_of(kind, invalid.last)
            if owner is not None and self._may_have(owner):
                self._sync_again(owner.key)

    def _kind_appeared(self) -> None:
        """Enqueue every primary: it may want objects of the optional kind that exists now."""
        self.keys.enqueue_all(self.primary.informer.cache.read_keys())

    def _sync_again(self, key: str) -> None:
        """Enqueue a key whose write was undone or overwritten."""
        self.keys.enqueue(key, Operation.SECONDARY)

    def _may_have(self, owner: Owner) -> bool:
        """Return whether the owner's key may exist in this slot: slots may have parts of a kind."""
        return self.primary.kind.holds(owner.key)
