"""Decides whether the loops of a controller may work now, and on which keys.

There are three cases. A process that runs the controller alone may always work on every key. With
leader election, it may work on every key in the terms in which it leads. With sharding, it may work
on its own keys in the terms in which it is a member.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from natsctl.core.coordination.assignment import ALL, NONE, Assignment
from natsctl.errors import NotLeadingError
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

Clock = Callable[[], float]

SLOW_S = 5.0  # work that takes longer to end is logged, again and again
SHOWN_MAX = 5  # keys in such a log line

current_leadership: ContextVar["Leadership | None"] = ContextVar("current_leadership", default=None)
"""The leadership of the controller whose work this task does; None if it runs alone."""


def leading() -> bool:
    """Return whether this process may work now."""
    leadership = current_leadership.get()
    return leadership is None or leadership.leads


def shares_keys() -> bool:
    """Return whether this process shares its keys with others."""
    leadership = current_leadership.get()
    return leadership is not None and leadership.expected is not None


async def led() -> None:
    """Wait until this process may work."""
    leadership = current_leadership.get()
    if leadership is not None:
        await leadership.begun.wait()


class Leadership:
    """The terms of this process: each has a beginning and an end.

    A `Participant` begins, extends and ends terms; the loops of the controller work in them.

    *Guarantees.* `leads` is False from the moment at which another process may do the work, even if
    this process was stopped, because it reads the clock. `quiet` returns after the work of every
    earlier term has ended.

    Args:
        name: the controller's name, for messages.
        clock: seconds that never go back, read at each call.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.epoch: int | None = None  # of the term; None on standby
        self.assignment = NONE  # the keys of this process in the term
        self.expected: Assignment | None = None  # with sharding, see `expects`
        self.sought = asyncio.Event()  # a loop is ready to work and waits for a term
        self.begun = asyncio.Event()  # a term has begun, and has not ended
        self._clock = clock
        self._until = -math.inf
        self._over = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._followers: tuple[Callable[[Assignment], None], ...] = ()
        self._held: Counter[Hashable] = Counter()  # keys that are worked on, and by how many loops
        self._given_back = asyncio.Event()

    @property
    def leads(self) -> bool:
        """True in a term, in which no other process can be doing the work of this one."""
        return self._clock() < self._until

    @property
    def before_terms(self) -> Assignment | None:
        """The expected keys, if no term has begun yet; None otherwise, and without sharding."""
        return self.expected if self.assignment is NONE and not self.begun.is_set() else None

    def check(self) -> None:
        """Raise `NotLeadingError` if another process may be doing this process's work."""
        if not self.leads:
            raise NotLeadingError(f"{self.name} is not led by this process: nothing is written")

    def expects(self, key: Hashable) -> bool:
        """Return whether the key is worked on, assigned, or likely to be assigned in the next term.

        Until the loops of a term follow its assignment, the keys of the last one are expected.
        """
        return key in self._held or self.expected is None or self.expected.has(key)

    def has(self, key: Hashable) -> bool:
        """Return whether the key is assigned to this process, or still worked on here."""
        return self.leads and (key in self._held or self.assignment.has(key))

    # ---- terms begin and end

    def begin(self, epoch: int, until: float, assignment: Assignment = ALL) -> None:
        """Begin a term with these keys, which ends at *until* unless it is extended."""
        self.epoch, self._until = epoch, until
        self._over = asyncio.Event()
        self.move(assignment)
        self.begun.set()

    def extend(self, until: float) -> None:
        """Extend the term to *until*.

        Raises `NotLeadingError` if the term is over already: its work was cancelled, and the term
        does not begin again.
        """
        self.check()
        self._until = until

    def move(self, assignment: Assignment) -> None:
        """Assign these keys to this process, and no others."""
        self.assignment = assignment
        for follower in self._followers:
            self._follow(follower)

    def step_down(self) -> None:
        """End the term: its work is cancelled, and may send writes until its time is over."""
        self.epoch = None
        self.begun.clear()
        self._over.set()
        self.move(NONE)

    def lose(self) -> None:
        """End the term at once, because another process does the work."""
        self._until = -math.inf
        self.step_down()

    async def quiet(self) -> None:
        """Wait until no work of a term runs."""
        while self._running:
            _, late = await asyncio.wait(self._running, timeout=SLOW_S)
            if late:
                log.warning("work of a term that is over has not ended", tasks=len(late))

    async def drained(self, gives_up: Callable[[Hashable], bool]) -> None:
        """Wait until no loop works on a key for which *gives_up* returns True."""
        log_at = asyncio.get_running_loop().time() + SLOW_S
        while held := [key for key in self._held if gives_up(key)]:
            self._given_back.clear()
            try:
                async with asyncio.timeout_at(log_at):
                    await self._given_back.wait()
            except TimeoutError:
                log_at += SLOW_S
                shown = ", ".join(map(str, held[:SHOWN_MAX]))
                log.warning(
                    "keys for another member are still worked on", keys=shown, count=len(held)
                )

    # ---- work in terms

    @contextmanager
    def moving(self, follower: Callable[[Assignment], None]) -> Iterator[None]:
        """Call *follower* with the keys of this process, now and at every change."""
        self._followers = (*self._followers, follower)
        self._follow(follower)
        try:
            yield
        finally:
            self._followers = tuple(
                registered for registered in self._followers if registered is not follower
            )

    def _follow(self, follower: Callable[[Assignment], None]) -> None:
        follower(self.assignment)
        if self.expected is not None and self.assignment is not NONE:
            self.expected = self.assignment

    def hold(self, key: Hashable) -> None:
        """Work on the key: no other member gets it until `release`."""
        self._held[key] += 1

    def release(self, key: Hashable) -> None:
        """End the work on a held key; a key that two loops hold needs two calls."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        self._given_back.set()

    async def lead(
        self,
        work: Callable[[], Coroutine[None, None, None]],
        ended: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        """Run *work* in every term until *ended* returns.

        Running work is cancelled when its term is over. After *ended* has returned, running work is
        not cancelled but awaited. Raises what *work* raises.
        """
        end = asyncio.create_task(ended())
        self.sought.set()
        try:
            while await _happens_first(self.begun, end):
                over = self._over
                await self._run(work, over)
                await _happens_first(over, end)
        finally:
            end.cancel()

    async def _run(
        self, work: Callable[[], Coroutine[None, None, None]], over: asyncio.Event
    ) -> None:
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


async def _happens_first(event: asyncio.Event, task: "asyncio.Task[None]") -> bool:
    """Wait for either; return whether the task still runs."""
    wait = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((wait, task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        wait.cancel()
    return not task.done()
