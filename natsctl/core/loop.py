"""The sync loop: informers say which keys changed, workers visit them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Generic, TypeVar

from natsctl.core.about import bind
from natsctl.core.catchup import catch_up
from natsctl.core.informer import Informer
from natsctl.core.leadership import Leadership, current_leadership
from natsctl.core.retry import RetryPolicy, always_retry
from natsctl.core.settle import Failed, Outcome, Synced, settle
from natsctl.core.steps import Steps
from natsctl.core.tally import Tally
from natsctl.core.tasks import together
from natsctl.core.workqueue import Workqueue
from natsctl.errors import QueueShutDownError
from natsctl.model.store import Change

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

TURN_S = 0.01  # for how long a worker may go on before other tasks get their turn

SyncHandler = Callable[[str], Awaitable[float | None]]
"""Make the world match the key's object; return seconds until the next visit, or None."""


class SyncLoop(Generic[K]):
    """Calls one handler for every key on its queue, each key by one worker at a time.

    Where this process has to lead (`current_leadership`), keys are taken only while it does. When
    it does no more, what is held is cancelled and given back, for when it leads again.

    Args:
        handler: run for a key; failing is raising.
        queue: where keys come from.
        retry: what follows a failure.
        workers: how many keys are synced at once.
    """

    def __init__(
        self,
        handler: Callable[[K], Awaitable[float | None]],
        *,
        queue: Workqueue[K] | None = None,
        retry: RetryPolicy = always_retry,
        workers: int = 1,
    ) -> None:
        self.queue = Workqueue[K]() if queue is None else queue
        self.tally = Tally[K]()
        self._handler = handler
        self._retry = retry
        self._workers = workers
        self._subscriptions: list[Callable[[], AbstractContextManager[None]]] = []
        self._informers: list[Informer[Any]] = []
        self._leadership: Leadership | None = None

    def watch(self, informer: Informer[T], on_change: Callable[[Change[T]], None]) -> None:
        """Have *on_change* called for every change; it adds the keys that the change concerns."""
        self._subscriptions.append(lambda: informer.subscribe(on_change))
        self._informers.append(informer)

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Work until the queue is shut down.

        Starts only when every cache is complete and *ready* has returned. Where this process has to
        lead, *ready* is called whenever it begins to, and every cache then shows what the leader
        before it wrote.
        """
        with ExitStack() as stack:
            for subscription in self._subscriptions:
                stack.enter_context(subscription())
            for informer in self._informers:
                await informer.cache.complete.wait()
            self._leadership = current_leadership.get()
            if self._leadership is None:
                await self._work_together(ready)
            else:
                await self._leadership.lead(partial(self._term, ready), self.queue.closed)

    async def _term(self, ready: Callable[[], Awaitable[None]]) -> None:
        await catch_up(self._informers)
        await self._work_together(ready)

    async def _work_together(self, ready: Callable[[], Awaitable[None]]) -> None:
        await ready()
        with self.tally.answering():
            async with together() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"worker {number}")

    async def _work(self) -> None:
        clock = asyncio.get_running_loop().time
        turn_ends = clock() + TURN_S
        while True:
            try:
                key = await self.queue.get()
            except QueueShutDownError:
                return
            bind(key=key, attempt=self.queue.failures(key) + 1)
            begun, changed = clock(), self.tally.begin(key)
            outcome = await self._sync(key)
            now = clock()
            self.tally.end(key, outcome, begun=begun, now=now, changed=changed)
            settle(self.queue, key, outcome, self._retry)
            if now >= turn_ends:
                await asyncio.sleep(0)  # neither get nor a handler need ever have waited
                turn_ends = clock() + TURN_S

    async def _sync(self, key: K) -> Outcome:
        try:
            return Synced(await self._handled(key))
        except asyncio.CancelledError:
            worker = asyncio.current_task()
            if worker is not None and not worker.cancelling() and self._may():
                return Failed(RuntimeError("the handler waited for something that was cancelled"))
            self.queue.add(key)  # untouched: whoever works next visits it
            self.queue.done(key)
            raise
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
            return Failed(error)

    def _handled(self, key: K) -> Awaitable[float | None]:
        visit = self._handler(key)
        return visit if self._leadership is None else Steps(visit, self._may)

    def _may(self) -> bool:
        return self._leadership is None or self._leadership.leads
