"""The speed and the memory of `natsctl run --processes`."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from natsctl import Controller
from tests.benchmarks.support.counting_controller import (
    BUSY_S,
    COUNTS,
    PERIOD_S,
    BusyCounting,
    Counting,
    Progress,
    progress_of,
)
from tests.benchmarks.support.measured_server import ROOT, Sizes, filled, observing, write
from tests.benchmarks.support.results import PEER, Row, compared, limited, shown
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

PROCESSES = (1, 2, 4)
WITHIN_S = 600.0
MB = 1_000_000
SHM = Path("/dev/shm")
IN_MEMORY = SHM if SHM.is_dir() else None  # for files that are replaced often
COLD, LIVE, BUSY, SHARE = 2.2, 1.8, 1.6, 0.6  # the targets at two processes


async def run(sizes: Sizes) -> list[Row]:
    cold: dict[int | str, list[float]] = {side: [] for side in (PEER, *PROCESSES)}
    live: dict[int | str, list[float]] = {side: [] for side in (PEER, *PROCESSES)}
    count, keys = sizes.live, sizes.live_keys
    async with filled(sizes.keys) as server:
        for _ in range(sizes.rounds):
            async with observing(PEER, server, sizes, listed=sizes.keys) as observer:
                cold[PEER].append(sizes.keys / observer.start.wall_s)
            for size in PROCESSES:
                async with _processes(size, server) as group:
                    cold[size].append(sizes.keys / await group.handled(sizes.keys))
    async with filled(keys) as server:
        version, rounds = 0, count // keys
        for _ in range(sizes.rounds):
            for side in (PEER, *PROCESSES):
                version += rounds
                rate = await _live(side, server, sizes, version)
                live[side].append(rate)
    return [
        *_rows(f"cold start, {sizes.keys:,} keys handled", cold, COLD),
        *_rows(f"live updates, {count:,} over {keys:,} keys handled", live, LIVE),
        *await _busy(sizes),
        *await _memory(sizes),
    ]


def _rows(label: str, rates: dict[int | str, list[float]], target: float) -> list[Row]:
    return [
        compared(
            f"{label}: --processes {size}",
            "/s",
            rates[size],
            rates[PEER],
            target=f">= {target:g}x" if size == 2 else "",
            enough=(lambda ratio: ratio >= target) if size == 2 else None,
        )
        for size in PROCESSES
    ]


async def _busy(sizes: Sizes) -> list[Row]:
    """Return the rates of a handler that uses the processor, compared with one process."""
    keys = sizes.live_keys
    rates: dict[int, list[float]] = {size: [] for size in PROCESSES}
    async with filled(keys) as server:
        for _ in range(sizes.rounds):
            for size in PROCESSES:
                async with _processes(size, server, BusyCounting) as group:
                    rates[size].append(keys / await group.handled(keys))
    label = f"{BUSY_S * 1000:g} ms of processor time per sync, {keys:,} keys"
    return [
        compared(
            f"{label}: --processes {size}",
            "/s",
            rates[size],
            rates[1],
            peer="--processes 1",
            target=f">= {BUSY:g}x" if size == 2 else "",
            enough=(lambda ratio: ratio >= BUSY) if size == 2 else None,
        )
        for size in PROCESSES[1:]
    ]


async def _live(side: int | str, server: NatsServer, sizes: Sizes, version: int) -> float:
    """Return the updates per second until the last version of every key is handled."""
    count, keys = sizes.live, sizes.live_keys
    rounds = count // keys
    if isinstance(side, str):
        async with observing(
            side, server, sizes, listed=keys, followed=keys, version=version
        ) as peer:
            await write(server, keys, version=version, rounds=rounds)
            end = await peer.end()
        assert end is not None
        return count / (end.seen[-1][1] - end.began)
    async with _processes(side, server) as group:
        await group.handled(keys)
        started = time.monotonic()
        await write(server, keys, version=version, rounds=rounds)
        done = await group.reached(version, keys)
    return count / (done - started)


async def _memory(sizes: Sizes) -> list[Row]:
    """Return the memory of each process with all keys handled."""
    resident: dict[int, float] = {}
    async with filled(sizes.stalled) as server:
        for size in PROCESSES:
            async with _processes(size, server) as group:
                await group.handled(sizes.stalled)
                await asyncio.sleep(2 * PERIOD_S)
                resident[size] = max(group.rss_bytes()) / MB
    single_mb = resident[1]
    return [
        shown(f"memory (RSS) of one process, {sizes.stalled:,} keys", "MB", [single_mb]),
        *(
            limited(
                f"  the largest of {size} processes, relative to one",
                "x",
                [resident[size] / single_mb],
                target=f"<= {SHARE:g}x",
                enough=lambda share: share <= SHARE,
            )
            for size in PROCESSES[1:]
        ),
    ]


class _Group:
    """A command with its processes, which write their progress to files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def handled(self, count: int) -> float:
        """Wait until so many syncs are done; return the seconds since the first process began."""
        await eventually(lambda: sum(p.syncs for p in self._progress()) >= count, within_s=WITHIN_S)
        progress = self._progress()
        return max(p.last for p in progress) - min(p.began for p in progress)

    async def reached(self, version: int, keys: int) -> float:
        """Wait until this version of so many keys is handled; return the time of the last one."""

        def all_reached() -> bool:
            return sum(p.keys for p in self._progress() if p.version == version) >= keys

        await eventually(all_reached, within_s=WITHIN_S)
        return max(p.last for p in self._progress())

    def rss_bytes(self) -> list[int]:
        """Return the memory of the processes that run controllers."""
        return [p.rss_bytes for p in self._progress()]

    def _progress(self) -> list[Progress]:
        return [p for file in self._folder.glob("*.json") if (p := progress_of(file)) is not None]


@asynccontextmanager
async def _processes(
    size: int, server: NatsServer, controller: type[Controller] = Counting
) -> AsyncIterator[_Group]:
    with tempfile.TemporaryDirectory(prefix="natsctl-bench-", dir=IN_MEMORY) as folder:
        with (Path(folder) / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "natsctl", "run", "--processes", str(size)),
                *("-c", f"{controller.__module__}:{controller.__name__}"),
                *("--server", server.url, "--log-level", "warning"),
                cwd=ROOT,
                env={**os.environ, COUNTS: folder},
                stdout=log,
                stderr=log,
            )
        try:
            yield _Group(Path(folder))
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()
