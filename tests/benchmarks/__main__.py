"""Measure, and print one table: `python -m tests.benchmarks [names...]`."""

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import msgspec

from tests.benchmarks import (
    bench_cluster,
    bench_faults,
    bench_growth,
    bench_help,
    bench_kube,
    bench_latency,
    bench_live,
    bench_markers,
    bench_memory,
    bench_queue,
    bench_replay,
    bench_shards,
    bench_soak,
)
from tests.benchmarks.support.measured_server import QUICK, Sizes
from tests.benchmarks.support.results import Row, limited, shown, table
from tests.support.servers.nats_server import program

CYCLES_MIN = 400_000
MILLION = 1_000_000


async def queue(_sizes: Sizes) -> list[Row]:
    found = await asyncio.to_thread(bench_queue.run)
    rows = [shown(f"  {name}", "", [value]) for name, value in found.items()]
    cycles = found["queue, all at once, cycles/s"]
    return [
        limited(
            "queue: add, get, forget, done",
            "/s",
            [cycles],
            target=f">= {CYCLES_MIN:,}",
            enough=lambda rate: rate >= CYCLES_MIN,
        ),
        *rows,
    ]


BENCHMARKS: dict[str, Callable[[Sizes], Awaitable[list[Row]]]] = {
    "replay": bench_replay.run,
    "live": bench_live.run,
    "latency": bench_latency.run,
    "queue": queue,
    "memory": bench_memory.run,
    "markers": bench_markers.run,
    "faults": bench_faults.run,
    "cluster": bench_cluster.run,
    "growth": bench_growth.run,
    "kube": bench_kube.run,
    "shards": bench_shards.run,
    "help": bench_help.run,
    "soak": bench_soak.run,
}
ASKED_FOR = {"soak"}  # it takes long, so it is measured where it is named


def circumstances(loop: str) -> dict[str, str]:
    """Return what the figures depend on."""
    server = subprocess.run([program(), "--version"], check=True, capture_output=True, text=True)
    return {
        "python": platform.python_version(),
        "event loop of both sides": loop,
        "nats-server": server.stdout.split()[-1],
        "nats-py": version("nats-py"),
        "processors": str(os.cpu_count()),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--rounds", type=int, help="how often the sides take turns")
    parser.add_argument("--million", action="store_true", help="let growth go to 1,000,000 keys")
    parser.add_argument("--minutes", type=float, help="how long the soak goes on")
    parser.add_argument("--per-minute", type=int, help="how many writes a minute it makes")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    return asked


def sizes_of(asked: argparse.Namespace) -> Sizes:
    sizes = msgspec.structs.replace(QUICK if asked.quick else Sizes(), loop=asked.loop)
    if asked.rounds:
        sizes = msgspec.structs.replace(sizes, rounds=asked.rounds, faults=asked.rounds)
    if asked.million:
        sizes = msgspec.structs.replace(sizes, growth=(*sizes.growth, MILLION))
    if asked.minutes:
        sizes = msgspec.structs.replace(sizes, soak_minutes=asked.minutes)
    if asked.per_minute:
        sizes = msgspec.structs.replace(sizes, soak_per_minute=asked.per_minute)
    return sizes


def main() -> None:
    asked = arguments()
    sizes, around = sizes_of(asked), circumstances(asked.loop)
    rows: list[Row] = []
    for name in asked.names or [each for each in BENCHMARKS if each not in ASKED_FOR]:
        begun = time.monotonic()
        rows += asyncio.run(BENCHMARKS[name](sizes))  # type: ignore[arg-type]
        print(f"{name}: measured in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    print("\n" + table(rows))
    print("\nMedians of rounds in which the sides took turns, with the spread.")
    print("; ".join(f"{name} {found}" for name, found in around.items()))
    if asked.json:
        asked.json.write_bytes(
            msgspec.json.format(msgspec.json.encode({"circumstances": around, "rows": rows}))
        )


if __name__ == "__main__":
    main()
