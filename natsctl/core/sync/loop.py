"""The sync loop: informers say which keys changed, workers visit them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from natsctl.core.cache.informer import Informer, catch_up
from natsctl.core.coordination.assignment import NONE, Assignment, HeldAssignments
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.coordination.term_guard import GuardedSteps
from natsctl.core.queue.retry import RetryPolicy, always_retry
from natsctl.core.queue.workqueue import Workqueue
from natsctl.core.sync.calls import failure_of
from natsctl.core.sync.counters import Tally
from natsctl.core.sync.follow_up import Failed, Outcome, Synced, settle
from natsctl.core.task_group import together
from natsctl.errors import QueueShutDownError
from natsctl.model.store import Change
from natsctl.telemetry.logger import bind_log_context

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

TURN_S = 0.01  # for how long a worker may go on before other tasks get their turn

SyncHandler = Callable[[str], Awaitable[float | None]]
"""Make the world match the key's object; return seconds until the next visit, or None."""


Has = Callable[[Hashable], bool]
"""Says of a key whether it is one of those that are meant."""


class Moves(Protocol):
    """Who puts keys on a loop's queue, and is told when other keys are this process's own."""

    def went(self, has: Has) -> None:
        """Forget whatever is known of keys that are not held any more: *has* says which are."""
        ...

    async def came(self, came: Has) -> None:
        """Visit every key that *came*, if there is anything to be done about it."""
        ...


class SyncLoop(Generic[K]):
    """Calls one handler for every key on its queue, each key by one worker at a time.

    Where this process shares its work with others (`current_leadership`), keys are taken only in
    its terms, and with *moves* only those that are its own (`holdings`): no other is to be put on
    the queue, or stays there. When a term is over, what is at work is cancelled.

    Args:
        handler: run for a key; failing is raising.
        queue: where keys come from.
        retry: what follows a failure.
    """

    def __init__(
        self,
        handler: Callable[[K], Awaitable[float | None]],
        *,
        queue: Workqueue[K] | None = None,
        retry: RetryPolicy = always_retry,
    ) -> None:
        self.queue = Workqueue[K]() if queue is None else queue
        self.tally = Tally[K]()
        self.holdings = HeldAssignments()  # which keys may be put on the queue now
        self._handler = handler
        self._retry = retry
        self._subscriptions: list[Callable[[], AbstractContextManager[None]]] = []
        self._informers: list[Informer[Any]] = []
        self._leadership: Leadership | None = None
        self._moves: Moves | None = None
        self._moved = asyncio.Event()
        self._workers = 1

    def watch(self, informer: Informer[T], on_change: Callable[[Change[T]], None]) -> None:
        """Have *on_change* called for every change; it adds the keys that the change concerns."""
        self._subscriptions.append(lambda: informer.subscribe(on_change))
        self._informers.append(informer)

    async def run(
        self,
        ready: Callable[[], Awaitable[None]],
        moves: Moves | None = None,
        *,
        workers: int = 1,
    ) -> None:
        """Sync keys with so many *workers* until the queue is shut down.

        Starts only when every cache is complete and *ready* has returned. Where this process shares
        its work, *ready* is called at the beginning of every term, and what is visited then has
        caches that show what whoever had the key before wrote; *moves* is told of every key that
        comes, be *ready* done or not. Without it every key is this process's own in a term.
        """
        with ExitStack() as stack:
            self._leadership, self._moves = current_leadership.get(), moves
            self._workers = workers
            if self._leadership is not None and moves is not None:
                self._hold_nothing()
            for subscription in self._subscriptions:
                stack.enter_context(subscription())
            for informer in self._informers:
                await informer.cache.complete.wait()
            if self._leadership is None:
                await self._work_together(ready)
            else:
                term = partial(self._term, self._leadership, ready)
                await self._leadership.lead(term, self.queue.closed)

    async def _term(self, leadership: Leadership, ready: Callable[[], Awaitable[None]]) -> None:
        if self._moves is None:
            await catch_up(self._informers)
            await self._work_together(ready)
            return
        try:
            with leadership.moving(self._move):
                await self._work_moving(ready, self._moves)
        finally:
            self._hold_nothing()

    async def _work_moving(self, ready: Callable[[], Awaitable[None]], moves: Moves) -> None:
        """Work on the keys that are our own, which change as we do so."""
        async with together() as group:
            settled = asyncio.Event()
            follow = self._follow(moves, settled)
            following = group.create_task(follow, name="keys that come and go")
            await settled.wait()
            await ready()
            await self._work_together(_at_once)
            following.cancel()

    async def _settle(self) -> Has | None:
        """Hold what is our own by now, once the caches show what others did before that."""
        newest = self.holdings.newest
        await catch_up(self._informers)
        return self.holdings.settle(newest)

    def _hold_nothing(self) -> None:
        self.holdings.reset(NONE)
        self._let_go()

    def _let_go(self) -> None:
        """Forget the keys that are not held any more."""
        self.queue.keep(self.holdings.has)
        self.tally.keep(self.holdings.has)
        if self._moves is not None:
            self._moves.went(self.holdings.has)

    def _move(self, assignment: Assignment) -> None:
        self.holdings.moved(assignment)
        self._moved.set()

    async def _follow(self, moves: Moves, settled: asyncio.Event) -> None:
        """Visit what came, and let go of what went, whenever that changes; say when it *settled*.

        Nothing that happens to a key that came is told before it is known to have come.
        """
        while True:
            came = await self._settle()
            settled.set()
            if came is not None:
                await moves.came(came)
            while self.holdings.settled:
                await self._moved.wait()
                self._moved.clear()
                self._let_go()
            self._let_go()  # it may have moved while what came was looked at

    async def _work_together(self, ready: Callable[[], Awaitable[None]]) -> None:
        await ready()
        with self.tally.answering():
            async with together() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"worker {number}")

    async def _work(self) -> None:
        clock = asyncio.get_running_loop().time
        turn_ends = clock() + TURN_S
        moving = self._leadership is not None and self._moves is not None
        worker = cast("asyncio.Task[None]", asyncio.current_task())
        while True:
            try:
                key = await self.queue.get()
            except QueueShutDownError:
                return
            if moving and not self.holdings.has(key):
                self.queue.drop(key)
                self.queue.done(key)
                continue
            bind_log_context(key=key, attempt=self.queue.failures(key) + 1)
            begun, changed = clock(), self.tally.begin(key)
            outcome = await self._sync(key)
            now = clock()
            self.tally.end(key, outcome, begun=begun, now=now, changed=changed)
            settle(self.queue, key, outcome, self._retry)
            if moving and not self.holdings.has(key):
                self.queue.drop(key)  # it went meanwhile, and may have left something behind
                self._moved.set()
            if worker.cancelling():
                raise asyncio.CancelledError  # the handler has swallowed it
            if now >= turn_ends:
                await asyncio.sleep(0)  # neither get nor a handler need ever have waited
                turn_ends = clock() + TURN_S

    async def _sync(self, key: K) -> Outcome:
        try:
            return Synced(await self._handled(key))
        except BaseException as error:
            failure = failure_of(error, asyncio.current_task())
            if failure is None:
                self.queue.add(key)  # as it was: the next worker syncs it
                self.queue.done(key)
                raise
            return Failed(failure)

    def _handled(self, key: K) -> Awaitable[float | None]:
        leadership = self._leadership
        if leadership is None:
            return self._handler(key)
        return self._shared(leadership, key)

    async def _shared(self, leadership: Leadership, key: K) -> float | None:
        """Sync a key that others may have at other times, and give it to nobody meanwhile."""
        with leadership.at(key):
            return await GuardedSteps(self._handler(key), self._may)

    def _may(self) -> bool:
        return self._leadership is None or self._leadership.leads


async def _at_once() -> None:
    """There is nothing to wait for."""
