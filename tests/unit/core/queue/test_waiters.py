"""Tests which tasks are woken, and in which order."""

import asyncio
from typing import Self

from natsctl.core.queue.waiters import Relay, Waiters


class Crew:
    """Three tasks that wait for work; each does up to *batch* items when it is woken."""

    def __init__(self, batch: int) -> None:
        self.items = 0
        self.did: list[int] = []  # how many items a task did, for each time that it was woken
        self.relay = Relay(lambda: self.items)
        self._batch = batch

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(3)]
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            await self.relay.wait()
            count = min(self._batch, self.items)
            self.items -= count
            self.did.append(count)

    async def add(self, count: int) -> None:
        """Add items, each of which asks for a task, and wait until all tasks wait again."""
        for _ in range(count):
            self.items += 1
            self.relay.wake()
        for _ in range(3 * count):
            await asyncio.sleep(0)


async def test_a_task_that_does_all_the_work_wakes_no_other_task() -> None:
    async with Crew(batch=5) as crew:
        await crew.add(5)
    assert crew.did == [5]


async def test_tasks_are_woken_as_long_as_work_is_left() -> None:
    async with Crew(batch=2) as crew:
        await crew.add(5)
    assert crew.did == [2, 2, 1]


async def test_a_task_is_woken_again_for_later_work() -> None:
    async with Crew(batch=5) as crew:
        await crew.add(2)
        await crew.add(1)
    assert crew.did == [2, 1]


async def waiting(waiters: Waiters, count: int) -> list[asyncio.Task[None]]:
    """Return tasks that wait."""
    tasks = [asyncio.create_task(waiters.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_task_that_is_cancelled_after_it_was_woken_wakes_the_next_one() -> None:
    waiters = Waiters()
    first, second = await waiting(waiters, 2)
    waiters.wake_one()
    first.cancel()
    await asyncio.wait((first,))
    await asyncio.sleep(0)
    assert second.done()


async def test_a_task_that_is_cancelled_while_it_waits_wakes_no_other_task() -> None:
    waiters = Waiters()
    first, second = await waiting(waiters, 2)
    first.cancel()
    await asyncio.wait((first,))
    await asyncio.sleep(0)
    assert not second.done()
    second.cancel()


async def test_a_task_that_is_cancelled_while_it_waits_is_forgotten() -> None:
    waiters = Waiters()
    (task,) = await waiting(waiters, 1)
    task.cancel()
    await asyncio.wait((task,))
    assert not waiters
