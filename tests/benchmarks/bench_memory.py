"""The memory of a process that caches a whole bucket."""

import subprocess
import sys

from tests.benchmarks.support.dataset import VALUE_BYTES
from tests.benchmarks.support.measured_server import Sizes, filled, observing
from tests.benchmarks.support.results import OURS, Row, limited, shown

MB = 1_000_000
HOLDERS = (OURS, "naive, holding")
LIMIT_MB = 117.0
OWN_RSS = """
for line in open("/proc/self/status"):
    if line.startswith("VmRSS:"):
        print(int(line.split()[1]) * 1024)
"""


async def run(sizes: Sizes) -> list[Row]:
    resident: dict[str, list[float]] = {side: [] for side in HOLDERS}
    peaks: dict[str, list[float]] = {side: [] for side in HOLDERS}
    count = sizes.keys
    async with filled(0) as server, observing(OURS, server, sizes, listed=0) as observer:
        idle = observer.start.rss_bytes
    async with filled(count) as server:
        for _ in range(max(1, sizes.rounds // 2)):
            for side in HOLDERS:
                async with observing(side, server, sizes, listed=count) as observer:
                    resident[side].append(observer.start.rss_bytes / MB)
                    peaks[side].append(observer.start.peak_bytes / MB)
    mine, theirs = (resident[side] for side in HOLDERS)
    bytes_per_object = [[(value * MB - idle) / count for value in side] for side in (mine, theirs)]
    peer_name = HOLDERS[1]
    return [
        limited(
            f"memory (RSS) with {count:,} keys", "MB", mine, peer_name, theirs, at_most=LIMIT_MB
        ),
        shown("  at its peak", "MB", peaks[OURS], peer_name, peaks[HOLDERS[1]]),
        shown(
            f"  per object of {VALUE_BYTES} bytes",
            "bytes",
            bytes_per_object[0],
            peer_name,
            bytes_per_object[1],
        ),
        shown("  with none", "MB", [idle / MB], "an empty Python", [_empty_process() / MB]),
    ]


def _empty_process() -> int:
    completed = subprocess.run([sys.executable, "-c", OWN_RSS], check=True, capture_output=True)
    return int(completed.stdout)
