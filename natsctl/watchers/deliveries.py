"""Tell the watchers of one resource kind what happened: each thing to each, in order, till taken.

An object's news wait in its line, and one worker at a time tells them: the first to every watcher
in turn, then the next. A watcher that fails is told again later, by itself; what happens to the
object meanwhile is laid over what it has not taken. So every watcher comes to the newest state of
every object, and never goes back to an older one.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import msgspec

from natsctl.core.queue.retry import Drop, Retry, RetryPolicy, Stop, backoff
from natsctl.core.queue.workqueue import Priority, Workqueue
from natsctl.core.sync.calls import Calls, awaitable
from natsctl.core.sync.failures import FailureLog
from natsctl.core.sync.follow_up import decide_retry
from natsctl.core.sync.journal import Journal
from natsctl.core.sync.loop import SyncLoop
from natsctl.errors import RetryAfter, StoppedError, StoreError
from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.hiding import error_text
from natsctl.telemetry.logger import log_context
from natsctl.telemetry.tracing import sync_span
from natsctl.watchers.merged_changes import News, followed
from natsctl.watchers.retries import RetryDequeuePolicy
from natsctl.watchers.watcher import RecallingWatcher, ResourceWatcher

log = logging.getLogger(__name__)

NEWS_MAX = 100_000
EARLY_S = 0.001  # a retry may be this early: timers are
BACKOFF_S, BACKOFF_MAX_S = 0.005, 1000.0  # of a policy that leaves the delay to us


class Policies(msgspec.Struct):
    """What follows a failure."""

    error_handler: Callable[[Exception], None] | None
    retry: RetryPolicy
    dequeue: RetryDequeuePolicy | None


class Registration(msgspec.Struct, frozen=True, eq=False):
    """A watcher that was added; adding it twice makes two."""

    watcher: ResourceWatcher


class _Owed(msgspec.Struct, frozen=True):
    """What one watcher has not taken of an object: the first of it failed, and is due `at`."""

    to: Registration
    news: tuple[News, ...]
    failures: int
    error: Exception
    at: float


_Debtor = tuple[Registration, str]  # and the name of the object's kind: parts of it are one


class _Line:
    """What is to be told of one object."""

    def __init__(self) -> None:
        self.fresh: deque[tuple[News, tuple[Registration, ...]]] = deque()
        self.owed: dict[_Debtor, _Owed] = {}


class Deliveries:
    """The watchers of one resource kind, in the order they were added.

    Args:
        resource_kind: in logs.
        policies: what follows a failure.
        journal: where it is noted what came of each call.
        news_max: how many things may wait to be told; beyond, those of one object become one.
    """

    def __init__(
        self,
        resource_kind: str,
        policies: Policies,
        *,
        journal: Journal | None = None,
        news_max: int = NEWS_MAX,
    ) -> None:
        self.resource_kind = resource_kind
        self.registrations: tuple[Registration, ...] = ()
        self.queue = Workqueue[str]()
        self.failure: Exception | None = None  # what ended it for good
        self._policies = policies
        self._journal = Journal() if journal is None else journal
        self._news_max = news_max
        self._lines: dict[str, _Line] = {}
        self._fresh = 0
        self._loop: SyncLoop[str] | None = None
        self._calls: Calls
        self._failures_logged = FailureLog(log, logging.WARNING)

    def loop(self, controller: str, *, timeout_s: float) -> SyncLoop[str]:
        """Return the loop that calls the watchers, each call taking *timeout_s* seconds at most.

        It ends by itself, and `failure` says why, where a policy gives everything up or fails.
        """
        self._calls = Calls(
            controller, "the watcher", limit_s=timeout_s, what="the call", setting="timeout_s"
        )
        self._loop = SyncLoop(self._visit, queue=self.queue, retry=_give_up)
        return self._loop

    def tell(
        self, news: News, *, priority: Priority, to: tuple[Registration, ...] | None = None
    ) -> None:
        """Have the watchers told, or only these; another process's objects are left to it."""
        targets = self.registrations if to is None else to
        if not targets or not self.holds(news.key):
            return
        line = self._lines.setdefault(news.key, _Line())
        waiting: tuple[News, ...] = ()
        if self._fresh >= self._news_max and line.fresh:
            last, told_to = line.fresh[-1]
            if told_to == targets and last.kind.name == news.kind.name:
                line.fresh.pop()
                waiting = (last,)
        following = followed(waiting, news)
        line.fresh.extend((each, targets) for each in following)
        self._fresh += len(following) - len(waiting)
        self.queue.add(news.key, priority=priority)

    def tell_again(self, key: str, news: Sequence[News], *, priority: Priority) -> None:
        """Have every watcher told: at once what it is owed of the object, else these news."""
        line = self._lines.get(key)
        owed = [] if line is None else list(line.owed.values())
        if line is not None and owed:
            self._hasten(key, line, priority, lambda _: True)
        others = tuple(at for at in self.registrations if at not in {each.to for each in owed})
        for each in news:
            self.tell(each, priority=priority, to=others)

    def holds(self, key: str) -> bool:
        """Say whether the object is told of by this process now, and not by another."""
        return self._loop is None or self._loop.holdings.has(key)

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Leave what is still to be told of objects that are not *wanted* here to others."""
        for key in [key for key in self._lines if not wanted(key)]:
            self._fresh -= len(self._lines.pop(key).fresh)

    def hasten(self) -> None:
        """Tell again at once what failed because of a store: it may have been lost, and is back."""
        for key, line in self._lines.items():
            self._hasten(key, line, Priority.RETRY, lambda error: isinstance(error, StoreError))

    def _hasten(
        self, key: str, line: _Line, priority: Priority, which: Callable[[Exception], bool]
    ) -> None:
        for debtor, owed in line.owed.items():
            if which(owed.error):
                line.owed[debtor] = msgspec.structs.replace(owed, failures=0, at=_now())
                self.queue.add(key, priority=priority)

    def failed(self, key: str) -> int:
        """Return how often a watcher has failed in a row on the object, of several the most."""
        line = self._lines.get(key)
        return max((owed.failures for owed in line.owed.values()), default=0) if line else 0

    def failures(self) -> dict[str, str]:
        """Return why objects wait to be told again, by key."""
        return {
            key: error_text(owed.error)
            for key, line in self._lines.items()
            for owed in line.owed.values()
        }

    async def _visit(self, key: str) -> float | None:
        try:
            await self._tell_next(key)
        except Exception as error:
            self.failure = error
            raise
        return None

    async def _tell_next(self, key: str) -> None:
        """Tell every watcher the oldest news of the object; where there are none, what is due."""
        line = self._lines.get(key)
        if line is None:
            return
        if line.fresh:
            news, targets = line.fresh.popleft()
            self._fresh -= 1
            for number, registration in enumerate(targets, 1):
                if registration in self.registrations:
                    try:
                        await self._tell_fresh(line, registration, news)
                    except asyncio.CancelledError:  # the others are told when somebody goes on
                        if self._lines.get(key) is line:
                            line.fresh.appendleft((news, targets[number:]))
                            self._fresh += 1
                        raise
        else:
            for debtor, owed in list(line.owed.items()):
                if owed.to not in self.registrations:
                    del line.owed[debtor]
                elif owed.at <= _now() + EARLY_S:
                    await self._tell_all(line, owed.to, owed.news, owed.failures)
        self._ask_for_next(key, line)

    def _ask_for_next(self, key: str, line: _Line) -> None:
        if self._lines.get(key) is not line:
            return  # the object is another process's now
        if line.fresh:
            self.queue.add(key)
        elif not line.owed:
            del self._lines[key]
        elif (at := min(owed.at for owed in line.owed.values())) < math.inf:
            self.queue.add(key, after=max(at - _now(), EARLY_S), priority=Priority.RETRY)

    async def _tell_fresh(self, line: _Line, to: Registration, news: News) -> None:
        """Tell one watcher, or lay the news over what it has still to be told."""
        owed = line.owed.get((to, news.kind.name))
        if owed is None:
            await self._tell_all(line, to, (news,), 0)
            return
        if self._is_pointless(owed, news):
            await self._tell_all(line, to, followed(owed.news[1:], news), 0)
            return
        waiting = followed(owed.news, news)
        if waiting[0].says_more_than(owed.news[0]):
            await self._tell_all(line, to, waiting, owed.failures)
        else:
            line.owed[to, news.kind.name] = msgspec.structs.replace(owed, news=waiting)

    async def _tell_all(
        self, line: _Line, to: Registration, waiting: tuple[News, ...], failures: int
    ) -> None:
        """Tell one watcher, until it fails; what it is owed then is kept for later."""
        debtor = (to, waiting[0].kind.name)
        line.owed.pop(debtor, None)
        while waiting:
            with sync_span(self.resource_kind, partial(_told_of, waiting[0], to.watcher)) as span:
                try:
                    with self._noting(to, waiting[0]):
                        await self._calls.call(waiting[0].key, _call, to.watcher, waiting[0])
                except asyncio.CancelledError:
                    cut = StoppedError("it was cut short")
                    line.owed[debtor] = _Owed(to, waiting, failures, cut, _now())
                    raise
                except Exception as raised:  # noqa: BLE001 - whatever a watcher raises is its failure
                    error = raised
                else:
                    self._failures_logged.succeeded((waiting[0].key, to))
                    waiting, failures = waiting[1:], 0
                    continue
                failed = classify(error).failed
                if failed:
                    span.fail(error)
                delay_s = self._delay(waiting[0], to, error, failures + 1)
            if delay_s is not None:
                counted = failures + failed
                line.owed[debtor] = _Owed(to, waiting, counted, error, _now() + delay_s)
                return
            waiting, failures = waiting[1:], 0

    def _noting(self, to: Registration, news: News) -> AbstractContextManager[None]:
        stored, action = news.after or news.before, news.action.value.lower()
        revision = None if stored is None else stored.revision
        return self._journal.recording(news.key, action, revision, f"{type(to.watcher).__name__}: ")

    def _delay(self, news: News, to: Registration, error: Exception, failures: int) -> float | None:
        """Return the seconds until the next call, None if there is none.

        A call that failed because of a store is not given up: it waits until the store is back.
        """
        if isinstance(error, RetryAfter):
            return error.delay_s
        self._report(news, to, error)
        if classify(error) is ErrorClass.PERMANENT:
            return None
        match decide_retry(self._policies.retry, error, failures):
            case Retry(None):
                return backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S)
            case Retry(after):
                return after
            case Drop():
                return math.inf if isinstance(error, StoreError) else None
            case Stop():
                raise error

    def _is_pointless(self, owed: _Owed, news: News) -> bool:
        """Ask whether the news make the retry pointless; what nobody saw decides nothing."""
        if self._policies.dequeue is None:
            return True
        retry = owed.news[0]
        new_object, retry_object = news.new or news.old, retry.new or retry.old
        if new_object is None or retry_object is None:
            return False
        return self._policies.dequeue(
            news.action, new_object, retry.action, retry_object, owed.error
        )

    def _report(self, news: News, to: Registration, error: Exception) -> None:
        action, name = news.action.value.lower(), type(to.watcher).__name__
        what = f"{action} of {name} on {self.resource_kind} {news.key}"
        self._failures_logged.failed((news.key, to), what, error)
        if self._policies.error_handler is not None:
            try:
                self._policies.error_handler(error)
            except (Exception, SystemExit):
                log.exception("the error handler of %s failed", self.resource_kind)


def _told_of(news: News, watcher: ResourceWatcher) -> Mapping[str, object]:
    """Return what a span says of telling *watcher* the news."""
    return {
        **log_context(),
        "operation": news.action.value.lower(),
        "watcher": type(watcher).__name__,
    }


async def _call(watcher: ResourceWatcher, news: News) -> None:
    match news.old, news.new:
        case None, None:
            if isinstance(watcher, RecallingWatcher):
                await awaitable(watcher.missed, news.key, news.store)
        case None, new if new is not None:
            await awaitable(watcher.add, new)
        case old, None if old is not None:
            await awaitable(watcher.delete, old)
        case old, new if old is not None and new is not None:
            await awaitable(watcher.update, old, new)


def _give_up(_error: Exception, _failures: int) -> Stop:
    return Stop()


def _now() -> float:
    return asyncio.get_running_loop().time()
