"""Decides who holds a lease, and when another process may take it.

A lease is one object that its holder writes again and again. A process that has seen the same
revision for long enough, by its own clock, takes the lease over by compare-and-set. So no two
clocks are ever compared, and a clock that people set is never believed. Every deadline is a share
of the lease's time to live. A holder counts from before it sent its last write that was answered,
other processes count from when they first read that write:

    renew 0.15 · step down 0.5 · void 0.7 · take over 0.85 · taken 0.95

Only a value frees a lease at once: its holder writes that it is `released`. If the key is deleted,
purged or written over with something else, or its bucket is made again, the holder may still be at
work and not know it yet. Other processes then wait as if the lease had just been renewed, and the
holder, if it lives, writes the lease again.
"""

import math
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec

from natsctl.core.coordination.term import Clock
from natsctl.errors import DECODE_ERRORS, ConflictError, NotFoundError, StoreMissingError
from natsctl.model.store import Store, Stored

RENEW = 0.15  # when its holder writes it again
RETRY = 0.05  # how long it waits after a write that failed
STEP_DOWN = 0.5  # when a holder that could not, ends its work
VOID = 0.7  # from when on nothing that it began does anything
TAKE_OVER = 0.85  # when others take it
LOOK = 0.1  # how often they look
TTL_MIN_S, TTL_MAX_S = 1.0, 3600.0  # no process of ours uses another time to live

Vacant = Callable[[], Awaitable[bool]]
"""Returns whether no process can hold a lease of which the store has no trace."""


class Workload(msgspec.Struct, frozen=True, omit_defaults=True):
    """A controller's work: the kind of its primaries, and the installation.

    Each is empty if it is not known, as in records of version 0.1.
    """

    owner: str = ""
    installation: str = ""

    def same(self, other: "Workload") -> bool:
        """Return whether both may be the same work: what both know does not differ."""
        pairs = ((self.owner, other.owner), (self.installation, other.installation))
        return all(not one or not two or one == two for one, two in pairs)

    def __str__(self) -> str:
        owner = self.owner or "an unknown kind"
        return f"{owner} of installation {self.installation}" if self.installation else owner


UNKNOWN_WORKLOAD = Workload()


class Claim(msgspec.Struct, frozen=True, rename="camel"):
    """The lease as it is stored: its holder, since when (RFC 3339), and on what terms.

    `epoch` is the revision at which it was taken, 0 in that very revision. `renewals` makes every
    write differ from the one before. A `released` claim says who held the lease last; its time to
    live is 0, which processes of version 0.1 take for a lease that is free. `work` says what the
    lease is about; it is empty in claims of version 0.1.
    """

    holder: str
    since: str
    ttl_s: float
    epoch: int = 0
    renewals: int = 0
    released: bool = False
    work: Workload = UNKNOWN_WORKLOAD


class HeldLease(msgspec.Struct, frozen=True):
    """Our own lease: the stored claim, its revision, and a time before it was `sent`."""

    claim: Claim
    revision: int
    sent: float

    @property
    def epoch(self) -> int:
        """The revision at which it was taken: grows from holder to holder."""
        return self.claim.epoch or self.revision

    @property
    def void_at(self) -> float:
        """From when on other processes may hold the lease."""
        return self.sent + VOID * self.claim.ttl_s


class _Seen(msgspec.Struct, frozen=True):
    """The newest state of the key, and until when we leave the lease to its holder.

    `claim` is None if the key has no claim, `revision` is 0 if it has no trace.
    """

    claim: Claim | None
    revision: int
    free_at: float


async def always() -> bool:
    """Return that a lease without a trace is free."""
    return True


def claim_of(value: bytes) -> Claim | None:
    """Return the claim; None for a value that no process of ours can have written."""
    try:
        claim = msgspec.json.decode(value, type=Claim)
    except DECODE_ERRORS:
        return None
    possible = claim.released or possible_ttl(claim.ttl_s)
    return claim if possible and claim.holder else None


def possible_ttl(ttl_s: float) -> bool:
    """Return whether a process may use this time to live; NaN is none."""
    return TTL_MIN_S <= ttl_s <= TTL_MAX_S


class Lease:
    """One process's view of a lease, and its part in it.

    Args:
        store: where leases are kept; the bucket of leases has objects that expire.
        name: of the lease.
        holder: this process; no other process ever has the same name.
        ttl_s: within how many seconds after its holder has died the lease is another's.
        clock: seconds that never go back.
        work: what the lease is about.
        vacant: asked before a lease without a trace is taken by a process that never saw it.

    Seed: the leases of client-go's leader election, with one promise in the place of three options.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        holder: str,
        ttl_s: float,
        clock: Clock,
        work: Workload = UNKNOWN_WORKLOAD,
        vacant: Vacant = always,
    ) -> None:
        self.name = name
        self.holder = holder
        self.ttl_s = ttl_s
        self.held: HeldLease | None = None
        self.work = work
        self._store = store
        self._clock = clock
        self._vacant = vacant
        self._seen: _Seen | None = None
        self._first = False  # the store has no trace of the lease, and nobody can hold it

    @property
    def seen(self) -> Claim | None:
        """The claim of the process that held the lease at the last look; None if there is none."""
        claim = None if self._seen is None else self._seen.claim
        return None if claim is None or claim.released else claim

    @property
    def seen_holder(self) -> str | None:
        """The holder at the last look, None if none is known."""
        return None if self.seen is None else self.seen.holder

    @property
    def wait_s(self) -> float:
        """For how many seconds this process leaves the lease to another one."""
        return 0.0 if self._seen is None else max(0.0, self._seen.free_at - self._clock())

    @property
    def look_s(self) -> float:
        """In how many seconds to try again to acquire it."""
        look_s = LOOK * self.ttl_s * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load, keeps no secret
        return min(look_s, self.wait_s or look_s)

    async def acquire(self) -> HeldLease | None:
        """Take the lease if that is possible now; None if it is, or may be, another's.

        Raises `StoreError`; after a timeout it may have been taken, which the next call sees.
        """
        stored = await self._look()
        if self._seen is None:
            self._first = self._first or await self._vacant()
            if not self._first:
                self._note(None, 0)
        if self.wait_s > 0:
            return None
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        claim, sent = Claim(self.holder, since, self.ttl_s, work=self.work), self._clock()
        try:
            return self._hold(claim, await self._put(claim, stored), sent)
        except ConflictError:
            return None

    async def free(self) -> bool:
        """Return whether no process holds the lease now; raises `StoreError`."""
        await self._look()
        return self.wait_s <= 0

    async def renew(self, held: HeldLease) -> HeldLease:
        """Write the lease again and return it as it is then.

        Raises `ConflictError` if it is ours no more, another `StoreError` if that is unknown. If
        our own last write stands, whose answer was lost, nothing is written: that one is returned,
        with the time of the one before. If the lease was deleted or written over with something
        that is no claim, it is written again: nobody takes it before it is void.
        """
        claim, sent = _next(held), self._clock()
        try:
            stored = await self._store.update(
                self.name, msgspec.json.encode(claim), revision=held.revision
            )
        except (ConflictError, StoreMissingError) as error:
            found = await self._look()
            own = self.seen
            if own is not None and own.holder == self.holder and found is not None:
                return self._hold(own, found, held.sent)
            if not self._lost_by_hand(held):
                self.held = None
                raise ConflictError(f"{self.name} is another's: {error}") from error
            stored = await self._put(claim, found)
        return self._hold(claim, stored, sent)

    async def release(self) -> None:
        """Let others have the lease at once, if it is ours; raises `StoreError`."""
        held, self.held = self.held, None
        if held is None:
            return
        found = await self._look()
        if self.seen_holder == self.holder or self._lost_by_hand(held):
            claim = msgspec.structs.replace(_next(held), ttl_s=0.0, released=True)
            await self._put(claim, found)
            self._seen = None

    def _lost_by_hand(self, held: HeldLease) -> bool:
        """Return whether the key has no claim, and no other process can have held it since."""
        gone = self._seen is None or self._seen.claim is None
        return gone and self._clock() < held.void_at

    async def _look(self) -> Stored | None:
        """Read the key, and note its state."""
        try:
            stored = await self._store.get(self.name)
        except NotFoundError as gone:
            if self._seen is not None or gone.deleted_at is not None:
                self._note(None, gone.deleted_at or 0)
            return None
        self._note(claim_of(stored.value), stored.revision)
        return stored

    async def _put(self, claim: Claim, over: Stored | None) -> Stored:
        value = msgspec.json.encode(claim)
        if over is None:
            return await self._store.create(self.name, value)
        return await self._store.update(self.name, value, revision=over.revision)

    def _hold(self, claim: Claim, stored: Stored, sent: float) -> HeldLease:
        self._note(claim, stored.revision)
        self.held = HeldLease(claim, stored.revision, sent)
        return self.held

    def _note(self, claim: Claim | None, revision: int) -> None:
        """Take in the newest state of the key, and decide until when the lease is another's."""
        seen, now = self._seen, self._clock()
        if seen is not None and (seen.revision, seen.claim) == (revision, claim):
            return
        if claim is not None and (claim.released or claim.holder == self.holder):
            self._seen = _Seen(claim, revision, -math.inf)
            return
        shown = claim if claim is not None or seen is None else seen.claim
        ttl_s = self.ttl_s if shown is None else max(self.ttl_s, shown.ttl_s)
        waiting = -math.inf if seen is None else seen.free_at  # for a holder that may still live
        self._seen = _Seen(claim, revision, max(waiting, now + TAKE_OVER * ttl_s))


def _next(held: HeldLease) -> Claim:
    old = held.claim
    return msgspec.structs.replace(old, epoch=held.epoch, renewals=old.renewals + 1)
