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
from heapq import heapify, heappop, heappush
from itertools import count, islice
from operator import attrgetter
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

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
    reason: Operation | None = None

    def merged(self, known: "Asked | None") -> "Asked":
        if known is None:
            return self
        first, second = (self, known) if self.at <= known.at else (known, self)
        priority = max(first.priority, second.priority)
        return Asked(first.at, priority, first.reason or second.reason)


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
    def request(self) -> Asked | None:
        """The time of the first request, and the highest priority."""
        return self.asked if self.retry is None else self.retry.merged(self.asked)

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
        self.claimed: dict[K, Work[K]] = {}  # to look at; in the order in which they were taken
        self._lines = tuple(deque[Work[K]]() for _ in Priority)  # by priority
        self._urgent_first = self._lines[::-1]
        self._aged_at = -math.inf  # no ready key has aged before then
        self._by_age = False  # whether the last key was taken by its age
        self._timers: list[tuple[float, int, Work[K]]] = []  # a heap, with some of no use
        self._numbers = count()
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._fed: deque[tuple[Iterator[K], Callable[[K], object]]] = deque()
        self._left = 0  # about the number of fed keys that are left
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

    def _find_clock(self) -> float:
        """Find the loop's clock once, because that takes longer than reading its time."""
        self.now = asyncio.get_running_loop().time
        return self.now()

    # ---- offer

    def offer(
        self,
        key: K,
        reason: Operation | None = None,
        *,
        priority: Priority | None = None,
        after: float = 0.0,
        changed: bool = False,
    ) -> None:
        """Ask for a sync, *after* seconds from now or later; ignored after `shut_down`.

        The strongest reason wins: a person's request, then the most urgent one, then the newest.
        *changed* means that the desired state has changed.
        """
        if self._shut_down:
            return
        if priority is None:
            priority = _USER if reason is None else reason.priority
        now = self.now()
        if after > 0:
            self._retries += 1
            trouble = self.note(key)
            trouble.asked = Asked(now + after, priority, reason).merged(trouble.asked)
            self.tidy(key)
            return
        work = self.works.get(key)
        if work is None:
            work = self.works[key] = Work(key, _ASIDE, now, priority)
        if work.place is not _CLAIMED:
            self._make_ready(work, now, priority)
        else:
            if work.again is None:
                work.again = Work(key, _ASIDE, now, priority)
            work = work.again
            work.priority = max(work.priority, priority)
        if reason is not work.reason:
            work.reason = _stronger(work.reason, reason)
        if changed and work.changed is None and self.answers:
            work.changed = now

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
            self._fed.append((iter(keys), add))
            self._left += len(keys)
            self._refill()
            self._wake()

    def feed_no_more(self) -> None:
        self._fed.clear()
        self._left = 0

    def _refill(self) -> None:
        fed = self._fed
        for _ in range(FEW if self.ready < FEW else 0):
            if not fed:
                return
            keys, add = fed[0]
            for key in keys:  # the next one
                self._left = max(len(fed), self._left - 1)
                add(key)
                break
            else:
                fed.popleft()
                if not fed:
                    self._left = 0

    def retry(self, key: K, *, after: float | None = None) -> None:
        """Count a failure and request another sync, *after* seconds from now.

        Without *after*, the limiter computes the delay. A token bucket may extend either. A claimed
        key keeps the priority with which it was taken; the priority of another key is
        `Priority.RETRY`. After `shut_down`, the failure is counted and no sync is requested.
        """
        trouble = self.note(key)
        trouble.failures += 1
        if not self._shut_down:
            self._retries += 1
            delay_s = self._limiter.delay_s(trouble.failures) if after is None else after
            if self._bucket is not None:
                delay_s = max(delay_s, self._bucket.take())
            work = self.claimed.get(key)
            asked = Asked(self.now() + delay_s, Priority.RETRY if work is None else work.priority)
            trouble.retry = asked.merged(trouble.retry)
        self.tidy(key)

    def hasten_retries(self) -> None:
        """Clear the failures of all keys that wait for a retry, and retry them now.

        A token bucket still limits the rate. Other callbacks run in between if many keys wait.
        """
        # the timers have all waiting keys, and not the ready ones, which may be many
        works = iter([*self.claimed.values(), *(timer[2] for timer in self._timers)])

        def hasten() -> None:
            batch = () if self._shut_down else tuple(islice(works, _BATCH))
            for work in batch:
                trouble = work.trouble
                if trouble and trouble.retry is not None and self.works.get(work.key) is work:
                    delay_s = 0.0 if self._bucket is None else self._bucket.take()
                    trouble.failures, waiting = 0, trouble.retry
                    trouble.retry = Asked(self.now() + delay_s, waiting.priority).merged(waiting)
                    self.tidy(work.key)
            if batch:
                asyncio.get_running_loop().call_soon(hasten)

        hasten()

    # ---- take

    async def take(self) -> Work[K]:
        """Wait for the next key and claim it until `settle`.

        Raises `QueueShutDownError` when the queue is shut down.
        """
        while not self._shut_down:
            if self._fed:
                self._refill()
            if not self.ready:
                await (asyncio.sleep(0) if self._fed else self._woken())  # all may be left out
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
                    self._wake()
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
        self.claimed[work.key] = work
        if work.trouble is not None:
            self._answer(work, work.trouble, now)
        return work

    def _firsts(self) -> list[Work[K]]:
        """Return the first key of each line, without the records of keys that aren't ready."""
        for line in self._lines:
            while line and line[0].place is not _READY:
                line.popleft()
        return [line[0] for line in self._urgent_first if line]

    async def _woken(self) -> None:
        loop = asyncio.get_running_loop()
        wake_up = loop.create_future()
        self._takers.append(wake_up)
        try:
            await wake_up
        except asyncio.CancelledError:
            if wake_up.cancelled():
                with suppress(ValueError):
                    self._takers.remove(wake_up)
            else:
                self._has_run()  # another one takes its key
            raise
        if self.ready > 1 or self._fed:
            loop.call_soon(self._has_run)
        else:
            self._waking = False

    def _wake(self) -> None:
        """Wake a worker, and after it has run others, if it has left keys."""
        while self._takers and not self._waking and (self.ready or self._fed):
            wake_up = self._takers.popleft()
            if not wake_up.done():
                wake_up.set_result(None)
                self._waking = True

    def _has_run(self) -> None:
        self._waking = False
        if self.ready or self._fed:
            self._wake()

    # ---- settle

    def settle(self, key: K, outcome: Outcome = SYNCED, retry: RetryPolicy = always_retry) -> None:
        """Give a claimed key back; the outcome of its sync decides what follows.

        After a success the key's failures are forgotten, and a returned delay requests another sync
        with low priority. After a failure the class of the error decides, see `classify`: a
        `RetryAfter` requests another sync with the same priority, a permanent failure forgets the
        key, and the retry policy decides about all other failures.

        Raises `UsageError` for a key that isn't claimed.
        """
        work = self.claimed.get(key) or _unclaimed(key)
        if outcome is SYNCED and work.again is None and work.trouble is None:
            del self.claimed[key], self.works[key]  # most syncs end like this
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
        work = self.claimed.get(key) or _unclaimed(key)
        if untouched:
            self.offer(key, work.reason, priority=work.priority)
        now, again = self.now(), work.again
        self._work_s.observe(now - work.at)
        del self.claimed[key]
        following = self.works[key] = again or Work(key, _ASIDE, now, _RESYNC)
        following.trouble = trouble = work.trouble
        if work.changed is not None:
            following.changed = work.changed
        asked = (again, None if trouble is None else trouble.request)
        times = [each.at for each in asked if each is not None and each.at <= now]
        following.due = min(times, default=None)
        if again is not None:
            self._make_ready(again, now, again.priority)
        else:
            self.tidy(key)

    def forget(self, key: K) -> None:
        """Clear the key's failures and cancel its waiting retry, as a success does.

        Other requests are kept, and so is a key whose retry is ready already.
        """
        if (trouble := self.noted(key)) is not None:
            trouble.failures, trouble.retry = 0, None
            self.tidy(key)

    def noted(self, key: K) -> Trouble | None:
        """Return what is noted of the key; call `tidy` after something was removed."""
        work = self.works.get(key)
        return None if work is None else work.trouble

    def note(self, key: K) -> Trouble:
        """Return what is noted of the key, to note something; a key at rest stays at rest."""
        now = self.now()
        work = self.works.get(key)
        if work is None:
            work = self.works[key] = Work(key, _ASIDE, now, _RESYNC)
        if work.trouble is not None and work.place is _READY:
            self._answer(work, work.trouble, now)  # what is due is answered by its next sync
        if work.trouble is None:
            work.trouble = Trouble()
        return work.trouble

    def tidy(self, key: K) -> None:
        """Put the key where its requests demand; forget it if nothing is known of it any more."""
        work = self.works.get(key)
        if work is None:
            return
        if work.trouble is not None and work.trouble.says_nothing:
            work.trouble = None
        if work.place is _CLAIMED:
            return
        now, asked = self.now(), None if work.trouble is None else work.trouble.request
        if asked is None:
            if work.place is not _READY:
                self._leave_timers(work)
                work.place = _ASIDE
                if work.trouble is None and work.changed is None:
                    del self.works[key]
        elif work.place is _READY or asked.at <= now:
            self._make_ready(work, now, asked.priority)
        elif work.place is not _WAITING or work.at != asked.at:
            self._waiting += work.place is not _WAITING
            work.place, work.at = _WAITING, asked.at
            heappush(self._timers, (asked.at, next(self._numbers), work))
            self._drop_unused()
            if self._timers[0][0] < self._armed_for:
                self._arm()

    def drop(self, key: K) -> None:
        """Forget everything about the key; a worker may still have claimed it."""
        work = self.works.get(key)
        if work is None:
            return
        work.again = work.trouble = work.changed = None
        if work.place is _READY:
            self.ready -= 1
            work.place = _ASIDE
            self._drop_stale()
        self.tidy(key)

    async def keep(self, wanted: Callable[[K], bool]) -> None:
        """Drop every key that isn't *wanted*, in slices. It doesn't wait for keys to be fed."""
        await retain(self.works, wanted, self.drop)

    def stop_answering(self) -> None:
        """Forget which changes wait for a sync, until `answers` is set again."""
        self.answers = False
        for work in tuple(self.works.values()):
            work.changed = None
            if work.again is not None:
                work.again.changed = None
            if work.place is _ASIDE:
                self.tidy(work.key)

    def shut_down(self) -> None:
        """Accept no more keys, and drop those that wait or are ready; every `take` raises."""
        self._shut_down = True
        self._closed.set()
        self.feed_no_more()
        self._timers.clear()
        self._disarm()
        self._waiting = self.ready = 0
        for line in self._lines:
            line.clear()
        self.works = dict(self.claimed)
        for work in self.works.values():
            work.again = None
            if work.trouble is not None:
                work.trouble.asked = work.trouble.retry = None
        while self._takers:
            if not (wake_up := self._takers.popleft()).done():
                wake_up.set_result(None)

    async def closed(self) -> None:
        await self._closed.wait()

    # ---- what is known

    def work(self, key: K) -> Work[K] | None:
        """Return the record of a key that waits, is ready or is claimed; None for another key."""
        work = self.works.get(key)
        return None if work is None or work.place is _ASIDE else work

    def reason(self, key: K) -> Operation:
        """Return the reason for the sync of a claimed key; without one, its last sync asked."""
        work = self.claimed.get(key)
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
        return not (self._waiting or self.ready or self.claimed or self._fed)

    @property
    def settled(self) -> bool:
        """True if no key is ready or claimed, and no failed key waits for its retry.

        A key that only waits for a requested time doesn't count.
        """
        retries = any(work.trouble and work.trouble.retry for work in self.works.values())
        return not (self.ready or self.claimed or self._fed or retries)

    def first(self, number: int) -> Iterator[Work[K]]:
        """Yield up to *number* keys of each place: the oldest, and those that become ready next.

        Claimed keys come first, then the ready ones. Takes time in proportion to *number*.
        """
        yield from islice(self.claimed.values(), number)
        lines = (islice(filter(_is_ready, line), number) for line in self._urgent_first)
        ready = {id(work): work for line in lines for work in line}  # some are in two lines
        yield from sorted(ready.values(), key=_since)[:number]
        soonest = dict[int, tuple[float, int, Work[K]]]()
        while self._timers and len(soonest) < number:
            timer = heappop(self._timers)
            if _is_of_use(timer):
                soonest[id(timer[2])] = timer
        for timer in soonest.values():
            heappush(self._timers, timer)
        yield from [work for _, _, work in soonest.values()]

    def oldest_ready(self) -> float | None:
        """Return the loop time since which the oldest ready key is ready, None if no key is."""
        return min(map(_since, self._firsts()), default=None)

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
        claimed_s = [now - work.at for work in self.claimed.values()]
        due = sum(
            work.again is not None
            or bool(work.trouble and (asked := work.trouble.request) and asked.at <= now)
            for work in self.claimed.values()
        )
        return QueueStats(
            depth=self.ready + self._left + due,
            waiting=self._waiting,
            held=len(claimed_s),
            adds=self._adds,
            retries=self._retries,
            latency_s=self._latency_s.read(),
            work_s=self._work_s.read(),
            unfinished_s=sum(claimed_s),
            longest_s=max(claimed_s, default=0.0),
        )

    # ---- places

    def _answer(self, work: Work[K], trouble: Trouble, now: float) -> None:
        """Remove the requests that the next sync of a ready key answers, or one that begins now."""
        if trouble.asked is not None and trouble.asked.at <= now:
            work.reason = _stronger(work.reason, trouble.asked.reason)
            trouble.asked = None
        if trouble.retry is not None and trouble.retry.at <= now:
            trouble.retry = None
        if trouble.says_nothing:
            work.trouble = None

    def _make_ready(self, work: Work[K], now: float, priority: Priority) -> None:
        """Put a key that isn't claimed in the line of the highest priority that was requested."""
        if work.trouble is not None and (asked := work.trouble.request) is not None:
            priority = max(priority, asked.priority)
        if work.place is not _READY:
            self._leave_timers(work)
            work.place, work.at = _READY, now
            self.ready += 1
            self._adds += 1
        elif priority > work.priority:
            self._drop_stale()
        else:
            return
        work.priority = priority
        self._lines[priority].append(work)
        if self._takers and not self._waking:
            self._wake()

    def _drop_stale(self) -> None:
        """Drop the records in lines that aren't ready, if there are many or no others."""
        if sum(map(len, self._lines)) > 2 * self.ready + (STALE_MAX if self.ready else 0):
            for line in self._lines:
                ready = list(filter(_is_ready, line))
                line.clear()
                line.extend(ready)

    # ---- times; uvloop calls timers up to half a millisecond early

    def _leave_timers(self, work: Work[K]) -> None:
        if work.place is _WAITING:
            work.place = _ASIDE
            self._waiting -= 1
            self._drop_unused()

    def _drop_unused(self) -> None:
        """Rebuild the heap when most of its timers are of no use."""
        timers = self._timers
        if not self._waiting:
            timers.clear()
            self._disarm()
        elif len(timers) > 2 * self._waiting + 64:
            timers[:] = filter(_is_of_use, timers)
            heapify(timers)

    def _arm(self) -> None:
        """Set the timer of the loop no later than the earliest time."""
        self._disarm()
        loop = asyncio.get_running_loop()
        self._armed_for = min(self._timers[0][0], loop.time() + _AHEAD_MAX_S)
        self._timer = loop.call_at(self._armed_for, self._ripen)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed_for = None, math.inf

    def _ripen(self) -> None:
        """Make the keys ready whose time has come, in batches, so that the loop isn't blocked."""
        now = max(asyncio.get_running_loop().time(), self._armed_for)
        self._disarm()
        for _ in range(_BATCH):
            if not self._timers or self._timers[0][0] > now:
                break
            timer = heappop(self._timers)
            when, _, work = timer
            if _is_of_use(timer) and work.trouble is not None:
                self._make_ready(work, self.now(), _RESYNC)
                self._answer(work, work.trouble, when)
        if self._timers:
            self._arm()


_since = attrgetter("at")


def _unclaimed(key: object) -> NoReturn:
    raise UsageError(f"{key} was given back, but nobody has claimed it")


def _is_ready(work: Work[Any]) -> bool:
    return work.place is _READY


def _is_of_use(timer: tuple[float, int, Work[Any]]) -> bool:
    return timer[2].place is _WAITING and timer[2].at == timer[0]


def _stronger(known: Operation | None, new: Operation | None) -> Operation | None:
    if known is None or new is None:
        return known or new
    rank_of_known = (known is _MANUAL, known.priority)
    return new if (new is _MANUAL, new.priority) >= rank_of_known else known
