"""Virtual time: an event loop that jumps to its next timer instead of waiting for it."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec

P = ParamSpec("P")

RESOLUTION_S = 1e-7  # fits thirty years into a float


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs an hour of sleeping in no time, in the order in which a real loop would.

    `loop.time()` starts at 0. Only timers and tasks of this loop are virtual: real sockets and
    threads are not waited for. Raises `RuntimeError` when every task waits for something that
    nothing in the loop will do.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jump(self))
        self._clock_resolution = RESOLUTION_S  # so that a timer is due although floats are rounded

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds


class _Jump(selectors.BaseSelector):
    """Where a selector would wait for *timeout* seconds, moves the clock instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._real = selectors.DefaultSelector()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for something that nothing will do")
        if timeout > 0:
            self._loop.jump(timeout)
        return self._real.select(0)

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
