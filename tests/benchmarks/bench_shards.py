"""The rate of syncs of several processes that share a controller's keys, one worker each."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.benchmarks.support.measured_server import ROOT, Sizes, filled, write
from tests.benchmarks.support.results import Row, compared, shown
from tests.benchmarks.support.sharded_controllers import DONE, SYNC_S
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

PROCESSES = (1, 2, 4)
TIMEOUT_S = 120.0


async def run(sizes: Sizes) -> list[Row]:
    rates: dict[int, list[float]] = {size: [] for size in PROCESSES}
    for _ in range(sizes.rounds):
        for size in PROCESSES:
            rates[size].append(await _rate(size, sizes.sharded))
    single, *larger = PROCESSES
    title = f"shards, a sync of {SYNC_S * 1000:g} ms, one worker in each process"
    return [
        shown(f"{title}: {single} process", "/s", rates[single]),
        *(
            compared(f"  {size} processes", "/s", rates[size], rates[single], peer="1 process")
            for size in larger
        ),
    ]


async def _rate(size: int, keys: int) -> float:
    """Return the changes per second that `size` processes handle."""
    with tempfile.TemporaryDirectory(prefix="natsctl-bench-") as folder:
        done = Path(folder) / "done"
        done.touch()
        async with filled(keys) as server, AsyncExitStack() as stack:
            for number in range(size):
                log = Path(folder) / f"{number}.log"
                program = "tests.benchmarks.support.sharded_controllers:Waiting"
                started = member(server, log, program, ("--shard",), {DONE: str(done)})
                await stack.enter_async_context(started)
            line = f"members={size}"
            logs = [Path(folder) / f"{number}.log" for number in range(size)]
            await eventually(lambda: all(line in log.read_text() for log in logs))
            await _handled(done, keys)
            before = len(_times(done))
            await write(server, keys, version=1)
            times = (await _handled(done, before + keys))[before:]
    return (len(times) - 1) / (max(times) - min(times))


@asynccontextmanager
async def member(
    server: NatsServer, log: Path, program: str, options: Sequence[str], variables: dict[str, str]
) -> AsyncIterator[int]:
    """Run a daemon with the options, and kill it at the end; yields its process id."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "natsctl", "run", "--server", server.url),
            *(*options, "-c", program),
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
        )
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


async def _handled(done: Path, count: int) -> list[float]:
    """Wait until `count` syncs are done and no more follow; return the time of each sync."""
    await eventually(lambda: len(_times(done)) >= count, within_s=TIMEOUT_S, every_s=0.1)
    before = -1
    while before != len(_times(done)):
        before = len(_times(done))
        await asyncio.sleep(0.5)
    return _times(done)


def _times(done: Path) -> list[float]:
    return [float(line) for line in done.read_bytes().split(b"\n")[:-1]]
