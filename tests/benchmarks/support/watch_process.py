"""Watches the bucket with natsctl or with nats-py, and prints the times of the changes.

    python -m tests.benchmarks.support.watch_process SIDE URL LISTED THEN LOOP

handles LISTED keys, prints a `Start`, receives THEN more changes, prints an `End`, and ends when
its standard input is closed.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import nats
import uvloop

from natsctl import Controller, ControllerRuntime, connect, primary
from tests.benchmarks.support.dataset import BUCKET, ITEMS, Item

SETTLE_S = 0.5  # before memory is measured and changes begin

Seen = Callable[[str], None]


class Start(msgspec.Struct, frozen=True):
    """The time to list and handle the bucket, and the memory afterwards."""

    wall_s: float
    cpu_s: float
    rss_bytes: int
    peak_bytes: int


class End(msgspec.Struct, frozen=True):
    """The keys that changed after the start, each with its monotonic time."""

    seen: list[tuple[str, float]]
    cpu_s: float


class Items(Controller):
    """Reports each key to `seen`."""

    items = primary(ITEMS)

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    async def sync_handler(self, key: str) -> float | None:
        self._seen(key)
        return None


async def natsctl(url: str, seen: Seen) -> None:
    async with connect(url) as connection:
        await ControllerRuntime(Items(seen), nats=connection).run()


async def natspy(url: str, seen: Seen) -> None:
    client = await nats.connect(url)
    bucket = await client.jetstream().key_value(BUCKET)
    async for entry in await bucket.watchall():
        if entry is not None:
            seen(entry.key)


async def natspy_holding(url: str, seen: Seen) -> None:
    """Keep the decoded objects, as a program that acts on them does."""
    client = await nats.connect(url)
    bucket = await client.jetstream().key_value(BUCKET)
    decoder = msgspec.json.Decoder(Item)
    cache: dict[str, tuple[int, Item]] = {}
    async for entry in await bucket.watchall():
        if entry is not None:
            cache[entry.key] = (entry.revision, decoder.decode(entry.value))
            seen(entry.key)


async def nothing(_url: str, _seen: Seen) -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


SIDES: dict[str, Callable[[str, Seen], Awaitable[None]]] = {
    "natsctl": natsctl,
    "nats-py": natspy,
    "nats-py, holding": natspy_holding,
    "nothing": nothing,
}


class Observation:
    """Counts the keys of the listing, then records each change with its time."""

    def __init__(self, listed: int, then: int) -> None:
        self._started = time.monotonic()
        self._cpu = time.process_time()
        self._remaining = listed
        self._then = then
        self._changes: list[tuple[str, float]] = []
        self._listed = asyncio.Event()
        self._ended = asyncio.Event()
        self._times = (0.0, 0.0)
        if not listed:
            self._reach()

    def see(self, key: str) -> None:
        """Count a key of the listing, or record a later change."""
        self._remaining -= 1
        if self._remaining < 0:
            self._changes.append((key, time.monotonic()))
            if len(self._changes) == self._then:
                self._ended.set()
        elif not self._remaining:
            self._reach()

    def _reach(self) -> None:
        self._times = (time.monotonic() - self._started, time.process_time() - self._cpu)
        self._listed.set()

    async def start(self) -> Start:
        await self._listed.wait()
        await asyncio.sleep(SETTLE_S)
        wall_s, cpu_s = self._times
        self._cpu = time.process_time()
        return Start(wall_s, cpu_s, _memory("VmRSS"), _memory("VmHWM"))

    async def end(self) -> End:
        await self._ended.wait()
        return End(self._changes, time.process_time() - self._cpu)


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _print(result: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.buffer.flush()


async def observe(side: str, url: str, listed: int, then: int) -> None:
    observation = Observation(listed, then)
    task = asyncio.ensure_future(SIDES[side](url, observation.see))
    _print(await observation.start())
    if then:
        _print(await observation.end())
    await asyncio.to_thread(sys.stdin.buffer.read)
    task.cancel()
    await asyncio.wait({task})


def main(side: str, url: str, listed: str, then: str, loop: str) -> None:
    run = uvloop.run if loop == "uvloop" else asyncio.run
    run(observe(side, url, int(listed), int(then)))


if __name__ == "__main__":
    main(*sys.argv[1:])
