"""Who holds a lease, and when another may take it.

A lease is one object that its holder writes again and again. Whoever sees the same revision for
long enough, by a clock of its own, takes it over by compare-and-set. So no two clocks are ever
compared, and nobody believes a clock that people set. What each must do by when is a share of the
lease's time to live, counted by a holder from before it sent its last write that was answered, and
by others from after they first read that write:

    renew 0.15 · step down 0.5 · void 0.7 · take over 0.85 · taken 0.95
"""

import math
import random
from datetime import UTC, datetime

import msgspec

from natsctl.core.leadership import Clock
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Store, Stored

RENEW = 0.15  # when its holder writes it again
RETRY = 0.05  # how long it waits after a write that failed
STEP_DOWN = 0.5  # when a holder that could not, ends its work
VOID = 0.7  # from when on nothing that it began does anything
TAKE_OVER = 0.85  # when others take it
LOOK = 0.1  # how often they look


class Claim(msgspec.Struct, frozen=True, rename="camel"):
    """The lease as it is stored: who holds it, since when (RFC 3339), and on what terms.

    `epoch` is the revision at which it was taken, 0 in that very revision; `renewals` makes every
    write differ from the one before.
    """

    holder: str
    since: str
    ttl_s: float
    epoch: int = 0
    renewals: int = 0


class Held(msgspec.Struct, frozen=True):
    """A lease that is ours: what is stored, where, and before when that was `sent`."""

    claim: Claim
    revision: int
    sent: float

    @property
    def epoch(self) -> int:
        """The revision at which it was taken: grows from holder to holder."""
        return self.claim.epoch or self.revision


class _Seen(msgspec.Struct, frozen=True):
    """What was read last, and when that revision was first seen."""

    claim: Claim
    revision: int
    at: float


class Lease:
    """One process's view of a lease, and its part in it.

    Args:
        store: where leases are kept; `natsctl.kv` has one whose objects expire.
        name: of the lease.
        holder: who we are: nobody else may ever have the same name.
        ttl_s: within how many seconds after its holder has died the lease is another's.
        clock: seconds, never going back, read anew at each call.

    Seed: the leases of client-go's leader election, with one promise in the place of three options.
    """

    def __init__(self, store: Store, name: str, *, holder: str, ttl_s: float, clock: Clock) -> None:
        self.name = name
        self.holder = holder
        self.ttl_s = ttl_s
        self.held: Held | None = None
        self._store = store
        self._clock = clock
        self._seen: _Seen | None = None

    @property
    def seen_holder(self) -> str | None:
        """Who held it when it was last looked at, None where nobody is known to have."""
        return None if self._seen is None else self._seen.claim.holder

    @property
    def look_s(self) -> float:
        """In how many seconds to try again to acquire it."""
        look_s = LOOK * self.ttl_s * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load, keeps no secret
        return min(look_s, self._free_in_s() or look_s)

    async def acquire(self) -> Held | None:
        """Take the lease where that is possible now; None where it is, or may be, another's.

        Raises `StoreError`; where it is a timeout it may have been taken, which the next call sees.
        """
        stored = await self._look()
        if self._free_in_s() > 0:
            return None
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        claim, sent = Claim(self.holder, since, self.ttl_s), self._clock()
        value = msgspec.json.encode(claim)
        try:
            if stored is None:
                taken = await self._store.create(self.name, value)
            else:
                taken = await self._store.update(self.name, value, revision=stored.revision)
        except ConflictError:
            return None
        self._note(taken)
        self.held = Held(claim, taken.revision, sent)
        return self.held

    async def free(self) -> bool:
        """Say whether nobody holds the lease now, as far as can be told; raises `StoreError`."""
        await self._look()
        return self._free_in_s() <= 0

    async def renew(self, held: Held) -> Held:
        """Write the lease again and return it as it is then.

        Raises `ConflictError` where it is ours no more, another `StoreError` where that is unknown.
        Where our own last write stands, whose answer was lost, nothing is written: that one is
        returned, with the time of the one before.
        """
        old, sent = held.claim, self._clock()
        claim = Claim(old.holder, old.since, old.ttl_s, held.epoch, old.renewals + 1)
        value = msgspec.json.encode(claim)
        try:
            stored = await self._store.update(self.name, value, revision=held.revision)
        except ConflictError:
            found = await self._look()
            if found is None or self.seen_holder != self.holder:
                self.held = None
                raise
            self.held = Held(_claim(found, self.ttl_s), found.revision, held.sent)
            return self.held
        self._note(stored)
        self.held = Held(claim, stored.revision, sent)
        return self.held

    async def release(self) -> None:
        """Let others have the lease at once, if it is ours; raises `StoreError`."""
        if self.held is None:
            return
        self.held = None
        found = await self._look()
        if found is not None and self.seen_holder == self.holder:
            await self._store.delete(self.name, revision=found.revision)
            self._seen = None

    async def _look(self) -> Stored | None:
        """Read the lease; of one that is gone without a trace, remember who had it."""
        try:
            stored = await self._store.get(self.name)
        except NotFoundError as gone:
            if gone.deleted_at is not None:
                self._seen = None  # it was given back
            return None
        self._note(stored)
        return stored

    def _note(self, stored: Stored) -> None:
        claim, seen = _claim(stored, self.ttl_s), self._seen
        if seen is None or (seen.revision, seen.claim) != (stored.revision, claim):
            self._seen = _Seen(claim, stored.revision, self._clock())

    def _free_in_s(self) -> float:
        """Return for how many seconds we leave the lease to the one whom we know to have it."""
        seen = self._seen
        if seen is None or seen.claim.holder == self.holder:
            return 0.0
        return max(0.0, seen.at + TAKE_OVER * seen.claim.ttl_s - self._clock())


def _claim(stored: Stored, ttl_s: float) -> Claim:
    """Return what is stored; what is no claim is, for all we know, somebody's who holds it."""
    try:
        claim = msgspec.json.decode(stored.value, type=Claim)
    except msgspec.DecodeError:
        return Claim("", "", ttl_s)
    return claim if math.isfinite(claim.ttl_s) else Claim(claim.holder, claim.since, ttl_s)
