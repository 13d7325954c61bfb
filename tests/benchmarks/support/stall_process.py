"""Runs a controller, and prints the longest stalls of its event loop.

    python -m tests.benchmarks.support.stall_process URL LISTED LOOP

handles LISTED keys of the bucket, then takes one command per line of its standard input: `measure`,
`resync`, `collect` and `stop`. It prints a `Stretch` after the start and after each command. Keys
whose numbers are LISTED or higher are live keys, and the time of their sync is recorded.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import uvloop

from natsctl import Controller, ControllerRuntime, connect, primary, secondary
from tests.benchmarks.support.dataset import ITEMS, OWNED
from tests.benchmarks.support.process import memory_bytes

BEAT_S = 0.001
VERIFY_S = 12.0


class Stretch(msgspec.Struct, frozen=True):
    """A stretch of time: its longest stalls, and the first sync of each live key in it.

    `wall_s` is the longest time between two turns of the loop, and `cpu_s` the most processor time.
    """

    took_s: float
    wall_s: float
    cpu_s: float
    rss_bytes: int
    peak_bytes: int
    seen: dict[str, float]


class Owning(Controller):
    """Counts the syncs, and records the time of the first sync of each live key."""

    items = primary(ITEMS)
    owned = secondary(OWNED)
    workers = 4
    resync_s = 36_000.0

    def __init__(self, listed: int) -> None:
        self.syncs = 0
        self.seen: dict[str, float] = {}
        self.all_synced = asyncio.Event()
        self._listed = listed

    async def sync_handler(self, key: str) -> float | None:
        self.syncs += 1
        if self.syncs == self._listed:
            self.all_synced.set()
        if int(key.rpartition("-")[2]) >= self._listed:
            self.seen.setdefault(key, time.monotonic())
        return None


class Heartbeat:
    """Measures the longest stalls of the loop: a timer that is late by that much."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._wall = self._cpu = 0.0

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._beat())
        yield
        task.cancel()

    def stretch(self, controller: Owning) -> Stretch:
        """Return the stretch since the last one."""
        seen, controller.seen = controller.seen, {}
        now = time.monotonic()
        stretch = Stretch(
            now - self._began, self._wall, self._cpu, memory_bytes(), memory_bytes("VmHWM"), seen
        )
        self._began, self._wall, self._cpu = now, 0.0, 0.0
        return stretch

    async def _beat(self) -> None:
        while True:
            wall, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(BEAT_S)
            self._wall = max(self._wall, time.monotonic() - wall - BEAT_S)
            self._cpu = max(self._cpu, time.thread_time() - cpu)


def _print(stretch: Stretch) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(stretch) + b"\n")
    sys.stdout.buffer.flush()


async def _idle(runtime: ControllerRuntime) -> None:
    while not runtime.idle:  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0.1)


async def obey(runtime: ControllerRuntime, controller: Owning, heartbeat: Heartbeat) -> None:
    """Do what each line of the standard input commands, and print a stretch after each."""
    commands: dict[str, Callable[[], Awaitable[object]]] = {
        "measure": lambda: _idle(runtime),
        "resync": lambda: _resync(runtime),
        "collect": controller.runtime.collect_garbage,
    }
    await controller.all_synced.wait()
    _print(heartbeat.stretch(controller))
    while True:
        command = (await asyncio.to_thread(sys.stdin.readline)).strip()
        if command not in commands:
            return
        await commands[command]()
        _print(heartbeat.stretch(controller))


async def _resync(runtime: ControllerRuntime) -> None:
    runtime.resync()
    await _idle(runtime)


async def main(url: str, listed: int) -> None:
    controller, heartbeat = Owning(listed), Heartbeat()
    async with heartbeat.beating():
        async with connect(url, verify_s=VERIFY_S) as nats:
            runtime = ControllerRuntime(controller, nats=nats)
            async with asyncio.TaskGroup() as group:
                group.create_task(runtime.run())
                await obey(runtime, controller, heartbeat)
                runtime.stop()
        _print(heartbeat.stretch(controller))


if __name__ == "__main__":
    run = uvloop.run if sys.argv[3] == "uvloop" else asyncio.run
    run(main(sys.argv[1], int(sys.argv[2])))
