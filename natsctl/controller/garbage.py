"""Finds secondaries without an owner, and decides whether they may be removed.

An orphan is suspected from the tables, and confirmed by a read of its owner at the store's leader.
A delete marker proves that the owner was deleted, but only in the same bucket: an older copy of the
bucket lacks newer keys and has older markers. So the state of the bucket is stored across restarts,
in the bucket `natsctl`, soon after each change. If the bucket differs from its stored state,
garbage collection is held until a person accepts the bucket as it is, or until all owners exist
again. While it's held, a delete marker still proves a deletion if it was written after the bucket
was replaced.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any

import msgspec

from natsctl.controller.owned import OWNER_INDEX, Owned
from natsctl.controller.owners import Owner
from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.informer import Informer
from natsctl.core.retry import backoff
from natsctl.core.table import is_read, read_state
from natsctl.core.task_group import first_of, for_each
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    InvalidObjectError,
    NotFoundError,
    NotLeadingError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.model.kinds import KvKind, kv
from natsctl.model.plans import GarbageLimits, GarbagePlan, Kept, Orphan, Removed, orphan_reason
from natsctl.model.store import Sequenced, Store, Stored
from natsctl.slices import Slices
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SOON_S = 1.0  # after a change until the state of the bucket is stored
SAVE_S = 2.0  # how long a stop waits until the state of the bucket is stored
SHOWN_S = 5.0  # the deadline for the watch to show what another process has seen
READS_MAX = 16  # objects read at the leader at once
NAMELESS_MAX = 10_000  # objects without an owner whose history is read for a person's plan
BEGIN_S = 60.0  # for which a start waits for the remembered state of the bucket
BEGIN_TRIES = 8  # which it makes at least, also if the machine slept for longer


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The remembered state of the bucket of primaries."""

    incarnation: str  # of the bucket
    populated: bool = False  # whether primaries existed; natsctl 0.1 reads it
    revision: int = 0  # the highest revision seen in this bucket, also while collection is held
    owners: int = 0  # how many primaries there were when none was missing
    owners_revision: int = 0  # the revision at that time
    held: str = ""  # why garbage collection waits for a person; empty if it does not
    since: int | None = None  # while it waits: a delete marker above this still proves a deletion


MEMORY: KvKind[Remembered] = kv(Remembered, bucket="natsctl", history=1, replicas=None)
"""The key `gc.NAME` has the state for the controller NAME."""


def _remembered(record: Stored | None) -> Remembered | None:
    """Return the remembered state; None without a record, or if it's damaged."""
    try:
        return None if record is None else MEMORY.decode(record.value)
    except InvalidObjectError:
        return None


class Evidence:
    """Decides what the bucket of primaries proves; call `review` before the other methods.

    *memory* is the store of `MEMORY`.
    """

    def __init__(self, primary: Informer[Any], memory: Store, controller: str) -> None:
        self.held = ""  # why garbage collection waits for a person
        self.controller = controller
        self._table, self._store = primary.table, primary.store
        self._bucket = f"the bucket of {primary.table.kind.name}"
        self._memory, self._key = memory, f"gc.{controller}"
        self._reviewed: str | None = None  # the incarnation that was reviewed, "" if another came
        self._owners = 0  # the largest number of owners since none was missing
        self._revision = 0  # the revision at that time
        self._record: Stored | None = None  # as last read or written
        self._fewer = asyncio.Event()  # objects were deleted, or the bucket was listed
        primary.table.before_fewer = self._note_fewer

    @property
    def _stored(self) -> Remembered | None:
        return _remembered(self._record)

    @property
    def _incarnation(self) -> str:
        """The part of the incarnation that is equal in all processes."""
        return self._table.incarnation.partition("#")[0]

    @property
    def remembered(self) -> bool:
        """True if the state of the present bucket is stored."""
        return self._record is not None and self._reviewed == self._table.incarnation

    async def proves(self, deleted_at: int) -> bool:
        """Return whether a delete marker at this revision proves that the owner was deleted.

        While collection is held, only a deletion does that was made after the bucket was replaced.
        """
        if self._reviewed != self._table.incarnation:
            await self.review(secondaries=True)
        stored = self._stored
        since = None if stored is None else stored.since
        return not self.held or deleted_at > (self._table.since if since is None else since)

    async def review(self, *, secondaries: bool) -> str:
        """Compare the bucket with its remembered state, and return why collection is held.

        *secondaries* is whether any exist. A controller with no remembered state and no secondaries
        is new. Raises `StoreError`, also if the watch of the bucket is behind for `SHOWN_S`.
        """
        self._record = await read(self._memory, self._key)
        stored, incarnation, reason = self._stored, self._table.incarnation, ""
        # the revision that the bucket has reached, asked for after the state was read
        shown = last = self._table.revision
        if isinstance(self._store, Sequenced):
            last = await self._store.last_revision()
            if stored is not None and stored.incarnation == self._incarnation:
                await self._wait_until_shown(self._store, min(stored.revision, last))
        self._note_owners()
        # whether the bucket was replaced, and the watch has yet to notice it
        is_unseen = stored is not None and last < shown
        is_other = self._reviewed not in {None, incarnation}
        if stored is None:
            reason = f"nothing is remembered about {self._bucket}" if secondaries else ""
        elif stored.incarnation != self._incarnation:
            reason = f"{self._bucket} was recreated since it was last seen"
        elif is_other or is_unseen:
            reason = f"{self._bucket} was recreated or restored since it was last seen"
        elif last < stored.revision:
            reason = (
                f"{self._bucket} is at revision {last}, and revision {stored.revision} was "
                "seen before: an older copy was restored"
            )
        elif stored.owners > self._owners:
            self._owners, self._revision = stored.owners, stored.owners_revision
        self.held = "" if stored is None else stored.held
        if reason:
            await self.hold(reason, revision=last, since=None if is_other else last)
        self._reviewed = "" if is_unseen else incarnation
        if self._record is None:
            await self.save()
        return self.held

    async def _wait_until_shown(self, store: Sequenced, revision: int) -> None:
        """Wait for the table to show what another process saw earlier, if it still exists."""
        if self._table.revision >= revision:
            return
        revision = min(revision, await store.newest_revision())
        try:
            async with asyncio.timeout(SHOWN_S):
                await self._table.passed(revision)
        except TimeoutError as error:
            raise StoreTimeoutError(
                f"the watch of {self._bucket} is behind: it is at revision "
                f"{self._table.revision}, and another process has seen revision {revision}"
            ) from error

    async def hold(
        self, reason: str, *, revision: int | None = None, since: int | None = None
    ) -> None:
        """Hold garbage collection until a person accepts the bucket, also after a restart.

        Collection is held at this *revision* of the bucket, by default the present one; a delete
        marker above *since* still proves a deletion. The first reason stays. So does the number of
        owners: collection resumes if as many exist again.
        """
        revision = self._table.revision if revision is None else revision
        since = self._table.since if since is None else since
        incarnation = self._incarnation
        if not self.held:
            log.error(
                "garbage collection is held: `natsctl repair gc` accepts the bucket as it is",
                controller=self.controller,
                reason=reason,
            )
            self.held = reason

        def change(current: Stored | None) -> bytes:
            before = _remembered(current) or Remembered(incarnation=incarnation)
            is_continued = before.held and before.incarnation == incarnation
            earlier = (before.since or 0) if is_continued else 0
            state = msgspec.structs.replace(
                before,
                incarnation=incarnation,
                revision=revision,
                held=before.held or reason,
                since=max(since, earlier) if earlier <= revision else since,
            )
            return msgspec.json.encode(state)

        await self._rewrite(change)

    async def accept(self) -> None:
        """Trust the bucket as it is now; raises `ConflictError` if it was not reviewed."""
        if self._reviewed != self._table.incarnation:
            raise ConflictError(f"{self._bucket} was replaced just now: plan again")
        self.held = ""
        self._owners, self._revision = len(self._table), self._table.revision
        state = msgspec.json.encode(self._state())
        await self._rewrite(lambda _: state)

    async def settle(self, *, orphans: bool) -> None:
        """Accept the bucket as the state that later states are compared with.

        While collection is held, this needs as many owners as there ever were, and no *orphans*.
        """
        stored = self._stored
        most = max(0 if stored is None else stored.owners, self._owners)
        is_back = not orphans and len(self._table) >= most
        if self._reviewed == self._table.incarnation and (is_back or not self.held):
            await self.accept()

    async def save(self) -> None:
        """Store the state of the bucket; while collection is held, only its revision.

        A bucket that was replaced since the last review is reviewed, which may hold collection.
        Does nothing before the first review.
        """
        if self._reviewed is None:
            return
        if self._reviewed != self._table.incarnation:
            await self.review(secondaries=True)
        stored, state = self._stored, self._state()
        if stored is not None and stored.held:
            state = msgspec.structs.replace(stored, revision=max(stored.revision, state.revision))
        if state == stored:
            return

        def change(current: Stored | None) -> bytes:
            """Keep what another process has seen, and whether it holds collection."""
            known = _remembered(current)
            if current is None or known is None:
                return msgspec.json.encode(state)
            if bool(known.held) != bool(state.held) or known.incarnation != state.incarnation:
                return current.value
            most = max(state, known, key=lambda seen: seen.owners)
            merged = msgspec.structs.replace(
                state,
                populated=state.populated or known.populated,
                revision=max(state.revision, known.revision),
                owners=most.owners,
                owners_revision=most.owners_revision,
            )
            return msgspec.json.encode(merged)

        await self._rewrite(change)

    async def close(self) -> None:
        """Store the state of the bucket at a stop, if its store answers within `SAVE_S`."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(SAVE_S):
                await self.save()

    async def follow(self, led: Callable[[], Awaitable[None]]) -> None:
        """Store the state of the bucket `SOON_S` after each change, while this process has *led*.

        If the bucket was replaced, collection is held at once.
        """
        failures, fewer = 0, self._fewer
        while True:
            await led()
            fewer.clear()
            try:
                await self.save()
            except NotLeadingError:
                await asyncio.sleep(SOON_S)
                continue
            except StoreError as error:
                failures += 1
                log.warning("cannot store the state of the bucket yet", error=error)
                await asyncio.sleep(backoff(failures, base_s=SOON_S, limit_s=30.0))
                continue
            failures = 0
            await first_of(self._table.passed(self._table.revision + 1), fewer.wait())
            if self._reviewed == self._table.incarnation:
                await asyncio.sleep(SOON_S)

    def vanished(self, orphaned: int) -> str:
        """Return why too many owners vanished without a delete marker; empty if not too many."""
        self._note_owners()
        count, stored = min(orphaned, self._owners - len(self._table)), self._stored
        populated = self._owners or (stored is not None and stored.populated)
        if populated and not len(self._table):
            return f"{self._bucket} is empty, although owners were seen in it"
        states = (self._table.get(key) for key in self._table.keys())  # noqa: SIM118 - a table isn't a dict
        if 2 * count > self._owners or (
            count
            and 2 * count == self._owners
            # no owner is left as it was when all of them existed
            and not any(state is not None and state.revision <= self._revision for state in states)
        ):
            return (
                f"{count} of {self._owners} owners vanished from {self._bucket} "
                "without a delete marker"
            )
        return ""

    def _note_fewer(self) -> None:
        self._note_owners()
        self._fewer.set()

    def _note_owners(self) -> None:
        """Update the number of owners; needed before each use of it, and before it falls."""
        count = len(self._table)
        if count >= self._owners:
            self._owners, self._revision = count, self._table.revision

    def _state(self) -> Remembered:
        self._note_owners()
        return Remembered(
            incarnation=self._incarnation,
            populated=self._owners > 0,
            revision=self._table.revision,
            owners=self._owners,
            owners_revision=self._revision,
        )

    async def _rewrite(self, change: Callable[[Stored | None], bytes]) -> None:
        """Change the stored state; another process may have stored that collection is held."""
        rewritten = await rewrite(self._memory, self._key, change, seen=self._record)
        self._record = rewritten.stored
        self.held = MEMORY.decode(rewritten.stored.value).held


Suspect = tuple[Owned[Any], Stored, str]
"""An object that may be an orphan, its slot, and the owner that it names."""


class GarbageCollector:
    """Plans which orphans to remove; a sync of the owner's key, or `apply`, removes them.

    *paused* returns why the objects of a paused owner are kept; empty if they are not. It reads the
    history of the owner, unless it's told that there is none: `has_history=False`.
    """

    def __init__(
        self,
        evidence: Evidence,
        primary: Informer[Any],
        secondaries: Collection[Owned[Any]],
        limits: GarbageLimits,
        paused: Callable[..., Awaitable[str]],
    ) -> None:
        self.evidence, self.last = evidence, GarbagePlan(())
        self._primary, self._secondaries = primary, secondaries
        self._limits, self._paused = limits, paused
        self._suspected: dict[tuple[str, str, str], float] = {}  # when each was first suspected
        self._edited: dict[tuple[str, str, str], tuple[str, int, str]] = {}  # see `_why_edited`

    async def plan(self, *, at_once: bool = False, orphans_max: int | None = None) -> GarbagePlan:
        """Return every orphan that the leader confirms; `refused` is why a GC cycle must not run.

        *at_once* ignores the grace period. If there are more than *orphans_max*, the others are
        only counted.
        """
        for informer in (self._primary, *(slot.informer for slot in self._secondaries)):
            if not informer.table.synced.is_set():
                name = informer.table.kind.name
                return GarbagePlan((), f"{name} has not been listed completely yet")
            if isinstance(informer.failure, StoreMissingError):
                return GarbagePlan((), str(informer.failure))
        table = self._primary.table
        owners_before = len(table)
        suspects = await self._suspects()
        now = asyncio.get_running_loop().time()
        self._suspected = {name: self._suspected.get(name, now) for name in map(_name, suspects)}
        self._edited = {name: self._edited[name] for name in self._edited.keys() & self._suspected}
        first = heapq.nsmallest(orphans_max or len(suspects), suspects, key=_name)
        unchecked = len(suspects) - len(first)
        try:
            await self.evidence.review(secondaries=self._owned() > 0)
            incarnation = table.incarnation
            orphans = await self._confirmed(first, 0.0 if at_once else self._limits.grace_s)
            if incarnation != table.incarnation:
                return GarbagePlan(orphans, "the bucket of primaries was recreated just now")
            refused = await self._refusal(orphans, unchecked, owners_before)
        except StoreMissingError as error:
            return GarbagePlan((), hidden(str(error)))
        except StoreError as error:
            return GarbagePlan((), hidden(f"the owners cannot be read: {error}"))
        return GarbagePlan(orphans, refused, self._stores(), unchecked)

    async def _suspects(self) -> list[Suspect]:
        """Return the objects whose owner is not cached; finds them in slices."""
        suspects, slices = list[Suspect](), Slices()
        for secondary in self._secondaries:
            table, owners = secondary.informer.table, self._primary.table
            for owner in table.index_values(OWNER_INDEX):
                for stored in () if owner in owners else table.by_index(OWNER_INDEX, owner):
                    is_terminating = is_read(stored) and secondary.is_terminating(stored)
                    if stored.key not in table.invalid and not is_terminating:
                        suspects.append((secondary, stored, owner))
                if slices.is_over():
                    await slices.pause()
        return suspects

    async def _confirmed(self, suspects: list[Suspect], grace_s: float) -> tuple[Orphan, ...]:
        """Return the orphans among the suspects: the leader has no such owner.

        The values of objects whose owners are keys of other processes are read from the store. An
        object that has changed since is left out.
        """
        missing: dict[str, int | None] = {}  # the revision of each owner's marker
        orphans: list[Orphan] = []
        now = asyncio.get_running_loop().time()

        async def look(owner: str) -> None:
            try:
                await self._primary.store.get(owner)
            except NotFoundError as error:
                missing[owner] = error.deleted_at
            except InvalidKeyError:
                pass  # no primary can have this key, so its objects are no orphans

        async def check(suspect: Suspect) -> None:
            secondary, stored, owner = suspect
            if not is_read(stored):
                seen, newest = stored, await read(secondary.informer.store, stored.key)
                if newest is None or newest.revision != seen.revision:
                    return
                stored = newest
                if not secondary.kind.valid(stored.value) or secondary.is_terminating(stored):
                    return
            deleted_at = missing[owner]
            proven = deleted_at is not None and await self.evidence.proves(deleted_at)
            held = await self._paused(owner, has_history=deleted_at is not None)
            if not held and not proven:
                held = await self._why_edited((secondary, stored, owner))
            age_s = now - self._suspected.get(_name(suspect), now)
            reason = orphan_reason(owner, deleted_at)
            kind, key, _ = _name(suspect)
            due, age_s = age_s >= grace_s, round(age_s, 3)
            uid = secondary.metadata(stored).uid
            orphans.append(
                Orphan(kind, key, stored.revision, owner, reason, proven, age_s, due, uid, held)
            )

        await for_each({owner for *_, owner in suspects}, look, workers=READS_MAX)
        await for_each([each for each in suspects if each[2] in missing], check, workers=READS_MAX)
        return tuple(sorted(orphans, key=lambda orphan: (orphan.kind, orphan.key)))

    async def _why_edited(self, suspect: Suspect) -> str:
        """Return why an object is kept that named another owner; reads its history once.

        What was written before a revision stays as it is, and orphans may be kept for long.
        """
        secondary, stored, _ = suspect
        name, incarnation = _name(suspect), secondary.informer.table.incarnation
        known = self._edited.get(name)
        if known is None or known[:2] != (incarnation, stored.revision):
            edited = await secondary.earlier_owner(stored)
            held = "" if edited is None else f"its owner was {edited.key} before an edit"
            self._edited[name] = known = incarnation, stored.revision, held
        return known[2]

    async def _refusal(
        self, orphans: Collection[Orphan], unchecked: int, owners_before: int
    ) -> str:
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
        elif not unproven and not unchecked and len(self._primary.table) >= owners_before:
            await self.evidence.settle(orphans=bool(orphans))
            refused = self.evidence.held
        count = sum(orphan.due and not orphan.held for orphan in orphans) + unchecked
        owned, limits = self._owned(), self._limits
        if not refused and count > limits.count_max:
            return f"{count} objects would go, more than {limits.count_max} at once"
        if not refused and count > limits.share_from and count > limits.share_max * owned:
            return f"{count} of {owned} objects would go, more than {limits.share_max:.0%}"
        return refused

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

    async def nameless(self) -> list[Orphan]:
        """Return the objects that name no owner, although they were made for one; they stay.

        They lost their labels. While a daemon runs, the next sync of an existing owner restores the
        labels.
        """
        found: list[tuple[Owned[Any], Stored]] = []
        slices = Slices()
        for secondary in self._secondaries:
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
            if owner := await secondary.lost_owner(stored):
                why = f"it names no owner; it was made for {owner}"
                orphans.append(
                    Orphan(
                        kind=secondary.kind.name,
                        key=stored.key,
                        revision=stored.revision,
                        owner="",
                        reason=why,
                        proven=False,
                        suspected_s=0.0,
                        due=False,
                        uid=secondary.metadata(stored).uid,
                        held=why,
                    )
                )

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
        while not (self.evidence.remembered or self.evidence.held):
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
            reason = orphan.held if not orphan.owner else await self._paused(orphan.owner)
            reason = reason or await self._remove(orphan)
            if reason:
                log.warning("keeping an orphan", kind=orphan.kind, key=orphan.key, reason=reason)
                kept.append(Kept(orphan, reason))
            else:
                removed.append(orphan)
        remaining = {_name(suspect)[:2] for suspect in await self._suspects()}
        if remaining <= {(orphan.kind, orphan.key) for orphan in removed}:
            await self.evidence.accept()
        return Removed(tuple(removed), tuple(kept))

    async def _remove(self, orphan: Orphan) -> str:
        """Remove the object; return the reason if it is kept."""
        if await read(self._primary.store, orphan.owner) is not None:
            return f"its owner {orphan.owner} exists"
        secondary = self._secondary_of(orphan)
        store, owners = secondary.informer.store, secondary.owners
        stored = await read(store, orphan.key)
        if stored is None:
            return "it does not exist"
        metadata = secondary.metadata(stored)
        if (stored.revision, metadata.uid) != (orphan.revision, orphan.uid):
            return f"it changed: it is at revision {stored.revision}, not at {orphan.revision}"
        foreign = owners.foreign(secondary.kind, metadata)
        owner = Owner(owners.kind, orphan.owner)
        if foreign or owners.named(secondary.kind, metadata) != owner:
            named = f"it does not name {owner} as its owner"
            return f"it belongs to installation {foreign}" if foreign else named
        try:  # not as an own write, so that an owner which was just created is synced
            await store.delete(orphan.key, revision=orphan.revision, uid=orphan.uid)
        except (ConflictError, NotFoundError) as error:
            return str(error)
        return ""

    def _secondary_of(self, orphan: Orphan) -> Owned[Any]:
        """Return the slot of the orphan; several slots may have parts of one kind."""
        for secondary in self._secondaries:
            if secondary.kind.name == orphan.kind and secondary.kind.holds(orphan.key):
                return secondary
        raise UsageError(
            f"the plan has {orphan.kind} {orphan.key}, which this controller does not create"
        )

    def _owned(self) -> int:
        return sum(slot.informer.table.indexed(OWNER_INDEX) for slot in self._secondaries)

    def _stores(self) -> dict[str, str]:
        return {slot.kind.name: slot.informer.table.incarnation for slot in self._secondaries}


def _name(suspect: Suspect) -> tuple[str, str, str]:
    secondary, stored, owner = suspect
    return secondary.kind.name, stored.key, owner
