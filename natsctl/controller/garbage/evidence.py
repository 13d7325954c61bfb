"""Decides whether the bucket of primaries proves that an owner was deleted.

A delete marker or a missing key proves a deletion only in the same bucket: an older copy of the
bucket lacks newer keys and has older markers. So the state of the bucket is stored across restarts,
in the bucket `natsctl`. If the bucket differs from its stored state, garbage collection is held
until a person accepts the bucket as it is, or until all owners exist again.
"""

import asyncio
from typing import Any

import msgspec

from natsctl.core.cache.informer import Informer
from natsctl.core.objects.compare_and_set import read, rewrite
from natsctl.errors import ConflictError, StoreTimeoutError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Sequenced, Store, Stored

SHOWN_S = 5.0  # the deadline for the watch to show what another process has seen


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The remembered state of the bucket of primaries."""

    incarnation: str  # of the bucket
    populated: bool  # whether primaries existed; natsctl 0.1 reads it
    revision: int = 0  # the highest revision seen
    owners: int = 0  # how many primaries there were when none was missing
    owners_revision: int = 0  # the revision at that time
    held: str = ""  # why garbage collection waits for a person; empty if it does not


MEMORY: KvKind[Remembered] = kv(Remembered, bucket="natsctl", history=1, replicas=None)
"""The key `gc.NAME` has the state for the controller NAME."""


class Evidence:
    """Decides what the bucket of primaries proves; call `review` before the other methods.

    *memory* is the store of `MEMORY`.
    """

    def __init__(self, primary: Informer[Any], memory: Store, controller: str) -> None:
        self.held = ""  # why garbage collection waits for a person
        self._cache, self._store = primary.cache, primary.store
        self._kind = primary.cache.kind.name
        self._memory = memory
        self._key = f"gc.{controller}"
        self._reviewed: str | None = None  # the incarnation that was reviewed
        self._owners = 0  # the largest number of owners since none was missing
        self._revision = 0  # the revision at that time
        self._stored: Remembered | None = None
        primary.cache.before_fewer = self._note_owners

    @property
    def remembered(self) -> bool:
        """True if the state of the present bucket is stored."""
        return self._stored is not None and self._reviewed == self._cache.incarnation

    async def proves(self, deleted_at: int) -> bool:
        """Return whether a delete marker at this revision proves that the owner was deleted.

        While collection is held, only a deletion after the cache's first listing does.
        """
        if self._reviewed != self._cache.incarnation:
            await self.review(secondaries=True)
        return not self.held or deleted_at > self._cache.since

    async def review(self, *, secondaries: bool) -> str:
        """Compare the bucket with its remembered state, and return why collection is held.

        *secondaries* is whether any exist. A controller with no remembered state and no secondaries
        is new. Raises `StoreError`, also if the watch of the bucket is behind for `SHOWN_S`.
        """
        stored = await read(self._memory, self._key)
        self._stored = None if stored is None else MEMORY.decode(stored.value)
        if self._stored is not None and self._stored.incarnation == self._lasting_incarnation:
            await self._wait_until_shown(self._stored.revision)
        self._note_owners()
        reason = self._reason(self._stored, secondaries=secondaries)
        if self._stored is not None and not reason and self._stored.owners > self._owners:
            self._owners, self._revision = self._stored.owners, self._stored.owners_revision
        self.held = reason
        if reason:
            await self.hold(reason)
        self._reviewed = self._cache.incarnation
        if self._stored is None:
            await self.save()
        return reason

    async def hold(self, reason: str) -> None:
        """Hold garbage collection until a person accepts the bucket, also after a restart."""
        self.held = reason
        before = self._stored
        if before is None:
            before = Remembered(incarnation=self._lasting_incarnation, populated=False)
        await self._write(msgspec.structs.replace(before, held=reason), accepted=False)

    async def accept(self) -> None:
        """Trust the bucket as it is now; raises `ConflictError` if it was not reviewed."""
        if self._reviewed != self._cache.incarnation:
            raise ConflictError(f"the bucket of {self._kind} was replaced just now: plan again")
        self.held = ""
        self._owners, self._revision = len(self._cache), self._cache.revision
        await self._write(self._state(), accepted=True)

    async def settle(self, *, orphans: bool) -> None:
        """Accept the bucket as the state that later states are compared with.

        While collection is held, this needs as many owners as there ever were, and no *orphans*.
        """
        stored_owners = 0 if self._stored is None else self._stored.owners
        is_back = not orphans and len(self._cache) >= max(stored_owners, self._owners)
        if self._reviewed == self._cache.incarnation and (is_back or not self.held):
            await self.accept()

    async def save(self) -> None:
        """Store the state of the bucket if it was reviewed and collection is not held."""
        if self._reviewed == self._cache.incarnation and not self.held:
            await self._write(self._state(), accepted=False)

    def vanished(self, orphaned: int) -> str:
        """Return why too many owners vanished without a delete marker; empty if not too many."""
        self._note_owners()
        count = min(orphaned, self._owners - len(self._cache))
        populated = self._owners or (self._stored is not None and self._stored.populated)
        if populated and not len(self._cache):
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
        """Wait for the cache if the bucket has the revision: another process saw it earlier.

        An older copy of the bucket lacks the revision, so it is not waited for.
        """
        if self._cache.revision >= revision or not isinstance(self._store, Sequenced):
            return
        if await self._store.newest_revision() < revision:
            return
        try:
            async with asyncio.timeout(SHOWN_S):
                await self._cache.passed(revision)
        except TimeoutError as error:
            raise StoreTimeoutError(
                f"the watch of the bucket of {self._kind} is behind: it is at revision "
                f"{self._cache.revision}, and another process has seen revision {revision}"
            ) from error

    def _note_owners(self) -> None:
        """Update the number of owners; needed before each use of it, and before it falls."""
        count = len(self._cache)
        if count >= self._owners:
            self._owners, self._revision = count, self._cache.revision

    def _has_unchanged_owner(self) -> bool:
        """Return whether an owner has not changed since all of them existed."""
        cached = (self._cache.get(key) for key in self._cache.keys())  # noqa: SIM118 - a cache is no dict
        return any(stored is not None and stored.revision <= self._revision for stored in cached)

    def _reason(self, stored: Remembered | None, *, secondaries: bool) -> str:
        bucket, cache = f"the bucket of {self._kind}", self._cache
        if stored is None:
            return f"nothing is remembered about {bucket}" if secondaries else ""
        if stored.held:
            return stored.held
        if stored.incarnation != self._lasting_incarnation:
            return f"{bucket} was recreated since it was last seen"
        if self._reviewed not in {None, cache.incarnation}:
            return f"{bucket} was recreated or restored since it was last seen"
        if cache.revision < stored.revision:
            return (
                f"{bucket} is at revision {cache.revision}, and revision {stored.revision} was "
                "seen before: an older copy was restored"
            )
        return ""

    @property
    def _lasting_incarnation(self) -> str:
        """The part of the incarnation that is equal in all processes."""
        return self._cache.incarnation.partition("#")[0]

    def _state(self) -> Remembered:
        self._note_owners()
        return Remembered(
            incarnation=self._lasting_incarnation,
            populated=self._owners > 0,
            revision=self._cache.revision,
            owners=self._owners,
            owners_revision=self._revision,
        )

    async def _write(self, state: Remembered, *, accepted: bool) -> None:
        """Store *state*; only an accepted state replaces one that another process holds."""
        if state == self._stored:
            return

        def change(current: Stored | None) -> bytes:
            holds = current is not None and MEMORY.decode(current.value).held
            return current.value if holds and not accepted else msgspec.json.encode(state)  # type: ignore[union-attr]  # it holds

        rewritten = await rewrite(self._memory, self._key, change)
        self._stored = MEMORY.decode(rewritten.stored.value)
