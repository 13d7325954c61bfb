"""Whether this process may work now, on which keys, and until when.

There are three cases. Alone, it always may, on every key. Where a leader is elected, it may in the
terms in which it leads, on every key. Where several share the keys, it may in the terms in which it
is a member, on those keys that are its own by then.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from natsctl.core.coordination.assignment import ALL, NONE, Assignment
from natsctl.errors import NotLeadingError

log = logging.getLogger(__name__)

Clock = Callable[[], float]

SLOW_S = 5.0  # work that takes longer than this to end is told of
SHOWN_MAX = 5  # keys that are named then

current_leadership: ContextVar["Leadership | None"] = ContextVar("current_leadership", default=None)
"""What the loops of a controller ask; without one they always work."""


def leading() -> bool:
    """Say whether this process may work, as far as others are concerned."""
    leadership = current_leadership.get()
    return leadership is None or leadership.leads


async def led() -> None:
    """Wait until this process may work."""
    leadership = current_leadership.get()
    if leadership is not None:
        await leadership.begun.wait()


class Leadership:
    """What a process knows of its part in the work, in terms: each has a beginning and an end.

    Whoever takes part in an election or a group says so (`begin`, `extend`, `move`, `step_down`,
    `lose`); whoever works asks.

    *Guarantees.* `leads` is false from the very moment in which another process may do the work,
    even if nobody could say so: the clock decides. Work of one term has ended before there is
    `quiet`.

    Args:
        name: whose work it is, for people.
        clock: seconds, never going back, read anew at each call.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.epoch: int | None = None  # of the term, None on standby
        self.assignment = NONE  # the keys that are this process's own in the term
        self.sought = asyncio.Event()  # somebody is ready to work, and waits for a term
        self.begun = asyncio.Event()  # a term has begun, and has not ended
        self._clock = clock
        self._until = -math.inf
        self._over = asyncio.Event()
        self._works: set[asyncio.Task[None]] = set()
        self._movers: tuple[Callable[[Assignment], None], ...] = ()
        self._at_work: Counter[Hashable] = Counter()
        self._given_back = asyncio.Event()

    @property
    def leads(self) -> bool:
        """Whether this is a term, in which nobody else can be doing this process's work."""
        return self._clock() < self._until

    def check(self) -> None:
        """Raise `NotLeadingError` where somebody else may be doing this process's work."""
        if not self.leads:
            raise NotLeadingError(f"{self.name} is not led by this process: nothing is written")

    def has(self, key: Hashable) -> bool:
        """Whether the key is this process's own now, or was and is still worked on here."""
        return self.leads and (key in self._at_work or self.assignment.has(key))

    # ---- what is said

    def begin(self, epoch: int, until: float, assignment: Assignment = ALL) -> None:
        """Begin a term with these keys, which is over at *until* by itself."""
        self.epoch, self._until = epoch, until
        self._over = asyncio.Event()
        self.move(assignment)
        self.begun.set()

    def extend(self, until: float) -> None:
        """Let the term go on until then.

        Raises `NotLeadingError` where its time is over already: whatever would have gone on since
        was cancelled, so it never comes to life again.
        """
        self.check()
        self._until = until

    def move(self, assignment: Assignment) -> None:
        """Let these keys be this process's own from now on, and no other."""
        self.assignment = assignment
        for mover in self._movers:
            mover(assignment)

    def step_down(self) -> None:
        """End the term: what is under way is cancelled, and may write until its time is over."""
        self.epoch = None
        self.begun.clear()
        self._over.set()
        self.move(NONE)

    def lose(self) -> None:
        """End the term at once: somebody else does the work."""
        self._until = -math.inf
        self.step_down()

    async def quiet(self) -> None:
        """Wait until nothing that was begun in a term is under way."""
        while self._works:
            _, late = await asyncio.wait(self._works, timeout=SLOW_S)
            if late:
                log.warning("%s: work of a term that is over has still not ended", self.name)

    async def without(self, goes: Callable[[Hashable], bool]) -> None:
        """Wait until nobody here is at a key that *goes*."""
        told = asyncio.get_running_loop().time() + SLOW_S
        while held := [key for key in self._at_work if goes(key)]:
            self._given_back.clear()
            try:
                async with asyncio.timeout_at(told):
                    await self._given_back.wait()
            except TimeoutError:
                told += SLOW_S
                some = ", ".join(map(str, held[:SHOWN_MAX]))
                log.warning("%s: %d keys are still worked on: %s", self.name, len(held), some)

    # ---- what is asked

    @contextmanager
    def moving(self, mover: Callable[[Assignment], None]) -> Iterator[None]:
        """Tell *mover* which keys are this process's own, now and whenever that changes."""
        self._movers = (*self._movers, mover)
        mover(self.assignment)
        try:
            yield
        finally:
            self._movers = tuple(each for each in self._movers if each is not mover)

    @contextmanager
    def at(self, key: Hashable) -> Iterator[None]:
        """Be at work on the key; it is not given to others meanwhile."""
        self._at_work[key] += 1
        try:
            yield
        finally:
            self._at_work[key] -= 1
            if not self._at_work[key]:
                del self._at_work[key]
            self._given_back.set()

    async def lead(
        self,
        work: Callable[[], Coroutine[None, None, None]],
        ended: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        """Run *work* in every term, from its beginning to its end, until *ended* returns.

        Work under way is cancelled when its term is over; when *ended* has returned it is not, but
        waited for. Raises what *work* raises.
        """
        end = asyncio.create_task(ended())
        self.sought.set()
        try:
            while await _first(self.begun, end):
                over = self._over
                await self._run(work, over)
                await _first(over, end)
        finally:
            end.cancel()

    async def _run(
        self, work: Callable[[], Coroutine[None, None, None]], over: asyncio.Event
    ) -> None:
        task = asyncio.create_task(work(), name=f"a term of {self.name}")
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        try:
            await _first(over, task)
        finally:
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.result()


async def _first(event: asyncio.Event, task: "asyncio.Task[None]") -> bool:
    """Wait for either; say whether the task is still under way."""
    wait = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((wait, task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        wait.cancel()
    return not task.done()
