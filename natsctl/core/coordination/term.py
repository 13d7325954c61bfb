"""Decides whether the loops of a controller may work now, and on which keys.

A process that runs a controller alone may always work on every key. With leader election or
sharding it works in terms, and in each on its own *shares* of the keys. With leader election there
is one share, so that one process has every key.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from zlib import crc32

from natsctl.core.installation import INSTALLATION
from natsctl.core.task_group import Rest, first_step
from natsctl.errors import NotLeadingError
from natsctl.model.kinds import Kind
from natsctl.model.store import WriteGuard
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")

Clock = Callable[[], float]
Work = Callable[[], Coroutine[None, None, None]]
KeyFilter = Callable[[Any], bool]  # returns whether a key is selected

SHARES = 256
SLOW_S = 5.0  # work that takes longer to end is logged, again and again


def keys_in(mask: int, count: int = SHARES) -> KeyFilter:
    """Return a filter of the keys in these of *count* shares; it takes about 0.15 µs."""
    if mask == (1 << count) - 1:
        return every_key
    selected = _flags(mask)
    return lambda key: selected[crc32(key.encode()) & 255]


def every_key(_key: object) -> bool:
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
        self.name, self.count, self.shared = name, count, count > 1
        self.epoch: int | None = None  # of the term; None on standby
        self.mask = 0  # the shares of this process in the term
        self.kept = 0  # those whose values are kept: of the last term
        self.sought = asyncio.Event()  # a loop is ready to work and waits for a term
        self.begun = asyncio.Event()  # a term has begun, and has not ended
        self.unreadable: Callable[[str], None] = lambda _key: None
        """Called with a key whose object only a newer version of the controller can read."""
        self.given_back: Callable[[], None] = lambda: None
        """Called when the last sync of a share that is given up has ended."""
        self.running: set[asyncio.Task[None]] = set()  # the work of terms that has not ended
        self._clock, self._until = clock, -math.inf
        self._over = asyncio.Event()
        self._followers: tuple[Callable[[int], None], ...] = ()
        self._syncs = [0] * SHARES  # of each share, those that run now
        self._kept, self._has = _flags(0), keys_in(0)

    @property
    def leads(self) -> bool:
        """True in a term, in which no other process can be doing the work of this one."""
        return self._clock() < self._until

    def keeps(self, key: str) -> bool:
        """Return whether the values of the key's objects are kept: it is ours, or still synced.

        Before the first term none is, because memory that was used once rarely returns.
        """
        return self._kept[crc32(key.encode()) & 255]

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
            self.kept, self._kept = mask, _flags(mask | self.busy)
        for follower in self._followers:
            follower(mask)

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

    async def quiet(self) -> None:
        """Wait until no work of a term runs."""
        while self.running:
            _, late = await asyncio.wait(self.running, timeout=SLOW_S)
            if late:
                log.warning("work of a term that is over has not ended", tasks=len(late))

    # ---- work in terms

    @contextmanager
    def moving(self, follower: Callable[[int], None]) -> Iterator[None]:
        """Call *follower* with `mask`, now and at every change."""
        self._followers = (*self._followers, follower)
        follower(self.mask)
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
            self._kept[share] = bool(self.kept >> share & 1)
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
                self.running.add(task)
                task.add_done_callback(self.running.discard)
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
        if kind is not INSTALLATION and not self._leadership.leads:
            name = self._leadership.name
            raise NotLeadingError(f"{name} is not led by this process: nothing is written")

    async def send(self, kind: Kind[Any] | None, write: Callable[[], Awaitable[T]]) -> T:
        self.check(kind)
        step = first_step(write())
        if not isinstance(step, Rest):
            return step
        step.may_run = lambda: self._leadership.leads
        return await step

    def may_record(self, key: str) -> bool:
        return self._leadership.has(key)
