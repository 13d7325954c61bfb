"""Limits how often a page of metrics is made, regardless of the number of clients."""

import asyncio
from collections.abc import Awaitable, Callable

Page = tuple[bytes, str]
"""The body of the page and its content type."""

MAKE_S = 5.0  # the deadline for making a page
PAUSE_FACTOR = 9.0  # the pause after a page, relative to the time it took
PAUSE_MAX_S = 0.25


class Scrapes:
    """Makes one page at a time, and pauses after each, so that scrapes do not slow down syncs.

    A pause is nine times as long as it took to make the page, but at most `PAUSE_MAX_S`.

    *Guarantees.* A page shows the state after its request arrived. Requests that wait for the same
    page share it.

    Args:
        make: makes the page for an Accept header.
        group: the task group of the tasks that make pages.
    """

    def __init__(self, make: Callable[[str], Awaitable[Page]], group: asyncio.TaskGroup) -> None:
        self._make = make
        self._group = group
        self._lock = asyncio.Lock()
        self._waiting: dict[str, asyncio.Task[Page | Exception]] = {}  # by Accept header
        self._tasks: set[asyncio.Task[Page | Exception]] = set()
        self._pause_until = 0.0

    async def page(self, accept: str) -> Page:
        """Return a page; raises the error of making it."""
        task = self._waiting.get(accept)
        if task is None:
            task = self._group.create_task(self._next(accept), name="metrics")
            self._waiting[accept] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        page = await asyncio.shield(task)
        if isinstance(page, Exception):
            raise page
        return page

    def close(self) -> None:
        """Cancel all pages that are being made or waited for."""
        for task in self._tasks:
            task.cancel()

    async def _next(self, accept: str) -> Page | Exception:
        clock = asyncio.get_running_loop().time
        async with self._lock:
            await asyncio.sleep(max(0.0, self._pause_until - clock()))
            del self._waiting[accept]  # later requests get a later page
            started = clock()
            try:
                async with asyncio.timeout(MAKE_S):
                    return await self._make(accept)
            except Exception as error:  # noqa: BLE001 - raised in `page`
                return error
            finally:
                pause_s = min(PAUSE_MAX_S, PAUSE_FACTOR * (clock() - started))
                self._pause_until = clock() + pause_s
