"""Virtual time: an event loop that jumps to its next timer instead of waiting for it."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec

P = ParamSpec("P")

REAL_WORK_S = 60.0  # of real time, that a thread or a process may take
RESOLUTION_S = 1e-7  # fits thirty years into a float


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer.

    An hour of sleeping takes no real time, and timers fire in the order of a real loop.
    `loop.time()` starts at 0. The clock stands still while a function runs in a thread
    (`self.blocking`, `asyncio.to_thread`, `run_in_executor`) and while a subprocess runs that
    the loop started (`asyncio.create_subprocess_exec`): the loop waits for them in real time, at
    most `REAL_WORK_S` seconds. It doesn't wait for other sockets.

    Raises `RuntimeError` if every task waits for something that nothing in the loop will do.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._threads = 0
        self._processes: list[asyncio.SubprocessTransport] = []
        self._pool = ThreadPoolExecutor(thread_name_prefix="natsctl-virtual")
        super().__init__(_Jump(self))
        self._clock_resolution = RESOLUTION_S  # a timer is due although floats are rounded

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds

    @property
    def waits_for_real_work(self) -> bool:
        """True while a function runs in a thread, or a subprocess runs."""
        self._processes = [child for child in self._processes if child.get_returncode() is None]
        return self._threads > 0 or bool(self._processes)

    def run_in_executor(  # type: ignore[override]  # typeshed's generic form is for callers
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run the function in a thread; the clock stands still until the function returns."""
        work = (executor or self._pool).submit(func, *args)
        future = asyncio.wrap_future(work, loop=self)
        self._threads += 1

        def ended() -> None:
            self._threads -= 1

        def report(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self.call_soon_threadsafe(ended)

        work.add_done_callback(report)  # runs after the callback of the future
        return future

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        """Start a subprocess; the clock stands still until it ends."""
        return self._started(await super().subprocess_exec(*args, **options))

    async def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        return self._started(await super().subprocess_shell(*args, **options))

    def close(self) -> None:
        super().close()
        self._pool.shutdown(wait=False)

    def _started(self, child: tuple[Any, Any]) -> tuple[Any, Any]:
        self._processes.append(child[0])
        return child


class _Jump(selectors.DefaultSelector):
    """A selector that moves the clock instead of waiting for *timeout* seconds."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self._loop.waits_for_real_work:
            ready = super().select(REAL_WORK_S)
            if not ready:
                raise RuntimeError(
                    f"a thread or a subprocess has run for {REAL_WORK_S:g} s, and virtual time "
                    "stands still until it ends: does it wait for something that happens later in "
                    "virtual time?"
                )
            return ready
        if timeout is None:
            raise RuntimeError("every task waits for something that nothing will do")
        self._loop.jump(max(timeout, 0))
        return []


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Turn an async test into a plain one that runs in an event loop with virtual time.

    Any test runner can run the result; you need no plugin.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
