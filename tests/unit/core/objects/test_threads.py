"""Blocking functions run in threads; a cancellation waits until a thread has ended."""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator

import pytest

from natsctl.core.sync import THREADS_MAX, Threads


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
async def go() -> AsyncIterator[threading.Event]:
    """An event that threads wait for; it is set at the end of each test."""
    go = threading.Event()
    yield go
    go.set()


async def test_a_function_returns_its_result(threads: Threads) -> None:
    assert await threads.run(lambda: 42) == 42
    assert not threads


async def test_a_function_raises_its_error(threads: Threads) -> None:
    with pytest.raises(ValueError, match="mine"):
        await threads.run(lambda: int("mine"))


async def test_a_function_that_raises_stop_iteration_has_failed(threads: Threads) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.run(lambda: next(iter(())))


async def test_a_cancellation_waits_for_the_thread(threads: Threads, go: threading.Event) -> None:
    started = threading.Event()

    def work() -> None:
        started.set()
        go.wait()

    running = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0)
    started.wait()
    running.cancel()
    await asyncio.sleep(0)
    assert (running.done(), bool(threads)) == (False, True)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not threads


async def test_the_end_of_all_threads_is_waited_for_in_spite_of_a_cancellation(
    threads: Threads, go: threading.Event
) -> None:
    running = asyncio.create_task(threads.run(go.wait))
    await asyncio.sleep(0)
    ending = asyncio.create_task(threads.ended())
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.sleep(0)
    assert not ending.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert await running


async def test_without_threads_the_end_is_not_waited_for(threads: Threads) -> None:
    await threads.ended()


class TestWithoutAFreeThread:
    @pytest.fixture
    async def busy(self, go: threading.Event) -> list["asyncio.Task[bool]"]:
        other_threads = Threads()
        busy = [asyncio.create_task(other_threads.run(go.wait)) for _ in range(THREADS_MAX)]
        await asyncio.sleep(0)
        return busy

    async def test_a_cancelled_function_never_starts(
        self, threads: Threads, go: threading.Event, busy: list["asyncio.Task[bool]"]
    ) -> None:
        ran: list[str] = []
        waiting = asyncio.create_task(threads.run(lambda: ran.append("ran")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        go.set()
        await asyncio.gather(*busy)
        await threads.run(lambda: None)
        assert (waiting.cancelled(), ran) == (True, [])

    async def test_a_cancelled_function_logs_no_error(
        self,
        threads: Threads,
        go: threading.Event,
        busy: list["asyncio.Task[bool]"],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        gc.collect()  # what other tests left behind
        caplog.clear()
        waiting = asyncio.create_task(threads.run(lambda: None))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        del waiting
        go.set()
        await asyncio.gather(*busy)
        await threads.run(lambda: None)
        await asyncio.sleep(0)
        gc.collect()
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
