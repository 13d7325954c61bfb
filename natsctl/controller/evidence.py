"""Decides whether the bucket of primaries proves that an owner was deleted.

A delete marker or a missing key proves a deletion only in the same bucket: an older copy of the
bucket lacks newer keys and has older markers. So the state of the bucket is stored across restarts,
in the bucket `natsctl`, soon after each change. If the bucket differs from its stored state,
garbage collection is held until a person accepts the bucket as it is, or until all owners exist
again. While it is held, a delete marker still proves a deletion if it was written after the bucket
was replaced.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.environment import environment
from natsctl.core.informer import Informer
from natsctl.core.retry import backoff
from natsctl.errors import ConflictError, NotLeadingError, StoreError, StoreTimeoutError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Sequenced, Store, Stored
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SOON_S = 1.0  # after a change until the state of the bucket is stored
SAVE_S = 2.0  # how long a stop waits until the state of the bucket is stored
SHOWN_S = 5.0  # the deadline for the watch to show what another process has seen


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The remembered state of the bucket of primaries."""

    incarnation: str  # of the bucket
    populated: bool  # whether primaries existed; natsctl 0.1 reads it
    revision: int = 0  # the highest revision seen in this bucket, also while collection is held
    owners: int = 0  # how many primaries there were when none was missing
    owners_revision: int = 0  # the revision at that time
    held: str = ""  # why garbage collection waits for a person; empty if it does not
    since: int | None = None  # while it waits: a delete marker above this still proves a deletion


MEMORY: KvKind[Remembered] = kv(Remembered, bucket="natsctl", history=1, replicas=None)
"""The key `gc.NAME` has the state for the controller NAME."""


class Evidence:
    """Decides what the bucket of primaries proves; call `review` before the other methods.

    *memory* is the store of `MEMORY`.
    """

    def __init__(self, primary: Informer[Any], memory: Store, controller: str) -> None:
        self.held = ""  # why garbage collection waits for a person
        self._table, self._store = primary.table, primary.store
        self.controller, self._kind = controller, primary.table.kind.name
        self._memory = memory
        self._key = f"gc.{controller}"
        self._reviewed: str | None = None  # the incarnation that was reviewed
        self._owners = 0  # the largest number of owners since none was missing
        self._revision = 0  # the revision at that time
        self._record: Stored | None = None  # as last read or written
        self._fewer = asyncio.Event()  # objects were deleted, or the bucket was listed
        primary.table.before_fewer = self._note_fewer

    @property
    def _stored(self) -> Remembered | None:
        return None if self._record is None else MEMORY.decode(self._record.value)

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
        stored, incarnation = self._stored, self._table.incarnation
        # the revision that the bucket has reached, asked for after the state was read
        last = self._table.revision
        if isinstance(self._store, Sequenced):
            last = await self._store.last_revision()
        if stored is not None and stored.incarnation == self._lasting_incarnation:
            await self._wait_until_shown(min(stored.revision, last))
        self._note_owners()
        is_other = self._reviewed not in {None, incarnation}
        reason = self._reason(stored, last, is_other=is_other, secondaries=secondaries)
        if stored is not None and not reason and stored.owners > self._owners:
            self._owners, self._revision = stored.owners, stored.owners_revision
        self.held = "" if stored is None else stored.held
        if reason:
            await self.hold(reason, revision=last, since=None if is_other else last)
        self._reviewed = incarnation
        if self._record is None:
            await self.save()
        return self.held

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
        if not self.held:
            log.error(
                "garbage collection is held: `natsctl repair gc` accepts the bucket as it is",
                controller=self.controller,
                reason=reason,
            )
            self.held = reason
        incarnation = self._lasting_incarnation

        def change(current: Stored | None) -> bytes:
            unknown = Remembered(incarnation=incarnation, populated=False)
            before = unknown if current is None else MEMORY.decode(current.value)
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
            raise ConflictError(f"the bucket of {self._kind} was replaced just now: plan again")
        self.held = ""
        self._owners, self._revision = len(self._table), self._table.revision
        state = msgspec.json.encode(self._state())
        await self._rewrite(lambda _: state)

    async def settle(self, *, orphans: bool) -> None:
        """Accept the bucket as the state that later states are compared with.

        While collection is held, this needs as many owners as there ever were, and no *orphans*.
        """
        stored = self._stored
        stored_owners = 0 if stored is None else stored.owners
        is_back = not orphans and len(self._table) >= max(stored_owners, self._owners)
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
            known = None if current is None else MEMORY.decode(current.value)
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

    async def follow(self) -> None:
        """Store the state of the bucket `SOON_S` after each change, while this process leads.

        If the bucket was replaced, collection is held at once.
        """
        failures = 0
        while True:
            await environment().led()
            self._fewer.clear()
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
            waiting = [
                asyncio.ensure_future(self._table.passed(self._table.revision + 1)),
                asyncio.ensure_future(self._fewer.wait()),
            ]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if self._reviewed == self._table.incarnation:
                await asyncio.sleep(SOON_S)

    def vanished(self, orphaned: int) -> str:
        """Return why too many owners vanished without a delete marker; empty if not too many."""
        self._note_owners()
        count = min(orphaned, self._owners - len(self._table))
        stored = self._stored
        populated = self._owners or (stored is not None and stored.populated)
        if populated and not len(self._table):
            return f"the bucket of {self._kind} is empty, although owners were seen in it"
        if 2 * count > self._owners or (
            count and 2 * count == self._owners and not self._has_unchanged_owner()
        ):
            return (
                f"{count} of {self._owners} owners vanished from the bucket of {self._kind} "
                "without a delete marker"
            )
        return ""

    async def _wait_until_shown(self, revision: int) -> None:
        """Wait for the table to show what another process saw earlier, if it still exists."""
        if self._table.revision >= revision or not isinstance(self._store, Sequenced):
            return
        revision = min(revision, await self._store.newest_revision())
        try:
            async with asyncio.timeout(SHOWN_S):
                await self._table.passed(revision)
        except TimeoutError as error:
            raise StoreTimeoutError(
                f"the watch of the bucket of {self._kind} is behind: it is at revision "
                f"{self._table.revision}, and another process has seen revision {revision}"
            ) from error

    def _note_fewer(self) -> None:
        self._note_owners()
        self._fewer.set()

    def _note_owners(self) -> None:
        """Update the number of owners; needed before each use of it, and before it falls."""
        count = len(self._table)
        if count >= self._owners:
            self._owners, self._revision = count, self._table.revision

    def _has_unchanged_owner(self) -> bool:
        """Return whether an owner has not changed since all of them existed."""
        cached = (self._table.get(key) for key in self._table.keys())  # noqa: SIM118 - a table is no dict
        return any(stored is not None and stored.revision <= self._revision for stored in cached)

    def _reason(
        self, stored: Remembered | None, last: int, *, is_other: bool, secondaries: bool
    ) -> str:
        """Return why the bucket is not the remembered one; *is_other* if this process saw that."""
        bucket = f"the bucket of {self._kind}"
        if stored is None:
            return f"nothing is remembered about {bucket}" if secondaries else ""
        if stored.incarnation != self._lasting_incarnation:
            return f"{bucket} was recreated since it was last seen"
        if is_other:
            return f"{bucket} was recreated or restored since it was last seen"
        if last < stored.revision:
            return (
                f"{bucket} is at revision {last}, and revision {stored.revision} was "
                "seen before: an older copy was restored"
            )
        return ""

    @property
    def _lasting_incarnation(self) -> str:
        """The part of the incarnation that is equal in all processes."""
        return self._table.incarnation.partition("#")[0]

    def _state(self) -> Remembered:
        self._note_owners()
        return Remembered(
            incarnation=self._lasting_incarnation,
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
