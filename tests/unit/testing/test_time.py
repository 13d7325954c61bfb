"""The virtual time loop runs timers in order without waiting."""

import asyncio
import functools
import os
import selectors
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE
from typing import Any

import pytest

from natsctl.testing import VirtualTimeLoop, in_virtual_time


async def test_a_year_takes_no_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    def select(self: selectors.DefaultSelector, timeout: float | None = None) -> list[Any]:
        waits.append(timeout)
        return original(self, timeout)

    original = selectors.DefaultSelector.select
    monkeypatch.setattr(selectors.DefaultSelector, "select", select)
    await asyncio.sleep(365 * 24 * 3600)
    assert asyncio.get_running_loop().time() == 365 * 24 * 3600
    assert set(waits) == {0}


async def test_tasks_that_are_always_ready_hide_no_signal_and_no_socket() -> None:
    loop, seen = asyncio.get_running_loop(), set[str]()
    assert loop.time() == 0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.add_signal_handler(signal.SIGUSR1, seen.add, "signal")
        loop.add_reader(ours, seen.add, "socket")
        os.kill(os.getpid(), signal.SIGUSR1)
        theirs.send(b"1")
        for _ in range(100):
            await asyncio.sleep(0)
        loop.remove_reader(ours)
        loop.remove_signal_handler(signal.SIGUSR1)
    assert seen == {"signal", "socket"}
    assert loop.time() == 0


async def test_a_jump_simulates_a_blocked_loop() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    sleeper = asyncio.create_task(asyncio.sleep(10))
    await asyncio.sleep(1)
    loop.jump(60)
    await sleeper
    assert loop.time() == 61


def test_a_wait_without_a_timer_is_an_error() -> None:
    @in_virtual_time
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits for something that nothing will do"):
        wait()


def test_in_virtual_time_makes_an_async_test_a_plain_function() -> None:
    @in_virtual_time
    async def sleeps(seconds: float, *, wake_times: list[float]) -> None:
        await asyncio.sleep(seconds)
        wake_times.append(asyncio.get_running_loop().time())

    woken: list[float] = []
    sleeps(3600.0, wake_times=woken)
    assert woken == [3600.0]
    assert sleeps.__name__ == "sleeps"


async def test_virtual_time_does_not_advance_while_a_thread_or_a_subprocess_works() -> None:
    loop, later = asyncio.get_running_loop(), list[float]()
    loop.call_later(1, later.append, 1.0)
    for work in (asyncio.to_thread, functools.partial(loop.run_in_executor, None)):
        await work(time.sleep, 0.02)
    code = "import time; time.sleep(0.05); print('done')"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    async with asyncio.timeout(0.5):
        output, _ = await child.communicate()
    assert (output, child.returncode) == (b"done\n", 0)
    assert (loop.time(), later) == (0, [])
    await asyncio.sleep(1)
    assert later == [1.0]
