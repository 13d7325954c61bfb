"""Runs the sync loops of one controller, from the first lists to a stop within a time limit."""

import asyncio
import gc
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

from natsctl.core.environment import Environment, environment
from natsctl.core.history import SyncHistory
from natsctl.core.informer import Informer
from natsctl.core.pauses import Pausing
from natsctl.core.sync import call_hook, report_stuck
from natsctl.core.task_group import together
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import HandlerError, StoreError, UnreadError
from natsctl.model.store import Stores
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import IGNORED_S

log = get_logger(__name__)

Hook = Callable[[], Awaitable[None]]
Work = Coroutine[Any, Any, object]


async def no_hook() -> None:
    """Do nothing when a controller starts or ends."""


@cache
def collect_imports() -> None:
    """Let Python's garbage collector leave out what was imported, once in a process.

    A full collection visits everything that was imported, which takes some 20 ms for which each
    change waits. The objects in tables do not count.
    """
    gc.collect()
    gc.freeze()


class Host:
    """Runs one controller: keeps its tables synced, runs its sync loops, and stops them in time.

    *Guarantees.* `start` is called once, when every table is synced and before the first sync.
    `clean` is called once, after the last sync. After `stop`, the syncs that have begun have
    *stop_timeout_s* seconds to end. Then they are cancelled, and those that still do not end are
    logged with their keys and stacks. Before the tables are synced, a stop cancels at once.

    Args:
        name: the controller's name, for logs.
        queues: returns the work queues of the controller by name.
        start: the user's hook for the start.
        clean: the user's hook for the end.
        stop_timeout_s: how long a sync may take to end after `stop`.
        failed: the log line of a failed sync.
    """

    def __init__(
        self,
        name: str,
        queues: Callable[[], Mapping[str, WorkQueue[Any]]],
        *,
        start: Hook = no_hook,
        clean: Hook = no_hook,
        stop_timeout_s: float,
        failed: str = "sync failed",
    ) -> None:
        self.name = name
        self.queues = queues
        self.pausing = Pausing(name)
        self.history = SyncHistory(name, self.pausing.failing, failed)
        self.synced = asyncio.Event()  # every table is synced, and the syncs have begun
        self.informers: Mapping[str, Informer[Any]] = {}  # by slot, once their stores are open
        self.primaries: Sequence[Informer[Any]] = ()  # those whose keys are synced
        self.environment = Environment()
        self._start = start
        self._clean = clean
        self._stop_timeout_s = stop_timeout_s
        self._stopping = asyncio.Event()
        self._starting = asyncio.Lock()

    def enter(self) -> None:
        """Look at the environment of this task, once it's complete: as the controller opens."""
        self.environment = environment()
        self.history.recorder = self.environment.recordings

    @asynccontextmanager
    async def watching(
        self,
        informers: Mapping[str, Informer[Any]],
        primaries: Sequence[Informer[Any]],
        *,
        records: Stores | None = None,
        systems: Sequence[Stores] = (),
    ) -> AsyncIterator[None]:
        """Run the informers, named by their slots, while the context lasts.

        The keys of the objects in *primaries* are synced. *records* has the records of pauses,
        and *systems* record the events.
        """
        self.informers, self.primaries = informers, primaries
        self.enter()
        async with AsyncExitStack() as stack:
            if systems:
                self.history.recorders = [
                    await stack.enter_async_context(system.recorder(self.name))
                    for system in systems
                ]
            await stack.enter_async_context(self.pausing.watching(records))
            group = await stack.enter_async_context(together())
            watches = [
                group.create_task(informer.run(), name=f"watch of {informer.table.kind.name}")
                for informer in informers.values()
            ]
            try:
                yield
            finally:
                for watch in watches:
                    watch.cancel()

    async def tables_synced(self) -> None:
        for informer in self.informers.values():
            await informer.table.synced.wait()

    async def begin(self) -> None:
        """Wait until every table is synced, and call `start` once; sync loops begin with this."""
        async with self._starting:
            if self.synced.is_set() or self.stopping:
                return
            await self.tables_synced()
            while not await self._started():
                pass
            tables = [informer.table for informer in self.primaries]
            await self.pausing.listed.wait()
            self.history.failing.keep_only(lambda key: any(key in table for table in tables))
            self.synced.set()
            if self.primaries:
                count = sum(len(informer.table) for informer in self.primaries)
                log.info("primaries listed, syncing", controller=self.name, primaries=count)

    async def _started(self) -> bool:
        """Call `start`; return False if it read an object whose value is only read now."""
        try:
            await call_hook(self.name, self._start)
        except Exception as error:
            unread = error.__cause__ if isinstance(error, HandlerError) else None
            if not isinstance(unread, UnreadError):
                self.stop()  # so that no other loop calls it again
                raise
            await asyncio.sleep(unread.delay_s)
            return False
        return True

    async def run(
        self, *loops: Work, upkeep: Collection[Work] = (), loops_ended: Hook = no_hook
    ) -> None:
        """Run the sync loops until `stop`, or until one of them ends; then end the others.

        The *upkeep* runs beside the loops, and is cancelled after *loops_ended*. Raises the error
        of a loop or a hook.
        """
        self.enter()
        collect_imports()
        try:
            async with together() as group:
                syncing = [group.create_task(loop, name="sync loop") for loop in loops]
                beside = [group.create_task(work, name="upkeep") for work in upkeep]
                stop = group.create_task(self._stopping.wait(), name="stop")
                await asyncio.wait((*syncing, stop), return_when=asyncio.FIRST_COMPLETED)
                await self._finish(syncing)
                await loops_ended()
                for task in (*beside, stop):
                    task.cancel()
        finally:
            await call_hook(self.name, self._clean)

    def stop(self) -> None:
        """Begin no more syncs; `run` returns when the syncs that have begun have ended."""
        self._stopping.set()
        for queue in self.queues().values():
            queue.shut_down()

    async def _finish(self, syncing: "Collection[asyncio.Task[object]]") -> None:
        """Wait until the sync loops have ended; cancel those that take too long."""
        self.stop()
        limit_s = self._stop_timeout_s if self.synced.is_set() else 0.0
        _, late = await asyncio.wait(syncing, timeout=limit_s)
        for task in late:
            log.warning("cancelling syncs that did not end in time", controller=self.name)
            task.cancel()
        if late:
            _, stuck = await asyncio.wait(late, timeout=IGNORED_S)
            if stuck:
                report_stuck(self.name)

    def existing(self, keys: Collection[str]) -> int:
        """Return how many of these keys have a primary in a table, valid or not."""
        tables = [informer.table for informer in self.primaries]
        return len({key for table in tables for key in keys if key in table})

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def failure(self) -> StoreError | None:
        """The reason why an informer has no watch now; None if all have one."""
        failures = (informer.failure for informer in self.informers.values())
        return next((failure for failure in failures if failure is not None), None)

    @property
    def idle(self) -> bool:
        """True if the syncs have begun and the queues are settled, see `WorkQueue.settled`."""
        return (
            self.synced.is_set()
            and all(queue.settled for queue in self.queues().values())
            and not any(informer.notifying for informer in self.informers.values())
        )
