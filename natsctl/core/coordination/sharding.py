"""Shares the keys of a controller among several processes: join, rebalance, leave."""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from natsctl.core.coordination.assignment import ALL
from natsctl.core.coordination.lease import LOOK, Lease, Vacant, always_vacant
from natsctl.core.coordination.member_record import MemberRecord, record_key, records_of
from natsctl.core.coordination.membership import Group, Membership, Rebalance
from natsctl.core.coordination.own_record import NO_CLUSTERS, VOID, Workload
from natsctl.core.coordination.participant import (
    RELEASE_S,
    Participant,
    check_ttl,
    name_taken,
    new_identity,
    steady,
)
from natsctl.core.coordination.rendezvous import NO_MEMBERS
from natsctl.core.coordination.term import Clock, Leadership
from natsctl.core.informer import Informer
from natsctl.core.task_group import together
from natsctl.errors import ConflictError, StoreError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Change, Store
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)


class ShardState(msgspec.Struct, frozen=True):
    """The state of a process in its group, for health checks and people."""

    name: str  # the controller's
    identity: str  # the name of this process in the group
    members: tuple[str, ...]  # that share the keys, as this process counts them; empty on standby
    works: bool  # whether this process has keys now
    moving: bool  # whether it waits until it may divide the keys among other members
    known: bool  # whether the last request to the store succeeded
    trouble: str = ""  # why this process does not take part; empty if nothing is wrong


Leases = Callable[[KvKind[Any]], Store]
"""Returns the store of a part of the bucket of leases."""


def shards(
    leases: Leases,
    bucket: str,
    *,
    ttl_s: float,
    clock: Clock = steady,
    installation: str = "",
    clusters: Mapping[str, str] = NO_CLUSTERS,
    vacant: Vacant = always_vacant,
    identity: str = "",
) -> Callable[[str, str], "Shard"]:
    """Return a factory of this process's parts in the groups of controllers.

    The factory takes the controller's name, and the kind of its primaries, which is empty if it is
    not known.

    Args:
        leases: opens a part of the bucket of leases.
        bucket: the name of that bucket.
        ttl_s: other members have a member's keys within this time after it has died.
        clock: see `Leadership`.
        installation: the id of the NATS system.
        clusters: the identity of the Kubernetes cluster by controller, see `Workload`.
        vacant: returns whether no process can share the keys of that controller if the bucket has
            no member record.
        identity: the unique name of this process; by default a new one.

    Raises `UsageError` if *ttl_s* is less than a second, or more than an hour.
    """
    check_ttl(ttl_s)
    identity = identity or new_identity()

    def shard(name: str, owner: str = "") -> Shard:
        workload = Workload(owner, installation, clusters.get(name, ""))
        store = leases(kv(Membership, bucket=bucket, keys=records_of(name), history=1))
        key = record_key(name, identity)
        elected = leases(kv(bytes, bucket=bucket, keys=name, history=1))
        record = MemberRecord(
            store, key, holder=identity, ttl_s=ttl_s, clock=clock, workload=workload
        )
        lease = Lease(elected, name, holder=identity, ttl_s=ttl_s, clock=clock, workload=workload)
        return Shard(name, store, record, lease, clock=clock, vacant=vacant)

    return shard


class _StrangerError(ConflictError):
    """Another controller has the same name, and its members have the keys."""


class Shard(Participant):
    """The part of one process in the group that shares a controller's keys.

    *Guarantees.* One process works on a key at a time; `membership.py` gives the reason. A member
    that could not renew its record for half its time to live cancels its work and joins again. From
    0.7 of that time it takes no step and sends no write, even if it was stopped. Others take its
    keys after 0.85 without a renewal. A member that stops gives up its keys at once. While a leader
    is elected for the same controller, this process has no keys, and logs that.

    *store* has the records of the group, and *lease* is that of the controller's leader. `shards`
    describes the other arguments.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        record: MemberRecord,
        lease: Lease,
        *,
        clock: Clock = steady,
        vacant: Vacant = always_vacant,
    ) -> None:
        super().__init__(Leadership(name, clock), record, "member record", clock=clock)
        self.leadership.expected = ALL
        self._record = record
        self._lease = lease
        self._informer: Informer[Membership] = Informer(store, store.kind)
        self._group = Group(
            cache=self._informer.cache,
            key=record.key,
            identity=record.holder,
            clock=clock,
            ttl_s=record.ttl_s,
            workload=record.workload,
        )
        self._vacant = vacant
        self._checked = False  # whether the other members were checked since this process joined
        self._stranger = ""  # the error message if another controller has the same name
        self._lost: tuple[str, ...] = ()  # members whose records are lost, as last logged
        self._members = NO_MEMBERS  # the members that share the keys
        self._rebalance: Rebalance | None = None  # to other members

    def state(self) -> ShardState:
        """Return the state of this process in the group."""
        works = self.leadership.leads and self.leadership.epoch is not None
        return ShardState(
            name=self.name,
            identity=self._record.holder,
            members=self._members.names if works else (),
            works=works,
            moving=self._rebalance is not None,
            known=self._known,
            trouble=self._stranger or self._trouble,
        )

    def whose(self, key: str) -> str | None:
        """Return the member that has the key, or None if that is not known or the key moves."""
        return self._record.holder if self.leadership.has(key) else self._group.whose(key)

    async def _run_terms(self) -> None:
        await self._join()
        async with together() as group:
            group.create_task(self._informer.run(), name=f"watch of the group of {self.name}")
            async with self._informer.subscribe(self._on_change):
                while True:
                    await self._run_term(self._hold_membership())
                    await self.leadership.quiet()
                    await self._join()

    async def _release(self) -> None:
        await self._record.leave()

    def _log_lost(self, reason: str) -> None:
        log.warning("stopped sharing keys", reason=reason)

    # ---- joining

    async def _join(self) -> None:
        """Write a record that claims no key; retry until that succeeds."""
        self._members, self._rebalance, self._checked = NO_MEMBERS, None, False
        while True:
            try:
                async with asyncio.timeout(VOID * self._record.ttl_s):
                    if await self._unled():
                        await self._record.take(complete=await self._vacant(self.name))
                        self._log_recovery()
                        return
            except (StoreError, TimeoutError) as error:
                self._log_trouble(error)
            await asyncio.sleep(LOOK * self._record.ttl_s)

    async def _unled(self, *, member: bool = False) -> bool:
        """Return whether no process leads the controller, as with `--leader-elect`.

        While this process is a *member*, its record keeps others from taking a free lease.
        """
        if await self._lease.free(kept=member):
            return True
        holder = self._lease.seen_holder
        reason = "its lease is lost, and a process that had it may still lead"
        if holder is not None:
            reason = f"{holder} leads it: run all its processes with --shard, or none"
        if reason != self._trouble:
            log.error("this process shares no keys", error=reason)
        self._known, self._trouble = False, reason
        return False

    async def _keep_out(self) -> None:
        """Leave the group to another controller, for as long as its members may live."""
        stranger = self._group.stranger
        if stranger is not None:
            workload = self._record.workload
            reason = name_taken(self.name, stranger.holder, stranger.work, workload)
            if reason != self._stranger:
                log.error("this process shares no keys", error=reason)
            self._stranger = reason
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._record.leave()
        await asyncio.sleep(self._record.ttl_s * random.uniform(0.85, 1.0))  # noqa: S311 - spreads load, keeps no secret

    # ---- a term

    async def _hold_membership(self) -> None:
        """Be a member for as long as the record can be renewed."""
        self._look_at_records()
        try:
            async with together() as group:
                await self._keep_renewed(partial(self._decide, group))
        except _StrangerError:
            await self._keep_out()

    def _decide(self, group: asyncio.TaskGroup) -> None:
        """Finish a rebalance, begin another one if members came or went, and assign the keys."""
        own = self._own_record()
        if self._rebalance is not None and self._rebalance.done(own):
            self._members, self._rebalance = self._rebalance.after, None
            log.info("sharing keys", members=len(self._members.names))
        if self._members == NO_MEMBERS and self._rebalance is None and own is not None:
            self._check_others(own)
        changed = own is not None and self._group.living != self._members
        if self._rebalance is None and changed:
            self._rebalance = Rebalance(self._record.holder, self._members, self._group.living)
            group.create_task(self._drain(self._rebalance), name=f"drain of {self.name}")
        self._log_lost_records()
        self._assign()

    def _check_others(self, own: Membership) -> None:
        """Check the other members before the first rebalance; *own* has come through the cache."""
        if not self._checked and not self._group.complete:
            self._group.suspect()
        self._checked = True
        stranger = self._group.stranger
        if stranger is not None and (stranger.members or stranger.since < own.since):
            raise _StrangerError(stranger.holder)
        self._stranger = ""

    def _log_lost_records(self) -> None:
        lost = self._group.lost
        if set(lost) - set(self._lost):
            log.warning(
                "member records were deleted or are invalid",
                hint="their keys wait until the members are known to be dead",
                members=", ".join(name.lstrip("?") or "an unknown member" for name in lost),
            )
        self._lost = lost

    def _assign(self) -> None:
        """Begin the term with the first keys, or change its keys."""
        if self._members == NO_MEMBERS:
            return
        after = () if self._rebalance is None else (self._rebalance.after,)
        assignment, leadership = self._group.assignment(self._members, *after), self.leadership
        if not leadership.begun.is_set():
            revision = 0 if self._record.last is None else self._record.last.revision
            leadership.begin(revision, self._record.void_at, assignment)
        elif assignment != leadership.assignment:
            leadership.move(assignment)

    async def _drain(self, rebalance: Rebalance) -> None:
        await self.leadership.drained(rebalance.gives_up)
        rebalance.drained = True
        self._changed.set()

    def _due_at(self) -> float:
        record, rebalance = self._record, self._rebalance
        drained = rebalance is not None and rebalance.drained
        if rebalance is not None and drained and rebalance.after.names != record.members:
            return self._retry_at
        return max(self._retry_at, min(record.renew_at, self._group.proof_due(record.tried)))

    async def _write(self) -> None:
        """Write the record, with the new members if no key is worked on that others get."""
        members = self._members.names
        if self._rebalance is not None and self._rebalance.drained:
            members = self._rebalance.published(self._record.renewals + 1)
        if not await self._unled(member=True):
            raise ConflictError("a leader is elected for it")
        await self._record.write(members, complete=self._knows_all())

    # ---- the group

    def _knows_all(self) -> bool:
        """Return whether every member that may work has a record that this process has seen.

        Before the check, the cache may still show a bucket that was recreated since.
        """
        return self._checked and (self._group.complete or not self._group.suspects)

    def _on_change(self, change: Change[Membership]) -> None:
        self._look_at_records()
        if change.before is None and change.after is None:
            self._group.deleted(change.key)
        self._changed.set()

    def _look_at_records(self) -> None:
        self._group.look()
        own = self._own_record()
        if own is not None:
            self._group.prove(self._record.sent_at(own) or 0.0)

    def _own_record(self) -> Membership | None:
        """Return the cached record of this process, or None if it has not written that one."""
        own = self._group.own
        return own if own is not None and self._record.sent_at(own) is not None else None
