"""Elects one process at a time to lead a controller: stand by, lead, step down."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from natsctl.core.coordination.lease import HeldLease, Lease, Vacant, always_vacant
from natsctl.core.coordination.own_record import NO_CLUSTERS, VOID, Workload
from natsctl.core.coordination.participant import (
    Participant,
    check_ttl,
    name_taken,
    new_identity,
    steady,
)
from natsctl.core.coordination.term import Clock, Leadership
from natsctl.errors import ConflictError, StoreError
from natsctl.model.store import Store
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

Sharing = Callable[[str], Awaitable[Collection[str]]]
"""Returns the members that share the keys of the named controller; raises `StoreError`."""


async def no_members(_name: str) -> Collection[str]:
    """Return no members."""
    return ()


class ElectionState(msgspec.Struct, frozen=True):
    """The state of an election, for health checks and people."""

    name: str  # of the lease, which is the controller's
    identity: str  # the name of this process
    holder: str | None  # of the lease, as far as this process knows; None if there is none
    leads: bool  # whether this process leads now
    epoch: int | None  # of its term, which grows from leader to leader; None on standby
    known: bool  # whether the last request to the lease's store succeeded
    trouble: str = ""  # why this process cannot lead; empty if nothing is wrong


def elections(
    store: Store,
    *,
    ttl_s: float,
    clock: Clock = steady,
    sharing: Sharing = no_members,
    installation: str = "",
    clusters: Mapping[str, str] = NO_CLUSTERS,
    vacant: Vacant = always_vacant,
) -> Callable[[str, str], "Election"]:
    """Return a factory of elections, all under one identity.

    The factory takes the controller's name, and the kind of its primaries, which is empty if it is
    not known.

    Args:
        store: the store of the leases.
        ttl_s: another process leads within this time after a leader has died.
        clock: see `Leadership`.
        sharing: returns the members that share the controller's keys; no process leads then.
        installation: the id of the NATS system.
        clusters: the identity of the Kubernetes cluster by controller, see `Workload`.
        vacant: returns whether no process can hold the named lease if the store has no trace of it.

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
            workload=Workload(owner, installation, clusters.get(name, "")),
            vacant=vacant,
        )
        return Election(lease, clock=clock, sharing=sharing)

    return election


class Election(Participant):
    """The part of one process in the election of a controller's leader.

    *Guarantees.* One process works at a time: the holder of the lease. A leader that could not
    renew the lease for half its time to live cancels its work and stands by. From 0.7 of that time
    it takes no step and sends no write, even if it was stopped. Others take the lease at 0.85. A
    leader that stops releases the lease at once. While processes share the controller's keys, no
    process begins to lead it, and this process logs that.

    *Assumes* that the clocks of two processes run at the same speed within a tenth.
    """

    def __init__(
        self, lease: Lease, *, clock: Clock = steady, sharing: Sharing = no_members
    ) -> None:
        super().__init__(Leadership(lease.key, clock), lease, "lease", clock=clock)
        self._lease = lease
        self._sharing = sharing

    def state(self) -> ElectionState:
        """Return the state of the election."""
        leads = self.leadership.leads and self.leadership.epoch is not None
        return ElectionState(
            name=self.name,
            identity=self._lease.holder,
            holder=self._lease.seen_holder,
            leads=leads,
            epoch=self.leadership.epoch if leads else None,
            known=self._known,
            trouble=self._trouble,
        )

    async def _run_terms(self) -> None:
        while True:
            held = await self._stand_by()
            self.leadership.begin(held.epoch, self._lease.void_at)
            log.info("leading", epoch=held.epoch)
            await self._run_term(self._keep_renewed(lambda: None))
            await self.leadership.quiet()

    async def _write(self) -> None:
        if self._lease.last is None:
            raise ConflictError(f"{self.name} is not held by this process")
        await self._lease.renew(self._lease.last)

    async def _release(self) -> None:
        await self._lease.release()

    def _log_lost(self, reason: str) -> None:
        log.warning("lost leadership", reason=reason)

    async def _stand_by(self) -> HeldLease:
        """Wait until this process holds the lease."""
        logged = ""
        while True:
            held = await self._acquire()
            if held is not None:
                return held
            reason = self._standby_reason() if self._known else ""
            if reason and reason != logged:
                log.info("standing by", reason=reason)
                logged = reason
            await asyncio.sleep(self._lease.look_s)

    def _standby_reason(self) -> str:
        """Return why this process stands by, empty if it does not have to."""
        if self._lease.seen_holder is not None:
            return f"{self._lease.seen_holder} leads"
        if self._lease.wait_s:
            return "the lease was deleted, and its holder still has time to renew it"
        return ""

    async def _acquire(self) -> HeldLease | None:
        try:
            async with asyncio.timeout(VOID * self._lease.ttl_s):
                # while another process leads, the members need not be read
                members = await self._sharing(self.name) if await self._lease.free() else ()
                held = None if members else await self._lease.acquire()
        except (StoreError, TimeoutError) as error:
            self._log_trouble(error)
            return None
        if members:
            shares = f"{min(members)} shares its keys: run all its processes with --leader-elect, "
            self._refuse(f"{shares}or none")
        elif self._stranger:
            self._refuse(self._stranger)
        else:
            self._log_recovery()
        return held

    @property
    def _stranger(self) -> str:
        """The error message if another controller holds the lease, empty otherwise."""
        claim, workload = self._lease.seen, self._lease.workload
        if claim is None or workload.same(claim.work):
            return ""
        return name_taken(self.name, claim.holder, claim.work, workload)

    def _refuse(self, reason: str) -> None:
        """Log once why this process does not lead although it can reach the lease."""
        if reason != self._trouble:
            log.error("this process does not lead", error=reason)
        self._known, self._trouble = True, reason
