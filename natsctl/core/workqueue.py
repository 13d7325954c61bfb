"""The work queue: one record for each key that isn't at rest.

A key is at rest, waits for its time, is ready for a worker, or is claimed by one. So no two workers
have the same key, and one sync answers all requests that were made before it began. The rules are
those of client-go's work queue, with priorities and ages.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from enum import IntEnum, StrEnum
from heapq import heapify, heappop, heappush, merge
from itertools import count, islice
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from natsctl.core.retry import (
    Drop,
    ExponentialLimiter,
    RateLimit,
    Retry,
    RetryPolicy,
    Stop,
    TokenBucket,
    always_retry,
    decide_retry,
)
from natsctl.errors import QueueShutDownError, RetryAfter, UsageError
from natsctl.model.reports import QueueStats
from natsctl.model.store import Stored
from natsctl.slices import retain
from natsctl.telemetry.exceptions import ErrorClass, classify
from natsctl.telemetry.histogram import Histogram

K = TypeVar("K", bound=Hashable)

AGEING_S = 30.0  # a key that has been ready for longer goes before keys of higher priority
FEW = 100  # ready keys, below which more of the fed keys are added
MEASURES_MAX = 1_000  # times that are kept until they are counted
STALE_MAX = 10_000  # records of no use in lines and timers, beyond the number of the others
_BATCH = 1000  # keys that become ready before other callbacks of the loop run
_AHEAD_MAX_S = 86_400.0  # the longest timer of the loop, because some loops overflow

made_queues: ContextVar["list[WorkQueue[Any]] | None"] = ContextVar("made_queues", default=None)
"""The list to which each new queue of this task is added; None, the default, adds it to none."""


class Priority(IntEnum):
    """The urgency of a sync; a higher one goes first."""

    RESYNC = 0
    """A resync or the initial listing: no change is known."""
    RETRY = 1
    """A retry of a key that nobody had claimed."""
    SECONDARY = 2
    """A change of one of the key's secondaries."""
    USER = 3
    """A change of the primary."""


class Operation(StrEnum):
    """The reason for a sync: for people and for its priority, never an input to the handler."""

    PUT = "put"
    DELETE = "delete"
    PURGE = "purge"
    SECONDARY = "secondary"
    RESYNC = "resync"
    RETRY = "retry"
    """A sync after a failure."""
    REQUEUE = "requeue"
    """A sync that the one before asked for: a poll."""
    RESUME = "resume"
    MANUAL = "manual"

    @property
    def priority(self) -> Priority:
        return _PRIORITY.get(self, Priority.USER)


_PRIORITY = {
    Operation.SECONDARY: Priority.SECONDARY,
    Operation.RETRY: Priority.RETRY,
    Operation.REQUEUE: Priority.RETRY,
    Operation.RESYNC: Priority.RESYNC,
}


class Place(IntEnum):
    """Where a key is; `ASIDE` is a key at rest of which something is still remembered."""

    READY = 0
    CLAIMED = 1
    WAITING = 2
    ASIDE = 3


# Python looks up the member of an enum slowly, and every change needs these
_READY, _CLAIMED, _WAITING, _ASIDE = Place
_MANUAL, _RETRY = Operation.MANUAL, Operation.RETRY
_USER, _RESYNC = Priority.USER, Priority.RESYNC


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A requested sync that mustn't begin before the loop time `at`."""

    at: float
    priority: Priority
    reason: Operation | None


class Trouble(msgspec.Struct, gc=False):
    """What few keys need: requests for later, failures in a row, and notes of the syncs.

    A sync that begins at or after the time of a request answers it.

    Attributes:
        failures: failures in a row.
        asked: a delay that somebody asked for, which no success cancels.
        retry: a waiting retry.
        last: the last state of a deleted object, until a sync of it has succeeded.
        failed: the state for which the key failed permanently.
        missing: the incarnation of the bucket that lacks the object, as garbage collection found.
        skipped: whether the key was skipped because its object is invalid.
        held_back: whether a sync of the paused key was held back.
    """

    failures: int = 0
    asked: Asked | None = None
    retry: Asked | None = None
    last: Stored | None = None
    failed: Stored | None = None
    missing: str = ""
    skipped: bool = False
    held_back: bool = False

    @property
    def at(self) -> float:
        asked, retry = self.asked, self.retry
        return min(math.inf if asked is None else asked.at, math.inf if retry is None else retry.at)

    @property
    def priority(self) -> Priority:
        asked, retry = self.asked, self.retry
        return max(asked.priority if asked else _RESYNC, retry.priority if retry else _RESYNC)

    @property
    def says_nothing(self) -> bool:
        noted = self.last or self.failed or self.missing or self.skipped or self.held_back
        return not (self.failures or self.asked or self.retry or noted)


class Work(msgspec.Struct, Generic[K], eq=False, gc=False):
    """What is known of a key that isn't at rest.

    A record is ready once at most: a key that was asked for while it was claimed gets a new record,
    `again`, when it's given back. `at` is the loop time since which the key has been ready or
    claimed, or until which it waits. `due` is the time since which it should have been taken, if
    that is before `at`. `changed` is the time of the first change of the desired state that waits
    for a successful sync. Without a `reason` the sync is a retry, or the last one asked for it.
    """

    key: K
    place: Place
    at: float
    priority: Priority
    reason: Operation | None = None
    changed: float | None = None
    due: float | None = None
    again: "Work[K] | None" = None
    trouble: Trouble | None = None


class Synced(msgspec.Struct, frozen=True):
    """The handler succeeded and asks for another sync `after` so many seconds, or for none."""

    after: float | None = None


SYNCED = Synced()


class Failed(msgspec.Struct, frozen=True):
    """The handler raised."""

    error: Exception


Outcome: TypeAlias = Synced | Failed


class WorkQueue(Generic[K]):
    """A queue of keys that need a sync: workers `take` what others `offer`, and `settle` it.

    Guarantees:
        - The earliest requested time and the highest requested priority win. A key that is offered
          while it's claimed becomes ready once more when it's given back.
        - A requested delay (`offer(key, after=...)`) is kept: neither a sync before that time nor a
          success cancels it. A success cancels a waiting retry.
        - Higher priorities go first; within a priority, first in, first out. While keys have been
          ready for longer than `AGEING_S`, every second key that is taken is the oldest one.
        - A cancelled `take` takes no key.

    All calls must be made in the thread of one event loop.

    Args:
        limiter: computes the delays of retries; client-go's 5 ms to 1000 s by default.
        bucket: limits the rate of all retries together; no limit by default.
        pace: limits the rate at which keys are taken; no limit by default.
    """

    def __init__(
        self,
        *,
        limiter: ExponentialLimiter[K] | None = None,
        bucket: TokenBucket | None = None,
        pace: RateLimit | None = None,
    ) -> None:
        self.ready = 0  # how many keys are ready
        self.answers = False  # whether keys are synced now, so that a change can be answered
        self.works: dict[K, Work[K]] = {}  # to look at; only the queue changes it
        self._claimed: dict[K, Work[K]] = {}  # in the order in which they were taken
        self._lines = tuple(deque[Work[K]]() for _ in Priority)  # by priority
        self._urgent_first = self._lines[::-1]
        self._stale = 0  # how many records of lines may be in another place by now
        self._aged_at = -math.inf  # no ready key has aged before then
        self._by_age = False  # whether the last key was taken by its age
        self._timers: list[tuple[float, int, Work[K]]] = []  # a heap, with some of no use
        self._numbers = count()
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._fed: deque[_Fed[K]] = deque()
        self._limiter = ExponentialLimiter[K]() if limiter is None else limiter
        self._bucket = bucket
        self._pace = None if pace is None else pace.bucket()  # each key that is taken needs a token
        self._shut_down = False
        self._closed = asyncio.Event()
        self._takers = deque[asyncio.Future[None]]()  # workers that wait, the longest-waiting first
        self._waking = False  # whether a woken worker has not run yet
        self._adds = self._retries = 0
        self._latency_s, self._work_s = Histogram(), Histogram()
        self.now: Callable[[], float] = self._find_clock
        """Returns the loop time; an attribute, because every change calls it."""
        if (queues := made_queues.get()) is not None:
            queues.append(self)

    # ---- offer

    def offer(
        self,
        key: K,
        reason: Operation | None = None,
        *,
        priority: Priority | None = None,
        after: float = 0.0,
        changed: bool = False,
    ) -> bool:
        """Ask for a sync, *after* seconds from now or later.

        The strongest reason wins: a person's request, then the most urgent one, then the newest.
        *changed* means that the desired state has changed. Returns False after `shut_down`: the
        request is ignored.
        """
        if self._shut_down:
            return False
        if priority is None:
            priority = _USER if reason is None else reason.priority
        now = self.now()
        if after > 0:
            self._retries += 1
            work, trouble = self._troubled(key, now)
            trouble.asked = _sooner(trouble.asked, Asked(now + after, priority, reason))
            self._place(work, now)
            return True
        changed_at = now if changed and self.answers else None
        known = self.works.get(key)
        if known is None:
            self.works[key] = work = Work(key, _READY, now, priority, reason, changed_at)
            self._lines[priority].append(work)
            self.ready += 1
            self._adds += 1
            if self._takers and not self._waking:
                self._wake()
            return True
        work = known
        if work.place is not _CLAIMED:
            self._place(work, now, priority)
        elif work.again is None:
            work.again = Work(key, _ASIDE, now, priority, reason, changed_at)
            self._adds += 1
            return True
        else:
            work = work.again
            work.priority = max(work.priority, priority)
        if reason is not work.reason:
            work.reason = _stronger(work.reason, reason)
        if work.changed is None:
            work.changed = changed_at
        return True

    def offer_changed(self, offered: Sequence[tuple[K, Operation]], priority: Priority) -> None:
        """Request syncs of keys whose desired states have changed, as `offer` does for each."""
        if self._shut_down:
            return
        now, works, line = self.now(), self.works, self._lines[priority]
        changed_at = now if self.answers else None
        for key, reason in offered:
            if key in works:
                self.offer(key, reason, priority=priority, changed=True)
            else:
                works[key] = work = Work(key, _READY, now, priority, reason, changed_at)
                line.append(work)
                self.ready += 1
                self._adds += 1
        if self._takers and not self._waking:
            self._wake()

    def feed(self, keys: Collection[K], add: Callable[[K], object]) -> None:
        """Call *add* for each of many keys: a few now, and more whenever few keys are ready.

        *add* offers the key, or leaves it out. Keys may be added to the collection and removed from
        it meanwhile, if its iteration allows that. Ignored after `shut_down`.
        """
        if not self._shut_down:
            self._fed.append(_Fed(iter(keys), len(keys), add))
            self._refill()
            self._wake_all()

    def feed_no_more(self) -> None:
        self._fed.clear()

    def _refill(self) -> None:
        for _ in range(FEW if self.ready < FEW else 0):
            if not self._fed:
                return
            fed = self._fed[0]
            for key in fed.keys:  # the next one
                fed.left = max(1, fed.left - 1)
                fed.add(key)
                break
            else:
                self._fed.popleft()

    def retry(self, key: K, *, after: float | None = None) -> None:
        """Count a failure and request another sync, *after* seconds from now.

        Without *after*, the limiter computes the delay. A token bucket may extend either. A claimed
        key keeps the priority with which it was taken; the priority of another key is
        `Priority.RETRY`. After `shut_down`, the failure is counted and no sync is requested.
        """
        now = self.now()
        work, trouble = self._troubled(key, now)
        trouble.failures += 1
        if not self._shut_down:
            self._retries += 1
            delay_s = self._limiter.delay_s(trouble.failures) if after is None else after
            if self._bucket is not None:
                delay_s = max(delay_s, self._bucket.take())
            priority = work.priority if work.place is _CLAIMED else Priority.RETRY
            trouble.retry = _sooner(trouble.retry, Asked(now + delay_s, priority, None))
        self._place(work, now)

    def hasten_retries(self) -> None:
        """Clear the failures of all keys that wait for a retry, and retry them now.

        A token bucket still limits the rate. Other callbacks run in between if many keys wait.
        """
        # the timers have all waiting keys, and not the ready ones, which may be many
        self._hasten(iter([*self._claimed.values(), *(timer[2] for timer in self._timers)]))

    def _hasten(self, works: Iterator[Work[K]]) -> None:
        batch = () if self._shut_down else tuple(islice(works, _BATCH))
        for work in batch:
            trouble = work.trouble
            if trouble and trouble.retry is not None and self.works.get(work.key) is work:
                delay_s = 0.0 if self._bucket is None else self._bucket.take()
                trouble.failures, now = 0, self.now()
                hastened = Asked(now + delay_s, trouble.retry.priority, None)
                trouble.retry = _sooner(trouble.retry, hastened)
                self._place(work, now)
        if batch:
            asyncio.get_running_loop().call_soon(self._hasten, works)

    # ---- take

    async def take(self) -> Work[K]:
        """Wait for the next key and claim it until `settle`.

        Raises `QueueShutDownError` when the queue is shut down.
        """
        while not self._shut_down:
            if self._fed:
                self._refill()
            if not self.ready:
                if self._fed:
                    await asyncio.sleep(0)  # all of these keys were left out
                else:
                    await self._woken()
                continue
            if self._pace is None:
                return self._claim()
            if wait_s := self._pace.take():
                try:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._closed.wait()
                except asyncio.CancelledError:
                    self._pace.give_back()
                    self._wake_one()
                    raise
            if self.ready:
                return self._claim()
            self._pace.give_back()
        raise QueueShutDownError("the queue was shut down")

    def take_nowait(self) -> Work[K] | None:
        """Claim the next key like `take`; return None if no key is ready or the pace forbids it."""
        if self._fed:
            self._refill()
        if self.ready and self._pace is not None and self._pace.take():
            self._pace.give_back()
            return None
        return self._claim() if self.ready else None

    def _claim(self) -> Work[K]:
        now = self.now()
        work = None
        if now > self._aged_at and not self._by_age:
            oldest = min(self._firsts(), key=_since)
            self._aged_at = oldest.at + AGEING_S
            if now > self._aged_at:
                work = oldest
                self._stale += 1
        self._by_age = work is not None
        if work is None:
            # A key whose priority rose is in the line of its new priority, and stays in the old
            # one, so that no key of a line is older than the first one. It's taken from the new
            # one before the old one is reached.
            line = next(filter(None, self._urgent_first))
            while (work := line.popleft()).place is not _READY:
                line = line or next(filter(None, self._urgent_first))
        work.place = _CLAIMED
        self.ready -= 1
        waiting = self._latency_s.waiting
        waiting.append(now - (work.at if work.due is None else work.due))
        if len(waiting) >= MEASURES_MAX:
            self._latency_s.count()
            self._work_s.count()
        work.at = now
        self._claimed[work.key] = work
        if self._stale:
            self._drop_stale()
        if work.trouble is not None:
            self._answer(work, work.trouble, now)
        return work

    def _firsts(self) -> list[Work[K]]:
        self._drop_stale()
        return [line[0] for line in self._urgent_first if line]

    def _drop_stale(self) -> None:
        """Drop the records that begin a line and aren't ready, and the others if there are many."""
        compact = self._stale > self.ready + STALE_MAX
        for line in self._lines:
            while line and line[0].place is not _READY:
                line.popleft()
            if compact:
                kept = [work for work in line if work.place is _READY]
                line.clear()
                line.extend(kept)
        if compact or not self.ready:
            self._stale = 0

    # ---- settle

    def settle(  # noqa: C901 - one straight line
        self, key: K, outcome: Outcome = SYNCED, retry: RetryPolicy = always_retry
    ) -> None:
        """Give a claimed key back; the outcome of its sync decides what follows.

        After a success the key's failures are forgotten, and a returned delay requests another sync
        with low priority. After a failure the class of the error decides, see `classify`: a
        `RetryAfter` requests another sync with the same priority, a permanent failure forgets the
        key, and the retry policy decides about all other failures.

        Raises `UsageError` for a key that isn't claimed.
        """
        work = self._claimed.get(key)
        if work is None:
            raise UsageError(f"{key} was given back, but nobody has claimed it")
        if outcome is SYNCED and work.again is None and work.trouble is None:
            del self._claimed[key], self.works[key]  # most syncs end like this
            self._work_s.waiting.append(self.now() - work.at)
            return
        if isinstance(outcome, Synced):  # a `match` takes four times as long
            work.changed = None
            self.forget(key)
            if outcome.after is not None:
                self.offer(key, after=outcome.after, priority=_RESYNC)
        elif isinstance(outcome.error, RetryAfter):
            self.offer(key, after=outcome.error.delay_s, priority=work.priority)
        elif not classify(outcome.error).retried:
            if classify(outcome.error) is ErrorClass.PERMANENT:
                work.changed = None  # no sync will answer it
            self.forget(key)
        else:
            match decide_retry(retry, outcome.error, self.failures(key) + 1):
                case Retry(after):
                    self.retry(key, after=after)
                case Drop():
                    self.forget(key)
                case Stop():
                    self.shut_down()
        self.give_back(key)

    def give_back(self, key: K, *, untouched: bool = False) -> None:
        """Give back a claimed key that wasn't synced; failures and requests stay as they are.

        It waits or is ready if it was requested while it was claimed. An *untouched* key is ready
        again, for the reason for which it was taken. Raises `UsageError` for another key.
        """
        work = self._claimed.get(key)
        if work is None:
            raise UsageError(f"{key} was given back, but nobody has claimed it")
        if untouched:
            self.offer(key, work.reason, priority=work.priority)
        del self._claimed[key]
        now = self.now()
        self._work_s.observe(now - work.at)
        again, trouble = work.again, work.trouble
        if again is None and trouble is None and work.changed is None:
            del self.works[key]
            return
        due = math.inf if trouble is None else trouble.at
        after = Work(key, _ASIDE, now, _RESYNC) if again is None else again
        if again is not None:
            due = min(due, again.at)
            self._adds -= 1  # it was counted when it was offered
        if due <= now:
            after.due = due
        after.trouble = trouble
        if work.changed is not None:
            after.changed = work.changed
        self.works[key] = after
        self._place(after, now, None if again is None else again.priority)

    def forget(self, key: K) -> None:
        """Clear the key's failures and cancel its waiting retry, as a success does.

        Other requests are kept, and so is a key whose retry is ready already.
        """
        work = self.works.get(key)
        if work is not None and work.trouble is not None:
            work.trouble.failures, work.trouble.retry = 0, None
            self._place(work, self.now())

    def noted(self, key: K) -> Trouble | None:
        """Return what is noted of the key; call `tidy` after something was removed."""
        work = self.works.get(key)
        return None if work is None else work.trouble

    def note(self, key: K) -> Trouble:
        """Return what is noted of the key, to note something; a key at rest stays at rest."""
        return self._troubled(key, self.now())[1]

    def tidy(self, key: K) -> None:
        """Forget the key if nothing is noted of it any more, and nothing else known."""
        work = self.works.get(key)
        if work is not None and work.trouble is not None:
            self._place(work, self.now())

    def drop(self, key: K) -> None:
        """Forget everything about the key; a worker may still have claimed it."""
        work = self.works.get(key)
        if work is None:
            return
        work.again = work.trouble = work.changed = None
        if work.place is _READY:
            self.ready -= 1
            self._stale += 1
            work.place = _ASIDE
            self._drop_stale()
        self._place(work, self.now())

    async def keep(self, wanted: Callable[[K], bool]) -> None:
        """Drop every key that isn't *wanted*, in slices. It doesn't wait for keys to be fed."""
        await retain(self.works, wanted, self.drop)

    def stop_answering(self) -> None:
        """Forget which changes wait for a sync, until `answers` is set again."""
        self.answers = False
        now = self.now()
        for work in tuple(self.works.values()):
            work.changed = None
            if work.again is not None:
                work.again.changed = None
            if work.place is _ASIDE:
                self._place(work, now)

    # ---- the end

    def shut_down(self) -> None:
        """Accept no more keys, and drop those that wait or are ready; every `take` raises."""
        self._shut_down = True
        self._closed.set()
        self._fed.clear()
        self._timers.clear()
        self._disarm()
        self._waiting = self.ready = self._stale = 0
        for line in self._lines:
            line.clear()
        self.works = dict(self._claimed)
        for work in self.works.values():
            work.again = None
            if work.trouble is not None:
                work.trouble.asked = work.trouble.retry = None
        self._wake_all()

    async def closed(self) -> None:
        await self._closed.wait()

    # ---- what is known

    def work(self, key: K) -> Work[K] | None:
        """Return the record of a key that waits, is ready or is claimed; None for another key."""
        work = self.works.get(key)
        return None if work is None or work.place is _ASIDE else work

    def is_claimed(self, key: K) -> bool:
        return key in self._claimed

    def reason(self, key: K) -> Operation:
        """Return the reason for the sync of a claimed key; without one, its last sync asked."""
        work = self._claimed.get(key)
        if work is None or (work.reason is None and work.trouble and work.trouble.failures):
            return _RETRY
        return work.reason or Operation.REQUEUE

    def failures(self, key: K) -> int:
        """Return how often *key* was retried since it was last forgotten."""
        work = self.works.get(key)
        return 0 if work is None or work.trouble is None else work.trouble.failures

    @property
    def idle(self) -> bool:
        """True if no key is waiting, ready or claimed."""
        return not (self._waiting or self.ready or self._claimed or self._fed)

    @property
    def settled(self) -> bool:
        """True if no key is ready or claimed, and no failed key waits for its retry.

        A key that only waits for a requested time doesn't count.
        """
        retries = any(work.trouble and work.trouble.retry for work in self.works.values())
        return not (self.ready or self._claimed or self._fed or retries)

    def first(self, number: int) -> Iterator[Work[K]]:
        """Yield up to *number* keys of each place: the oldest, and those that become ready next.

        Claimed keys come first, then the ready ones. Takes time in proportion to *number*: it may
        yield fewer keys that wait if there are many timers of no use.
        """
        yield from islice(self._claimed.values(), number)
        seen = dict[int, Work[K]]()
        for work in merge(*self._urgent_first, key=_since):
            if len(seen) == number:
                break
            if work.place is _READY:
                seen[id(work)] = work  # a key whose priority rose is in two lines
        yield from seen.values()
        soonest, reached = dict[int, Work[K]](), [(timer, 0) for timer in self._timers[:1]]
        for _ in range(number + 64):
            if not reached or len(soonest) == number:
                break
            (when, _, work), index = heappop(reached)
            if work.place is _WAITING and work.at == when:
                soonest[id(work)] = work
            for below in range(2 * index + 1, min(2 * index + 3, len(self._timers))):
                heappush(reached, (self._timers[below], below))
        yield from soonest.values()

    def oldest_ready(self) -> float | None:
        """Return the loop time since which the oldest ready key is ready, None if no key is."""
        return min((work.at for work in self._firsts()), default=None)

    def waits_since(self, time: float) -> bool:
        """Return whether a key is ready since that loop time or longer, or has yet to be fed."""
        oldest = self.oldest_ready()
        return bool(self._fed) or (oldest is not None and oldest <= time)

    def unanswered(self) -> dict[K, float]:
        """Return the keys whose change waits for a sync that hasn't begun, and since when."""
        asked = ((k, it.again if it.place is _CLAIMED else it) for k, it in self.works.items())
        return {key: work.changed for key, work in asked if work and work.changed is not None}

    def stats(self) -> QueueStats:
        """Return the measures; takes time in proportion to the claimed keys only."""
        now = self.now()
        claimed_s = [now - work.at for work in self._claimed.values()]
        due = sum(
            work.again is not None or (work.trouble is not None and work.trouble.at <= now)
            for work in self._claimed.values()
        )
        return QueueStats(
            depth=self.ready + sum(fed.left for fed in self._fed) + due,
            waiting=self._waiting,
            held=len(claimed_s),
            adds=self._adds,
            retries=self._retries,
            latency_s=self._latency_s.read(),
            work_s=self._work_s.read(),
            unfinished_s=sum(claimed_s),
            longest_s=max(claimed_s, default=0.0),
        )

    def _find_clock(self) -> float:
        """Find the loop's clock once, because that takes longer than reading its time."""
        self.now = asyncio.get_running_loop().time
        return self.now()

    # ---- places

    def _troubled(self, key: K, now: float) -> tuple[Work[K], Trouble]:
        """Return the record of the key with its trouble; a ready key needs no due request."""
        work = self.works.get(key)
        if work is None:
            work = self.works[key] = Work(key, _ASIDE, now, _RESYNC)
        if work.trouble is not None and work.place is _READY:
            self._answer(work, work.trouble, now)
        if work.trouble is None:
            work.trouble = Trouble()
        return work, work.trouble

    def _answer(self, work: Work[K], trouble: Trouble, now: float) -> None:
        """Remove the requests that the next sync of a ready key answers, or one that begins now."""
        if trouble.asked is not None and trouble.asked.at <= now:
            work.reason = _stronger(work.reason, trouble.asked.reason)
            trouble.asked = None
        if trouble.retry is not None and trouble.retry.at <= now:
            trouble.retry = None
        if trouble.says_nothing:
            work.trouble = None

    def _place(  # noqa: C901, PLR0912 - one straight line
        self, work: Work[K], now: float, wanted: Priority | None = None
    ) -> None:
        """Put a key that isn't claimed where its requests demand; it's *wanted* now, or isn't.

        The key is forgotten if its record says nothing more.
        """
        at, requested, trouble = math.inf, _RESYNC, work.trouble
        if trouble is not None and trouble.says_nothing:
            trouble = work.trouble = None
        if work.place is _CLAIMED:
            return
        if trouble is not None:
            at, requested = trouble.at, trouble.priority
        if wanted is not None and wanted > requested:
            requested = wanted
        if work.place is _READY:
            if requested > work.priority:
                work.priority = requested
                self._lines[requested].append(work)
                self._stale += 1
            return

        waited = work.place is _WAITING
        if wanted is None and at > now and trouble is not None and (trouble.asked or trouble.retry):
            if not waited or work.at != at:
                self._waiting += not waited
                work.place, work.at = _WAITING, at
                heappush(self._timers, (at, next(self._numbers), work))
                if self._timers[0][0] < self._armed_for:
                    self._arm()
        else:
            self._waiting -= waited
            if wanted is not None or at <= now:
                work.place, work.at, work.priority = _READY, now, requested
                self._lines[requested].append(work)
                self.ready += 1
                self._adds += 1
                if self._takers and not self._waking:
                    self._wake()
            else:
                work.place = _ASIDE
                if trouble is None and work.changed is None:
                    self.works.pop(work.key, None)
        if waited:
            self._compact_timers()

    # ---- workers that wait

    async def _woken(self) -> None:
        """Return when this worker is woken; if it's cancelled after that, it wakes another one."""
        wake_up = asyncio.get_running_loop().create_future()
        self._takers.append(wake_up)
        try:
            await wake_up
        except asyncio.CancelledError:
            if wake_up.cancelled():
                with suppress(ValueError):
                    self._takers.remove(wake_up)
            else:
                self._wake_one()
            raise

    def _wake_one(self) -> None:
        while self._takers:
            wake_up = self._takers.popleft()
            if not wake_up.done():
                wake_up.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._takers:
            self._wake_one()

    def _wake(self) -> None:
        """Wake a worker, and after it others if keys are left.

        A worker that takes all keys without waiting needs no other worker. So the next one is woken
        only after the first one has run.
        """
        if self._takers and not self._waking:
            self._waking = True
            self._wake_one()
            asyncio.get_running_loop().call_soon(self._wake_next)  # runs after the woken worker

    def _wake_next(self) -> None:
        self._waking = False
        if self.ready:
            self._wake()

    # ---- times; uvloop calls timers up to half a millisecond early

    def _arm(self) -> None:
        """Set the timer of the loop no later than the earliest time."""
        self._disarm()
        loop = asyncio.get_running_loop()
        self._armed_for = min(self._timers[0][0], loop.time() + _AHEAD_MAX_S)
        self._timer = loop.call_at(self._armed_for, self._ripen)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = math.inf

    def _ripen(self) -> None:
        """Make the keys ready whose time has come, in batches, so that the loop isn't blocked."""
        now = max(asyncio.get_running_loop().time(), self._armed_for)
        self._disarm()
        for _ in range(_BATCH):
            if not self._timers:
                return
            when, _, work = self._timers[0]
            waits = work.place is _WAITING and work.at == when
            if waits and when > now:
                break
            heappop(self._timers)
            if waits and work.trouble is not None:
                trouble, work.reason = work.trouble, None
                self._place(work, self.now(), trouble.priority)
                self._answer(work, trouble, when)
        if self._timers:
            self._arm()

    def _compact_timers(self) -> None:
        """Rebuild the heap when most of its timers are of no use."""
        timers = self._timers
        if not self._waiting:
            timers.clear()
            self._disarm()
        elif len(timers) > 2 * self._waiting + 64:
            timers[:] = [it for it in timers if it[2].place is _WAITING and it[2].at == it[0]]
            heapify(timers)


class _Fed(msgspec.Struct, Generic[K], eq=False):
    keys: Iterator[K]
    left: int  # about the number of keys that are left
    add: Callable[[K], object]


_since = attrgetter("at")


def _sooner(known: Asked | None, new: Asked) -> Asked:
    if known is None:
        return new
    first, second = (new, known) if new.at <= known.at else (known, new)
    return Asked(first.at, max(first.priority, second.priority), first.reason or second.reason)


def _stronger(known: Operation | None, new: Operation | None) -> Operation | None:
    if known is None or new is None:
        return known or new
    rank_of_known = (known is _MANUAL, known.priority)
    return new if (new is _MANUAL, new.priority) >= rank_of_known else known
