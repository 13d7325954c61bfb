"""Divides the keys of a controller among its processes.

Keys fall into shares by a checksum. One record says which session has which shares. It's changed
by compare-and-set only, and every change raises its epoch. Leader election is the same with one
share.

A session works on a share while the record, as its watch shows it, gives it the share, and its
newest heartbeat that came back through that watch was sent less than 0.7 of the time to live ago.
Why can't two sessions work on a share?

- To take it, another session first ends the owner, by an end mark on a heartbeat that it saw 0.85
  of the time to live ago. Compare-and-set shows that no later one was stored, so the owner's
  permission has ended by its own clock, and it begins again under another name.
- To give it up, the owner ends its syncs before it sends the release, and doesn't begin again
  before it sees a newer record, whatever became of the release.
- Whoever makes a lost or damaged record again has waited for 0.85 of the time to live. A heartbeat
  that came back to an owner that hasn't seen the damage is older.

`tests/model` checks these rules.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from natsctl.core.compare_and_set import read
from natsctl.core.coordination.lease import (
    NO_CLUSTERS,
    RENEW,
    RETRY,
    UNKNOWN_WORKLOAD,
    WAIT,
    Former,
    Lease,
    Record,
    SessionHeartbeat,
    Workload,
    check_ttl,
    decoded,
    former_lease_of,
    heartbeat_key,
    name_taken,
    new_identity,
    record_in,
    record_key,
    records_of,
    steady,
)
from natsctl.core.coordination.term import SHARES, Clock, Leadership
from natsctl.core.retry import backoff
from natsctl.core.task_group import together
from natsctl.errors import ConflictError, NotFoundError, StoreError, StoreMissingError
from natsctl.model.kinds import KvKind
from natsctl.model.store import Applied, Deleted, Listed, Listing, Store, Stored
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import happens

log = get_logger(__name__)

SLOW_S = 5.0  # for the end of the syncs of shares that are given up, until it is logged
RELEASE_S = 2.0  # for the end of cancelled work and the release of the shares
PAUSE_S = 0.001  # the shortest wait, because clocks and timers differ by less
WATCH_S, WATCH_MAX_S = 0.05, 1.0  # before a broken watch is opened again


class _Other(msgspec.Struct):
    """Another session as the watch shows it; `since` is when it showed the newest message."""

    session: str
    since: float
    revision: int = 0  # of that message; 0 if there is none
    exists: bool = False  # whether that message is a value
    heartbeat: SessionHeartbeat | None = None
    over: bool = False  # whether its end mark came back


class Shares:
    """The shares of a controller as one process sees them, and what the rules allow it.

    It does no I/O. The `see_` methods take what the watch shows, in its order, and the other ones
    return what to do. Masks have a bit for each share.

    Args:
        name: the controller's name.
        lease: the session of this process.
        count: the number of shares; with 1, they elect a leader.
        workload: the controller's work; sessions with another one are strangers.
    """

    def __init__(
        self, name: str, lease: Lease, count: int = SHARES, workload: Workload = UNKNOWN_WORKLOAD
    ) -> None:
        self.lease = lease
        self.count = count
        self.every = (1 << count) - 1
        self.workload = workload
        self.listed = False
        self.record: Record | None = None  # the newest, if it decodes
        self.masks: dict[str, int] = {}  # of the record, by session
        self.revision = 0  # of the newest message of the record
        self.exists = False  # whether that message is a value
        self.seen = 0  # the highest epoch
        self.damaged = True  # missing, garbled, or not newer than one seen
        self.calm_at = math.inf  # when this process may take, and make the record again
        self.released = 0  # shares whose release was sent, and no newer record was seen
        self.giving = 0  # those that are given up when their syncs have ended
        self.unreadable = 0  # those with objects that only a newer version can read
        self.others: dict[str, _Other] = {}  # by the keys of their heartbeats
        self.former: dict[str, Former] = {}  # what version 0.2 stores of the controller
        self._unaware: dict[str, int] = {}  # sessions that haven't seen the first record yet
        self._name = name

    # ---- what the watch shows

    def see(self, key: str, value: bytes | None, revision: int, now: float) -> None:
        """Note a message; None is a deletion. A lapse is noted before anything that is received."""
        self.lease.lapse(now)
        if key == record_key(self._name):
            self.see_record(value, revision, now)
        elif key == self.lease.key:
            self.lease.came_back(value, revision)
        elif key.startswith(heartbeat_key(self._name, "")):
            self.see_heartbeat(key, value, revision, now)
        elif (former := decoded(value, Former)) is None:
            self.former.pop(key, None)
        else:
            self.former[key] = former

    def see_record(self, value: bytes | None, revision: int, now: float) -> None:
        """Note the record; damage stops the work, and begins the wait before it's made again."""
        if self.listed and (revision, value is not None) == (self.revision, self.exists):
            return  # the watch repeats it
        self.revision, self.exists, self.released = revision, value is not None, 0
        named, (self.record, self.masks) = self.masks, record_in(value)
        self.damaged = self.record is None or self.record.epoch <= self.seen
        if self.damaged:
            self.calm_at, self._unaware = now + self.wait_s, {}
        if self.record is not None:
            self.seen = max(self.seen, self.record.epoch)
        for session in self.masks:
            key = heartbeat_key(self._name, session)
            if key != self.lease.key and key not in self.others:
                self.others[key] = _Other(session, now)
            elif session not in named and key in self.others:  # its silence counts from now
                other = self.others[key]
                other.since = now if other.since > -math.inf else other.since

    def see_heartbeat(self, key: str, value: bytes | None, revision: int, now: float) -> None:
        """Note another session's heartbeat; each message restarts the wait before its end."""
        heartbeat, other = decoded(value, SessionHeartbeat), self.others.get(key)
        if other is None and heartbeat is not None:
            other = self.others[key] = _Other(heartbeat.session, now)
        if other is None or (revision, value is not None) == (other.revision, other.exists):
            return
        other.revision, other.exists = revision, value is not None
        other.since = now if other.since > -math.inf else other.since
        if heartbeat is not None:
            other.heartbeat, other.over = heartbeat, other.over or heartbeat.over
            self._is_aware(key, other, now)
        if not other.exists and other.session not in self.masks:
            del self.others[key]

    def see_list(
        self, shown: Mapping[str, tuple[bytes, int]], now: float, *, first_run: bool = False
    ) -> None:
        """Note a complete list: values and revisions by key, the record before the heartbeats.

        *first_run* says that no process can have had a record before.
        """
        record = record_key(self._name)
        known = {record, self.lease.key, *self.others, *self.former}
        for key in sorted({*shown, *known}, key=lambda key: key != record):
            value, revision = shown.get(key, (None, 0))
            if value is not None or (self.listed and key != self.lease.key):
                self.see(key, value, revision, now)
        if self.lease.key not in shown:
            self.lease.revision = 0
        if not self.listed:
            # Whoever hasn't seen this record may work by a newer one, if this one was put back.
            self.listed, self.calm_at = True, now if first_run else now + self.wait_s
            if not self.damaged:
                self._unaware = {key: self.revision for key, o in self.others.items() if o.exists}
                self._unaware[""] = 0
                for key in list(self._unaware):
                    self._is_aware(key, self.others.get(key), now)

    def _is_aware(self, key: str, other: _Other | None, now: float) -> None:
        """Note that a session has seen the first record that this process saw, or is over."""
        heartbeat = None if other is None else other.heartbeat
        aware = other is None or (
            heartbeat is not None and (other.over or heartbeat.seen >= self._unaware.get(key, 0))
        )
        if aware and self._unaware.pop(key, None) is not None and not self._unaware:
            self.calm_at = min(self.calm_at, now)

    def begin_again(self, lease: Lease) -> None:
        """Begin another session. The one before is over, and nothing of it works any more."""
        former, self.lease = self.lease, lease
        self.giving = self.released = 0
        if former.renewals:
            self.others[former.key] = _Other(
                former.session, -math.inf, former.revision, bool(former.revision)
            )

    # ---- what this process may do

    @property
    def wait_s(self) -> float:
        """How long a session that isn't heard of may still work."""
        heartbeats = (other.heartbeat for other in self.others.values())
        return WAIT * max(self.lease.ttl_s, *(beat.ttl_s for beat in heartbeats if beat), 0.0)

    @property
    def good(self) -> bool:
        """Whether the record is there, and newer than every one seen before."""
        return self.listed and not self.damaged

    @property
    def ours(self) -> bool:
        """Whether the record is of this controller in this mode, or names nobody who may work."""
        record = self.record
        return (
            record is None
            or all(map(self.ended, self.masks))
            or (record.shares == self.count and self.workload.same(record.work))
        )

    @property
    def beside_former(self) -> bool:
        """Whether a process of version 0.2, which doesn't know this record, may work."""
        return any(former.works for former in self.former.values())

    def alive(self, now: float) -> bool:
        """Return whether a heartbeat that came back was sent lately enough."""
        return not self.lease.lapse(now) and now < self.lease.void_at

    def works(self, now: float) -> int:
        """Return the shares that this session may work on; none beside version 0.2."""
        if not (self.good and self.ours and self.alive(now)) or self.beside_former:
            return 0
        return self.masks.get(self.lease.session, 0) & ~self.released

    def ended(self, session: str) -> bool:
        """Return whether the session's end mark came back."""
        other = self.others.get(heartbeat_key(self._name, session))
        return other is not None and other.over

    def to_end(self, now: float) -> list[_Other]:
        """Return the silent sessions that need an end mark: of the record, and former own ones.

        The mark replaces exactly the message that was seen.
        """
        if not (self.good and self.alive(now)):
            return []
        return [
            other
            for other in self.others.values()
            if (other.session in self.masks or other.since == -math.inf)
            and not other.over
            and now - other.since >= self.wait_s
        ]

    def due_at(self, now: float) -> float:
        """Return when something may be allowed that isn't yet."""
        silences = (other.since + self.wait_s for other in self.others.values() if not other.over)
        return min((at for at in (self.calm_at, *silences) if at > now), default=math.inf)

    def make_again(self, now: float) -> Record | None:
        """Return the record to make again; one that was put back keeps its owners."""
        if not self.listed or not self.damaged or now < self.calm_at:
            return None
        if self.record is not None:
            return msgspec.structs.replace(self.record, epoch=self.seen + 1)
        return Record(self.seen + 1, self.count, {}, self.workload)

    def change(self, now: float, busy: int) -> Record | None:
        """Return the record with what this session takes and gives up; None if it does neither.

        Nothing is given up of *busy* shares, whose syncs have not ended.
        """
        if not (self.good and self.ours and self.alive(now)):
            return None
        mine = self.masks.get(self.lease.session, 0)
        masks = {session: mask for session, mask in self.masks.items() if not self.ended(session)}
        kept = self.give_up(now, mine, busy) | self.take(now, mine, sum(masks.values()))
        if kept == mine:
            return None
        masks[self.lease.session] = kept
        members = {session: f"{mask:x}" for session, mask in masks.items() if mask}
        return Record(self.seen + 1, self.count, members, self.workload)

    def asked(self, record: Record) -> None:
        """Note that the record is sent: what it gives up isn't worked on before a newer one."""
        kept = int(record.members.get(self.lease.session, "0"), 16)
        self.released |= self.masks.get(self.lease.session, 0) & ~kept

    def heartbeat(self, now: float) -> SessionHeartbeat:
        """Return the heartbeat of this session as it is now."""
        return SessionHeartbeat(
            session=self.lease.session,
            ttl_s=self.lease.ttl_s,
            shares=self.count,
            seen=self.revision,
            ready=self.good and now >= self.calm_at,
            unreadable=f"{self.unreadable:x}" if self.unreadable else "",
            work=self.workload,
        )

    def refused(self) -> str:
        """Return why this process doesn't take part: others run the controller in another way."""
        for former in self.former.values():
            if former.works:
                return (
                    f"{former.holder} runs {self._name} with version 0.2: stop all its daemons of "
                    "that version first"
                )
        if self.ours or self.record is None:
            return ""
        holder = next(session for session in self.masks if not self.ended(session))
        if not self.workload.same(self.record.work):
            return name_taken(self._name, holder, self.record.work, self.workload)
        option = "--leader-elect" if self.count == 1 else "--shard"
        does = "shares its keys" if self.count == 1 else "leads it"
        return f"{holder} {does}: run all its processes with {option}, or none"

    def waits_for(self) -> str:
        """Return why this process has no shares."""
        if self.damaged:
            return "the record was lost or damaged, and is made again after a while"
        holder = next(iter(self.masks), "")
        return f"{holder} leads" if self.count == 1 and holder else "it waits for its shares"

    # ---- who should have what

    def ready(self, now: float) -> list[SessionHeartbeat]:
        """Return the living sessions that take shares, without this one."""
        return [
            other.heartbeat
            for other in self.others.values()
            if other.heartbeat is not None
            and other.heartbeat.ready
            and other.exists
            and not other.over
            and other.heartbeat.shares == self.count
            and self.workload.same(other.heartbeat.work)
            and now - other.since < self.wait_s
        ]

    def _part(self, now: float) -> tuple[int, int]:
        """Return the number of shares for each session, and those that no other can read."""
        ready, only_here = self.ready(now), self.every
        for heartbeat in ready:
            only_here &= int(heartbeat.unreadable or "0", 16)
        return -(-self.count // (1 + len(ready))), only_here

    def give_up(self, now: float, mine: int, busy: int) -> int:
        """Choose the shares to give up, and return those that stay until their syncs have ended.

        Given up are those with objects that others can read and this session can't, and those
        above its part, where those that were chosen before stay chosen.
        """
        part, only_here = self._part(now)
        giving, rest = mine & self.unreadable & ~only_here, mine & ~only_here & ~self.unreadable
        excess = (mine & ~giving).bit_count() - part
        for some in (self.giving, self.every):
            giving |= _first(rest & some & ~giving, excess - (giving & rest).bit_count())
        self.giving = giving = giving | mine & self.released  # a release may be lost
        return mine & ~(giving & ~busy)

    def take(self, now: float, mine: int, owned: int) -> int:
        """Return the free shares to take: up to this session's part, and what no other can read."""
        if now < self.calm_at or self.beside_former:
            return 0
        part, only_here = self._part(now)
        free = self.every & ~owned
        return free & only_here | _first(free & ~self.unreadable, part - mine.bit_count())


def _first(mask: int, count: int) -> int:
    """Return the lowest bits of the mask, so many."""
    first = 0
    while mask and count > 0:
        lowest = mask & -mask
        first, mask, count = first | lowest, mask ^ lowest, count - 1
    return first


# ---- the process


class ShareState(msgspec.Struct, frozen=True):
    """The part of a process in a controller, for health checks and people."""

    name: str  # the controller's
    identity: str  # this process's session
    count: int  # the number of shares: 1 to elect a leader
    works: bool  # whether this process has shares now
    epoch: int | None  # of its term; None on standby
    shares: Mapping[str, int]  # their number by session, as this process sees the record
    draining: int  # shares that are given up when their syncs have ended
    draining_s: float  # since when
    moving: bool  # whether shares of this process are on their way
    known: bool  # whether the last request to the store succeeded
    trouble: str = ""  # why this process doesn't take part; empty if nothing is wrong

    @property
    def members(self) -> tuple[str, ...]:
        """The sessions that have shares."""
        return tuple(self.shares)

    @property
    def holder(self) -> str | None:
        """The session that leads, None if none does."""
        return next(iter(self.shares), None)


Leases = Callable[[KvKind[Any]], Store]
"""Returns the store of a part of the bucket of leases."""

FirstRun = Callable[[str], Awaitable[bool]]
"""Returns whether no process can have run the named controller with a record."""

Work = Callable[[], Coroutine[None, None, None]]
"""Runs a controller."""

Request = Callable[[], Awaitable[None]]


async def always_first(_name: str) -> bool:
    """Return True for every controller."""
    return True


def participations(
    leases: Leases,
    *,
    count: int,
    ttl_s: float,
    clock: Clock = steady,
    installation: str = "",
    clusters: Mapping[str, str] = NO_CLUSTERS,
    first_run: FirstRun = always_first,
    identity: str = "",
) -> Callable[[str, str], "Participation"]:
    """Return a factory of this process's parts in controllers that several processes run.

    The factory takes the controller's name, and the kind of its primaries, which is empty if it
    isn't known.

    Args:
        leases: opens a part of the bucket of leases.
        count: the number of shares: 1 to elect a leader, else `SHARES`.
        ttl_s: others take over within this time after a process has died.
        clock: see `Leadership`.
        installation: the id of the NATS system.
        clusters: the identity of the Kubernetes cluster by controller, see `Workload`.
        first_run: see `FirstRun`.
        identity: the name of this process; by default its host and process id.

    Raises `UsageError` if *ttl_s* is less than a second, or more than an hour.
    """
    check_ttl(ttl_s)

    def participation(name: str, owner: str = "") -> Participation:
        workload = Workload(owner, installation, clusters.get(name, ""))
        new_lease = partial(Lease, name, identity or new_identity(), ttl_s)
        return Participation(
            Shares(name, new_lease(), count, workload),
            Leadership(name, clock, count),
            leases(records_of(name)),
            leases(former_lease_of(name)),
            new_lease=new_lease,
            clock=clock,
            first_run=first_run,
        )

    return participation


class Participation:
    """The part of one process in a controller that several processes run.

    It renews the heartbeat, takes and gives up shares as `Shares` allows it, and begins and ends
    the terms of the `leadership` in which the controller's loops work.
    """

    def __init__(
        self,
        shares: Shares,
        leadership: Leadership,
        store: Store,
        former: Store,
        *,
        new_lease: Callable[[], Lease],
        clock: Clock,
        first_run: FirstRun,
    ) -> None:
        self.leadership = leadership
        self._shares = shares
        self._store, self._former = store, former
        self._new_lease, self._clock, self._first_run = new_lease, clock, first_run
        self._changed = asyncio.Event()  # there may be something to do
        self._sending: dict[str, asyncio.Task[None]] = {}  # requests by their kinds
        self._not_before: dict[str, float] = {}  # when a request of a kind may be sent again
        self._asked = -1, False  # the revision that the last change of the record replaces
        self._beaten: SessionHeartbeat | None = None  # what the last heartbeat said
        self._draining_since = 0.0
        self._known = False  # whether the last request succeeded
        self._error = self._refused = ""
        self._logged: object = None  # what the last log line said
        leadership.given_back = self._changed.set
        leadership.unreadable = self._cannot_read

    @property
    def name(self) -> str:
        """The controller's name."""
        return self.leadership.name

    def state(self) -> ShareState:
        """Return the part of this process now."""
        shares, leadership = self._shares, self.leadership
        works = leadership.leads and leadership.epoch is not None
        free = shares.every & ~sum(shares.masks.values())
        return ShareState(
            name=self.name,
            identity=shares.lease.session,
            count=shares.count,
            works=works,
            epoch=leadership.epoch if works else None,
            shares={session: mask.bit_count() for session, mask in shares.masks.items()},
            draining=shares.giving.bit_count(),
            draining_s=self._clock() - self._draining_since if shares.giving else 0.0,
            moving=bool(shares.giving or free or shares.damaged),
            known=self._known,
            trouble=self._refused or self._error,
        )

    def whose(self, key: str) -> str | None:
        """Return the session that has the key, None if that isn't known."""
        if self.leadership.has(key):
            return self._shares.lease.session
        share = self.leadership.share_of(key)
        masks = self._shares.masks.items() if self._shares.good else ()
        return next((session for session, mask in masks if mask >> share & 1), None)

    def share_of(self, key: str) -> tuple[int, bool]:
        """Return the share of a key, and whether this process gives it up."""
        share = self.leadership.share_of(key)
        return share, bool(self._shares.giving >> share & 1)

    async def during(self, work: Work, synced: asyncio.Event) -> None:
        """Call *work*, whose loops run in terms only, and take part until it has ended.

        A term is sought once a loop is ready to run, or *synced* is set because there is no loop.
        The shares are released after *work* has ended. Raises what *work* raises.
        """
        async with together() as group:
            working = group.create_task(work())
            helper_tasks = (
                group.create_task(self._seek_after(synced)),
                group.create_task(self._take_part(), name=f"shares of {self.name}"),
            )
            try:
                await asyncio.wait((working,))
            finally:
                for task in helper_tasks:
                    task.cancel()

    async def _seek_after(self, synced: asyncio.Event) -> None:
        await synced.wait()
        self.leadership.sought.set()

    async def _take_part(self) -> None:
        await self.leadership.sought.wait()
        try:
            async with together() as group:
                group.create_task(self._watch(), name=f"watch of the shares of {self.name}")
                while True:
                    await self._run_session(group)
                    await self.leadership.quiet()
                    self._shares.begin_again(self._new_lease())
                    self._beaten, self._not_before = None, {}
        finally:
            self.leadership.lose()
            await self._leave()

    async def _leave(self) -> None:
        """Let others have the shares at once, or leave them to be taken after a while."""
        shares, lease = self._shares, self._shares.lease
        try:
            async with asyncio.timeout(RELEASE_S):
                await self.leadership.quiet()
                while lease.renewals and not await self._end_own(lease):
                    pass
                while (stored := await read(self._store, record_key(self.name))) is not None:
                    record, masks = record_in(stored.value)
                    if record is None or lease.session not in masks:
                        break
                    if stored.revision != shares.revision and record.epoch <= shares.seen:
                        break  # it was put back
                    members = {who: m for who, m in record.members.items() if who != lease.session}
                    left = msgspec.structs.replace(record, epoch=record.epoch + 1, members=members)
                    with suppress(ConflictError):
                        await self._replace(record_key(self.name), left, stored.revision)
        except (StoreError, TimeoutError) as error:
            log.warning("record left to expire", error=_text_of(error))

    # ---- the watch

    async def _watch(self) -> None:
        """Pass what the watch shows to the rules, a list at its end and all at once."""
        shares, failures, incarnation = self._shares, 0, ""
        while True:
            shown: dict[str, tuple[bytes, int]] | None = None
            try:
                async with self._store.watch() as events:
                    async for event in events:
                        failures = 0
                        if isinstance(event, Listing):
                            shown = {}
                            if incarnation and event.incarnation != incarnation:
                                shares.see_list({}, self._clock())
                            incarnation = event.incarnation
                        elif isinstance(event, Listed):
                            await self._see_list(shown or {})
                            shown = None
                        elif isinstance(event, Applied):
                            self._see(event.stored, shown)
                        elif isinstance(event, Deleted) and shown is None:
                            shares.see(event.key, None, event.revision, self._clock())
                        self._changed.set()
            except StoreMissingError:
                await self._see_list({})
            except StoreError as error:
                self._log_error(error)
            failures += 1
            await asyncio.sleep(backoff(failures, base_s=WATCH_S, limit_s=WATCH_MAX_S))

    def _see(self, stored: Stored, shown: dict[str, tuple[bytes, int]] | None) -> None:
        if shown is None:
            self._shares.see(stored.key, stored.value, stored.revision, self._clock())
        else:
            shown[stored.key] = stored.value, stored.revision

    async def _see_list(self, shown: Mapping[str, tuple[bytes, int]]) -> None:
        first_run = False
        if not self._shares.listed:
            try:
                stored = await read(self._former, self.name)
                if stored is not None and (former := decoded(stored.value, Former)) is not None:
                    self._shares.former[self.name] = former
                if record_key(self.name) not in shown:
                    first_run = await self._first_run(self.name)
            except StoreError as error:
                self._log_error(error)
                return
        self._shares.see_list(shown, self._clock(), first_run=first_run)
        self._changed.set()

    # ---- a session

    async def _run_session(self, group: asyncio.TaskGroup) -> None:
        """Take part until the session is over."""
        lease = self._shares.lease
        while not lease.lapse(now := self._clock()):
            self._changed.clear()
            self._grant(now)
            self._send(group, now)
            self._report()
            due_s = min(lease.step_down_at, self._shares.due_at(now), *self._retries(now)) - now
            await happens(self._changed, within_s=max(min(due_s, RETRY * lease.ttl_s), PAUSE_S))
        self._end_term(lease.over, at_once=lease.refused)
        for task in self._sending.values():
            task.cancel()
        self._sending.clear()

    def _retries(self, now: float) -> list[float]:
        return [at for at in self._not_before.values() if at > now]

    def _grant(self, now: float) -> None:
        """Begin, extend, change or end the term as the shares of this session demand."""
        shares, leadership = self._shares, self.leadership
        mask = shares.works(now)
        own = mask & ~shares.giving
        if leadership.begun.is_set():
            leadership.extend(shares.lease.void_at)
            if not mask:
                lost = "another process has it" if shares.good else "its record was damaged"
                self._end_term(lost, at_once=True)
            elif own != leadership.mask:
                leadership.move(own)
        elif own and leadership.is_quiet:
            leadership.begin(shares.seen, shares.lease.void_at, own)

    def _end_term(self, reason: str, *, at_once: bool) -> None:
        if self.leadership.begun.is_set():
            if at_once:
                self.leadership.lose()
            else:
                self.leadership.step_down()
            if self._shares.count == 1:
                log.warning("lost leadership", reason=reason)
            else:
                log.warning("stopped sharing keys", reason=reason)

    def _send(self, group: asyncio.TaskGroup, now: float) -> None:
        """Send what is due: the heartbeat, a change of the record, end marks."""
        shares, lease, leadership = self._shares, self._shares.lease, self.leadership
        heartbeat = shares.heartbeat(now)
        if now >= lease.renew_at or heartbeat != self._beaten:
            self._start(group, "heartbeat", now, partial(self._beat, lease, heartbeat))
        if (shares.revision, shares.exists) != self._asked:
            self._not_before.pop("record", None)
        record = shares.make_again(now)
        if record is None and (leadership.begun.is_set() or leadership.is_quiet):
            giving = shares.giving
            record = shares.change(now, leadership.busy)
            if shares.giving != giving:
                self._draining_since = self._draining_since if giving else now
                self._changed.set()
        if record is not None:
            self._start(group, "record", now, partial(self._write, record))
        for other in shares.to_end(now):
            self._start(group, f"end of {other.session}", now, partial(self._end, other))
        if shares.count == 1 or self.name in shares.former:  # a leader of 0.2 may start any time
            self._start(group, "former", now, self._look_at_former)

    def _start(
        self,
        group: asyncio.TaskGroup,
        kind: str,
        now: float,
        request: Callable[[], Awaitable[None]],
    ) -> None:
        """Send a request, unless one of its kind is on its way, or was sent shortly before."""
        if kind not in self._sending and now >= self._not_before.get(kind, now):
            task = group.create_task(self._request(kind, request), name=f"{kind} of {self.name}")
            self._sending[kind] = task

    async def _request(self, kind: str, request: Request) -> None:
        ttl_s = self._shares.lease.ttl_s
        try:
            async with asyncio.timeout(RENEW * ttl_s):
                await request()
            self._known, self._error, again_s = True, "", 0.0 if kind == "heartbeat" else RENEW
        except ConflictError:
            again_s = RENEW  # the watch shows what it was
        except (StoreError, TimeoutError) as error:
            self._log_error(error)
            again_s = RETRY
        finally:
            if self._sending.get(kind) is asyncio.current_task():
                del self._sending[kind]
            self._changed.set()
        self._not_before[kind] = self._clock() + again_s * ttl_s

    async def _beat(self, lease: Lease, heartbeat: SessionHeartbeat) -> None:
        """Renew the heartbeat, whatever became of the one before; an end mark stays."""
        renewal, self._beaten = lease.renew(self._clock(), heartbeat), heartbeat
        while True:
            try:
                lease.stored(await self._replace(lease.key, renewal, lease.revision))
            except (ConflictError, StoreMissingError):
                current = await read(self._store, lease.key)
            else:
                return
            lease.revision = 0 if current is None else current.revision
            stored = None if current is None else decoded(current.value, SessionHeartbeat)
            if stored is not None and stored.over:
                lease.end("another process ended this session")
            if stored is not None and (stored.over or stored == renewal):
                return

    async def _write(self, record: Record) -> None:
        shares, key = self._shares, record_key(self.name)
        self._asked = shares.revision, shares.exists
        shares.asked(record)
        try:
            await self._replace(key, record, shares.revision)
        except ConflictError:
            if not shares.exists and await self._is_absent(key):
                shares.revision = 0  # its delete marker is gone
            raise

    async def _end(self, other: _Other) -> None:
        """Write the end mark of a session, if the watch has shown its newest message."""
        key = heartbeat_key(self.name, other.session)
        mark = SessionHeartbeat(
            other.session, self._shares.lease.ttl_s, self._shares.count, over=True
        )
        try:
            await self._replace(key, mark, other.revision)
        except ConflictError:
            if await self._is_absent(key):
                self._shares.see_heartbeat(key, None, 0, self._clock())
            raise

    async def _end_own(self, lease: Lease) -> bool:
        mark = SessionHeartbeat(lease.session, lease.ttl_s, self._shares.count, over=True)
        try:
            await self._replace(lease.key, mark, lease.revision)
        except ConflictError:
            current = await read(self._store, lease.key)
            lease.revision = 0 if current is None else current.revision
            return False
        return True

    async def _replace(self, key: str, value: object, revision: int) -> int:
        """Store the value if *revision* is the newest of the key, 0 if there's none; return it."""
        data = msgspec.json.encode(value)
        if revision:
            return (await self._store.update(key, data, revision=revision)).revision
        return (await self._store.create(key, data)).revision

    async def _is_absent(self, key: str) -> bool:
        try:
            await self._store.get(key)
        except NotFoundError as error:
            return error.deleted_at is None
        return False

    async def _look_at_former(self) -> None:
        """Read the lease of version 0.2 again, which the watch doesn't show."""
        stored = await read(self._former, self.name)
        self._shares.see(self.name, None if stored is None else stored.value, 0, self._clock())

    def _cannot_read(self, key: str) -> None:
        """Give the share of the key to a process that can read its object, once there is one."""
        self._shares.unreadable |= 1 << self.leadership.share_of(key)
        self._changed.set()

    # ---- what people see

    def _report(self) -> None:
        """Log once what this process does, or why it doesn't."""
        shares, leadership = self._shares, self.leadership
        self._refused = shares.refused()
        if self._refused:
            if self._is_news(self._refused):
                log.error("this process does not take part", error=self._refused)
        elif not leadership.begun.is_set():
            reason = shares.waits_for()
            if shares.listed and self._is_news(reason):
                log.info("standing by", reason=reason)
        elif shares.count == 1:
            if self._is_news(leadership.epoch):
                log.info("leading", epoch=leadership.epoch)
        else:
            self._report_shares()

    def _report_shares(self) -> None:
        shares, drained_s = self._shares, self._clock() - self._draining_since
        if shares.giving and drained_s > SLOW_S:
            if self._is_news(self._draining_since):
                count = shares.giving.bit_count()
                log.warning("shares for another process are still worked on", shares=count)
        elif not self.state().moving:
            members, mine = len(shares.masks), self.leadership.mask.bit_count()
            if self._is_news((members, mine)):
                log.info("sharing keys", members=members, shares=mine)

    def _is_news(self, fact: object) -> bool:
        known, self._logged = self._logged, fact
        return fact != known

    def _log_error(self, error: Exception) -> None:
        """Log an error of the store, unless it is the same as before."""
        self._known, before = False, self._error
        self._error = _text_of(error)
        if self._error != before:
            log.warning("lease out of reach", error=self._error)


def _text_of(error: Exception) -> str:
    return str(error) or "no answer in time"
