"""How often a page of metrics is made, however many ask for it."""

import asyncio
from collections.abc import Awaitable, Callable

Page = tuple[bytes, str]
"""What is shown, and its content type."""

MAKE_S = 5.0  # how long making a page may take
REST = 9.0  # times as long as a page took, until the next is made
REST_MAX_S = 0.25


class Scrapes:
    """Makes pages one at a time, for a tenth of the time at most: syncs are what counts.

    *Guarantees.* Whoever asks gets a page that was begun after it asked. All who wait for the same
    page get one.

    Args:
        make: makes the page for an Accept header.
        group: whose tasks make the pages.
    """

    def __init__(self, make: Callable[[str], Awaitable[Page]], group: asyncio.TaskGroup) -> None:
        self._make = make
        self._group = group
        self._turn = asyncio.Lock()
        self._due: dict[str, asyncio.Task[Page | Exception]] = {}  # not begun yet
        self._tasks: set[asyncio.Task[Page | Exception]] = set()
        self._rested = 0.0

    async def page(self, accept: str) -> Page:
        """Return the page; raises what making it raises."""
        task = self._due.get(accept)
        if task is None:
            task = self._due[accept] = self._group.create_task(self._next(accept), name="metrics")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        found = await asyncio.shield(task)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """Make no more pages, nor any to its end."""
        for task in self._tasks:
            task.cancel()

    async def _next(self, accept: str) -> Page | Exception:
        clock = asyncio.get_running_loop().time
        async with self._turn:
            await asyncio.sleep(max(0.0, self._rested - clock()))
            del self._due[accept]  # who asks from now on wants to know what is from now on
            begun = clock()
            try:
                async with asyncio.timeout(MAKE_S):
                    return await self._make(accept)
            except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
                return error
            finally:
                self._rested = clock() + min(REST_MAX_S, REST * (clock() - begun))
