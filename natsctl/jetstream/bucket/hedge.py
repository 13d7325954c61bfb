"""Repeats a slow request and uses the first answer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

AGAIN_S = 0.5  # the wait for the answer to a read before the read is repeated


async def hedged(attempt: Callable[[], Coroutine[Any, Any, T]], *, every_s: float) -> T:
    """Start an *attempt*, and another one every *every_s* seconds until one ends.

    Returns the result of the first attempt that ends, or raises its error. Cancels the other
    attempts and waits for their end. Every attempt must have a deadline.
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
