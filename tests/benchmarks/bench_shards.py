"""How much more several processes do that share a controller's keys, with one worker each."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.benchmarks.support.measured_server import ROOT, Sizes, filled, write
from tests.benchmarks.support.results import Row, samples, shown
from tests.benchmarks.support.sharded_controller import DONE, SYNC_S
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

PROCESSES = (1, 2, 4)
WITHIN_S = 120.0


async def run(sizes: Sizes) -> list[Row]:
    rates: dict[int, list[float]] = {size: [] for size in PROCESSES}
    for _ in range(sizes.rounds):
        for size in PROCESSES:
            rates[size].append(await _measured(size, sizes.sharded))
    one, *others = PROCESSES
    what = f"shards, a sync of {SYNC_S * 1000:g} ms, one worker in each process"
    return [
        shown(f"{what}: {one} process", "/s", rates[one]),
        *(_beside(f"  {size} processes", rates[size], rates[one]) for size in others),
    ]


def _beside(what: str, many: list[float], one: list[float]) -> Row:
    return Row(
        what=what,
        ours=samples("/s", many),
        peer="1 process",
        theirs=samples("/s", one),
        ratio=samples("x", [more / less for more, less in zip(many, one, strict=True)]),
    )


async def _measured(size: int, keys: int) -> float:
    """Return how many changes so many processes handle in a second."""
    with tempfile.TemporaryDirectory(prefix="natsctl-bench-") as folder:
        done = Path(folder) / "done"
        done.touch()
        async with filled(keys) as server, AsyncExitStack() as stack:
            for number in range(size):
                log = Path(folder) / f"{number}.log"
                await stack.enter_async_context(_member(server, done, log))
            said = f"members={size}"
            logs = [Path(folder) / f"{number}.log" for number in range(size)]
            await eventually(lambda: all(said in log.read_text() for log in logs))
            await _handled(done, keys)
            begun = len(_times(done))
            await write(server, keys, version=1)
            times = (await _handled(done, begun + keys))[begun:]
    return (len(times) - 1) / (max(times) - min(times))


@asynccontextmanager
async def _member(server: NatsServer, done: Path, log: Path) -> AsyncIterator[None]:
    with log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "natsctl", "run", "--shard", "--server", server.url),
            *("-c", "tests.benchmarks.support.sharded_controller:Sharded"),
            cwd=ROOT,
            env={**os.environ, DONE: str(done)},
            stdout=said,
            stderr=said,
        )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _handled(done: Path, count: int) -> list[float]:
    """Wait until so many syncs are done, and nothing more is; return when each was."""
    await eventually(lambda: len(_times(done)) >= count, within_s=WITHIN_S, every_s=0.1)
    before = -1
    while before != len(_times(done)):
        before = len(_times(done))
        await asyncio.sleep(0.5)
    return _times(done)


def _times(done: Path) -> list[float]:
    return [float(line) for line in done.read_bytes().split(b"\n")[:-1]]
