"""Decides who holds a lease, and when another process may take it.

`own_record.py` has the deadlines of the holder, and of the processes that wait.

Only a value frees a lease at once: its holder writes that it is `released`. If the key is deleted,
purged or overwritten with another value, or its bucket is recreated, the holder may still work
without knowing it. Other processes then wait as if the lease had just been renewed. The holder
writes the lease again at its next renewal.
"""

import math
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec

from natsctl.core.coordination.own_record import (
    TAKE_OVER,
    UNKNOWN_WORKLOAD,
    OwnRecord,
    OwnWrite,
    Workload,
    possible_ttl,
)
from natsctl.core.coordination.term import Clock
from natsctl.errors import DECODE_ERRORS, ConflictError, NotFoundError, StoreMissingError
from natsctl.model.store import Store, Stored

LOOK = 0.1  # a waiting process reads the lease this often; a share of the time to live

Vacant = Callable[[str], Awaitable[bool]]
"""Returns whether no process can work on a controller of which the leases have no trace."""


class Claim(msgspec.Struct, frozen=True, rename="camel"):
    """A lease as it is stored: its holder, since when (RFC 3339), and its time to live.

    `epoch` is the revision at which the lease was taken, and 0 in that revision. `renewals` makes
    every write differ from the one before. A `released` claim names the last holder; its time to
    live is 0, which processes of version 0.1 take for a free lease. `work` describes the
    controller; it is empty in claims of version 0.1.
    """

    holder: str
    since: str
    ttl_s: float
    epoch: int = 0
    renewals: int = 0
    released: bool = False
    work: Workload = UNKNOWN_WORKLOAD


HeldLease = OwnWrite[Claim]


class _Seen(msgspec.Struct, frozen=True):
    """The newest state of the key, and the time until which it is left to its holder.

    `claim` is None if the key has no claim. `revision` is 0 if the store has no trace of the key.
    """

    claim: Claim | None
    revision: int
    free_at: float


async def always_vacant(_name: str) -> bool:
    """Return True for every controller."""
    return True


def claim_of(value: bytes) -> Claim | None:
    """Return the claim, or None if no process of natsctl can have written the value."""
    try:
        claim = msgspec.json.decode(value, type=Claim)
    except DECODE_ERRORS:
        return None
    possible = claim.released or possible_ttl(claim.ttl_s)
    return claim if possible and claim.holder else None


class Lease(OwnRecord[Claim]):
    """A lease as one process sees it, and holds it.

    Args:
        store: the bucket of leases, in which objects expire.
        name: the lease's key.
        holder: see `OwnRecord`, also for *ttl_s*, *clock* and *workload*.
        vacant: called before a process that never saw the lease takes one without a trace.

    Source: the leases of client-go's leader election, with one option in the place of three.
    """

    _REREAD = (ConflictError, StoreMissingError)

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        holder: str,
        ttl_s: float,
        clock: Clock,
        workload: Workload = UNKNOWN_WORKLOAD,
        vacant: Vacant = always_vacant,
    ) -> None:
        super().__init__(store, name, holder=holder, ttl_s=ttl_s, clock=clock, workload=workload)
        self._vacant = vacant
        self._seen: _Seen | None = None
        self._first = False  # the store has no trace of the lease, and no process can hold it

    @property
    def seen(self) -> Claim | None:
        """The claim of the holder at the last read, or None if the lease was free."""
        claim = None if self._seen is None else self._seen.claim
        return None if claim is None or claim.released else claim

    @property
    def seen_holder(self) -> str | None:
        """The holder at the last read, or None if no holder is known."""
        return None if self.seen is None else self.seen.holder

    @property
    def wait_s(self) -> float:
        """Seconds for which this process leaves the lease to another one."""
        return 0.0 if self._seen is None else max(0.0, self._seen.free_at - self._clock())

    @property
    def look_s(self) -> float:
        """Seconds until the next call of `acquire`."""
        look_s = LOOK * self.ttl_s * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load, keeps no secret
        return min(look_s, self.wait_s or look_s)

    async def acquire(self) -> HeldLease | None:
        """Take the lease if possible; return None if another process holds or may hold it.

        Raises `StoreError`. After a timeout the lease may have been taken; the next call sees that.
        """
        stored = await self._read()
        if self._seen is None:
            self._first = self._first or await self._vacant(self.key)
            if not self._first:
                self._note(None, 0)
        if self.wait_s > 0:
            return None
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            await self._put(Claim(self.holder, since, self.ttl_s, work=self.workload), stored)
        except ConflictError:
            return None
        return self.last

    async def free(self, *, kept: bool = False) -> bool:
        """Return whether no process holds the lease now; raises `StoreError`.

        While a free lease is *kept* from every process, as by the record of a member, it can only
        expire: it then stays free although the store has no trace of it.
        """
        await self._read(kept=kept)
        return self.wait_s <= 0

    async def renew(self, held: HeldLease) -> HeldLease:
        """Write the lease again, and return it as it is stored then; raises as `_renew` does.

        If the lease was deleted or overwritten with a value that is no claim, it is written again,
        because no process takes it before it is void.
        """
        await self._renew(held, _next(held))
        return self.last or held

    async def release(self) -> None:
        """Free the lease at once, if this process holds it; raises `StoreError`."""
        held, self.last = self.last, None
        if held is None:
            return
        stored = await self._read()
        if self.seen_holder == self.holder or self._erased():
            claim = msgspec.structs.replace(_next(held), ttl_s=0.0, released=True)
            await self._put(claim, stored)
            self.last = self._seen = None

    def _own(self, value: bytes) -> Claim | None:
        claim = claim_of(value)
        own = claim is not None and claim.holder == self.holder and not claim.released
        return claim if own else None

    def _check_lost(self, error: Exception) -> None:
        if not self._erased():
            super()._check_lost(error)

    def _erased(self) -> bool:
        """Return whether the key has no claim, and no other process can have held it since."""
        no_claim = self._seen is None or self._seen.claim is None
        return no_claim and self._clock() < self.void_at

    async def _read(self, *, kept: bool = False) -> Stored | None:
        """Return the key's state, and note it; see `free` for *kept*."""
        try:
            stored = await self._store.get(self.key)
        except NotFoundError as error:
            if kept and error.deleted_at is None and self._seen is not None and not self.wait_s:
                self._seen = _Seen(None, 0, self._seen.free_at)
            elif self._seen is not None or error.deleted_at is not None:
                self._note(None, error.deleted_at or 0)
            return None
        self._note(claim_of(stored.value), stored.revision)
        return stored

    def _keep(self, write: HeldLease) -> None:
        super()._keep(write)
        self._note(write.record, write.revision)

    def _note(self, claim: Claim | None, revision: int) -> None:
        """Record the newest state of the key, and until when the lease is left to its holder."""
        last_seen, now = self._seen, self._clock()
        if last_seen is not None and (last_seen.revision, last_seen.claim) == (revision, claim):
            return
        if claim is not None and (claim.released or claim.holder == self.holder):
            self._seen = _Seen(claim, revision, -math.inf)
            return
        last_claim = claim if claim is not None or last_seen is None else last_seen.claim
        ttl_s = self.ttl_s if last_claim is None else max(self.ttl_s, last_claim.ttl_s)
        # The last holder may still work until this time.
        free_at = -math.inf if last_seen is None else last_seen.free_at
        self._seen = _Seen(claim, revision, max(free_at, now + TAKE_OVER * ttl_s))


def _next(held: HeldLease) -> Claim:
    claim = held.record
    return msgspec.structs.replace(claim, epoch=held.epoch, renewals=claim.renewals + 1)
