"""The wall time of `natsctl --help`."""

import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.support.measured_server import Sizes
from tests.benchmarks.support.results import Row, limited


async def run(sizes: Sizes) -> list[Row]:
    program = Path(sys.executable).with_name("natsctl")
    if not program.exists():
        return []
    own, empty = [], []
    for _ in range(sizes.rounds):
        own.append(_timed(str(program), "--help"))
        empty.append(_timed(sys.executable, "-c", "pass"))
    return [limited("natsctl --help", "s", own, "an empty Python", empty, at_most=0.3)]


def _timed(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started
