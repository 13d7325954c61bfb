"""The sync loop: informers say which keys changed, workers visit them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

from natsctl.core.informer import Informer
from natsctl.core.retry import RetryPolicy, always_retry
from natsctl.core.settle import Failed, Outcome, Synced, settle
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
        self._handler = handler
        self._retry = retry
        self._workers = workers
        self._subscriptions: list[Callable[[], AbstractContextManager[None]]] = []
        self._completes: list[asyncio.Event] = []

    def watch(self, informer: Informer[T], on_change: Callable[[Change[T]], None]) -> None:
        """Have *on_change* called for every change; it adds the keys that the change concerns."""
        self._subscriptions.append(lambda: informer.subscribe(on_change))
        self._completes.append(informer.cache.complete)

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Work until the queue is shut down.

        Starts only when every cache is complete and *ready* has returned.
        """
        with ExitStack() as stack:
            for subscription in self._subscriptions:
                stack.enter_context(subscription())
            for complete in self._completes:
                await complete.wait()
            await ready()
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
            settle(self.queue, key, await self._sync(key), self._retry)
            if clock() >= turn_ends:
                await asyncio.sleep(0)  # neither get nor a handler need ever have waited
                turn_ends = clock() + TURN_S

    async def _sync(self, key: K) -> Outcome:
        try:
            return Synced(await self._handler(key))
        except asyncio.CancelledError:
            worker = asyncio.current_task()
            if worker is not None and not worker.cancelling():
                return Failed(RuntimeError("the handler waited for something that was cancelled"))
            self.queue.add(key)  # untouched: whoever works next visits it
            self.queue.done(key)
            raise
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
            return Failed(error)
