"""Runs functions that block in threads, and knows which of them have not ended."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from natsctl.telemetry.frames import thread_frames, user_frames_text

T = TypeVar("T")

THREADS_MAX = 64  # in one process

_pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="natsctl-blocking")


class Threads:
    """The threads that one call of a handler has begun, and that have not ended."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: dict[asyncio.Future[Any], _Job[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function in a thread, and return or raise its result.

        A thread cannot be stopped, so a cancellation takes effect when the thread has ended. If the
        function still waits for a free thread, it is not begun, and the cancellation takes effect
        at once.
        """
        job = _Job(function)
        future = asyncio.get_running_loop().run_in_executor(_pool, job)
        self._jobs[future] = job
        future.add_done_callback(self._jobs.pop)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                if job.give_up():
                    del self._jobs[future]
                    future.remove_done_callback(self._jobs.pop)
                    raise
                cancelled = error
        if cancelled is not None:
            future.exception()  # nobody is left to hear of it
            raise cancelled
        return future.result()

    async def ended(self) -> None:
        """Wait until every thread has ended; a cancellation takes effect then."""
        cancelled: asyncio.CancelledError | None = None
        while self._jobs:
            try:
                await asyncio.wait(list(self._jobs))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def stack(self) -> str:
        """Return the frames of the user's code that the threads are in, empty if there are none."""
        stacks = [user_frames_text(thread_frames(job.ident)) for job in self._jobs.values()]
        return "\n".join(filter(None, stacks))


class _Job(Generic[T]):
    """A function on its way to a thread."""

    __slots__ = ("_context", "_function", "_given_up", "_lock", "ident")

    def __init__(self, function: Callable[[], T]) -> None:
        self.ident = 0  # of the thread that runs it
        self._function = function
        self._context = copy_context()
        self._lock = threading.Lock()
        self._given_up = False

    def give_up(self) -> bool:
        """Return whether the function was not begun; then it never is."""
        with self._lock:
            self._given_up = not self.ident
        return self._given_up

    def __call__(self) -> T:
        with self._lock:
            if self._given_up:
                raise asyncio.CancelledError  # nobody waits for it
            self.ident = threading.get_ident()
        try:
            return self._context.run(self._function)
        except StopIteration as error:  # a future cannot hold it
            raise RuntimeError("the function raised StopIteration") from error
