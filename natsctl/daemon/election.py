"""Having one process at a time lead a controller: standing by, leading, stepping down."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from natsctl.core.leadership import Clock, Leadership
from natsctl.core.lease import RENEW, RETRY, STEP_DOWN, VOID, Held, Lease
from natsctl.daemon.participation import (
    RELEASE_S,
    Participation,
    check_ttl,
    new_identity,
    steady,
    text_of,
)
from natsctl.errors import ConflictError, NotLeadingError, StoreError
from natsctl.model.store import Store

log = logging.getLogger(__name__)

Sharing = Callable[[str], Awaitable[Sequence[str]]]
"""Returns who share the keys of the controller of that name; raises `StoreError`."""


async def nobody(_name: str) -> Sequence[str]:
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
    """

    name: str
    identity: str
    holder: str | None
    leads: bool
    epoch: int | None
    known: bool


def elections(
    store: Store, *, ttl_s: float, clock: Clock = steady, sharing: Sharing = nobody
) -> Callable[[str], "Election"]:
    """Return what makes the election of a controller by its name, all under one identity.

    Args:
        store: where the leases are kept.
        ttl_s: within how many seconds after a leader has died another one leads.
        clock: see `Leadership`.
        sharing: who share the keys of a controller, which nobody leads meanwhile.

    Raises `UsageError` where *ttl_s* is less than a second.
    """
    check_ttl(ttl_s)
    identity = new_identity()

    def election(name: str) -> Election:
        lease = Lease(store, name, holder=identity, ttl_s=ttl_s, clock=clock)
        return Election(lease, clock=clock, sharing=sharing)

    return election


class Election(Participation):
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

    async def _stand_by(self) -> Held:
        """Wait until the lease is ours."""
        told: str | None = None
        while True:
            held = await self._acquired()
            if held is not None:
                return held
            holder = self._lease.seen_holder
            if self._known and holder is not None and holder != told:
                log.info("%s: standing by, %s leads", self._lease.name, holder)
                told = holder
            await asyncio.sleep(self._lease.look_s)

    async def _acquired(self) -> Held | None:
        try:
            async with asyncio.timeout(VOID * self._lease.ttl_s):
                members = await self._members()
                held = None if members else await self._lease.acquire()
        except (StoreError, TimeoutError) as error:
            self._note(error)
            return None
        if members:
            self._leave_to(members[0])
        else:
            self._well()
        return held

    async def _members(self) -> Sequence[str]:
        """Return who share the keys; while somebody leads, nobody asks."""
        return await self._sharing(self.name) if await self._lease.free() else ()

    def _leave_to(self, member: str) -> None:
        """Say once that nobody leads, because keys are shared."""
        message = f"{member} shares its keys: run all its processes with --leader-elect, or none"
        if message != self._trouble:
            log.error("%s: nobody leads it: %s", self.name, message)
        self._known, self._trouble = True, message

    # ---- leading

    async def _lead(self, held: Held) -> None:
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

    async def _renewed(self, held: Held) -> Held:
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

    def _until(self, held: Held) -> float:
        return held.sent + VOID * self._lease.ttl_s

    async def _give_back(self) -> None:
        """Let others lead at once, if nothing is under way any more."""
        try:
            async with asyncio.timeout(RELEASE_S):
                await self.leadership.quiet()
                await self._lease.release()
        except (StoreError, TimeoutError) as error:
            log.warning("%s: the lease is left to expire: %s", self._lease.name, text_of(error))
