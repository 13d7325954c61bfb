"""Repeats a request that is not answered soon, and takes the first answer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

AGAIN_S = 0.5  # how long an answer to a read is awaited before the same is requested again


async def hedged(attempt: Callable[[], Coroutine[Any, Any, T]], *, every_s: float) -> T:
    """Start *attempt*, and one more after every *every_s* seconds while none has ended.

    Returns the result of the first that ends, or raises its error. The others are cancelled and
    have ended when this returns. Every attempt must have a deadline.
    """
    running: set[asyncio.Task[T]] = set()
    try:
        while True:
            running.add(asyncio.create_task(attempt()))
            ended, _ = await asyncio.wait(
                running, timeout=every_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ended:
                return min(ended, key=_failed).result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
