"""Asks the server a question at intervals, while its caller does other work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Periodic(Generic[T]):
    """A question that is asked every *every_s* seconds, the first time after one interval.

    The interval starts when an answer is taken. *on_answer* is called when an answer is there. A
    close cancels the question under way.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[T]], on_answer: Callable[[], None], *, every_s: float
    ) -> None:
        self._ask = ask
        self._on_answer = on_answer
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + every_s
        self._asking: asyncio.Task[T] | None = None

    def hasten(self) -> None:
        """Ask at the next `answer`, unless the question is under way."""
        self._due_at = self._loop.time()

    def answer(self) -> T | None:
        """Return an answer once, None before it is there; raises the error of the question.

        Asks the question if it is due.
        """
        asking = self._asking
        if asking is None:
            if self._loop.time() >= self._due_at:
                self._asking = self._loop.create_task(self._wait(), name="question")
                self._asking.add_done_callback(self._announce_answer)
            return None
        if not asking.done():
            return None
        self._asking, self._due_at = None, self._loop.time() + self._every_s
        return asking.result()

    def close(self) -> None:
        """Cancel the question under way."""
        if self._asking is not None:
            self._asking.cancel()

    async def _wait(self) -> T:
        return await self._ask()

    def _announce_answer(self, asking: asyncio.Task[T]) -> None:
        if not asking.cancelled():
            asking.exception()  # mark it as retrieved, because nobody may look at it
            self._on_answer()
