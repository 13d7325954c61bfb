"""Keeps a sync loop at the keys that this process holds, while their assignment changes."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from natsctl.core.coordination.assignment import NONE, Assignment, HeldAssignments, KeptKeys
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.informer import Informer, catch_up, read_values, release_values
from natsctl.core.pausing.pausing import Pausing
from natsctl.core.task_group import together
from natsctl.core.workqueue import WorkQueue
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)

KeyFilter = Callable[[Hashable], bool]
"""Selects keys: returns whether a key is selected."""


class AssignmentListener(Protocol):
    """Enqueues the keys that this process gains, and forgets the keys that it loses."""

    async def lost(self, holds: KeyFilter) -> None:
        """Forget all keys for which *holds* is false: another process may sync them."""
        ...

    async def gained(self, gained: KeyFilter) -> None:
        """Enqueue every key for which *gained* is true, if it exists or left anything behind."""
        ...


class AssignedKeys(Generic[K]):
    """The keys of a loop that this process holds: all, unless it shares them with other processes.

    Args:
        queue: the keys to sync; it keeps only keys that this process holds.
        pausing: the pauses of the controller.
    """

    def __init__(self, queue: WorkQueue[K], pausing: Pausing) -> None:
        self.holdings = HeldAssignments()  # the keys that may be put on the queue now
        self.paused = pausing.keys(self._holds)
        self._informers: list[Informer[Any]] = []
        self._partial: list[Informer[Any]] = []  # those that do not keep every value
        self._queue = queue
        self._pausing = pausing
        self._leadership: Leadership | None = None
        self._listener: AssignmentListener | None = None
        self._moved = asyncio.Event()  # the assignment changed, or a key was lost while it was held
        self._kept = KeptKeys()

    @property
    def shared(self) -> bool:
        """True if this process holds only the keys that are assigned to it."""
        return self._leadership is not None and self._listener is not None

    def watch(self, informer: Informer[Any]) -> None:
        """Wait for the writes of other processes in this cache, before keys of these are held."""
        self._informers.append(informer)
        if informer.cache.partial:
            self._partial.append(informer)

    async def begin(
        self, leadership: Leadership | None, listener: AssignmentListener | None
    ) -> None:
        """Begin a run of the loop; if the keys are shared, none is held until `lead`."""
        self._leadership, self._listener = leadership, listener
        if leadership is not None and listener is not None:
            await self._hold_nothing(listener)
            self._kept = KeptKeys(leadership.before_terms)

    async def synced(self) -> None:
        """Wait until every cache is synced."""
        for informer in self._informers:
            await informer.cache.synced.wait()

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the *work* of a term, once the caches show the writes of earlier processes.

        If the keys are shared, the assigned keys are held until the work ends.
        """
        leadership, listener = self._leadership, self._listener
        if leadership is None or listener is None:
            await self._caught_up()
            await work()
            return
        try:
            with leadership.moving(self._move):
                await self._work_assigned(work, listener)
        finally:
            await self._hold_nothing(listener)
            self._kept.ended(leadership.expected)

    def keeps(self, key: Hashable) -> bool:
        """Return whether this process needs the object of the key: it has the key, or may get it.

        A process that shares its keys needs no other objects.
        """
        leadership = self._leadership or current_leadership.get()
        if leadership is None or leadership.expected is None:
            return True
        may_have = self._leadership is not None and self.holdings.may_have(key)
        return may_have or leadership.expects(key)

    async def give_up(self, key: K) -> None:
        """Forget a key that was lost during its sync, and may have been enqueued since."""
        self._queue.drop(key)
        self._moved.set()
        for informer in self._partial:
            await informer.release(tuple(informer.cache.of_primary(str(key))))
        self.paused.forget_unread()

    async def _work_assigned(
        self, work: Callable[[], Awaitable[None]], listener: AssignmentListener
    ) -> None:
        async with together() as group:
            reads = [
                group.create_task(self._read_all(informer, listener), name="read of all values")
                for informer in self._partial
            ]
            settled = asyncio.Event()
            follow = self._follow_assignment(listener, settled)
            following = group.create_task(follow, name="assignment")
            await settled.wait()
            await work()
            for task in (following, *reads):
                task.cancel()

    async def _follow_assignment(
        self, listener: AssignmentListener, settled: asyncio.Event
    ) -> None:
        """Pass keys that are gained or lost to the listener; set *settled* when the first are held.

        A key is held only after the caches show what other processes wrote for it. Changes before
        that do not enqueue the key, so the listener enqueues all keys that are gained.
        """
        while True:
            newest = self.holdings.newest
            await self._caught_up()
            lacks = self._kept.lacks(newest)
            for informer in self._partial:
                if lacks:
                    await read_values(informer, self._kept_in(newest))
                if newest is self.holdings.newest and not informer.cache.wants_all.is_set():
                    informer.cache.settle_kept(settled=True)
            self._kept.read(newest if newest is self.holdings.newest else None)
            gained = self.holdings.settle(newest)
            settled.set()
            if gained is not None:
                self.paused.check_records()
                await self._pausing.note_deaths(self.paused, shared=True)
                await listener.gained(gained)
            await self._release_values(newest)
            while self.holdings.settled:
                await self._moved.wait()
                self._moved.clear()
                await self._forget_lost(listener)
            # The assignment may have changed while keys were enqueued.
            await self._forget_lost(listener)

    async def _release_values(self, assignment: Assignment) -> None:
        """Forget the values of keys that this process does not need any more."""
        if self._kept.exceeds(assignment):
            for informer in self._partial:
                await release_values(informer)
            if assignment is self.holdings.newest:
                self._kept.released(assignment)
            self.paused.forget_unread()

    def _kept_in(self, assignment: Assignment) -> KeyFilter:
        return lambda key: assignment.has(key) and self.keeps(key)

    async def _read_all(self, informer: Informer[Any], listener: AssignmentListener) -> None:
        """Read every value once somebody reads objects of other processes.

        A function that maps a change to keys may have failed until then, so all keys are enqueued.
        """
        await informer.cache.wants_all.wait()
        log.info("keeping the values of all objects", kind=informer.cache.kind.name)
        await read_values(informer, lambda _: True)
        await listener.gained(self.holdings.has)

    async def _caught_up(self) -> None:
        """Wait until the caches show the writes of other processes, or the queue is shut down."""
        async with together() as group:
            tasks = (
                group.create_task(catch_up(self._informers)),
                group.create_task(self._queue.closed()),
            )
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()

    async def _hold_nothing(self, listener: AssignmentListener) -> None:
        for informer in self._partial:
            informer.cache.settle_kept(settled=False)
        self.holdings.reset(NONE)
        self._queue.feed_no_more()
        await self._forget_lost(listener)

    async def _forget_lost(self, listener: AssignmentListener) -> None:
        """Forget the keys that this process does not hold any more.

        Other keys may be lost while this runs, so each key is compared with the present holdings.
        """
        await self._queue.keep(self._holds)
        await self.paused.keep(self._holds)
        await listener.lost(self._holds)

    def _holds(self, key: Hashable) -> bool:
        return self.holdings.has(key)

    def _move(self, assignment: Assignment) -> None:
        for informer in self._partial:
            informer.cache.settle_kept(settled=False)
        self._kept.moved(assignment, older_held=self.holdings.moved(assignment))
        self._moved.set()
