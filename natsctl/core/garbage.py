"""Which secondaries have lost their owner, and whether it is safe to believe it.

An orphan is suspected in the caches and confirmed by reading its owner at the store's leader. A
delete marker proves that the owner was deleted. Without one the owner may just as well have been
lost with its bucket, so such orphans are left alone while anything about the bucket is odd.
"""

import asyncio
import heapq
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from natsctl.core.informer import Informer
from natsctl.core.owned import OWNER_INDEX, Owned
from natsctl.core.tasks import together
from natsctl.core.write import read, rewrite
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    UsageError,
)
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Store, Stored
from natsctl.telemetry.hiding import hidden

log = logging.getLogger(__name__)

READS_MAX = 16  # owners read at the leader at once


class GarbageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When garbage is collected, and when that needs a person.

    A sweep runs every `interval_s`. An orphan is collected once it was suspected for `grace_s`. A
    sweep that would remove more than `count_max` objects, or more than the share `share_max` of
    all that is owned where that is more than `share_from` objects, removes none.
    """

    interval_s: float = 30.0
    grace_s: float = 60.0
    count_max: int = 1000
    share_max: float = 0.3
    share_from: int = 10

    def __post_init__(self) -> None:
        """Raise `UsageError` for a number that is out of range."""
        if not (0 < self.interval_s < math.inf and self.grace_s >= 0 and self.count_max >= 0):
            raise UsageError(
                "GarbageLimits needs an interval_s above 0, a grace_s and a count_max of 0 or more"
            )


class Sweep(msgspec.Struct, frozen=True):
    """What the last sweep saw: which bucket, and whether any owner was in it."""

    incarnation: str
    populated: bool


MEMORY: KvKind[Sweep] = kv(Sweep, bucket="natsctl", history=1, replicas=None)
"""Where sweeps are remembered across restarts, by controller."""


class Orphan(msgspec.Struct, frozen=True):
    """A secondary whose owner does not exist.

    `proven` says that the owner's delete marker was found, `due` that the grace period is over;
    `uid` is empty where the store gives objects none.
    """

    kind: str
    key: str
    revision: int
    owner: str
    reason: str
    proven: bool
    suspected_s: float
    due: bool
    uid: str = ""


class GarbagePlan(msgspec.Struct, frozen=True):
    """What a sweep would remove; `refused` says why it removes nothing, and is empty else.

    `stores` says of each kind in which incarnation of its store the revisions were seen; `more` is
    how many further objects are suspected that nobody looked at.
    """

    orphans: tuple[Orphan, ...]
    refused: str = ""
    stores: dict[str, str] = {}
    more: int = 0


class _Suspect(msgspec.Struct, frozen=True):
    secondary: Owned[Any]
    stored: Stored
    owner: str

    @property
    def name(self) -> tuple[str, str, str]:
        """What is suspected, and of what."""
        return self.secondary.kind.name, self.stored.key, self.owner

    @property
    def uid(self) -> str:
        """Which object it is, where its store gives objects one."""
        return self.secondary.kind.metadata(self.stored.value).uid


class GarbageCollector:
    """Plans what to remove. Who removes it holds the owner's key, or is a person's command."""

    def __init__(
        self,
        primary: Informer[Any],
        secondaries: Sequence[Owned[Any]],
        memory: Store,
        name: str,
        limits: GarbageLimits,
    ) -> None:
        self._primary = primary
        self._secondaries = secondaries
        self._memory = memory
        self._memory_key = f"gc.{name}"
        self._limits = limits
        self._suspected: dict[tuple[str, str, str], float] = {}  # since when

    async def plan(self, *, at_once: bool = False, orphans_max: int | None = None) -> GarbagePlan:
        """Return every orphan, each confirmed at the leader, and whether a sweep may run.

        *at_once* leaves the grace period out; beyond *orphans_max* they are only counted.
        """
        incomplete = self._incomplete()
        if incomplete:
            return GarbagePlan((), incomplete)
        seen, suspects = self._sweep(), list(self._suspects())
        self._remember_suspects(suspects)
        first = heapq.nsmallest(orphans_max or len(suspects), suspects, key=lambda at: at.name)
        more = len(suspects) - len(first)
        try:
            owners = await self._confirm({suspect.owner for suspect in first})
            found = self._orphans(first, owners, 0.0 if at_once else self._limits.grace_s)
            orphans = tuple(sorted(found, key=lambda orphan: (orphan.kind, orphan.key)))
            refused = await self._refusal(orphans, seen, more)
        except StoreMissingError as error:
            return GarbagePlan((), hidden(str(error)))
        except StoreError as error:
            return GarbagePlan((), hidden(f"the owners cannot be read: {error}"))
        return GarbagePlan(orphans, refused, self._stores(), more)

    async def apply(self, plan: GarbagePlan) -> tuple[Orphan, ...]:
        """Remove what the plan says and nothing else, at a person's command; returns it.

        Every owner is read again, and every object is removed at the planned revision only. The
        bucket as it is now is what later sweeps compare with. Raises `UsageError` where the plan
        is of other kinds, or of a store that was recreated since.
        """
        self._check(plan)
        removed: list[Orphan] = []
        for orphan in plan.orphans:
            if await read(self._primary.store, orphan.owner) is not None:
                continue
            try:  # not as a write of our own: an owner that has just come is to be woken
                store = self._store_of(orphan)
                await store.delete(orphan.key, revision=orphan.revision, uid=orphan.uid)
            except (ConflictError, NotFoundError) as error:
                log.warning("%s %s is left alone: %s", orphan.kind, orphan.key, error)
            else:
                removed.append(orphan)
        await self._remember(self._sweep())
        return tuple(removed)

    def _store_of(self, orphan: Orphan) -> Store:
        """Return where the orphan is: slots may share a kind, each with keys of its own."""
        for secondary in self._secondaries:
            if secondary.kind.name == orphan.kind and secondary.kind.holds(orphan.key):
                return secondary.informer.store
        raise UsageError(
            f"{orphan.kind} {orphan.key} is planned, but nothing this controller makes"
        )

    def _stores(self) -> dict[str, str]:
        caches = (secondary.informer.cache for secondary in self._secondaries)
        return {cache.kind.name: cache.incarnation for cache in caches}

    def _check(self, plan: GarbagePlan) -> None:
        stores = self._stores()
        for orphan in plan.orphans:
            self._store_of(orphan)
            if plan.stores.get(orphan.kind) != stores[orphan.kind]:
                raise UsageError(
                    f"the store of {orphan.kind} was recreated since the plan was made: plan again"
                )

    def _incomplete(self) -> str:
        for informer in (self._primary, *(at.informer for at in self._secondaries)):
            if not informer.cache.complete.is_set():
                return f"{informer.cache.kind.name} has not been listed completely yet"
            if isinstance(informer.failure, StoreMissingError):
                return str(informer.failure)
        return ""

    def _suspects(self) -> Iterator[_Suspect]:
        for secondary in self._secondaries:
            cache = secondary.informer.cache
            for owner in cache.index_values(OWNER_INDEX):
                if owner not in self._primary.cache:
                    for stored in cache.by_index(OWNER_INDEX, owner):
                        if stored.key not in cache.invalid and not secondary.is_going(stored):
                            yield _Suspect(secondary, stored, owner)

    def _remember_suspects(self, suspects: Sequence[_Suspect]) -> None:
        now = asyncio.get_running_loop().time()
        names = [suspect.name for suspect in suspects]
        self._suspected = {name: self._suspected.get(name, now) for name in names}

    async def _confirm(self, owners: set[str]) -> dict[str, int | None]:
        """Return the owners that do not exist at the leader, with the revision of their marker."""
        gone: dict[str, int | None] = {}
        remaining = iter(owners)

        async def check() -> None:
            for owner in remaining:
                try:
                    await self._primary.store.get(owner)
                except NotFoundError as error:
                    gone[owner] = error.deleted_at
                except InvalidKeyError:
                    pass  # what never could be here is not missed here

        async with together() as readers:
            for _ in range(min(READS_MAX, len(owners))):
                readers.create_task(check())
        return gone

    def _orphans(
        self, suspects: Sequence[_Suspect], gone: dict[str, int | None], grace_s: float
    ) -> Iterator[Orphan]:
        now = asyncio.get_running_loop().time()
        for suspect in suspects:
            if suspect.owner not in gone:
                continue
            age_s = now - self._suspected.get(suspect.name, now)
            deleted_at = gone[suspect.owner]
            yield Orphan(
                kind=suspect.secondary.kind.name,
                key=suspect.stored.key,
                revision=suspect.stored.revision,
                owner=suspect.owner,
                reason=_reason(suspect.owner, deleted_at),
                proven=deleted_at is not None,
                suspected_s=round(age_s, 3),
                due=age_s >= grace_s,
                uid=suspect.uid,
            )

    async def _refusal(self, orphans: Sequence[Orphan], seen: Sweep, more: int) -> str:
        """Return why a sweep must not run, and remember what it has seen where it may."""
        unproven = [orphan for orphan in orphans if not orphan.proven]
        refused = await self._odd_bucket(seen) if unproven else ""
        refused = refused or self._too_many(sum(orphan.due for orphan in orphans) + more)
        if not refused:
            await self._remember(seen)
        return refused

    async def _odd_bucket(self, seen: Sweep) -> str:
        name = self._primary.cache.kind.name
        last = await self._last_sweep()
        if last is not None and last.incarnation != seen.incarnation:
            return f"the bucket of {name} was recreated since the last sweep"
        if not seen.populated and (last is None or last.populated):
            why = "the last sweep saw owners in it" if last else "no sweep ever saw an owner"
            return f"the bucket of {name} is empty, and {why}"
        return ""

    def _too_many(self, count: int) -> str:
        caches = [secondary.informer.cache for secondary in self._secondaries]
        owned = sum(cache.indexed(OWNER_INDEX) for cache in caches)
        if count > self._limits.count_max:
            return f"{count} objects would go, more than {self._limits.count_max} at once"
        if count > self._limits.share_from and count > self._limits.share_max * owned:
            return f"{count} of {owned} objects would go, more than {self._limits.share_max:.0%}"
        return ""

    async def _last_sweep(self) -> Sweep | None:
        stored = await read(self._memory, self._memory_key)
        return None if stored is None else MEMORY.decode(stored.value)

    def _sweep(self) -> Sweep:
        cache = self._primary.cache
        return Sweep(cache.incarnation, bool(len(cache)))

    async def _remember(self, seen: Sweep) -> None:
        if await self._last_sweep() != seen:
            await rewrite(self._memory, self._memory_key, lambda _: msgspec.json.encode(seen))


def _reason(owner: str, deleted_at: int | None) -> str:
    if deleted_at is None:
        return f"owner {owner} does not exist, and nothing tells that it was deleted"
    return f"owner {owner} was deleted at revision {deleted_at}"
