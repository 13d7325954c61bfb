"""Runs an awaitable until it waits for the first time, and the rest of it later.

Most syncs never wait, and the machinery of a wait costs more than such a sync.
"""

from collections.abc import Awaitable, Coroutine, Generator
from functools import partial
from types import CoroutineType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Rest(Generic[T]):
    """The rest of a coroutine that waits for *future*; await it in the task of the first step."""

    __slots__ = ("_coroutine", "_future")

    def __init__(self, coroutine: Coroutine[Any, Any, T], future: object) -> None:
        self._coroutine = coroutine
        self._future = future

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the other steps, as `await` does."""
        future = self._future
        while True:
            try:
                value = yield future
            except BaseException as error:  # noqa: BLE001 - the coroutine handles it
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, value)
            try:
                future = step()
            except StopIteration as end:
                result: T = end.value
                return result


def first_step(work: Awaitable[T]) -> T | Rest[T]:
    """Run the awaitable until it waits or ends; return the rest of it, or its result."""
    coroutine = work if type(work) is CoroutineType else _awaited(work)
    try:
        future = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return Rest(coroutine, future)


async def _awaited(work: Awaitable[T]) -> T:
    return await work
