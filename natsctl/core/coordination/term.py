"""Decides whether the loops of a controller may work now, and on which keys.

A process that runs a controller alone may always work on every key. With leader election or
sharding it works in terms, and in each on its own *shares* of the keys. With leader election there
is one share, so that one process has every key.
"""

import asyncio
import math
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Iterator,
)
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar
from zlib import crc32

from natsctl.core.informer import Informer, catch_up, read_values
from natsctl.core.installation import INSTALLATION
from natsctl.core.task_group import Rest, first_step, together
from natsctl.errors import NotLeadingError
from natsctl.model.kinds import Kind
from natsctl.model.store import WriteGuard
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")

Clock = Callable[[], float]
Work = Callable[[], Coroutine[None, None, None]]
KeyFilter = Callable[[Any], bool]
"""Selects keys: returns whether a key is selected."""

SHARES = 256
SLOW_S = 5.0  # work that takes longer to end is logged, again and again


def keys_in(mask: int, count: int = SHARES) -> KeyFilter:
    """Return a filter of the keys in these of *count* shares; it takes about 0.15 µs."""
    if mask == (1 << count) - 1:
        return every_key
    selected = _flags(mask)
    return lambda key: selected[crc32(key.encode()) & 255]


def every_key(key: object) -> bool:  # noqa: ARG001 - every key
    """Return True."""
    return True


def _flags(mask: int) -> list[bool]:
    return [bool(mask >> share & 1) for share in range(SHARES)]


class Leadership:
    """The terms of this process: each has a beginning and an end.

    A `Participation` begins, extends and ends terms; the loops of the controller work in them.

    *Guarantees.* `leads` is False from the moment at which another process may do the work, even if
    this process was stopped, because it reads the clock. `quiet` returns after the work of every
    earlier term has ended.

    Args:
        name: the controller's name, for messages.
        clock: seconds that never go back, read at each call.
        count: the number of shares: 1 to elect a leader.
    """

    def __init__(self, name: str, clock: Clock, count: int = 1) -> None:
        self.name = name
        self.count = count
        self.shared = count > 1
        self.epoch: int | None = None  # of the term; None on standby
        self.mask = 0  # the shares of this process in the term
        self.kept = 0  # those whose values are kept: of the last term
        self.sought = asyncio.Event()  # a loop is ready to work and waits for a term
        self.begun = asyncio.Event()  # a term has begun, and has not ended
        self.unreadable: Callable[[str], None] = lambda _key: None
        """Called with a key whose object only a newer version of the controller can read."""
        self.given_back: Callable[[], None] = lambda: None
        """Called when the last sync of a share that is given up has ended."""
        self._clock = clock
        self._until = -math.inf
        self._over = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._followers: tuple[Callable[[int, int], None], ...] = ()
        self._syncs = [0] * SHARES  # of each share, those that run now
        self._kept = _flags(0)
        self._has = keys_in(0)

    @property
    def leads(self) -> bool:
        """True in a term, in which no other process can be doing the work of this one."""
        return self._clock() < self._until

    def check(self) -> None:
        """Raise `NotLeadingError` if another process may be doing this process's work."""
        if not self.leads:
            raise NotLeadingError(f"{self.name} is not led by this process: nothing is written")

    def keeps(self, key: str) -> bool:
        """Return whether the values of the key's objects are kept: it is ours, or still synced.

        Before the first term, nobody knows which keys are ours, and memory that was used once
        rarely returns to the system. So only names are kept until then.
        """
        share = crc32(key.encode()) & 255
        return self._kept[share] or self._syncs[share] > 0

    def has(self, key: str) -> bool:
        """Return whether the key is this process's, or still worked on here."""
        return self.leads and (self._has(key) or self._syncs[self.share_of(key)] > 0)

    def share_of(self, key: Hashable) -> int:
        """Return the share of a key, the same in every process."""
        return crc32(str(key).encode()) & 255 if self.shared else 0

    # ---- terms begin and end

    def begin(self, epoch: int, until: float, mask: int = 1) -> None:
        """Begin a term with these shares, which ends at *until* unless it is extended."""
        self.epoch, self._until, self._over = epoch, until, asyncio.Event()
        self.move(mask)
        self.begun.set()

    def extend(self, until: float) -> None:
        """Extend the term to *until*, unless it is over already: no term begins again."""
        if self.leads:
            self._until = until

    def move(self, mask: int) -> None:
        """Give this process these shares, and no others."""
        self.mask, self._has = mask, keys_in(mask, self.count)
        if mask:
            self.kept, self._kept = mask, _flags(mask)
        for follower in self._followers:
            follower(mask, self.kept)

    def step_down(self) -> None:
        """End the term: its work is cancelled, and may send writes until its time is over."""
        self.epoch = None
        self.begun.clear()
        self._over.set()
        self.move(0)

    def lose(self) -> None:
        """End the term at once, because another process does the work."""
        self._until = -math.inf
        self.step_down()

    @property
    def is_quiet(self) -> bool:
        return not self._running

    async def quiet(self) -> None:
        """Wait until no work of a term runs."""
        while self._running:
            _, late = await asyncio.wait(self._running, timeout=SLOW_S)
            if late:
                log.warning("work of a term that is over has not ended", tasks=len(late))

    # ---- work in terms

    @contextmanager
    def moving(self, follower: Callable[[int, int], None]) -> Iterator[None]:
        """Call *follower* with `mask` and `kept`, now and at every change."""
        self._followers = (*self._followers, follower)
        follower(self.mask, self.kept)
        try:
            yield
        finally:
            self._followers = tuple(other for other in self._followers if other is not follower)

    def hold(self, key: Hashable) -> None:
        """Begin to sync the key: its share is not given up before `release`."""
        self._syncs[self.share_of(key)] += 1

    def release(self, key: Hashable) -> None:
        """End a sync of the key; two loops may sync the same key."""
        share = self.share_of(key)
        self._syncs[share] -= 1
        if not self._syncs[share] and not self.mask >> share & 1:
            self.given_back()

    @property
    def busy(self) -> int:
        if not any(self._syncs):
            return 0
        return sum(1 << share for share, syncs in enumerate(self._syncs) if syncs)

    async def lead(self, work: Work, ended: Work) -> None:
        """Run *work* in every term until *ended* returns.

        Running work is cancelled when its term is over. After *ended* has returned, running work is
        not cancelled but awaited. Raises what *work* raises.
        """
        end = asyncio.create_task(ended())
        self.sought.set()
        try:
            while await _happens_first(self.begun, end):
                over = self._over
                task = asyncio.create_task(work(), name=f"a term of {self.name}")
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                try:
                    await _happens_first(over, task)
                finally:
                    task.cancel()
                    await asyncio.wait((task,))
                    if not task.cancelled():
                        task.result()  # its error is not lost if this task is cancelled too
                await _happens_first(over, end)
        finally:
            end.cancel()


async def _happens_first(event: asyncio.Event, task: "asyncio.Task[None]") -> bool:
    """Wait for either; return whether the task still runs."""
    wait = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((wait, task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        wait.cancel()
    return not task.done()


# ---- the keys of a loop


class ShareListener(Protocol):
    """Enqueues the keys that this process gains, and forgets the keys that it loses."""

    async def lost(self, holds: KeyFilter) -> None:
        """Forget all keys for which *holds* is false: another process may sync them."""
        ...

    async def gained(self, gained: KeyFilter) -> None:
        """Enqueue every key for which *gained* is true, if it exists or left anything behind."""
        ...


class OwnKeys:
    """The keys that a sync loop may sync: all, unless its process shares them with others.

    A share that leaves is dropped at once. One that arrives is taken into `has` when the tables
    show what its last owner wrote, and its values have been read.

    Args:
        closed: returns when the loop ends.
        released: called when values of other processes are kept no more.
    """

    def __init__(self, closed: Work, released: Callable[[], None]) -> None:
        self.has: KeyFilter = every_key
        """Returns whether a key may be synced; an attribute, because every change calls it."""
        self.leadership: Leadership | None = None
        self._closed, self._released = closed, released
        self._listener: ShareListener | None = None
        self._informers: list[Informer[Any]] = []
        self._ready = 0  # shares whose keys are synced
        self._left = 0  # those that left since the tables began to catch up
        self._kept = 0  # those of which values may be kept
        self._moved = asyncio.Event()

    @property
    def shared(self) -> bool:
        """True if this process syncs only the keys of its shares."""
        return self._listener is not None

    @property
    def any(self) -> bool:
        return not self.shared or self._ready > 0

    def count(self, keys: Collection[str]) -> int:
        return len(keys) if self.has is every_key else sum(map(self.has, keys))

    def only(self, keys: Collection[str]) -> None:
        """Sync no other keys than these; call this before the loop runs."""
        self.has = frozenset(keys).__contains__

    def watch(self, informer: Informer[Any]) -> None:
        """Wait for the writes of other processes in this table, before their keys are synced."""
        self._informers.append(informer)

    @property
    def _partial(self) -> list[Informer[Any]]:
        return [informer for informer in self._informers if informer.table.partial]

    @contextmanager
    def running(self, listener: ShareListener | None) -> Iterator[None]:
        """Follow the shares of the leadership, if there is one, while the loop runs."""
        if self.leadership is None or listener is None:
            yield
            return
        self._listener = listener
        self._kept = self.leadership.kept
        with self.leadership.moving(self._move):
            yield

    async def synced(self) -> None:
        for informer in self._informers:
            await informer.table.synced.wait()

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the *work* of a term, once the tables show the writes of earlier processes."""
        leadership, listener = self.leadership, self._listener
        if leadership is None or listener is None:
            await self._caught_up()
            await work()
            return
        try:
            async with together() as group:
                settled = asyncio.Event()
                follow = self._follow(leadership, listener, settled)
                helpers = [
                    group.create_task(follow, name="shares"),
                    *(
                        group.create_task(self._read_all(one, listener), name="read of all values")
                        for one in self._partial
                    ),
                ]
                await settled.wait()
                await work()
                for task in helpers:
                    task.cancel()
        finally:
            self._set(0)
            await listener.lost(self.has)

    async def give_up(self, key: Hashable) -> None:
        """Forget what is known of a key that was lost during its sync."""
        self._moved.set()
        for informer in self._partial:
            await informer.release(tuple(informer.table.of_primary(str(key))))
        self._released()

    def _move(self, mask: int, kept: int) -> None:
        self._set(self._ready & mask)
        self._left |= ~mask
        self._kept |= kept
        self._moved.set()

    def _set(self, mask: int) -> None:
        count = SHARES if self.leadership is None else self.leadership.count
        self._ready, self.has = mask, keys_in(mask, count)

    async def _follow(
        self, leadership: Leadership, listener: ShareListener, settled: asyncio.Event
    ) -> None:
        """Take the shares of this process as they come, and forget those that go.

        Changes of keys that aren't synced yet enqueue nothing, so all keys of a share that comes
        are enqueued.
        """
        while True:
            self._moved.clear()
            await listener.lost(self.has)
            come, self._left = leadership.mask & ~self._ready, 0
            if come:
                await self._caught_up()
                for informer in self._partial:
                    await read_values(informer, leadership.keeps)
                come &= ~self._left
            self._set(self._ready | come)
            settled.set()
            if come:
                await listener.gained(keys_in(come, leadership.count))
            if self._kept & ~leadership.mask:
                self._kept = leadership.mask | leadership.busy
                for informer in self._partial:
                    await informer.release()
                self._released()
            if leadership.mask == self._ready:
                await self._moved.wait()

    async def _read_all(self, informer: Informer[Any], listener: ShareListener) -> None:
        """Read every value once somebody reads objects of other processes.

        A function that maps a change to keys may have failed until then, so all keys are enqueued.
        """
        await informer.table.wants_all.wait()
        log.info("keeping the values of all objects", kind=informer.table.kind.name)
        await read_values(informer, every_key)
        await listener.gained(self.has)

    async def _caught_up(self) -> None:
        """Wait until the tables show the writes of other processes, or the loop ends."""
        async with together() as group:
            tasks = (
                group.create_task(catch_up(self._informers)),
                group.create_task(self._closed()),
            )
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()


# ---- steps and writes of a term

# A server can't check the epoch of a write: JetStream compares a write with the last revision of
# one subject of the same stream, and neither it nor a kube-apiserver reads a record elsewhere. So
# this process checks its own term before it sends a write. Compare-and-set rejects a write that was
# sent in time and arrives late, unless the object hasn't changed since.


class TermGuard(WriteGuard):
    """Permits writes while no other process can be leading.

    A write that waits when the term ends, for its turn or before a retry, is cancelled instead of
    sent, in whichever task it runs. The id of the installation may always be written: the first
    process creates it, and it never changes.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def check(self, kind: Kind[Any] | None) -> None:
        if kind is not INSTALLATION:
            self._leadership.check()

    async def send(self, kind: Kind[Any] | None, write: Callable[[], Awaitable[T]]) -> T:
        self.check(kind)
        step = first_step(write())
        if not isinstance(step, Rest):
            return step
        step.may_run = lambda: self._leadership.leads
        return await step

    def may_record(self, key: str) -> bool:
        return self._leadership.has(key)
