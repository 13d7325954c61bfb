"""The memory of two daemons that share a bucket's keys, against one that has them all."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.benchmarks.bench_shards import member
from tests.benchmarks.support.measured_server import Sizes, filled
from tests.benchmarks.support.process import memory_bytes, processor_s
from tests.benchmarks.support.results import Row, limited, shown
from tests.benchmarks.support.sharded_controllers import DONE
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

MB = 1_000_000
KEYS_MIN = 1_000_000  # with fewer keys, what each process needs for itself decides
PROGRAM = "tests.benchmarks.support.sharded_controllers:Counting"
SHARED = ("--shard", "--lease-ttl", "120")
WITHIN_S = 900.0


async def run(sizes: Sizes) -> list[Row]:
    keys = 10 * sizes.keys
    async with filled(keys) as server:
        alone = await _resident(server, keys, 1, ())
        members = await _resident(server, keys, 2, SHARED)
    ratios = [resident / alone[0] for resident in members]
    title = f"memory (RSS) of each of two members with {keys:,} keys, of one process's"
    row = shown(title, "x", ratios) if keys < KEYS_MIN else limited(title, "x", ratios, at_most=0.7)
    return [row, shown("  in all", "MB", members, "one process", alone)]


async def _resident(
    server: NatsServer, keys: int, size: int, options: Sequence[str]
) -> list[float]:
    """Return the megabytes of each process once every key was synced and nothing is to do."""
    with tempfile.TemporaryDirectory(prefix="natsctl-bench-") as folder:
        done = Path(folder) / "done"
        done.touch()
        logs = [Path(folder) / f"{number}.log" for number in range(size)]
        async with AsyncExitStack() as stack:
            pids = [
                await stack.enter_async_context(
                    member(server, log, PROGRAM, options, {DONE: str(done)})
                )
                for log in logs
            ]

            async def is_done() -> bool:
                if size > 1 and not all(f"members={size}" in log.read_text() for log in logs):
                    return False
                before = [processor_s(pid) for pid in pids]
                await asyncio.sleep(3.0)
                spent = [processor_s(pid) - s for pid, s in zip(pids, before, strict=True)]
                return done.stat().st_size >= keys and max(spent) < 0.3

            await eventually(is_done, within_s=WITHIN_S)
            return [memory_bytes(pid=pid) / MB for pid in pids]
