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
from itertools import chain, count, islice
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
from natsctl.model.store import Stored
from natsctl.slices import retain
from natsctl.telemetry.exceptions import ErrorClass, classify
from natsctl.telemetry.histogram import Distribution, Histogram

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
        """The priority of the sync."""
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
_MANUAL, _RETRY, _PUT = Operation.MANUAL, Operation.RETRY, Operation.PUT
_USER = Priority.USER


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
        """The loop time of the earliest request, infinity without one."""
        asked, retry = self.asked, self.retry
        return min(math.inf if asked is None else asked.at, math.inf if retry is None else retry.at)

    @property
    def priority(self) -> Priority:
        """The highest requested priority."""
        requests = (request for request in (self.asked, self.retry) if request is not None)
        return max((request.priority for request in requests), default=Priority.RESYNC)

    @property
    def says_nothing(self) -> bool:
        """True if there is neither a failure nor a request nor a note."""
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


class QueueStats(msgspec.Struct, frozen=True):
    """The measures of a queue since its creation. Durations are seconds of loop time.

    They correspond to the metrics of client-go's work queue. `depth` counts the keys that are due:
    the ready ones, and the claimed ones that were offered again. `waiting` counts the keys whose
    time is in the future, `held` those that workers have. `adds` counts how often a key that was
    not due became due, `retries` how often a key was offered with a delay. `latency_s` runs from
    the offer to the take, `work_s` from there to the settlement. `unfinished_s` is the sum of the
    times for which the claimed keys have been claimed so far, and `longest_s` the longest of them:
    both grow if a worker hangs.
    """

    depth: int
    waiting: int
    held: int
    adds: int
    retries: int
    latency_s: Distribution
    work_s: Distribution
    unfinished_s: float
    longest_s: float


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
        self._takers, self._joiners = Waiters(), Waiters()
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
            asked, trouble = self._troubled(key, now)
            trouble.asked = _sooner(trouble.asked, Asked(now + after, priority, reason))
            self._replace(asked, trouble, now)
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
        work, again = known, known.again
        if work.place is not _CLAIMED:
            self._make_ready(work, _highest(priority, work.trouble), now)
        elif again is None:
            work.again = Work(key, _READY, now, priority, reason, changed_at)
            self._adds += 1
            return True
        else:
            work = again
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

    def answers_put(self, key: K) -> bool:
        """Return whether the key is ready because of a put, so that a sync answers another one."""
        work = self.works.get(key)
        return (
            work is not None
            and work.place is _READY
            and work.reason is _PUT
            and work.priority is _USER
            and work.changed is not None
        )

    def feed(self, keys: Collection[K], add: Callable[[K], object]) -> None:
        """Call *add* for each of many keys: a few now, and more whenever few keys are ready.

        *add* offers the key, or leaves it out. Keys may be added to the collection and removed from
        it meanwhile, if its iteration allows that. Ignored after `shut_down`.
        """
        if not self._shut_down:
            fed = _Fed(keys, add)
            if fed.left:
                self._fed.append(fed)
            self._refill()
            self._takers.wake_all()

    def feed_no_more(self) -> None:
        """Leave out the keys that wait to be fed."""
        self._fed.clear()

    def _refill(self) -> None:
        if self.ready < FEW:
            for _ in range(FEW):
                if not self._fed:
                    return
                self._fed[0].step()
                if not self._fed[0].left:
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
        self._replace(work, trouble, now)

    def hasten_retries(self) -> None:
        """Clear the failures of all keys that wait for a retry, and retry them now.

        A token bucket still limits the rate. Other callbacks run in between if many keys wait.
        """
        timers = tuple(
            self._timers
        )  # of all waiting keys, not of the ready ones, which may be many
        self._hasten(chain(tuple(self._claimed.values()), (timer[2] for timer in timers)))

    def _hasten(self, works: Iterator[Work[K]]) -> None:
        batch = () if self._shut_down else tuple(islice(works, _BATCH))
        for work in batch:
            trouble = work.trouble
            is_known = self.works.get(work.key) is work
            if is_known and trouble is not None and trouble.retry is not None:
                now, priority = self.now(), trouble.retry.priority
                delay_s = 0.0 if self._bucket is None else self._bucket.take()
                trouble.failures = 0
                trouble.retry = _sooner(trouble.retry, Asked(now + delay_s, priority, None))
                self._replace(work, trouble, now)
        if batch:
            asyncio.get_running_loop().call_soon(self._hasten, works)

    # ---- take

    async def take(self) -> Work[K]:
        """Wait for the next key and claim it until `settle`.

        Raises `QueueShutDownError` when the queue is shut down and has no key left to take.
        """
        while True:
            if self._fed:
                self._refill()
            while not self.ready:
                if self._shut_down:
                    raise QueueShutDownError("the queue was shut down")
                if self._fed:
                    await asyncio.sleep(0)  # all of these keys were left out
                    self._refill()
                else:
                    await self._takers.wait()
            if self._pace is None or self._shut_down:
                return self._claim()
            if wait_s := self._pace.take():
                try:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self.closed()
                except asyncio.CancelledError:
                    self._pace.give_back()
                    self._takers.wake_one()
                    raise
            if self.ready:
                return self._claim()
            self._pace.give_back()

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

    def settle(self, key: K, outcome: Outcome = SYNCED, retry: RetryPolicy = always_retry) -> None:
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
        if outcome is SYNCED and work.again is None and work.trouble is None and not self._joiners:
            del self._claimed[key], self.works[key]  # most syncs end like this
            self._work_s.waiting.append(self.now() - work.at)
            return
        if isinstance(outcome, Synced):  # a `match` takes four times as long
            work.changed = None
            if work.trouble is not None:
                self.forget(key)
            if outcome.after is not None:
                self.offer(key, after=outcome.after, priority=Priority.RESYNC)
        else:
            self._settle_failure(work, outcome.error, retry)
        self.give_back(key)

    def _settle_failure(self, work: Work[K], error: Exception, retry: RetryPolicy) -> None:
        key = work.key
        if isinstance(error, RetryAfter):
            self.offer(key, after=error.delay_s, priority=work.priority)
        elif not classify(error).retried:
            if classify(error) is ErrorClass.PERMANENT:
                work.changed = None  # no sync will answer it
            self.forget(key)
        else:
            match decide_retry(retry, error, self.failures(key) + 1):
                case Retry(after):
                    self.retry(key, after=after)
                case Drop():
                    self.forget(key)
                case Stop():
                    self.shut_down(drain=False)

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
        if work.again is None and work.trouble is None and work.changed is None:
            del self.works[key]
        else:
            self._follow(work, work.again, work.trouble, now)
        if self._joiners and not self._claimed:
            self._joiners.wake_all()

    def _follow(
        self, work: Work[K], again: Work[K] | None, trouble: Trouble | None, now: float
    ) -> None:
        """Replace the record of a key that was claimed by the next one."""
        at = math.inf if trouble is None else trouble.at
        next_work = Work(work.key, _ASIDE, now, Priority.RESYNC) if again is None else again
        next_work.trouble = trouble
        if work.changed is not None:
            next_work.changed = work.changed
        self.works[work.key] = next_work
        if again is not None:
            again.place = _ASIDE
            self._adds -= 1  # it was counted when it was offered
            next_work.due = min(again.at, at)
            self._make_ready(again, _highest(again.priority, trouble), now)
        elif trouble is None:
            self._rest(next_work)
        else:
            if at <= now:
                next_work.due = at
            self._replace(next_work, trouble, now)

    def forget(self, key: K) -> None:
        """Clear the key's failures and cancel its waiting retry, as a success does.

        Other requests are kept, and so is a key whose retry is ready already.
        """
        work = self.works.get(key)
        if work is not None and work.trouble is not None:
            work.trouble.failures = 0
            if work.trouble.retry is not None:
                work.trouble.retry = None
            self._replace(work, work.trouble, self.now())

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
            self._replace(work, work.trouble, self.now())

    def drop(self, key: K) -> None:
        """Forget everything about the key; a worker may still have claimed it."""
        work = self.works.get(key)
        if work is None:
            return
        work.again = work.trouble = work.changed = None
        if work.place is not _CLAIMED:
            if work.place is _READY:
                self.ready -= 1
                self._stale += 1
                work.place = _ASIDE
                self._drop_stale()
            self._rest(work)

    async def keep(self, wanted: Callable[[K], bool]) -> None:
        """Drop every key that isn't *wanted*, in slices. It doesn't wait for keys to be fed."""
        await retain(self.works, wanted, self.drop)

    def stop_answering(self) -> None:
        """Forget which changes wait for a sync, until `answers` is set again."""
        self.answers = False
        for work in tuple(self.works.values()):
            for changed in (work, work.again):
                if changed is not None and changed.changed is not None:
                    changed.changed = None
            if work.place is _ASIDE:
                self._rest(work)

    # ---- the end

    def shut_down(self, *, drain: bool) -> None:
        """Accept no more keys, and drop those that wait.

        With *drain*, workers can still take the ready keys, and claimed keys that were offered
        again. Without it, these keys are dropped too. A waiting `take` raises if no key is left. A
        second call without *drain* drops the keys that the first one left.
        """
        self._shut_down = True
        self._fed.clear()
        self._disarm()
        self._timers.clear()
        self._waiting = 0
        if not drain:
            self.ready = self._stale = 0
            for line in self._lines:
                line.clear()
        kept = self.works.values() if drain else self._claimed.values()
        self.works = {work.key: work for work in kept if work.place in {_READY, _CLAIMED}}
        for work in self.works.values():
            work.again = work.again if drain else None
            if work.trouble is not None:
                work.trouble.asked = work.trouble.retry = None
        self._takers.wake_all()
        self._joiners.wake_all()

    async def closed(self) -> None:
        """Wait until the queue is shut down."""
        while not self._shut_down:
            await self._joiners.wait()

    async def join(self) -> None:
        """Wait without a limit until no key is claimed, or left to drain after a shut-down."""
        while self._claimed or (self._shut_down and self.ready):
            await self._joiners.wait()

    # ---- what is known

    def work(self, key: K) -> Work[K] | None:
        """Return the record of a key that waits, is ready or is claimed; None for another key."""
        work = self.works.get(key)
        return None if work is None or work.place is _ASIDE else work

    def is_claimed(self, key: K) -> bool:
        """Return whether a worker has claimed the key."""
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

    def recall(self, key: K, failures: int) -> None:
        """Continue to count a claimed key's failures from those of an earlier process."""
        work = self._claimed.get(key)
        if work is not None:
            self._troubled(key, work.at)[1].failures = failures

    @property
    def idle(self) -> bool:
        """True if no key is waiting, ready or claimed."""
        return not (self._waiting or self.ready or self._claimed or self._fed)

    @property
    def settled(self) -> bool:
        """True if no key is ready or claimed, and no failed key waits for its retry.

        A key that only waits for a requested time doesn't count.
        """
        troubles = (work.trouble for work in self.works.values())
        retries = any(trouble is not None and trouble.retry is not None for trouble in troubles)
        return not (self.ready or self._claimed or self._fed or retries)

    def first(self, number: int) -> Iterator[Work[K]]:
        """Yield up to *number* keys of each place: the oldest, and those that become ready next.

        Claimed keys come first, then the ready ones. Takes time in proportion to *number*: it may
        yield fewer keys that wait if there are many timers of no use.
        """
        for _, work in zip(range(number), self._claimed.values(), strict=False):
            yield work
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
            work = self.works[key] = Work(key, _ASIDE, now, Priority.RESYNC)
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

    def _replace(self, work: Work[K], trouble: Trouble, now: float) -> None:
        """Put a key that isn't claimed into the place that its requests demand."""
        if trouble.says_nothing:
            work.trouble = None
        if work.place is _CLAIMED:
            return
        at = trouble.at
        if at <= now or work.place is _READY:
            self._make_ready(work, trouble.priority, now)
        elif trouble.asked is None and trouble.retry is None:
            self._rest(work)
        elif work.place is not _WAITING or work.at != at:
            self._waiting += work.place is not _WAITING
            work.place, work.at = _WAITING, at
            heappush(self._timers, (at, next(self._numbers), work))
            self._compact_timers()
            if self._timers[0][0] < self._armed_for:
                self._arm()

    def _rest(self, work: Work[K]) -> None:
        """Forget a key that isn't requested, unless its record still says something."""
        if work.place is _WAITING:
            self._waiting -= 1
            work.place = _ASIDE
            self._compact_timers()
        if work.trouble is None and work.changed is None:
            self.works.pop(work.key, None)

    def _make_ready(self, work: Work[K], priority: Priority, now: float) -> None:
        """Make a key ready that isn't claimed, or raise its priority."""
        if work.place is _READY:
            if priority > work.priority:
                work.priority = priority
                self._lines[priority].append(work)
                self._stale += 1
            return
        if work.place is _WAITING:
            self._waiting -= 1
        work.place, work.at, work.priority = _READY, now, priority
        self._compact_timers()
        self._lines[priority].append(work)
        self.ready += 1
        self._adds += 1
        if self._takers and not self._waking:
            self._wake()

    def _wake(self) -> None:
        """Wake a worker, and after it others if keys are left.

        A worker that takes all keys without waiting needs no other worker. So the next one is woken
        only after the first one has run.
        """
        if self._takers and not self._waking:
            self._waking = True
            self._takers.wake_one()
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
                self._make_ready(work, trouble.priority, self.now())
                self._answer(work, trouble, when)
        if self._timers:
            self._arm()

    def _compact_timers(self) -> None:
        """Rebuild the heap when most of its timers are of no use."""
        if not self._waiting:
            self._timers.clear()
            self._disarm()
        elif len(self._timers) > 2 * self._waiting + 64:
            self._timers = [
                timer
                for timer in self._timers
                if timer[2].place is _WAITING and timer[2].at == timer[0]
            ]
            heapify(self._timers)


class _Fed(Generic[K]):
    """An iteration over keys; `left` is about the number of keys that are left, 0 at its end."""

    def __init__(self, keys: Collection[K], add: Callable[[K], object]) -> None:
        self._keys = iter(keys)
        self._add = add
        self._next: K | None = next(self._keys, None)
        self.left = 0 if self._next is None else max(1, len(keys))

    def step(self) -> None:
        """Add the next key, if there is one."""
        key, self._next = self._next, next(self._keys, None)
        self.left = 0 if self._next is None else max(1, self.left - 1)
        if key is not None:
            self._add(key)


class Waiters(deque[asyncio.Future[None]]):
    """Tasks that wait, the longest-waiting first.

    A woken task must check its condition itself, and wait again if the condition does not hold. No
    wake-up is lost: a task that is cancelled after it was woken wakes the next one.
    """

    async def wait(self) -> None:
        """Return when this task is woken."""
        wake_up = asyncio.get_running_loop().create_future()
        self.append(wake_up)
        try:
            await wake_up
        except asyncio.CancelledError:
            if wake_up.cancelled():
                with suppress(ValueError):
                    self.remove(wake_up)
            else:
                self.wake_one()
            raise

    def wake_one(self) -> None:
        """Wake the task that has waited longest, if there is one."""
        while self:
            wake_up = self.popleft()
            if not wake_up.done():
                wake_up.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake every waiting task."""
        while self:
            self.wake_one()


_since = attrgetter("at")


def _highest(priority: Priority, trouble: Trouble | None) -> Priority:
    return priority if trouble is None else max(priority, trouble.priority)


def _sooner(known: Asked | None, new: Asked) -> Asked:
    """Return the earlier time with the higher priority."""
    if known is None:
        return new
    first, second = (new, known) if new.at <= known.at else (known, new)
    return Asked(first.at, max(first.priority, second.priority), first.reason or second.reason)


def _stronger(known: Operation | None, new: Operation | None) -> Operation | None:
    if known is None or new is None:
        return known or new
    rank_of_known = (known is _MANUAL, known.priority)
    return new if (new is _MANUAL, new.priority) >= rank_of_known else known
