"""A real NATS server and the processes that watch it, used by every benchmark."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from natsctl import connect
from tests.benchmarks.support.bulk_writer import fill
from tests.benchmarks.support.dataset import ITEMS
from tests.benchmarks.support.watch_process import End, Start
from tests.support.servers.nats_server import NatsServer

ROOT = Path(__file__).parents[3]
START_S = 120.0
LINE_MAX = 256 * 1024 * 1024


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of keys, writes and rounds of the benchmarks."""

    rounds: int = 5
    keys: int = 100_000
    live: int = 200_000
    live_keys: int = 20_000
    live_per_s: int = 5_000
    puts: int = 5_000
    puts_per_s: int = 1_000
    faults: int = 3
    configmaps: int = 5_000
    sharded: int = 4_000
    reconnected: tuple[int, ...] = (1_000, 10_000, 100_000)
    stalled: int = 1_000_000
    loop: str = "uvloop"


QUICK = Sizes(
    rounds=3,
    keys=20_000,
    live=20_000,
    live_keys=4_000,
    puts=2_000,
    faults=1,
    configmaps=500,
    sharded=1_000,
    reconnected=(1_000, 20_000),
    stalled=50_000,
)


@asynccontextmanager
async def filled(count: int) -> AsyncIterator[NatsServer]:
    """Start a server with *count* keys in its bucket; stop it and delete its data at the end."""
    with tempfile.TemporaryDirectory(prefix="natsctl-bench-") as folder:
        async with NatsServer(Path(folder) / "nats") as server:
            async with connect(server.url) as nats:
                await nats.open(ITEMS)
            fill(server.url, count)
            yield server


@asynccontextmanager
async def started(module: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a module beside this one; kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.benchmarks.support.{module}", *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_MAX,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the process ended"
    return line


class Observer:
    def __init__(self, process: asyncio.subprocess.Process, start: Start) -> None:
        self.start = start
        self._process = process

    async def end(self, limit_s: float = START_S) -> End | None:
        """Wait for the expected changes; return None if they are not seen in time."""
        try:
            async with asyncio.timeout(limit_s):
                return msgspec.json.decode(await line_of(self._process), type=End)
        except TimeoutError:
            return None


@asynccontextmanager
async def observing(
    side: str, server: NatsServer, sizes: Sizes, *, listed: int, followed: int = 0, version: int = 1
) -> AsyncIterator[Observer]:
    """Start a process that handles the bucket; kill it at the end.

    `Observer.end` returns when *version* of *then* keys is handled.
    """
    arguments = (side, server.url, listed, followed, version, sizes.loop)
    async with started("watch_process", *arguments) as process:
        async with asyncio.timeout(START_S):
            start = msgspec.json.decode(await line_of(process), type=Start)
        yield Observer(process, start)


async def write(
    server: NatsServer,
    count: int,
    *,
    version: int,
    rounds: int = 1,
    rate: int = 0,
    burst: int = 1,
    first: int = 0,
) -> dict[str, float]:
    """Update *count* keys from number *first*; return when each was sent if *rate* is set.

    Without a rate, each key is updated *rounds* times, the last time to *version*. With a rate,
    *burst* updates are sent at once.
    """
    arguments = (server.url, count, version, rounds, rate, burst, first)
    async with started("bulk_writer", *arguments) as process:
        output, _ = await process.communicate()
    return msgspec.json.decode(output, type=dict[str, float])
