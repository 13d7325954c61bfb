"""Whether this process may work now, and until when: it leads, or stands by."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from contextvars import ContextVar

from natsctl.errors import NotLeadingError

log = logging.getLogger(__name__)

Clock = Callable[[], float]

SLOW_S = 5.0  # work that takes longer than this to end is told of

current_leadership: ContextVar["Leadership | None"] = ContextVar("current_leadership", default=None)
"""What the loops of a controller ask; without one they always work."""


def leading() -> bool:
    """Say whether this process leads, where it has to."""
    leadership = current_leadership.get()
    return leadership is None or leadership.leads


async def led() -> None:
    """Wait until this process leads, where it has to."""
    leadership = current_leadership.get()
    if leadership is not None:
        await leadership.begun.wait()


class Leadership:
    """What a process knows of its leading, in terms: each has a beginning, an epoch and an end.

    Whoever holds the lease says so (`begin`, `extend`, `step_down`, `lose`); whoever works asks.

    *Guarantees.* `leads` is false from the very moment in which the lease may pass to another, even
    if nobody could say so: the clock decides. Work of one term has ended before there is `quiet`.

    Args:
        name: whose leading it is, for people.
        clock: seconds, never going back, read anew at each call.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.epoch: int | None = None  # of the term, None on standby
        self.sought = asyncio.Event()  # somebody is ready to work, and waits for a term
        self.begun = asyncio.Event()  # a term has begun, and has not ended
        self._clock = clock
        self._until = -math.inf
        self._over = asyncio.Event()
        self._works: set[asyncio.Task[None]] = set()

    @property
    def leads(self) -> bool:
        """Whether nobody else can be leading now."""
        return self._clock() < self._until

    def check(self) -> None:
        """Raise `NotLeadingError` where somebody else may be leading now."""
        if not self.leads:
            raise NotLeadingError(f"{self.name} is not led by this process: nothing is written")

    def begin(self, epoch: int, until: float) -> None:
        """Begin a term, which is over at *until* by itself."""
        self.epoch, self._until = epoch, until
        self._over = asyncio.Event()
        self.begun.set()

    def extend(self, until: float) -> None:
        """Let the term go on until then.

        Raises `NotLeadingError` where its time is over already: whatever would have gone on since
        was cancelled, so it never comes to life again.
        """
        self.check()
        self._until = until

    def step_down(self) -> None:
        """End the term: what is under way is cancelled, and may write until its time is over."""
        self.epoch = None
        self.begun.clear()
        self._over.set()

    def lose(self) -> None:
        """End the term at once: somebody else has the lease."""
        self._until = -math.inf
        self.step_down()

    async def quiet(self) -> None:
        """Wait until nothing that was begun in a term is under way."""
        while self._works:
            _, late = await asyncio.wait(self._works, timeout=SLOW_S)
            if late:
                log.warning("%s: work of a term that is over has still not ended", self.name)

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
