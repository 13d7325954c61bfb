"""Waits in real or virtual time until a condition holds."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

PAUSE_MAX_S = 1.0
PAUSE_FACTOR = 9  # a wait takes at most a tenth of a processor


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]], *, within_s: float = ..., every_s: float = ...
) -> T: ...
@overload
async def eventually(
    condition: Callable[[], T], *, within_s: float = ..., every_s: float = ...
) -> T: ...
async def eventually(
    condition: Callable[[], Any], *, within_s: float = 60.0, every_s: float = 0.01
) -> Any:
    """Wait until *condition* returns a true value, and return that value.

    A condition that takes longer than *every_s* is evaluated less often, so that the wait leaves
    the processor to the work that it waits for. An `AssertionError` raised by *condition* counts as
    false; after *within_s* seconds the last one is raised.
    """
    failure: AssertionError | None = None
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    while (began := clock()) < deadline:
        try:
            value = condition()
            result = await value if inspect.isawaitable(value) else value
        except AssertionError as error:
            failure = error
        else:
            if result:
                return result
        took_s = clock() - began
        await asyncio.sleep(max(every_s, min(PAUSE_FACTOR * took_s, PAUSE_MAX_S)))
    raise failure or AssertionError(f"not within {within_s:g} s: {inspect.getsource(condition)}")
