"""Having one process at a time lead a controller: standing by, leading, stepping down."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial

import msgspec

from natsctl.core.coordination.lease import (
    RENEW,
    RETRY,
    STEP_DOWN,
    VOID,
    HeldLease,
    Lease,
    Workload,
)
from natsctl.core.coordination.participant import (
    RELEASE_S,
    Participant,
    VacantByName,
    always_vacant,
    check_ttl,
    foreign,
    new_identity,
    steady,
    text_of,
)
from natsctl.core.coordination.term import Clock, Leadership
from natsctl.errors import ConflictError, NotLeadingError, StoreError
from natsctl.model.store import Store

log = logging.getLogger(__name__)

Sharing = Callable[[str], Awaitable[Collection[str]]]
"""Returns who share the keys of the controller of that name; raises `StoreError`."""


async def nobody(_name: str) -> Collection[str]:
    """Say that no process shares keys."""
    return ()


class ElectionState(msgspec.Struct, frozen=True):
    """How an election stands, for health checks and people.

    Attributes:
        name: of the lease: the controller's.
        identity: who this process is in it.
        holder: who holds the lease, as far as this process knows; None where nobody does.
        leads: whether this process leads now.
        epoch: of its term: grows from leader to leader; None where it does not lead.
        known: whether the lease could be read or written when that was last tried.
        trouble: why it cannot lead; empty if nothing is wrong.
    """

    name: str
    identity: str
    holder: str | None
    leads: bool
    epoch: int | None
    known: bool
    trouble: str = ""


def elections(
    store: Store,
    *,
    ttl_s: float,
    clock: Clock = steady,
    sharing: Sharing = nobody,
    installation: str = "",
    vacant: VacantByName = always_vacant,
) -> Callable[[str, str], "Election"]:
    """Return what makes elections, all under one identity.

    It takes the controller's name, and the kind of its primaries, which is empty if not known.

    Args:
        store: where the leases are kept.
        ttl_s: within how many seconds after a leader has died another one leads.
        clock: see `Leadership`.
        sharing: who share the keys of a controller, which nobody leads meanwhile.
        installation: the id of the NATS system.
        vacant: returns whether no process can hold the lease of that name if there is no trace of
            it.

    Raises `UsageError` if *ttl_s* is less than a second, or more than an hour.
    """
    check_ttl(ttl_s)
    identity = new_identity()

    def election(name: str, owner: str = "") -> Election:
        lease = Lease(
            store,
            name,
            holder=identity,
            ttl_s=ttl_s,
            clock=clock,
            work=Workload(owner, installation),
            vacant=partial(vacant, name),
        )
        return Election(lease, clock=clock, sharing=sharing)

    return election


class Election(Participant):
    """One process's part in the election of who leads a controller.

    *Guarantees.* Work is done in one process at a time, which holds the lease. A leader that could
    not renew it for half its time to live says so, cancels what is under way, and stands by again;
    from 0.7 of that time on it takes no step and writes nothing, whether it could say so or not.
    Others take the lease at 0.85. A leader that ends gives it back at once. While processes share
    the controller's keys, nobody begins to lead it, which is said.

    *Assumes* that the clocks of two processes run alike within a tenth.
    """

    def __init__(self, lease: Lease, *, clock: Clock = steady, sharing: Sharing = nobody) -> None:
        super().__init__(Leadership(lease.name, clock), "lease")
        self._lease = lease
        self._clock = clock
        self._sharing = sharing

    def state(self) -> ElectionState:
        """Return how the election stands."""
        leads = self.leadership.leads and self.leadership.epoch is not None
        return ElectionState(
            name=self._lease.name,
            identity=self._lease.holder,
            holder=self._lease.seen_holder,
            leads=leads,
            epoch=self.leadership.epoch if leads else None,
            known=self._known,
            trouble=self._trouble,
        )

    async def _take_part(self) -> None:
        await self.leadership.sought.wait()
        try:
            while True:
                held = await self._stand_by()
                await self._lead(held)
                await self.leadership.quiet()
        finally:
            self.leadership.lose()
            await self._give_back()

    # ---- standing by

    async def _stand_by(self) -> HeldLease:
        """Wait until the lease is ours."""
        logged = ""
        while True:
            held = await self._acquired()
            if held is not None:
                return held
            standing_by = self._standing_by() if self._known else ""
            if standing_by and standing_by != logged:
                log.info("%s: standing by, %s", self._lease.name, standing_by)
                logged = standing_by
            await asyncio.sleep(self._lease.look_s)

    def _standing_by(self) -> str:
        """Return the reason for which this process stands by, empty if there is none."""
        if self._lease.seen_holder is not None:
            return f"{self._lease.seen_holder} leads"
        if self._lease.wait_s:
            return "the lease was lost: its holder may not know yet, and has time to renew it"
        return ""

    async def _acquired(self) -> HeldLease | None:
        try:
            async with asyncio.timeout(VOID * self._lease.ttl_s):
                members = await self._members()
                held = None if members else await self._lease.acquire()
        except (StoreError, TimeoutError) as error:
            self._note(error)
            return None
        if members:
            shares = f"{min(members)} shares its keys: run all its processes with --leader-elect, "
            self._leave_it(f"{shares}or none")
        elif self._stranger:
            self._leave_it(self._stranger)
        else:
            self._well()
        return held

    @property
    def _stranger(self) -> str:
        """Why the lease is a stranger's, empty if it is not."""
        name, ours, seen = self._lease.name, self._lease.work, self._lease.seen
        if seen is None or ours.same(seen.work):
            return ""
        return foreign(name, seen.holder, seen.work, ours)

    async def _members(self) -> Collection[str]:
        """Return who share the keys; while somebody leads, nobody asks."""
        return await self._sharing(self.name) if await self._lease.free() else ()

    def _leave_it(self, message: str) -> None:
        """Log once why this process does not lead although it could reach the lease."""
        if message != self._trouble:
            log.error("%s: this process does not lead it: %s", self.name, message)
        self._known, self._trouble = True, message

    # ---- leading

    async def _lead(self, held: HeldLease) -> None:
        """Lead for as long as the lease can be renewed."""
        name, leadership = self._lease.name, self.leadership
        leadership.begin(held.epoch, self._until(held))
        log.info("%s: leading, in epoch %d", name, held.epoch)
        try:
            while True:
                async with asyncio.timeout(
                    held.sent + STEP_DOWN * self._lease.ttl_s - self._clock()
                ):
                    held = await self._renewed(held)
                leadership.extend(self._until(held))
        except ConflictError:
            leadership.lose()
            log.warning("%s: leads no more: the lease was taken from it", name)
        except (TimeoutError, NotLeadingError):
            leadership.step_down()
            log.warning("%s: leads no more: the lease could not be renewed in time", name)

    async def _renewed(self, held: HeldLease) -> HeldLease:
        """Wait until it is time, and renew the lease, again and again until that is done."""
        ttl_s = self._lease.ttl_s
        await asyncio.sleep(held.sent + RENEW * ttl_s - self._clock())
        while True:
            try:
                async with asyncio.timeout(RENEW * ttl_s):
                    renewed = await self._lease.renew(held)
            except ConflictError:
                raise
            except (StoreError, TimeoutError) as error:
                self._note(error)
            else:
                self._well()
                return renewed
            await asyncio.sleep(RETRY * ttl_s)

    def _until(self, held: HeldLease) -> float:
        return held.sent + VOID * self._lease.ttl_s

    async def _give_back(self) -> None:
        """Let others lead at once, if nothing is under way any more."""
        try:
            async with asyncio.timeout(RELEASE_S):
                await self.leadership.quiet()
                await self._lease.release()
        except (StoreError, TimeoutError) as error:
            log.warning("%s: the lease is left to expire: %s", self._lease.name, text_of(error))
