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


class Observer:
    def __init__(self, process: asyncio.subprocess.Process, start: Start) -> None:
        self.start = start
        self._process = process

    async def end(self, limit_s: float = START_S) -> End | None:
        """Wait for the expected changes; return None if they are not seen in time."""
        try:
            async with asyncio.timeout(limit_s):
                return msgspec.json.decode(await _line(self._process), type=End)
        except TimeoutError:
            return None


@asynccontextmanager
async def observing(
    side: str, server: NatsServer, sizes: Sizes, *, listed: int, followed: int = 0, version: int = 1
) -> AsyncIterator[Observer]:
    """Start a process that handles the bucket; kill it at the end.

    `Observer.end` returns when *version* of *then* keys is handled.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.support.watch_process"),
        *(side, server.url, str(listed), str(followed), str(version), sizes.loop),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_MAX,
        cwd=ROOT,
    )
    try:
        async with asyncio.timeout(START_S):
            start = msgspec.json.decode(await _line(process), type=Start)
        yield Observer(process, start)
    finally:
        process.kill()
        await process.wait()


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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.support.bulk_writer"),
        *(server.url, str(count), str(version), str(rounds), str(rate), str(burst), str(first)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    output, _ = await process.communicate()
    return msgspec.json.decode(output, type=dict[str, float])


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the process ended"
    return line
