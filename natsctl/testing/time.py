"""Virtual time: an event loop that jumps to its next timer instead of waiting for it."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec

P = ParamSpec("P")

THREAD_S = 60.0  # of real time, that a thread may work while virtual time stands still
RESOLUTION_S = 1e-7  # fits thirty years into a float


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs an hour of sleeping in no time, in the order in which a real loop would.

    `loop.time()` starts at 0. Only timers and tasks of this loop are virtual. While a function
    runs in a thread (`self.blocking`, `asyncio.to_thread`, `run_in_executor`), the clock stands
    still and the loop waits for the thread. Real sockets are not waited for. Raises `RuntimeError`
    if every task waits for something that nothing in the loop will do.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._threads = 0  # functions that run in a thread, or are about to
        self._pool = ThreadPoolExecutor(thread_name_prefix="natsctl-virtual")
        super().__init__(_Jump(self))
        self._clock_resolution = RESOLUTION_S  # so that a timer is due although floats are rounded

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds

    @property
    def waits_for_threads(self) -> bool:
        """True while a function runs in a thread."""
        return self._threads > 0

    def run_in_executor(  # type: ignore[override]  # the type of the base is for its callers
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run the function in a thread, and let no virtual time pass until it has ended."""
        work = (executor or self._pool).submit(func, *args)
        future = asyncio.wrap_future(work, loop=self)
        self._threads += 1
        work.add_done_callback(self._thread_ends)  # after the future has learnt of it
        return future

    def close(self) -> None:
        """Close the loop."""
        super().close()
        self._pool.shutdown(wait=False)

    def _thread_ends(self, _: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.call_soon_threadsafe(self._thread_ended)

    def _thread_ended(self) -> None:
        self._threads -= 1


class _Jump(selectors.BaseSelector):
    """Where a selector would wait for *timeout* seconds, moves the clock instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._real = selectors.DefaultSelector()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.waits_for_threads and timeout != 0:
            return self._wait_for_threads()
        if timeout is None:
            raise RuntimeError("every task waits for something that nothing will do")
        if timeout > 0:
            self._loop.jump(timeout)
        return self._real.select(0)

    def _wait_for_threads(self) -> list[tuple[selectors.SelectorKey, int]]:
        woken = self._real.select(THREAD_S)
        if not woken:
            raise RuntimeError(
                f"a thread has worked for {THREAD_S:g} s, and virtual time stands still until it "
                "has ended: does it wait for something that happens later in virtual time?"
            )
        return woken

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a plain test of an async one, that runs in an event loop with virtual time.

    Any test runner can run it; it needs no plugin.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
