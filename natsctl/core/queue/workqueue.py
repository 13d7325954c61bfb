"""Queues the keys that need a sync.

A key is in at most one place: waiting for its time, ready for a worker, or held by one. So no two
workers have the same key, and one sync fulfils all requests that were made before it began.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import Any, Generic, TypeVar

from natsctl.core.queue.backlog import Backlog
from natsctl.core.queue.pace import Pace
from natsctl.core.queue.place import Held, Place, Waiting
from natsctl.core.queue.ready_queue import Priority, Ready, ReadyQueue
from natsctl.core.queue.requeue_times import Requeue, Requeues, sooner
from natsctl.core.queue.retry import ExponentialLimiter, RateLimit, TokenBucket
from natsctl.core.queue.stats import QueueCounters, QueueStats
from natsctl.core.queue.timers import Timers
from natsctl.core.queue.waiters import Relay, Waiters
from natsctl.errors import QueueShutDownError, UsageError
from natsctl.slices import retain

__all__ = ["Held", "Place", "Priority", "QueueStats", "Ready", "Waiting", "Workqueue"]

K = TypeVar("K", bound=Hashable)

made_queues: ContextVar["list[Workqueue[Any]] | None"] = ContextVar("made_queues", default=None)
"""The list to which each new queue of this task is added; None, the default, adds it to none."""


class Workqueue(Generic[K]):
    """A queue of keys that need a sync.

    Guarantees:
        - The earliest requested time and the highest requested priority win. A key that is added
          while it is held becomes ready once more when it is given back.
        - A requested delay (`add(key, after=...)`) is kept: neither a sync before that time nor a
          success cancels it. A success (`forget`) cancels a waiting retry.
        - Higher priorities go first. Within a priority, the shares alternate, and each share is
          first in, first out. While keys have been ready for longer than *ageing_s*, every second
          key that is taken is the oldest one.
        - A cancelled `get` takes no key.

    An empty queue is falsy: write `queue is None`, not `queue or Workqueue()`. All calls must be
    made in the thread of one event loop.

    Args:
        limiter: computes the delays of retries; client-go's 5 ms to 1000 s by default.
        bucket: limits the rate of all retries together; no limit by default.
        pace: limits the rate at which keys are taken; no limit by default.
        share_of: returns a key's share, always the same for the same key; it must not raise.
        ageing_s: seconds after which a ready key is taken before keys of higher priority.
    """

    def __init__(
        self,
        *,
        limiter: ExponentialLimiter[K] | None = None,
        bucket: TokenBucket | None = None,
        pace: RateLimit | None = None,
        share_of: Callable[[K], Hashable] | None = None,
        ageing_s: float = 30.0,
    ) -> None:
        self._limiter = ExponentialLimiter[K]() if limiter is None else limiter
        self.failing = self._limiter.failing
        """The keys that failed and were not forgotten since, a live view."""
        self._bucket = bucket
        self._pace = None if pace is None else Pace(pace)
        self._requeues: dict[K, Requeues] = {}  # of keys that need more than their next sync
        self._failed: dict[K, None] = {}  # every key that waits for a retry, and some others
        self._timers = Timers(self._make_ready)
        self._ready = ReadyQueue(share_of, ageing_s)
        self.ready = self._ready.keys
        """The ready keys, a live view."""
        self._backlog = Backlog[K]()
        self._held: dict[K, Held] = {}
        self._due: dict[K, float] = {}  # the due times of ready keys that were added while held
        self._shut_down = False
        self.now: Callable[[], float] = self._find_clock
        """Returns the loop time; an attribute, because every change calls it."""
        self._getters, self._joiners = Relay(self.__len__), Waiters()
        self._counters = QueueCounters()
        if (queues := made_queues.get()) is not None:
            queues.append(self)

    def __len__(self) -> int:
        """Return the number of ready keys."""
        return len(self.ready)

    @property
    def idle(self) -> bool:
        """True if no key is waiting, ready or held."""
        return not (self._timers or self.ready or self._held or self._backlog.size)

    @property
    def settled(self) -> bool:
        """True if no key is ready or held, and no failed key waits for its retry.

        A key that only waits for a requested time does not count.
        """
        if self.ready or self._held or self._backlog.size:
            return False
        while self._failed:
            key = next(reversed(self._failed))
            requeues = self._requeues.get(key)
            if requeues is not None and requeues.retry:
                return False
            del self._failed[key]
        return True

    def add(self, key: K, *, after: float = 0.0, priority: Priority = Priority.USER) -> bool:
        """Request a sync, *after* seconds from now or later.

        Returns False after `shut_down`: the request is ignored.
        """
        if self._shut_down:
            return False
        now = self.now()
        if after > 0:
            self._counters.retries += 1
            requeues = self._requeues_of(key, now)
            requeues.explicit = sooner(requeues.explicit, Requeue(now + after, priority))
            self._place(key, requeues, now)
        elif key in self._held:
            requeues = self._requeues_of(key, now)
            requeues.at_once = sooner(requeues.at_once, Requeue(now, priority))
            self._count_add(requeues)
        else:
            self._offer(key, priority, now)
        return True

    def feed(self, keys: Collection[K], add: Callable[[K], object]) -> None:
        """Call *add* for each of many keys: a few now, and more whenever few keys are ready.

        *add* adds the key, or leaves it out. Ignored after `shut_down`.
        """
        if not self._shut_down:
            self._backlog.append(keys, add)
            self._backlog.refill(len(self.ready))
            self._getters.wake_all()

    def retry(self, key: K, *, after: float | None = None) -> None:
        """Count a failure and request another sync, *after* seconds from now.

        Without *after*, the limiter computes the delay. A token bucket may extend either. Call
        this before `done`: the retry then keeps the priority with which the key was taken. The
        priority of a key that is not held is `Priority.RETRY`. After `shut_down`, the failure is
        counted and no sync is requested.
        """
        backoff_s = self._limiter.fail(key)
        if self._shut_down:
            return
        self._counters.retries += 1
        delay = backoff_s if after is None else after
        if self._bucket is not None:
            delay = max(delay, self._bucket.take())
        now = self.now()
        held = self._held.get(key)
        priority = Priority.RETRY if held is None else held.priority
        requeues = self._requeues_of(key, now)
        requeues.retry = sooner(requeues.retry, Requeue(now + delay, priority))
        self._failed[key] = None
        self._place(key, requeues, now)

    def failures(self, key: K) -> int:
        """Return how often *key* was retried since it was last forgotten."""
        return self._limiter.failures(key)

    def recall(self, key: K, failures: int) -> None:
        """Continue to count a key's failures from those of an earlier process."""
        self._limiter.recall(key, failures)

    def forget(self, key: K) -> None:
        """Clear the key's failures and cancel its waiting retry; call this after every success.

        Other requests are kept, and so is a key whose retry is ready already.
        """
        if self.failing:
            self._limiter.forget(key)
            self._failed.pop(key, None)
        requeues = self._requeues.get(key)
        if requeues is not None and requeues.retry is not None:
            requeues.retry = None
            self._place(key, requeues, self.now())

    def drop(self, key: K) -> None:
        """Cancel every request of the key and clear its failures; a worker may still hold it."""
        self._limiter.forget(key)
        self._timers.cancel(key)
        self._ready.remove(key)
        self._requeues.pop(key, None)
        self._due.pop(key, None)

    async def keep(self, wanted: Callable[[K], bool]) -> None:
        """Drop every key that is not *wanted*, in slices. It does not wait for keys to be fed."""
        for keys in (self.ready, self._requeues, self._held):
            await retain(keys, wanted, self.drop)

    def feed_no_more(self) -> None:
        """Leave out the keys that wait to be fed."""
        self._backlog = Backlog()

    def hasten_retries(self) -> None:
        """Clear the failures of all keys that wait for a retry, and retry them now.

        A token bucket still limits the rate.
        """
        self.feed(list(self._failed), self._hasten)

    def _hasten(self, key: K) -> None:
        now, requeues = self.now(), self._requeues.get(key)
        if requeues is not None and requeues.retry is not None:
            self._limiter.forget(key)
            delay = 0.0 if self._bucket is None else self._bucket.take()
            requeues.retry = sooner(requeues.retry, Requeue(now + delay, requeues.retry.priority))
            self._place(key, requeues, now)

    async def get(self) -> K:
        """Wait for the next key and return it; it is held until `done`.

        Raises `QueueShutDownError` when the queue is shut down and has no key left to take.
        """
        while True:
            if self._backlog.size:
                self._backlog.refill(len(self.ready))
            while not self.ready:
                if self._shut_down:
                    raise QueueShutDownError("the queue was shut down")
                if self._backlog.size:
                    await asyncio.sleep(0)  # all of these keys were left out
                    self._backlog.refill(0)
                else:
                    await self._getters.wait()
            if await self._wait_for_pace():
                return self._take()

    def get_nowait(self) -> K | None:
        """Take the next key like `get`; return None if no key is ready or the pace forbids it."""
        if self._backlog.size:
            self._backlog.refill(len(self.ready))
        if not self.ready:
            return None
        if self._pace is not None and not self._pace.take_nowait():
            return None
        return self._take()

    async def _wait_for_pace(self) -> bool:
        """Wait as long as the pace demands, and return whether a key is still ready then."""
        if self._pace is None or self._shut_down:
            return True
        try:
            await self._pace.take(self.closed)
        except asyncio.CancelledError:
            self._getters.wake_one()
            raise
        if not self.ready:
            self._pace.give_back()
        return bool(self.ready)

    def done(self, key: K) -> None:
        """Give a held key back. It waits or is ready if it was requested while it was held.

        Raises `UsageError` for a key that is not held.
        """
        try:
            held = self._held.pop(key)
        except KeyError:
            raise UsageError(f"{key} was given back, but nobody holds it") from None
        now = self.now()
        self._counters.work_s.observe(now - held.since)
        requeues = self._requeues.get(key)
        if requeues is not None:
            if requeues.due_at <= now:
                self._due[key] = requeues.due_at
            self._place(key, requeues, now)
        if self._joiners and not self._held:
            self._joiners.wake_all()

    def shut_down(self, *, drain: bool) -> None:
        """Accept no more keys, and drop those that wait.

        With *drain*, workers can still take the ready keys, and held keys that were added again.
        Without it, these keys are dropped too. A waiting `get` raises if no key is left. A second
        call without *drain* drops the keys that the first one left.
        """
        self._shut_down = True
        self.feed_no_more()
        self._timers.clear()
        kept = self._requeues.items() if drain else ()
        self._requeues = {key: requeues.drained() for key, requeues in kept if requeues.at_once}
        if not drain:
            self._ready.clear()
            self._due.clear()
        self._getters.wake_all()
        self._joiners.wake_all()

    async def closed(self) -> None:
        """Wait until the queue is shut down."""
        while not self._shut_down:
            await self._joiners.wait()

    async def join(self) -> None:
        """Wait, without a time limit, until no key is held or left to drain after a shut-down."""
        while self._held or (self._shut_down and self.ready):
            await self._joiners.wait()

    def place(self, key: K) -> Place | None:
        """Return the place of *key*, None if the queue does not have it."""
        until = self._timers.get(key)
        if until is not None:
            return Waiting(until)
        return self._held.get(key) or self._ready.get(key)

    def places(self, count: int) -> Iterator[tuple[K, Place]]:
        """Yield up to *count* keys of each place: held and ready the longest, waiting the least."""
        yield from islice(self._held.items(), count)  # in the order in which they were taken
        yield from islice(self._ready.oldest(), count)
        for key, until in self._timers.soonest(count):
            yield key, Waiting(until)

    def oldest_ready(self) -> float | None:
        """Return the loop time since which the oldest ready key is ready, None if no key is."""
        return next((ready.since for _, ready in self._ready.oldest()), None)

    def stats(self) -> QueueStats:
        """Return the measures; takes time in proportion to the held keys only."""
        now = self.now()
        requested = filter(None, map(self._requeues.get, self._held))
        due = sum(requeues.due_at <= now for requeues in requested)
        return self._counters.read(
            depth=len(self.ready) + self._backlog.size + due,
            waiting=len(self._timers),
            held_s=[now - held.since for held in self._held.values()],
        )

    def _find_clock(self) -> float:
        """Find the loop's clock once, because that takes longer than reading its time."""
        self.now = asyncio.get_running_loop().time
        return self.now()

    def _requeues_of(self, key: K, now: float) -> Requeues:
        """Return the requests of the key beyond the sync for which it is ready."""
        requeues = self._requeues.get(key)
        if requeues is None:
            requeues = self._requeues[key] = Requeues()
        elif key in self.ready:
            requeues.begin(now)
        return requeues

    def _place(self, key: K, requeues: Requeues, now: float) -> None:
        """Put a key that is not held into the place that its requests demand."""
        if key in self._held:
            return
        if requeues.due_at <= now or key in self.ready:
            self._offer(key, requeues.priority, now)
        elif requeues:
            self._timers.set(key, requeues.due_at)
        else:
            self._timers.cancel(key)
            del self._requeues[key]

    def _offer(self, key: K, priority: Priority, now: float) -> None:
        """Make a key ready that is not held, and wake a worker for it."""
        requeues = self._requeues.get(key)
        if requeues is not None:
            self._timers.cancel(key)
            priority = max(priority, requeues.priority)
        if self._ready.push(key, priority, now):
            if requeues is None:
                self._counters.adds += 1
            else:
                self._count_add(requeues)
                requeues.counted = False
            if self._getters:
                self._getters.wake()

    def _count_add(self, requeues: Requeues) -> None:
        """Count that a key became due. A held key is counted when it is added, not at `done`."""
        if not requeues.counted:
            self._counters.adds += 1
            requeues.counted = True

    def _make_ready(self, key: K) -> None:
        requeues = self._requeues[key]
        self._offer(key, requeues.priority, self.now())
        requeues.begin(requeues.due_at)

    def _take(self) -> K:
        now = self.now()
        entry = self._ready.pop(now)
        key = entry.key
        self._held[key] = Held(now, entry.priority)
        since = self._due.pop(key, entry.since) if self._due else entry.since
        self._counters.latency_s.observe(now - since)
        requeues = self._requeues.get(key)
        if requeues is not None:
            requeues.begin(now)
        return key
