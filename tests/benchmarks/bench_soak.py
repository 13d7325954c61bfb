"""The memory and the lag of a daemon while keys are constantly changed, created and deleted.

The number of names in the bucket is constant, because a watch remembers each key and each
delete marker.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import linear_regression, median

import msgspec
from aiohttp import ClientSession, ClientTimeout

from tests.benchmarks.support.measured_server import ROOT, START_S, Sizes, filled
from tests.benchmarks.support.results import Row, limited, shown
from tests.support.eventually import eventually
from tests.support.servers.ports import free_port

LIVE = 10_000  # number of existing keys
LOOK_S = 5.0
MB = 1_000_000
GROWTH_MAX = 1.0  # MB a minute
KEPT_MAX = 0.5  # allocated blocks per created and deleted key; a leak is 1 or more
CREATED = 0.2  # share of the writes

_NUMBER = re.compile(r"^([a-z_]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Look(msgspec.Struct, frozen=True):
    """The metrics of the daemon, `minutes` after the start."""

    minutes: float
    rss_mb: float
    blocks: float
    syncs: float
    depth: float
    lag: float
    cpu_s: float
    oldest_s: float


async def run(sizes: Sizes) -> list[Row]:
    async with filled(LIVE) as server, _daemon(server.url) as page:
        started = asyncio.get_running_loop().time()
        writer = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.benchmarks.support.steady_writer",
                server.url,
                str(LIVE),
            ),
            *(str(sizes.soak_per_minute // 60), str(sizes.soak_minutes * 60)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            looks = [look async for look in _looks(page, writer, started)]
            output, _ = await writer.communicate()
        finally:
            if writer.returncode is None:
                writer.kill()
                await writer.wait()
    return _rows(looks, int(output))


@asynccontextmanager
async def _daemon(url: str) -> AsyncIterator[str]:
    """Run the controller in a new process, and yield the URL of its metrics."""
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "natsctl", "run", "-s", url, "--listen", address),
        *("-c", "tests.benchmarks.support.soak_controller:Soaking"),
        stderr=asyncio.subprocess.DEVNULL,
        cwd=ROOT,
    )
    try:
        await eventually(lambda: _ready(f"http://{address}/readyz"), within_s=START_S)
        yield f"http://{address}/metrics"
        process.terminate()
        async with asyncio.timeout(START_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(page: str) -> bool:
    try:
        async with (
            ClientSession(timeout=ClientTimeout(5)) as session,
            session.get(page) as response,
        ):
            return response.status == 200
    except OSError:
        return False


async def _looks(
    page: str, writer: asyncio.subprocess.Process, started: float
) -> AsyncIterator[Look]:
    """Yield a look at the daemon every `LOOK_S` until the writer ends."""
    clock = asyncio.get_running_loop().time
    async with ClientSession(timeout=ClientTimeout(30)) as session:
        while writer.returncode is None:
            await asyncio.sleep(LOOK_S)
            async with session.get(page) as response:
                numbers = _numbers(await response.text())
            look = _look(numbers, (clock() - started) / 60)
            print(msgspec.json.encode(look).decode(), file=sys.stderr, flush=True)
            yield look


def _numbers(page: str) -> dict[str, float]:
    """Return the metrics by name; the largest if several have one name."""
    numbers: dict[str, float] = {}
    for name, text in _NUMBER.findall(page):
        numbers[name] = max(float(text), numbers.get(name, 0.0))
    return numbers


def _look(numbers: dict[str, float], minutes: float) -> Look:
    return Look(
        minutes=round(minutes, 3),
        rss_mb=numbers["process_resident_memory_bytes"] / MB,
        blocks=numbers["soak_allocated_blocks"],
        syncs=numbers["controller_runtime_reconcile_time_seconds_count"],
        depth=numbers["workqueue_depth"],
        lag=numbers.get("natsctl_cache_lag_revisions", 0.0),
        cpu_s=numbers["process_cpu_seconds_total"],
        oldest_s=numbers["natsctl_oldest_unanswered_change_seconds"],
    )


def _rows(looks: Sequence[Look], written: int) -> list[Row]:
    late = looks[len(looks) // 2 :]
    minutes = [look.minutes for look in late]
    growth = linear_regression(minutes, [look.rss_mb for look in late]).slope
    kept = linear_regression(minutes, [look.blocks for look in late]).slope
    per_minute = written / looks[-1].minutes
    syncs = looks[-1].syncs - looks[0].syncs
    return [
        limited(
            f"soak of {looks[-1].minutes:.0f} minutes: memory, over the last half",
            "MB/minute",
            [growth],
            target=f"<= {GROWTH_MAX:g}",
            enough=lambda slope: slope <= GROWTH_MAX,
        ),
        limited(
            "  allocated blocks kept per created and deleted key",
            "",
            [kept / (per_minute * CREATED)],
            target=f"<= {KEPT_MAX:g}",
            enough=lambda blocks: blocks <= KEPT_MAX,
        ),
        shown("  memory", "MB", [look.rss_mb for look in late]),
        shown("  writes", "/minute", [per_minute]),
        shown("  syncs", "/minute", [syncs / (looks[-1].minutes - looks[0].minutes)]),
        shown("  ready keys", "", [look.depth for look in late]),
        shown("  oldest change without an answer", "s", [look.oldest_s for look in late]),
        shown("  revisions behind", "", [look.lag for look in late]),
        shown("  processor time per sync", "µs", [_cost(looks)]),
        shown("  memory at half time", "MB", [median(look.rss_mb for look in late[:6])]),
    ]


def _cost(looks: Sequence[Look]) -> float:
    return (looks[-1].cpu_s - looks[0].cpu_s) / (looks[-1].syncs - looks[0].syncs) * 1e6
