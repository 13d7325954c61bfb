"""Letting a coroutine take its next step only while it may."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Steps(Generic[T]):
    """Awaits something, and asks *may* before its first step and whenever it would go on.

    Where it may not, it is cancelled there and then: whatever it waited for, and however long this
    process was stopped meanwhile, not one more line of it runs but its `except` and `finally`.
    What it has other tasks do for it is theirs.
    """

    def __init__(self, awaitable: Awaitable[T], may: Callable[[], bool]) -> None:
        self._awaitable = awaitable
        self._may = may

    def __await__(self) -> Generator[Any, Any, T]:
        """Go through the steps."""
        steps: Any = self._awaitable.__await__()
        step = partial(steps.send, None)
        while True:
            if not self._may():
                step = partial(steps.throw, asyncio.CancelledError())
            try:
                waits_for = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                came = yield waits_for
            except BaseException as error:  # noqa: BLE001 - whatever is thrown in is its to take
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, came)
