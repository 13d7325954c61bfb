"""The longest stalls of the event loop of a controller with many keys.

Each stretch of the controller's life is measured alone: its start, live load, a resync under live
load, key verification, a watch that breaks and relists, a GC cycle, and the stop. A stall is
measured in processor time, which other processes of the machine do not lengthen.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import quantiles

import msgspec

from natsctl import connect
from tests.benchmarks.support.bulk_writer import Writer
from tests.benchmarks.support.dataset import BUCKET, ITEMS, OWNED, key, owned_value
from tests.benchmarks.support.measured_server import Sizes, filled, line_of, started, write
from tests.benchmarks.support.results import Row, limited, shown
from tests.benchmarks.support.stall_process import VERIFY_S, Stretch
from tests.support.servers.nats_server import NatsServer

STALL_MS = 50.0
PUT_P99_MS = 20.0
RSS_MB = 665.0  # with 1,000,000 keys
MILLION = 1_000_000
MB = 1_000_000
STEP_S = 1200.0
ORPHANS = 50


class Stalling:
    """A process with a controller that is measured stretch by stretch."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def stretch(self, command: str = "") -> Stretch:
        """Send a command, and return the stretch that ends with it."""
        assert self._process.stdin is not None
        if command:
            self._process.stdin.write(command.encode() + b"\n")
        async with asyncio.timeout(STEP_S):
            return msgspec.json.decode(await line_of(self._process), type=Stretch)


@asynccontextmanager
async def stalling(server: NatsServer, sizes: Sizes, listed: int) -> AsyncIterator[Stalling]:
    """Start a process with a controller of *listed* keys; kill it at the end."""
    async with started("stall_process", server.url, listed, sizes.loop) as process:
        yield Stalling(process)


async def run(sizes: Sizes) -> list[Row]:
    count = sizes.stalled
    async with filled(count) as server:
        rows = await _life(server, sizes, count)
    async with filled(count // 2) as server:
        return [*rows, *await _collection(server, sizes, count // 2)]


async def _life(server: NatsServer, sizes: Sizes, count: int) -> list[Row]:
    """Measure a controller that owns nothing, from its start to its stop."""
    live, rate, first = sizes.puts, sizes.puts_per_s, count
    async with stalling(server, sizes, count) as process:
        rows = [_stall("start", start := await process.stretch(), count)]
        rows.append(_memory(start, count))
        sent = await write(server, live, version=1, rate=rate, first=first)
        loaded = await process.stretch("measure")
        rows += [_stall("live load", loaded, count), _puts("live load", sent, loaded)]
        first += live
        loading = asyncio.create_task(write(server, live, version=1, rate=rate, first=first))
        resynced = await process.stretch("resync")
        sent = await loading
        after = await process.stretch("measure")
        resynced = msgspec.structs.replace(resynced, seen={**resynced.seen, **after.seen})
        rows += [_stall("resync", resynced, count), _puts("resync", sent, resynced)]
        await _forget_a_marker(server)
        await asyncio.sleep(VERIFY_S)
        rows.append(_stall("key verification", await process.stretch("measure"), count))
        server.kill()
        await server.start()
        await write(server, 1, version=1, rate=1, first=first + live)
        await _until_seen(process, key(first + live), rows, count)
        rows.append(_stall("stop", await process.stretch("stop"), count))
    return rows


async def _until_seen(process: Stalling, live: str, rows: list[Row], count: int) -> None:
    """Measure until the controller has synced the key."""
    stretches: list[Stretch] = []
    while not any(live in stretch.seen for stretch in stretches):
        await asyncio.sleep(0.5)
        stretches.append(await process.stretch("measure"))
    longest = msgspec.structs.replace(
        stretches[-1],
        took_s=sum(stretch.took_s for stretch in stretches),
        wall_s=max(stretch.wall_s for stretch in stretches),
        cpu_s=max(stretch.cpu_s for stretch in stretches),
    )
    rows.append(_stall("broken watch and relist", longest, count))


async def _collection(server: NatsServer, sizes: Sizes, count: int) -> list[Row]:
    """Measure a GC cycle of a controller that owns an object per key, and some orphans."""
    async with connect(server.url) as nats:
        await nats.open(OWNED)
    writer = Writer(server.url)
    owned = ((key(number), owned_value(number)) for number in range(count + ORPHANS))
    writer.put_all(owned, bucket=OWNED.bucket)
    writer.close()
    async with stalling(server, sizes, count) as process:
        start = await process.stretch()
        return [
            _stall(f"start, {count:,} of them owned", start, 2 * count),
            _stall("GC cycle", await process.stretch("collect"), 2 * count),
        ]


async def _forget_a_marker(server: NatsServer) -> None:
    """Delete a key and purge its delete marker, so that the watch compares all keys."""
    async with connect(server.url) as nats:
        await (await nats.open(ITEMS)).delete(key(0))
        await asyncio.sleep(1.0)
        subject = f"$KV.{BUCKET}.{key(0)}"
        await nats.api(f"STREAM.PURGE.KV_{BUCKET}", {"filter": subject})


def _stall(during: str, stretch: Stretch, count: int) -> Row:
    return limited(
        f"longest stall, {count:,} keys: {during}",
        "ms",
        [stretch.cpu_s * 1e3],
        "by the clock",
        [stretch.wall_s * 1e3],
        at_most=STALL_MS,
    )


def _puts(during: str, sent: dict[str, float], stretch: Stretch) -> Row:
    delays: Sequence[float] = [(stretch.seen[name] - sent[name]) * 1e3 for name in sent]
    cuts = quantiles(delays, n=100)
    title = f"  put to handler, p99: {during}"
    return limited(title, "ms", [cuts[98]], "p50", [cuts[49]], at_most=PUT_P99_MS)


def _memory(start: Stretch, count: int) -> Row:
    resident = start.rss_bytes / MB
    title, peak = f"  memory, {count:,} keys", [start.peak_bytes / MB]
    if count < MILLION:
        return shown(title, "MB", [resident], "at its peak", peak)
    return limited(title, "MB", [resident], "at its peak", peak, at_most=RSS_MB)
