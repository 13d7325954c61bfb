"""Which keys need a visit, and who has them.

A key is in at most one place: waiting for its time, ready for a worker, or held by one. So no two
workers ever have the same key, and however often a key is added, one visit answers all of it.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from natsctl.core.queue.ready_queue import Priority, Ready, ReadyQueue
from natsctl.core.queue.requeue_times import Requeue, Requeues, sooner
from natsctl.core.queue.retry import ExponentialLimiter, RateLimit, TokenBucket
from natsctl.core.queue.timers import Timers
from natsctl.core.queue.waiters import Waiters
from natsctl.errors import QueueShutDownError, UsageError
from natsctl.telemetry.histogram import Distribution, Histogram

__all__ = ["Held", "Place", "Priority", "QueueStats", "Ready", "Waiting", "Workqueue"]

K = TypeVar("K", bound=Hashable)


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Waits for its time, `until` this loop time."""

    until: float


class Held(msgspec.Struct, frozen=True, gc=False):
    """A worker has it, `since` this loop time, for something of this priority."""

    since: float
    priority: Priority


Place: TypeAlias = Waiting | Ready | Held


class QueueStats(msgspec.Struct, frozen=True):
    """What a queue measured since it was made. Durations are seconds of loop time.

    Everything means what the metrics of client-go's work queue mean. `depth` counts the keys that
    are due: the ready ones, and the held ones that were added again. `waiting` counts the keys
    whose time is still to come, `held` those that workers have. `adds` counts how often a key that
    was not due became due, `retries` how often a key was added with a delay. `latency_s` runs from
    the add to `get`, `work_s` from `get` to `done`. `unfinished_s` is the sum of the times for
    which the held keys have been held so far, `longest_s` the longest of them: a worker that hangs
    shows here first.
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


class Workqueue(Generic[K]):
    """Keys that need a visit: each once, in its time, by urgency, and fairly.

    Guarantees:
        - The earliest time and the highest priority asked for win. A key that is added while it
          is held becomes ready again when it is given back, once.
        - A delay that was asked for (`add(key, after=...)`) is kept: neither a visit before that
          time nor a success cancels it. A success (`forget`) cancels a retry that waits.
        - Higher priorities go first, shares take turns within one, and each share is first in,
          first out; but every other turn goes to a key that has been ready for longer than
          *ageing_s*, the oldest first, while there is one.
        - A cancelled `get` takes no key.

    An empty queue is falsy: write `queue is None`, not `queue or Workqueue()`. All calls belong
    into the thread of the one event loop whose clock the queue goes by.

    Args:
        limiter: how long a failing key waits; client-go's 5 ms to 1000 s by default.
        bucket: limits the rate of all retries together; by default nothing does.
        pace: limits the rate at which keys are taken; by default nothing does.
        share_of: whom a key belongs to, always the same for the same key; it must not raise.
        ageing_s: how long a ready key may be passed over before every other turn is its own.
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
        self._bucket = bucket
        self._pace = None if pace is None else pace.bucket()
        self._agendas: dict[K, Requeues] = {}  # of keys to which more than the next visit is owed
        self._timers = Timers(self._ripen)
        self._turns = ReadyQueue(share_of, ageing_s)
        self._held: dict[K, Held] = {}
        self._due: dict[K, float] = {}  # since when ready keys are due that became so while held
        self._shut_down = False
        self._now: Callable[[], float] = self._first_look
        self._getters, self._joiners = Waiters(), Waiters()
        self._adds = self._retries = 0
        self._latency_s, self._work_s = Histogram(), Histogram()

    def __len__(self) -> int:
        """Count the keys that are ready."""
        return len(self._turns.ready)

    @property
    def idle(self) -> bool:
        """Whether no key is waiting, ready or held."""
        return not (self._timers or self._turns.ready or self._held)

    @property
    def settled(self) -> bool:
        """True if no key is ready or held, and no failed key waits for its retry.

        A key that only waits for a requested time does not count.
        """
        retrying = any(agenda.retry for agenda in self._agendas.values())
        return not (retrying or self._turns.ready or self._held)

    def add(self, key: K, *, after: float = 0.0, priority: Priority = Priority.USER) -> None:
        """Ask for a visit, not before *after* seconds from now; ignored after `shut_down`."""
        if self._shut_down:
            return
        now = self._now()
        if after > 0:
            self._retries += 1
            agenda = self._agenda(key, now)
            agenda.explicit = sooner(agenda.explicit, Requeue(now + after, priority))
            self._place(key, agenda, now)
        elif key in self._held:
            agenda = self._agenda(key, now)
            agenda.at_once = sooner(agenda.at_once, Requeue(now, priority))
            self._count_add(agenda)
        else:
            self._offer(key, priority, now)

    def retry(self, key: K, *, after: float | None = None) -> None:
        """Count a failure and ask for another visit, *after* seconds from now.

        Without *after* the limiter says when; with a token bucket it is no sooner than the bucket
        allows. Called before `done`, as it should be, the retry keeps the priority with which the
        key was taken; that of a key which is not held is `Priority.RETRY`. After `shut_down` the
        failure is counted and nothing else happens.
        """
        delay = self._limiter.fail(key)
        if self._shut_down:
            return
        self._retries += 1
        if after is not None:
            delay = after
        if self._bucket is not None:
            delay = max(delay, self._bucket.take())
        now = self._now()
        held = self._held.get(key)
        priority = Priority.RETRY if held is None else held.priority
        agenda = self._agenda(key, now)
        agenda.retry = sooner(agenda.retry, Requeue(now + delay, priority))
        self._place(key, agenda, now)

    def failures(self, key: K) -> int:
        """Return how often *key* was retried since it was last forgotten."""
        return self._limiter.failures(key)

    def forget(self, key: K) -> None:
        """Clear the key's failures and cancel its retry; every success must do this.

        What else was asked for stays, and so does a key whose retry is ready already.
        """
        self._limiter.forget(key)
        agenda = self._agendas.get(key)
        if agenda is not None and agenda.retry is not None:
            agenda.retry = None
            self._place(key, agenda, self._now())

    def drop(self, key: K) -> None:
        """Owe the key no visit, and remember no failure of it; whoever holds it may end."""
        self._limiter.forget(key)
        self._timers.cancel(key)
        self._turns.remove(key)
        self._agendas.pop(key, None)
        self._due.pop(key, None)

    def keep(self, wanted: Callable[[K], bool]) -> None:
        """Drop every key that is not *wanted*; takes time in proportion to all that are here."""
        for key in {*self._turns.ready, *self._agendas, *self._held}:
            if not wanted(key):
                self.drop(key)

    def hasten_retries(self) -> None:
        """Retry now whatever waits to be retried, its failures forgotten: what it met is over.

        A token bucket is heeded.
        """
        now = self._now()
        for key, agenda in list(self._agendas.items()):
            if agenda.retry is not None:
                self._limiter.forget(key)
                delay = 0.0 if self._bucket is None else self._bucket.take()
                agenda.retry = sooner(agenda.retry, Requeue(now + delay, agenda.retry.priority))
                self._place(key, agenda, now)

    async def get(self) -> K:
        """Take the next key, waiting for one; it is held until `done`.

        Raises `QueueShutDownError` once the queue is shut down and hands out nothing more.
        """
        while True:
            while not self._turns.ready:
                if self._shut_down:
                    raise QueueShutDownError("the queue was shut down")
                await self._getters.wait()
            if await self._paced():
                return self._take()

    def get_nowait(self) -> K | None:
        """Take the next key like `get`; None if no key is ready now, or the pace forbids it."""
        if not self._turns.ready:
            return None
        if self._pace is not None and self._pace.take() > 0:
            self._pace.give_back()
            return None
        return self._take()

    async def _paced(self) -> bool:
        """Wait for as long as the pace asks for; return whether a key is still ready then."""
        pace = self._pace
        if pace is None or self._shut_down:
            return True
        wait_s = pace.take()
        if wait_s <= 0:
            return True
        try:
            async with asyncio.timeout(wait_s):
                await self.closed()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            pace.give_back()
            self._getters.wake_one()
            raise
        if not self._turns.ready:
            pace.give_back()
        return bool(self._turns.ready)

    def done(self, key: K) -> None:
        """Give a held key back, to wait or be ready if more visits were asked for meanwhile.

        Raises `UsageError` for a key that is not held.
        """
        try:
            held = self._held.pop(key)
        except KeyError:
            raise UsageError(f"{key} was given back, but nobody holds it") from None
        now = self._now()
        self._work_s.observe(now - held.since)
        agenda = self._agendas.get(key)
        if agenda is not None:
            if agenda.at <= now:
                self._due[key] = agenda.at
            self._place(key, agenda, now)
        if self._joiners and not self._held:
            self._joiners.wake_all()

    def shut_down(self, *, drain: bool) -> None:
        """Take no more keys and drop those that wait.

        With *drain*, what is ready is still handed out, and so is a held key that was added again;
        without, it is dropped. Who waits in `get` with nothing left to take is told so. May be
        called again to drop what an earlier call let drain.
        """
        self._shut_down = True
        self._timers.clear()
        self._agendas = {
            key: Requeues(at_once=agenda.at_once, counted=agenda.counted)
            for key, agenda in self._agendas.items()
            if drain and agenda.at_once
        }
        if not drain:
            self._turns.clear()
            self._due.clear()
        self._getters.wake_all()
        self._joiners.wake_all()

    async def closed(self) -> None:
        """Wait until the queue is shut down."""
        while not self._shut_down:
            await self._joiners.wait()

    async def join(self) -> None:
        """Wait until no key is held, nor left for workers to drain after a shut-down.

        It sets no limit: give it a deadline.
        """
        while self._held or (self._shut_down and self._turns.ready):
            await self._joiners.wait()

    def place(self, key: K) -> Place | None:
        """Return where *key* is, None for a key that is nowhere here."""
        until = self._timers.get(key)
        if until is not None:
            return Waiting(until)
        return self._held.get(key) or self._turns.ready.get(key)

    def oldest_ready(self) -> float | None:
        """Return the loop time at which the oldest ready key became ready, None without one."""
        return next((ready.since for ready in self._turns.ready.values()), None)

    def stats(self) -> QueueStats:
        """Return what was measured; takes time in proportion to the held keys only."""
        now = self._now()
        held_s = [now - held.since for held in self._held.values()]
        agendas = filter(None, map(self._agendas.get, self._held))
        return QueueStats(
            depth=len(self._turns.ready) + sum(agenda.at <= now for agenda in agendas),
            waiting=len(self._timers),
            held=len(self._held),
            adds=self._adds,
            retries=self._retries,
            latency_s=self._latency_s.read(),
            work_s=self._work_s.read(),
            unfinished_s=sum(held_s),
            longest_s=max(held_s, default=0.0),
        )

    def _first_look(self) -> float:
        """Find the loop's clock, once: asking for the loop costs more than asking for the time."""
        self._now = asyncio.get_running_loop().time
        return self._now()

    def _agenda(self, key: K, now: float) -> Requeues:
        """Return what is owed to the key beyond the visit for which it is ready, if it is."""
        agenda = self._agendas.get(key)
        if agenda is None:
            agenda = self._agendas[key] = Requeues()
        elif key in self._turns.ready:
            agenda.begin(now)
        return agenda

    def _place(self, key: K, agenda: Requeues, now: float) -> None:
        """Put a key where its agenda says: the one function that decides this."""
        if key in self._held:
            return
        if agenda.at <= now or key in self._turns.ready:
            self._offer(key, agenda.priority, now)
        elif agenda:
            self._timers.set(key, agenda.at)
        else:
            self._timers.cancel(key)
            del self._agendas[key]

    def _offer(self, key: K, priority: Priority, now: float) -> None:
        """Let a key that is not held be ready, and wake one worker for it."""
        agenda = self._agendas.get(key)
        if agenda is not None:
            self._timers.cancel(key)
            priority = max(priority, agenda.priority)
        if self._turns.push(key, priority, now):
            self._count_add(agenda)
            if agenda is not None:
                agenda.counted = False
            if self._getters:
                self._getters.wake_one()

    def _count_add(self, agenda: Requeues | None) -> None:
        """Count that a key became due; a held key that is given back is not counted again."""
        if agenda is None:
            self._adds += 1
        elif not agenda.counted:
            self._adds += 1
            agenda.counted = True

    def _ripen(self, key: K) -> None:
        agenda = self._agendas[key]
        self._offer(key, agenda.priority, self._now())
        agenda.begin(agenda.at)

    def _take(self) -> K:
        now = self._now()
        key, ready = self._turns.pop(now)
        self._held[key] = Held(now, ready.priority)
        self._latency_s.observe(now - self._due.pop(key, ready.since))
        agenda = self._agendas.get(key)
        if agenda is not None:
            agenda.begin(now)
        return key
