"""Having several processes share the keys of a controller: joining, moving keys, leaving."""

import asyncio
import logging
import math
import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from natsctl.core.cache.informer import Informer
from natsctl.core.coordination.lease import LOOK, RENEW, RETRY, STEP_DOWN, VOID, Lease, Workload
from natsctl.core.coordination.member_record import MemberRecord, records_of
from natsctl.core.coordination.membership import NO_MEMBERS, Group, Membership, Rebalance
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
from natsctl.core.task_group import together
from natsctl.errors import ConflictError, NotLeadingError, StoreError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Change, Store

log = logging.getLogger(__name__)

PAUSE_S = 0.001  # the least to wait: clocks and timers need not agree on less


class ShardState(msgspec.Struct, frozen=True):
    """How a process's part in a group stands, for health checks and people.

    Attributes:
        name: the controller's.
        identity: who this process is in the group.
        members: who shares the keys, by the view by which this process works; none before it does.
        works: whether it has keys of its own now.
        moving: whether it waits until it may work by another view.
        known: whether its record could be written when that was last tried.
        trouble: why it does not take part; empty if nothing is wrong.
    """

    name: str
    identity: str
    members: tuple[str, ...]
    works: bool
    moving: bool
    known: bool
    trouble: str = ""


Leases = Callable[[KvKind[Any]], Store]
"""Returns the store of a part of the bucket of leases."""


def shards(
    leases: Leases,
    bucket: str,
    *,
    ttl_s: float,
    clock: Clock = steady,
    installation: str = "",
    vacant: VacantByName = always_vacant,
) -> Callable[[str, str], "Shard"]:
    """Return what makes this process's part in a controller's group.

    It takes the controller's name, and the kind of its primaries, which is empty if not known.

    Args:
        leases: what opens a part of the bucket of leases.
        bucket: its name.
        ttl_s: within how many seconds after a member has died others have its keys.
        clock: see `Leadership`.
        installation: the id of the NATS system.
        vacant: returns whether no process can share the keys of that controller if the bucket has
            no record of any.

    Raises `UsageError` if *ttl_s* is less than a second, or more than an hour.
    """
    check_ttl(ttl_s)
    identity = new_identity()

    def shard(name: str, owner: str = "") -> Shard:
        work = Workload(owner, installation)
        store = leases(kv(Membership, bucket=bucket, keys=records_of(name), history=1))
        key = f"{name}.shards.{re.sub('[^A-Za-z0-9-]', '_', identity)}"
        seat = MemberRecord(store, key, holder=identity, ttl_s=ttl_s, clock=clock, work=work)
        elected = leases(kv(bytes, bucket=bucket, keys=name, history=1))
        lease = Lease(elected, name, holder=identity, ttl_s=ttl_s, clock=clock, work=work)
        return Shard(name, store, seat, lease, clock=clock, vacant=vacant)

    return shard


class _StrangerError(ConflictError):
    """A process that works on something else shares keys under the controller's name."""


class Shard(Participant):
    """One process's part in the group that shares the keys of a controller.

    *Guarantees.* A key is worked on in one process at a time; see `membership.py`. A member
    that could not renew its record for half its time to live says so, cancels what is under way and
    joins anew; from 0.7 of that time on it takes no step and writes nothing, whether it could say
    so or not. Others take its keys once it was silent for 0.85. A member that ends gives its keys
    up at once. While a leader is elected for the same controller, it does nothing, and says so.

    Args:
        name: the controller's.
        store: where the records of the group are kept.
        seat: our record there.
        lease: of the controller's leader, which no process is to hold.
        clock: seconds that never go back.
        vacant: see `shards`.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        seat: MemberRecord,
        lease: Lease,
        *,
        clock: Clock = steady,
        vacant: VacantByName = always_vacant,
    ) -> None:
        super().__init__(Leadership(name, clock), "record of this member")
        kind = store.kind
        self._informer: Informer[Membership] = Informer(store, kind)
        self._group = Group(
            self._informer.cache,
            seat.key,
            identity=seat.holder,
            clock=clock,
            ttl_s=seat.ttl_s,
            work=seat.work,
        )
        self._vacant = vacant
        self._first: bool | None = None  # whether no record can have been lost before we joined
        self._stranger = ""  # why we share nothing with a process of another application
        self._lost: tuple[str, ...] = ()  # members whose records are lost, as last logged
        self._seat = seat
        self._lease = lease
        self._clock = clock
        self._stir = asyncio.Event()  # something is to be thought about anew
        self._view = NO_MEMBERS  # by which we work
        self._move: Rebalance | None = None  # to the next one
        self._again = -math.inf  # when to write again, after a write that failed

    def state(self) -> ShardState:
        """Return how it stands."""
        works = self.leadership.leads and self.leadership.epoch is not None
        return ShardState(
            name=self.name,
            identity=self._seat.holder,
            members=self._view.members if works else (),
            works=works,
            moving=self._move is not None,
            known=self._known,
            trouble=self._stranger or self._trouble,
        )

    def whose(self, key: str) -> str | None:
        """Return which member has the key, as far as is known; None while it moves."""
        return self._seat.holder if self.leadership.has(key) else self._group.whose(key)

    async def _take_part(self) -> None:
        await self.leadership.sought.wait()
        try:
            await self._join()
            async with together() as group:
                group.create_task(self._informer.run(), name=f"watch of the group of {self.name}")
                with self._informer.subscribe(self._changed):
                    while True:
                        await self._work()
                        await self.leadership.quiet()
                        await self._join()
        finally:
            self.leadership.lose()
            await self._leave()

    # ---- joining and leaving

    async def _join(self) -> None:
        """Write a record that claims nothing, again and again until that is done."""
        self._view, self._move = NO_MEMBERS, None
        while True:
            try:
                async with asyncio.timeout(VOID * self._seat.ttl_s):
                    if await self._unled():
                        if self._first is None:
                            self._first = await self._vacant(self.name)
                        await self._seat.take()
                        self._well()
                        return
            except (StoreError, TimeoutError) as error:
                self._note(error)
            await asyncio.sleep(LOOK * self._seat.ttl_s)

    async def _unled(self) -> bool:
        """Say whether nobody leads the controller, as processes that elect a leader do."""
        if await self._lease.free():
            return True
        holder = self._lease.seen_holder or "a process whose lease was deleted may be one that"
        message = f"{holder} leads it: run all its processes with --shard, or none"
        if message != self._trouble:
            log.error("%s: no key is shared: %s", self.name, message)
        self._known, self._trouble = False, message
        return False

    async def _keep_out(self) -> None:
        """Leave the group to strangers, for as long as it takes to find them dead."""
        stranger = self._group.stranger
        if stranger is not None:
            message = foreign(self.name, stranger.holder, stranger.work, self._seat.work)
            if message != self._stranger:
                log.error("%s: no key is shared: %s", self.name, message)
            self._stranger = message
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._seat.leave()
        await asyncio.sleep(self._seat.ttl_s * random.uniform(0.85, 1.0))  # noqa: S311 - spreads load, keeps no secret

    async def _leave(self) -> None:
        """Let others have our keys at once, if nothing is under way any more."""
        try:
            async with asyncio.timeout(RELEASE_S):
                await self.leadership.quiet()
                await self._seat.leave()
        except (StoreError, TimeoutError) as error:
            log.warning("%s: its record is left to expire: %s", self.name, text_of(error))

    # ---- a term

    async def _work(self) -> None:
        """Be a member for as long as our record can be renewed."""
        self._look()
        try:
            async with together() as group:
                while True:
                    async with asyncio.timeout(self._step_down_at - self._clock()):
                        await self._turn(group)
        except _StrangerError:
            await self._keep_out()
        except ConflictError as error:
            self.leadership.lose()
            log.warning("%s: shares no keys any more: %s", self.name, error)
        except (TimeoutError, NotLeadingError):
            self.leadership.step_down()
            message = "its record could not be renewed in time"
            log.warning("%s: shares no keys any more: %s", self.name, message)

    async def _turn(self, group: asyncio.TaskGroup) -> None:
        """Write what is to be written, or wait until there is something new to think about."""
        self._stir.clear()
        self._think(group)
        wait_s = self._due() - self._clock()
        if wait_s <= 0:
            await self._write()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, PAUSE_S)):
                await self._stir.wait()

    def _think(self, group: asyncio.TaskGroup) -> None:
        """Come to the next view where we may, decide on one, and say which keys are ours."""
        if self._move is not None and self._move.done(self._own()):
            self._view, self._move = self._move.after, None
            log.info("%s: %s", self.name, _told(len(self._view.members)))
        own = self._own()
        if self._view == NO_MEMBERS and self._move is None and own is not None:
            self._look_around(own)
        if self._move is None and own is not None and self._group.wanted != self._view:
            self._move = Rebalance(self._seat.holder, self._view, self._group.wanted)
            group.create_task(self._drain(self._move), name=f"drain of {self.name}")
        self._note_lost()
        self._say()

    def _look_around(self, own: Membership) -> None:
        """Check the other members before our first view; our cache has our own record by now."""
        if self._first is False and self._group.alone:
            self._group.suspect()
        self._first = True
        stranger = self._group.stranger
        if stranger is not None and (stranger.members or stranger.since < own.since):
            raise _StrangerError(stranger.holder)
        self._stranger = ""

    def _note_lost(self) -> None:
        """Log that keys are left to members whose records are lost."""
        lost = self._group.lost
        if set(lost) - set(self._lost):
            log.warning(
                "%s: a member's record was deleted, or is no record: keys that may be its own are "
                "left to it until it is known to be dead: %s",
                self.name,
                ", ".join(name.lstrip("?") or "of an unknown member" for name in lost),
            )
        self._lost = lost

    def _say(self) -> None:
        """Say which keys are ours, from the first view on in which there are any."""
        if self._view == NO_MEMBERS:
            return
        views = (self._view,) if self._move is None else (self._view, self._move.after)
        share, leadership = self._group.share(*views), self.leadership
        if not leadership.begun.is_set():
            leadership.begin(self._seat.revision, self._until, share)
        elif share != leadership.assignment:
            leadership.move(share)

    async def _drain(self, move: Rebalance) -> None:
        await self.leadership.without(move.goes)
        move.drained = True
        self._stir.set()

    def _due(self) -> float:
        """Return when to write our record the next time."""
        seat, move = self._seat, self._move
        if move is not None and move.drained and move.after.members != seat.members:
            return self._again
        renew = seat.sent + RENEW * seat.ttl_s
        return max(self._again, min(renew, self._group.proof_due(seat.tried)))

    async def _write(self) -> None:
        """Write our record, by the next view where nothing of ours is at what goes any more.

        What is answered only when others may have taken us for dead, renews nothing.
        """
        seat, members, until = self._seat, self._view.members, self._until
        if self._move is not None and self._move.drained:
            members = self._move.published(seat.renewals + 1)
        if self._clock() >= self._step_down_at:
            raise TimeoutError
        try:
            async with asyncio.timeout(RENEW * seat.ttl_s):
                await self._check_unled()
                await seat.write(members)
        except ConflictError:
            raise
        except (StoreError, TimeoutError) as error:
            self._note(error)
            self._again = self._clock() + RETRY * seat.ttl_s
        else:
            self._well()
            if self._clock() >= until:
                raise TimeoutError
            if self.leadership.begun.is_set():
                self.leadership.extend(self._until)

    async def _check_unled(self) -> None:
        if not await self._unled():
            raise ConflictError("a leader is elected for it")

    @property
    def _until(self) -> float:
        return self._seat.sent + VOID * self._seat.ttl_s

    @property
    def _step_down_at(self) -> float:
        return self._seat.sent + STEP_DOWN * self._seat.ttl_s

    # ---- what is known

    def _changed(self, change: Change[Membership]) -> None:
        self._look()
        if change.before is None and change.after is None:
            self._group.deleted(change.key)
        self._stir.set()

    def _look(self) -> None:
        self._group.look()
        own = self._own()
        if own is not None:
            self._group.prove(self._seat.sent_at(own) or 0.0)

    def _own(self) -> Membership | None:
        """Return our record as our cache has it; None where it has none of this time."""
        own = self._group.own
        return own if own is not None and self._seat.sent_at(own) is not None else None


def _told(members: int) -> str:
    if members == 1:
        return "has all keys, as the only member"
    return f"shares its keys as one of {members} members"
