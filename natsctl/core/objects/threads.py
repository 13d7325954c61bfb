"""Runs blocking functions in threads, and tracks those that have not ended."""

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
    """The threads of one call of a handler that have not ended."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: dict[asyncio.Future[Any], _Job[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function in a thread, and return or raise its result.

        A thread cannot be stopped, so a cancellation takes effect when the thread has ended. If the
        function is still waiting for a free thread, it never starts, and the cancellation takes
        effect at once.
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
                if job.prevent():
                    del self._jobs[future]
                    future.remove_done_callback(self._jobs.pop)
                    future.cancel()
                    raise
                cancelled = error
        if cancelled is not None:
            future.exception()  # mark it as retrieved
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
        """Return the frames of the user's code that the threads run; empty if there are none."""
        stacks = [user_frames_text(thread_frames(job.ident)) for job in self._jobs.values()]
        return "\n".join(filter(None, stacks))


class _Job(Generic[T]):
    """A function that runs in a thread, or waits for one."""

    __slots__ = ("_context", "_function", "_lock", "_prevented", "ident")

    def __init__(self, function: Callable[[], T]) -> None:
        self.ident = 0  # the thread that runs it; 0 until it starts
        self._function = function
        self._context = copy_context()
        self._lock = threading.Lock()
        self._prevented = False

    def prevent(self) -> bool:
        """Return True if the function has not started; then it never starts."""
        with self._lock:
            self._prevented = not self.ident
        return self._prevented

    def __call__(self) -> T:
        with self._lock:
            if self._prevented:
                raise asyncio.CancelledError  # the caller is gone
            self.ident = threading.get_ident()
        try:
            return self._context.run(self._function)
        except StopIteration as error:  # a future cannot hold it
            raise RuntimeError("the function raised StopIteration") from error
