"""Finds secondaries without an owner, and decides whether they may be removed.

An orphan is suspected from the tables, and confirmed by a read of its owner at the store's leader.
A delete marker proves that the owner was deleted. Without a marker, the owner may have been lost
with its bucket, so such orphans are kept while the evidence about the bucket is unclear.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from natsctl.controller.evidence import Evidence
from natsctl.controller.owned import OWNER_INDEX, Owned
from natsctl.controller.owners import Owner
from natsctl.core.compare_and_set import read
from natsctl.core.informer import Informer
from natsctl.core.retry import backoff
from natsctl.core.table import is_read, read_state
from natsctl.core.task_group import for_each
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.model.plans import (
    GarbageLimits,
    GarbagePlan,
    Kept,
    Orphan,
    Removed,
    orphan_reason,
)
from natsctl.model.store import Stored
from natsctl.slices import Slices
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

READS_MAX = 16  # objects read at the leader at once
NAMELESS_MAX = 10_000  # objects without an owner whose history is read for a person's plan
BEGIN_S = 60.0  # for which a start waits for the remembered state of the bucket
BEGIN_TRIES = 8  # which it makes at least, also if the machine slept for longer


class _Suspect(msgspec.Struct, frozen=True):
    secondary: Owned[Any]
    stored: Stored
    owner: str

    @property
    def name(self) -> tuple[str, str, str]:
        """The kind, the key and the owner of the suspected object."""
        return self.secondary.kind.name, self.stored.key, self.owner


class GarbageCollector(msgspec.Struct, eq=False):
    """Plans which orphans to remove; a sync of the owner's key, or `apply`, removes them.

    `paused` returns why the objects of a paused owner are kept; empty if they are not. `last` is
    the plan of the last GC cycle.
    """

    primary: Informer[Any]
    secondaries: Collection[Owned[Any]]
    evidence: Evidence
    limits: GarbageLimits
    paused: Callable[[str], Awaitable[str]]
    last: GarbagePlan = GarbagePlan(())
    _suspected: dict[tuple[str, str, str], float] = {}  # when each was first suspected

    async def plan(self, *, at_once: bool = False, orphans_max: int | None = None) -> GarbagePlan:
        """Return every orphan that the leader confirms; `refused` is why a GC cycle must not run.

        *at_once* ignores the grace period. If there are more than *orphans_max*, the others are
        only counted.
        """
        incomplete = self._incomplete()
        if incomplete:
            return GarbagePlan((), incomplete)
        owners_before = len(self.primary.table)
        suspects = await self._suspects()
        now, names = asyncio.get_running_loop().time(), [suspect.name for suspect in suspects]
        self._suspected = {name: self._suspected.get(name, now) for name in names}
        first = heapq.nsmallest(orphans_max or len(suspects), suspects, key=attrgetter("name"))
        unchecked = len(suspects) - len(first)
        try:
            await self.evidence.review(secondaries=self._owned() > 0)
            incarnation = self.primary.table.incarnation
            owners = await self._confirm({suspect.owner for suspect in first})
            first = await self._with_values(first, owners)
            grace_s = 0.0 if at_once else self.limits.grace_s
            confirmed = [orphan async for orphan in self._orphans(first, owners, grace_s)]
            orphans = tuple(sorted(confirmed, key=lambda orphan: (orphan.kind, orphan.key)))
            if incarnation != self.primary.table.incarnation:
                return GarbagePlan(orphans, "the bucket of primaries was recreated just now")
            refused = await self._refusal(orphans, unchecked, owners_before)
        except StoreMissingError as error:
            return GarbagePlan((), hidden(str(error)))
        except StoreError as error:
            return GarbagePlan((), hidden(f"the owners cannot be read: {error}"))
        return GarbagePlan(orphans, refused, self._stores(), unchecked)

    async def cycle(self) -> set[str]:
        """Return the owners whose keys are to be synced, to remove orphans that are due.

        An owner with an orphan whose grace period is not over waits.
        """
        self.last, before = await self.plan(), self.last
        refused, orphans = self.last.refused, self.last.orphans
        if refused and refused != before.refused:
            name = self.evidence.controller
            if orphans:
                log.error(
                    "keeping orphans: `natsctl gc plan` lists them, `natsctl repair gc` accepts "
                    "the bucket as it is, `natsctl gc apply` removes them",
                    controller=name,
                    orphans=len(orphans),
                    reason=refused,
                )
            else:
                log.warning("collecting no garbage", controller=name, reason=refused)
        if refused:
            return set()
        waiting = {orphan.owner for orphan in orphans if not orphan.held and not orphan.due}
        return {orphan.owner for orphan in orphans if not orphan.held} - waiting

    async def plan_for_person(self, *, at_once: bool, orphans_max: int | None) -> GarbagePlan:
        """Return the plan of the next cycle, and the objects that name no owner."""
        plan = await self.plan(at_once=at_once, orphans_max=orphans_max)
        try:
            nameless = await self.nameless()
        except StoreError as error:
            log.warning("cannot read which objects lost their owners", error=error)
            return plan
        return msgspec.structs.replace(plan, orphans=(*plan.orphans, *nameless))

    async def nameless(self) -> list[Orphan]:
        """Return the objects that name no owner, although they were made for one; they stay.

        They lost their labels. While a daemon runs, the next sync of an existing owner restores the
        labels.
        """
        found: list[tuple[Owned[Any], Stored]] = []
        slices = Slices()
        for secondary in self.secondaries:
            table = secondary.informer.table
            for key in table.unindexed(OWNER_INDEX):
                stored = None if key is None else read_state(table.newest(key))
                if stored is not None and len(found) < NAMELESS_MAX:
                    found.append((secondary, stored))
                if slices.is_over():
                    await slices.pause()
        orphans: list[Orphan] = []

        async def check(of: tuple[Owned[Any], Stored]) -> None:
            secondary, stored = of
            owner = await secondary.lost_owner(stored)
            if owner is not None:
                orphan = Orphan(
                    kind=secondary.kind.name,
                    key=stored.key,
                    revision=stored.revision,
                    owner="",
                    reason=f"it names no owner; it was made for {owner}",
                    proven=False,
                    suspected_s=0.0,
                    due=False,
                    uid=secondary.metadata(stored).uid,
                    held=f"it names no owner; it was made for {owner}",
                )
                orphans.append(orphan)

        await for_each(found, check, workers=READS_MAX)
        return sorted(orphans, key=lambda orphan: (orphan.kind, orphan.key))

    async def begin(self) -> None:
        """Compare the bucket of primaries with its remembered state, before the first sync.

        Does nothing if the state is stored. Waits up to `BEGIN_S`, and for `BEGIN_TRIES`, for a
        store that does not answer: if a first sync created objects before the state is stored, the
        next start would hold collection.
        """
        clock = asyncio.get_running_loop().time
        deadline, failures = clock() + BEGIN_S, 0
        while not self.evidence.remembered:
            try:
                await self.evidence.review(secondaries=self._owned() > 0)
            except StoreError as error:
                failures += 1
                over = clock() > deadline and failures >= BEGIN_TRIES
                if over or not isinstance(error, StoreTimeoutError):
                    log.warning("cannot read the remembered state of the bucket yet", error=error)
                    return
                await asyncio.sleep(backoff(failures, base_s=0.05, limit_s=5.0))

    async def apply(self, plan: GarbagePlan) -> Removed:
        """Remove what the plan names and nothing else, at a person's command.

        Each object is read and checked again: it is the planned revision of the planned object,
        its owner is the planned one and does not exist, and it belongs to this installation.
        Raises `UsageError` if the plan has kinds that this controller does not make, or if a store
        was recreated since.
        """
        stores = self._stores()
        for orphan in plan.orphans:
            self._secondary_of(orphan)
            if plan.stores.get(orphan.kind) != stores[orphan.kind]:
                raise UsageError(
                    f"the store of {orphan.kind} was recreated since the plan was made: plan again"
                )
        removed: list[Orphan] = []
        kept: list[Kept] = []
        for orphan in plan.orphans:
            reason = orphan.held if not orphan.owner else await self.paused(orphan.owner)
            reason = reason or await self._remove(orphan)
            if reason:
                log.warning("keeping an orphan", kind=orphan.kind, key=orphan.key, reason=reason)
                kept.append(Kept(orphan, reason))
            else:
                removed.append(orphan)
        remaining = {suspect.name[:2] for suspect in await self._suspects()}
        if remaining <= {(orphan.kind, orphan.key) for orphan in removed}:
            await self.evidence.accept()
        return Removed(tuple(removed), tuple(kept))

    async def _remove(self, orphan: Orphan) -> str:
        """Remove the object; return the reason if it is kept."""
        if await read(self.primary.store, orphan.owner) is not None:
            return f"its owner {orphan.owner} exists"
        secondary = self._secondary_of(orphan)
        store = secondary.informer.store
        stored = await read(store, orphan.key)
        if stored is None:
            return "it does not exist"
        if (stored.revision, secondary.metadata(stored).uid) != (orphan.revision, orphan.uid):
            return f"it changed: it is at revision {stored.revision}, not at {orphan.revision}"
        owner, foreign = Owner(secondary.owner_kind, orphan.owner), secondary.foreign(stored)
        if foreign or secondary.owner_of(stored) != owner:
            named = f"it does not name {owner} as its owner"
            return f"it belongs to installation {foreign}" if foreign else named
        try:  # not as an own write, so that an owner which was just created is synced
            await store.delete(orphan.key, revision=orphan.revision, uid=orphan.uid)
        except (ConflictError, NotFoundError) as error:
            return str(error)
        return ""

    def _secondary_of(self, orphan: Orphan) -> Owned[Any]:
        """Return the slot of the orphan; several slots may have parts of one kind."""
        for secondary in self.secondaries:
            if secondary.kind.name == orphan.kind and secondary.kind.holds(orphan.key):
                return secondary
        raise UsageError(
            f"the plan has {orphan.kind} {orphan.key}, which this controller does not create"
        )

    def _owned(self) -> int:
        """Count the secondaries that name an owner of this controller's kind."""
        return sum(slot.informer.table.indexed(OWNER_INDEX) for slot in self.secondaries)

    def _stores(self) -> dict[str, str]:
        tables = (secondary.informer.table for secondary in self.secondaries)
        return {table.kind.name: table.incarnation for table in tables}

    def _incomplete(self) -> str:
        for informer in (self.primary, *(slot.informer for slot in self.secondaries)):
            if not informer.table.synced.is_set():
                return f"{informer.table.kind.name} has not been listed completely yet"
            if isinstance(informer.failure, StoreMissingError):
                return str(informer.failure)
        return ""

    async def _suspects(self) -> list[_Suspect]:
        """Return the objects whose owner is not cached; finds them in slices."""
        suspects, slices = list[_Suspect](), Slices()
        for secondary in self.secondaries:
            table = secondary.informer.table
            for owner in table.index_values(OWNER_INDEX):
                orphaned = () if owner in self.primary.table else table.by_index(OWNER_INDEX, owner)
                for stored in orphaned:
                    is_terminating = is_read(stored) and secondary.is_terminating(stored)
                    if stored.key not in table.invalid and not is_terminating:
                        suspects.append(_Suspect(secondary, stored, owner))
                if slices.is_over():
                    await slices.pause()
        return suspects

    async def _confirm(self, owners: set[str]) -> dict[str, int | None]:
        """Return the owners that do not exist at the leader, with the revision of their marker."""
        missing: dict[str, int | None] = {}

        async def check(owner: str) -> None:
            try:
                await self.primary.store.get(owner)
            except NotFoundError as error:
                missing[owner] = error.deleted_at
            except InvalidKeyError:
                pass  # no primary can have this key, so its objects are no orphans

        await for_each(owners, check, workers=READS_MAX)
        return missing

    async def _with_values(
        self, suspects: Sequence[_Suspect], missing: Collection[str]
    ) -> list[_Suspect]:
        """Return the suspects of the *missing* owners with their values.

        The values of objects whose owners are keys of other processes are read from the store. An
        object that has changed is left out, as is one that is invalid or being deleted.
        """
        suspected = [suspect for suspect in suspects if suspect.owner in missing]
        result = [suspect for suspect in suspected if is_read(suspect.stored)]

        async def read_value(suspect: _Suspect) -> None:
            secondary, cached = suspect.secondary, suspect.stored
            stored = await read(secondary.informer.store, cached.key)
            if stored is None or stored.revision != cached.revision:
                return
            if secondary.kind.valid(stored.value) and not secondary.is_terminating(stored):
                result.append(msgspec.structs.replace(suspect, stored=stored))

        unread = [suspect for suspect in suspected if not is_read(suspect.stored)]
        await for_each(unread, read_value, workers=READS_MAX)
        return result

    async def _orphans(
        self, suspects: Sequence[_Suspect], missing: dict[str, int | None], grace_s: float
    ) -> AsyncIterator[Orphan]:
        now = asyncio.get_running_loop().time()
        for suspect in suspects:
            if suspect.owner not in missing:
                continue
            age_s = now - self._suspected.get(suspect.name, now)
            deleted_at = missing[suspect.owner]
            proven = deleted_at is not None and await self.evidence.proves(deleted_at)
            edited = None if proven else await suspect.secondary.earlier_owner(suspect.stored)
            yield Orphan(
                kind=suspect.secondary.kind.name,
                key=suspect.stored.key,
                revision=suspect.stored.revision,
                owner=suspect.owner,
                reason=orphan_reason(suspect.owner, deleted_at),
                proven=proven,
                suspected_s=round(age_s, 3),
                due=age_s >= grace_s,
                uid=suspect.secondary.metadata(suspect.stored).uid,
                held=await self.paused(suspect.owner)
                or (f"its owner was {edited.key} before an edit" if edited is not None else ""),
            )

    async def _refusal(self, orphans: Sequence[Orphan], unchecked: int, owners_before: int) -> str:
        """Return why a GC cycle must not run; if it may, store the state of the bucket.

        If there are fewer owners than *owners_before*, some vanished while the orphans were sought.
        The next GC cycle judges that state.
        """
        unproven = {orphan.owner for orphan in orphans if not orphan.proven}
        refused = self.evidence.held
        if unproven and not refused:
            refused = self.evidence.vanished(len(unproven))
            if refused:
                await self.evidence.hold(refused)
        elif not unproven and not unchecked and len(self.primary.table) >= owners_before:
            await self.evidence.settle(orphans=bool(orphans))
            refused = self.evidence.held
        count = sum(orphan.due and not orphan.held for orphan in orphans) + unchecked
        owned, limits = self._owned(), self.limits
        if not refused and count > limits.count_max:
            return f"{count} objects would go, more than {limits.count_max} at once"
        if not refused and count > limits.share_from and count > limits.share_max * owned:
            return f"{count} of {owned} objects would go, more than {limits.share_max:.0%}"
        return refused
