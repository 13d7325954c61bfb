"""Divides the keys of a controller among its processes.

Keys fall into shares by a checksum. One record says which session has which shares. It's changed
by compare-and-set only, and every change raises its epoch. Leader election is the same with one
share.

A session works on a share while the record, as its watch shows it, gives it the share, and its
newest heartbeat that came back through that watch was sent less than 0.7 of the time to live ago.
Why can't two sessions work on a share? `tests/model` checks it:

- To take it, another session first ends the owner, by an end mark on a heartbeat that it saw 0.85
  of the time to live ago. Compare-and-set shows that no later one was stored, so the owner's
  permission has ended by its own clock, and it begins again under another name.
- To give it up, the owner ends its syncs before it sends the release, and doesn't begin again
  before it sees a newer record, whatever became of the release.
- Whoever makes a lost or damaged record again has waited for 0.85 of the time to live. A heartbeat
  that came back to an owner that hasn't seen the damage is older.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
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
from natsctl.core.coordination.term import SHARES, Clock, Leadership, Work
from natsctl.core.task_group import first_of, together
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    WatchBrokenError,
)
from natsctl.model.kinds import KvKind
from natsctl.model.store import Applied, Deleted, Listed, Listing, Store
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import happens

log = get_logger(__name__)

SLOW_S = 5.0  # for the end of the syncs of shares that are given up, until it is logged
RELEASE_S = 2.0  # for the end of cancelled work and the release of the shares
PAUSE_S = 0.001  # the shortest wait, because clocks and timers differ by less
WATCH_MAX_S = 1.0  # before a broken watch is opened again


class _Other(msgspec.Struct):
    """Another session as the watch shows it; `since` is when it showed the newest message."""

    session: str
    since: float
    revision: int = 0  # of that message; 0 if there is none
    exists: bool = False  # whether that message is a value
    heartbeat: SessionHeartbeat | None = None
    over: bool = False  # whether its end mark came back

    def heard(self, now: float) -> None:
        """Begin to wait anew, unless it's a former session of this process, which is over."""
        self.since = max(self.since, now) if self.since > -math.inf else self.since


class Shares:
    """The shares of a controller as one process sees them, and what the rules allow it.

    It does no I/O. The `see_` methods take what the watch shows, in its order, and the other ones
    return what to do. Masks have a bit for each share. With a *count* of 1 they elect a leader.
    Sessions with another *workload* are strangers.
    """

    def __init__(
        self, name: str, lease: Lease, count: int = SHARES, workload: Workload = UNKNOWN_WORKLOAD
    ) -> None:
        self.name, self.lease, self.count, self.workload = name, lease, count, workload
        self.key, self.every = record_key(name), (1 << count) - 1
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
        self.former: dict[str, str] = {}  # the processes of version 0.2 that may work, by keys
        self._unaware: set[str] = set()  # sessions that haven't seen the first record yet
        self._first = 0  # its revision

    # ---- what the watch shows

    def see(self, key: str, value: bytes | None, revision: int, now: float) -> None:
        """Note a message; None is a deletion. A lapse is noted before anything that is received."""
        self.lease.lapse(now)
        if key == self.key:
            self.see_record(value, revision, now)
        elif key == self.lease.key:
            self.lease.came_back(value, revision)
        elif key.startswith(heartbeat_key(self.name, "")):
            self.see_heartbeat(key, value, revision, now)
        else:
            self.former.pop(key, None)
            former = decoded(value, Former)
            works = former and former.ttl_s > 0 and not (former.released or former.left)
            if former and former.holder and works:
                self.former[key] = former.holder

    def see_record(self, value: bytes | None, revision: int, now: float) -> None:
        """Note the record; damage stops the work, and begins the wait before it's made again."""
        if self.listed and (revision, value is not None) == (self.revision, self.exists):
            return  # the watch repeats it
        self.revision, self.exists, self.released = revision, value is not None, 0
        named, (self.record, self.masks) = self.masks, record_in(value)
        self.damaged = self.record is None or self.record.epoch <= self.seen
        if self.damaged:
            self.calm_at = now + self.wait_s
            self._unaware.clear()
        if self.record is not None:
            self.seen = max(self.seen, self.record.epoch)
        for session in self.masks:
            key = heartbeat_key(self.name, session)
            if session not in named and key != self.lease.key:  # its silence counts from now
                self.others.setdefault(key, _Other(session, now)).heard(now)

    def see_heartbeat(self, key: str, value: bytes | None, revision: int, now: float) -> None:
        """Note another session's heartbeat; each message restarts the wait before its end."""
        heartbeat, other = decoded(value, SessionHeartbeat), self.others.get(key)
        if other is None and heartbeat is not None:
            other = self.others[key] = _Other(heartbeat.session, now)
        if other is None or (revision, value is not None) == (other.revision, other.exists):
            return
        other.revision, other.exists = revision, value is not None
        other.heard(now)
        if heartbeat is not None:
            other.heartbeat, other.over = heartbeat, other.over or heartbeat.over
            self._is_aware(key, now)
        if not other.exists and other.session not in self.masks:
            del self.others[key]

    def see_list(
        self, shown: Mapping[str, tuple[bytes, int]], now: float, *, first_run: bool = False
    ) -> None:
        """Note a complete list: values and revisions by key, the record before the heartbeats.

        *first_run* says that no process can have had a record before.
        """
        known = (self.key, self.lease.key, *self.others, *self.former)
        for key in dict.fromkeys((*known, *shown)):
            value, revision = shown.get(key, (None, 0))
            if value is not None or self.listed:
                self.see(key, value, revision, now)
        if not self.listed:
            # Whoever hasn't seen this record may work by a newer one, if this one was put back.
            self.listed, self.calm_at = True, now if first_run else now + self.wait_s
            if not self.damaged:
                self._first = self.revision
                self._unaware = {"", *(key for key, other in self.others.items() if other.exists)}
                for key in ("", *self.others):
                    self._is_aware(key, now)

    def _is_aware(self, key: str, now: float) -> None:
        """Note it if the session has seen the first record that this process saw, or is over."""
        other = self.others.get(key)
        seen = math.inf if other is None or other.over else other.heartbeat and other.heartbeat.seen
        if key in self._unaware and (seen or 0) >= self._first:
            self._unaware.discard(key)
            if not self._unaware:
                self.calm_at = min(self.calm_at, now)

    def see_nothing(self, key: str, now: float) -> None:
        """Note that the leader has no message of the key, nor a marker, which no watch shows."""
        if key != self.key:
            self.see_heartbeat(key, None, 0, now)
        elif not self.exists:
            self.revision = 0

    def begin_again(self, lease: Lease) -> None:
        """Begin another session. The one before is over, and nothing of it works any more."""
        former, self.lease = self.lease, lease
        self.giving = self.released = 0
        if former.renewals:
            known = former.revision, bool(former.revision)
            self.others[former.key] = _Other(former.session, -math.inf, *known)

    # ---- what this process may do

    @property
    def wait_s(self) -> float:
        """How long a session that isn't heard of may still work."""
        beats = [other.heartbeat for other in self.others.values() if other.heartbeat]
        return WAIT * max(self.lease.ttl_s, *[beat.ttl_s for beat in beats], 0.0)

    @property
    def good(self) -> bool:
        """Whether the record is there, and newer than every one seen before."""
        return self.listed and not self.damaged

    @property
    def ours(self) -> bool:
        """Whether the record is of this controller in this mode, or names nobody who may work."""
        record = self.record
        if record is None or all(map(self.ended, self.masks)):
            return True
        return record.shares == self.count and self.workload.same(record.work)

    def alive(self, now: float) -> bool:
        return not self.lease.lapse(now) and now < self.lease.void_at

    def works(self, now: float) -> int:
        """Return the shares that this session may work on; none beside version 0.2."""
        if not (self.good and self.ours and self.alive(now)) or self.former:
            return 0
        return self.masks.get(self.lease.session, 0) & ~self.released

    def ended(self, session: str) -> bool:
        other = self.others.get(heartbeat_key(self.name, session))
        return other is not None and other.over

    def to_end(self, now: float) -> list[_Other]:
        """Return the silent sessions that need an end mark: of the record, and former own ones.

        The mark replaces exactly the message that was seen.
        """
        if not (self.good and self.alive(now)):
            return []
        wait_s = self.wait_s
        return [
            other
            for other in self.others.values()
            if (other.session in self.masks or other.since == -math.inf)
            and not other.over
            and now - other.since >= wait_s
        ]

    def due_at(self, now: float) -> float:
        wait_s = self.wait_s
        silences = (other.since + wait_s for other in self.others.values() if not other.over)
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
        return SessionHeartbeat(
            self.lease.session,
            self.lease.ttl_s,
            self.count,
            seen=self.revision,
            ready=self.good and now >= self.calm_at,
            unreadable=f"{self.unreadable:x}",
            work=self.workload,
        )

    def end_mark(self, session: str) -> SessionHeartbeat:
        return SessionHeartbeat(session, self.lease.ttl_s, self.count, over=True)

    def refused(self) -> str:
        """Return why this process doesn't take part: others run the controller in another way."""
        for holder in self.former.values():
            version = f"{holder} runs {self.name} with version 0.2"
            return f"{version}: stop all its daemons of that version first"
        if self.ours or self.record is None:
            return ""
        holder = next(session for session in self.masks if not self.ended(session))
        if not self.workload.same(self.record.work):
            return name_taken(self.name, holder, self.record.work, self.workload)
        does, option = "shares its keys", "--leader-elect"
        if self.count > 1:
            does, option = "leads it", "--shard"
        return f"{holder} {does}: run all its processes with {option}, or none"

    def waits_for(self) -> str:
        if self.damaged:
            return "the record was lost or damaged, and is made again after a while"
        holder = next(iter(self.masks), "")
        return f"{holder} leads" if self.count == 1 and holder else "it waits for its shares"

    # ---- who should have what

    def _part(self, now: float) -> tuple[int, int]:
        """Return how many shares each session takes, and those that no other one can read."""
        count, only_here, wait_s = 1, self.every, self.wait_s
        for other in self.others.values():
            beat = other.heartbeat if other.exists and not other.over else None
            if beat is None or not beat.ready or now - other.since >= wait_s:
                continue
            if beat.shares == self.count and self.workload.same(beat.work):
                count += 1
                only_here &= int(beat.unreadable, 16)
        return -(-self.count // count), only_here

    def give_up(self, now: float, mine: int, busy: int) -> int:
        """Choose the shares to give up, and return those that stay until their syncs have ended.

        Others can read the objects of these shares and this session can't, or they're above its
        part; those that were chosen before stay chosen.
        """
        part, only_here = self._part(now)
        giving, rest = mine & self.unreadable & ~only_here, mine & ~only_here & ~self.unreadable
        excess = (mine & ~giving).bit_count() - part
        for some in (self.giving, self.every):
            giving |= _first(rest & some & ~giving, excess - (giving & rest).bit_count())
        self.giving = giving = giving | mine & self.released  # a release may be lost
        return mine & ~(giving & ~busy)

    def take(self, now: float, mine: int, owned: int) -> int:
        if now < self.calm_at or self.former:
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
        return tuple(self.shares)


Request = Callable[[], Awaitable[object]]
FirstRun = Callable[[str], Awaitable[bool]]
"""Returns whether no process can have run the named controller with a record; None: none can."""


class Participation:
    """The part of one process in a controller that several processes run.

    It renews the heartbeat, takes and gives up shares as `Shares` allows it, and begins and ends
    the terms of the `leadership` in which the controller's loops work.

    Args:
        count: the number of shares: 1 to elect a leader, else `SHARES`.
        ttl_s: others take over within this time after a process has died; see `Lease`.
        clusters: the identity of the Kubernetes cluster by controller, a part of the `Workload`.
        identity: the name of this process; by default its host and process id.
    """

    def __init__(
        self,
        leases: Callable[[KvKind[Any]], Store],
        name: str,
        owner: str = "",
        *,
        count: int,
        ttl_s: float,
        clock: Clock = steady,
        installation: str = "",
        clusters: Mapping[str, str] = NO_CLUSTERS,
        first_run: FirstRun | None = None,
        identity: str = "",
    ) -> None:
        self.name = name
        self._changed = asyncio.Event()  # there may be something to do
        self.leadership = Leadership(name, clock, count)
        self.leadership.given_back = self._changed.set
        self.leadership.unreadable = self._cannot_read
        self._new_lease = partial(Lease, name, identity or new_identity(), ttl_s)
        workload = Workload(owner, installation, clusters.get(name, ""))
        self._shares = Shares(name, self._new_lease(), count, workload)
        self._store, self._former = leases(records_of(name)), leases(former_lease_of(name))
        self._clock, self._first_run = clock, first_run
        self._sending: dict[str, asyncio.Task[None]] = {}  # requests by their keys
        self._not_before: dict[str, float] = {}  # when a key may be written again
        self._asked = -1  # the revision that the last change of the record replaces
        self._beaten: SessionHeartbeat | None = None  # what the last heartbeat said
        self._draining_since = 0.0
        self._incarnation = ""  # of the bucket
        self._known = False  # whether the last request succeeded
        self._error = self._refused = ""
        self._logged: object = None  # what the last log line said

    def state(self) -> ShareState:
        shares, masks, leadership = self._shares, self._shares.masks, self.leadership
        works = leadership.leads and leadership.epoch is not None
        return ShareState(
            name=self.name,
            identity=shares.lease.session,
            count=shares.count,
            works=works,
            epoch=leadership.epoch if works else None,
            shares={session: mask.bit_count() for session, mask in masks.items()},
            draining=shares.giving.bit_count(),
            draining_s=self._draining_s,
            moving=bool(shares.giving or shares.damaged or shares.every & ~sum(masks.values())),
            known=self._known,
            trouble=self._refused or self._error,
        )

    def whose(self, key: str) -> tuple[str, int, float]:
        """Return the session that has the key, empty if that isn't known, and the key's share.

        The last is for how many seconds this process gives the share up.
        """
        shares, share = self._shares, self.leadership.share_of(key)
        masks = shares.masks if shares.good else {}
        owner = next((session for session, mask in masks.items() if mask >> share & 1), "")
        owner = shares.lease.session if self.leadership.has(key) else owner
        return owner, share, self._draining_s if shares.giving >> share & 1 else 0.0

    @property
    def _draining_s(self) -> float:
        return self._clock() - self._draining_since if self._shares.giving else 0.0

    async def during(self, work: Work, synced: asyncio.Event) -> None:
        """Call *work*, whose loops run in terms only, and take part until it has ended.

        A term is sought once a loop is ready to run, or *synced* is set because there is no loop.
        The shares are released after *work* has ended. Raises what *work* raises.
        """
        async with together() as group:
            working = group.create_task(work())
            part = group.create_task(self._take_part(synced), name=f"shares of {self.name}")
            try:
                await asyncio.wait((working,))
            finally:
                part.cancel()

    async def _take_part(self, synced: asyncio.Event) -> None:
        shares, leadership = self._shares, self.leadership
        await first_of(leadership.sought.wait(), synced.wait())
        leadership.sought.set()
        try:
            async with together() as group:
                group.create_task(self._watch(), name=f"watch of the shares of {self.name}")
                while True:
                    while not shares.lease.lapse(now := self._clock()):
                        await self._step(group, now)
                    self._end_term(shares.lease.over, at_once=shares.lease.refused)
                    for task in self._sending.values():
                        task.cancel()
                    self._sending.clear()
                    await leadership.quiet()
                    shares.begin_again(self._new_lease())
                    self._beaten, self._not_before = None, {}
        finally:
            leadership.lose()
            try:
                async with asyncio.timeout(RELEASE_S):
                    await leadership.quiet()
                    await self._leave()
            except (StoreError, TimeoutError) as error:
                log.warning("record left to expire", error=str(error) or "no answer in time")

    async def _leave(self) -> None:
        shares, lease = self._shares, self._shares.lease
        if lease.renewals:
            await self._replace_own(lease, shares.end_mark(lease.session))
        while (stored := await read(self._store, shares.key)) is not None:
            record, masks = record_in(stored.value)
            if record is None or lease.session not in masks:
                return
            if stored.revision != shares.revision and record.epoch <= shares.seen:
                return  # it was put back
            members = {who: mask for who, mask in record.members.items() if who != lease.session}
            left = msgspec.structs.replace(record, epoch=record.epoch + 1, members=members)
            with suppress(ConflictError):
                await self._replace(shares.key, left, stored.revision)

    # ---- the watch

    async def _watch(self) -> None:
        while True:
            try:
                try:
                    await self._hear()
                except StoreMissingError:
                    await self._see_list({})
            except StoreError as error:
                self._log_error(error)
            await asyncio.sleep(min(RETRY * self._shares.lease.ttl_s, WATCH_MAX_S))

    async def _hear(self) -> None:
        """Pass what a watch shows to the rules, a list at its end and all at once.

        That a watch ends after its list alarms nobody. It does so when the server has deleted the
        heartbeat of a session that's over, which leaves no marker.
        """
        shares, listing, shown = self._shares, True, dict[str, tuple[bytes, int]]()
        try:
            async with self._store.watch() as events:
                async for event in events:
                    if isinstance(event, Listing):
                        if self._incarnation not in {"", event.incarnation}:
                            shares.see_list({}, self._clock())
                        self._incarnation, listing, shown = event.incarnation, True, {}
                    elif isinstance(event, Listed):
                        await self._see_list(shown)
                        listing = False
                    elif isinstance(event, Applied) and listing:
                        shown[event.stored.key] = event.stored.value, event.stored.revision
                    elif isinstance(event, Applied):
                        stored = event.stored
                        shares.see(stored.key, stored.value, stored.revision, self._clock())
                    elif isinstance(event, Deleted) and not listing:
                        shares.see(event.key, None, event.revision, self._clock())
                    self._changed.set()
        except WatchBrokenError as error:
            if listing:
                raise
            log.debug("watching the leases again", reason=error)

    async def _see_list(self, shown: Mapping[str, tuple[bytes, int]]) -> None:
        first_run = not self._shares.listed and self._shares.key not in shown
        if first_run and self._first_run is not None:
            first_run = await self._first_run(self.name)
        self._shares.see_list(shown, self._clock(), first_run=first_run)
        self._changed.set()

    # ---- a step of the session

    async def _step(self, group: asyncio.TaskGroup, now: float) -> None:
        self._changed.clear()
        self._grant(now)
        self._send(group, now)
        self._report()
        lease, later = self._shares.lease, (at for at in self._not_before.values() if at > now)
        due_s = min(lease.step_down_at, self._shares.due_at(now), *later) - now
        await happens(self._changed, within_s=max(min(due_s, RETRY * lease.ttl_s), PAUSE_S))

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
        elif own and not leadership.running:
            leadership.begin(shares.seen, shares.lease.void_at, own)

    def _end_term(self, reason: str, *, at_once: bool) -> None:
        leadership = self.leadership
        if leadership.begun.is_set():
            (leadership.lose if at_once else leadership.step_down)()
            if leadership.shared:
                log.warning("stopped sharing keys", reason=reason)
            else:
                log.warning("lost leadership", reason=reason)

    def _send(self, group: asyncio.TaskGroup, now: float) -> None:
        """Send what is due: the heartbeat, a change of the record, end marks.

        A decision is stored over the message on which it rests, even if another one is seen before
        the request begins.
        """
        shares, lease, leadership = self._shares, self._shares.lease, self.leadership
        beat = shares.heartbeat(now)
        if now >= lease.renew_at or beat != self._beaten:
            self._start(group, now, lease.key, partial(self._beat, lease, beat))
        if shares.revision != self._asked:
            self._not_before.pop(shares.key, None)
        record = shares.make_again(now)
        if record is None and (leadership.begun.is_set() or not leadership.running):
            giving = shares.giving
            record = shares.change(now, leadership.busy)
            if shares.giving != giving:
                self._draining_since = self._draining_since if giving else now
                self._changed.set()
        if record is not None:
            change = partial(self._replace, shares.key, record, shares.revision)
            if self._start(group, now, shares.key, change):
                shares.asked(record)
                self._asked = shares.revision
        for other in shares.to_end(now):
            key, mark = heartbeat_key(self.name, other.session), shares.end_mark(other.session)
            self._start(group, now, key, partial(self._replace, key, mark, other.revision))

    def _start(self, group: asyncio.TaskGroup, now: float, key: str, request: Request) -> bool:
        if key in self._sending or now < self._not_before.get(key, now):
            return False
        task = group.create_task(self._request(key, request), name=f"write of {key}")
        self._sending[key] = task
        return True

    async def _request(self, key: str, request: Request) -> None:
        lease, again_s = self._shares.lease, RENEW
        try:
            async with asyncio.timeout(RENEW * lease.ttl_s):
                await request()
            self._known, self._error = True, ""
            again_s = 0.0 if key == lease.key else RENEW
        except ConflictError:
            pass  # the watch shows what it was
        except (StoreError, TimeoutError) as error:
            self._log_error(error)
            again_s = RETRY
        finally:
            if self._sending.get(key) is asyncio.current_task():
                del self._sending[key]
            self._changed.set()
        self._not_before[key] = self._clock() + again_s * lease.ttl_s

    async def _replace(self, key: str, value: object, revision: int) -> int:
        """Store the value over the message of this *revision*, 0 for none; return its own."""
        data = msgspec.json.encode(value)
        try:
            if revision:
                return (await self._store.update(key, data, revision=revision)).revision
            return (await self._store.create(key, data)).revision
        except ConflictError:
            try:
                await self._store.get(key)
            except NotFoundError as error:
                if error.deleted_at is None:
                    self._shares.see_nothing(key, self._clock())
            raise

    async def _beat(self, lease: Lease, beat: SessionHeartbeat) -> None:
        """Renew the heartbeat, after a look at the lease of version 0.2, which no watch shows."""
        former = await read(self._former, self.name)
        value = None if former is None else former.value
        self._shares.see(self.name, value, 0, self._clock())
        self._beaten = beat
        await self._replace_own(lease, lease.renew(self._clock(), beat))

    async def _replace_own(self, lease: Lease, beat: SessionHeartbeat) -> None:
        """Store a heartbeat, whatever became of the one before; an end mark stays."""
        while True:
            with suppress(ConflictError, StoreMissingError):
                revision = await self._replace(lease.key, beat, lease.revision)
                lease.revision = max(lease.revision, revision)
                return
            current = await read(self._store, lease.key)
            lease.revision = 0 if current is None else current.revision
            stored = None if current is None else decoded(current.value, SessionHeartbeat)
            if stored is not None and stored.over:
                lease.end()
            if stored is not None and (stored.over or stored == beat):
                return

    def _cannot_read(self, key: str) -> None:
        self._shares.unreadable |= 1 << self.leadership.share_of(key)
        self._changed.set()

    # ---- what people see

    def _report(self) -> None:
        shares, leadership = self._shares, self.leadership
        self._refused = shares.refused()
        if self._refused:
            self._log(log.error, "this process does not take part", error=self._refused)
        elif not leadership.begun.is_set():
            if shares.listed:
                self._log(log.info, "standing by", reason=shares.waits_for())
        elif not leadership.shared:
            self._log(log.info, "leading", epoch=leadership.epoch)
        elif shares.giving and self._draining_s > SLOW_S:
            late = "shares for another process are still worked on"
            self._log(log.warning, late, self._draining_since, shares=shares.giving.bit_count())
        elif not self.state().moving:
            members, mine = len(shares.masks), leadership.mask.bit_count()
            self._log(log.info, "sharing keys", members=members, shares=mine)

    def _log(self, write: Callable[..., None], event: str, *fact: object, **fields: object) -> None:
        known, self._logged = self._logged, (event, fact or fields)
        if self._logged != known:
            write(event, **fields)

    def _log_error(self, error: Exception) -> None:
        self._known, before = False, self._error
        self._error = str(error) or "no answer in time"
        if self._error != before:
            log.warning("lease out of reach", error=self._error)
