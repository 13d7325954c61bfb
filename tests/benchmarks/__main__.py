"""Run the benchmarks and print one table: `python -m tests.benchmarks [names...]`."""

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
    bench_cold,
    bench_console_page,
    bench_faults,
    bench_help,
    bench_hooks,
    bench_kube,
    bench_latency,
    bench_live,
    bench_members,
    bench_memory,
    bench_reconnect,
    bench_record,
    bench_shards,
    bench_stall,
)
from tests.benchmarks.support.measured_server import QUICK, Sizes
from tests.benchmarks.support.results import Row, table
from tests.support.servers.nats_server import program

MILLION = 1_000_000


BENCHMARKS: dict[str, Callable[[Sizes], Awaitable[list[Row]]]] = {
    "cold": bench_cold.run,
    "live": bench_live.run,
    "reconnect": bench_reconnect.run,
    "record": bench_record.run,
    "latency": bench_latency.run,
    "memory": bench_memory.run,
    "stall": bench_stall.run,
    "faults": bench_faults.run,
    "kube": bench_kube.run,
    "console-page": bench_console_page.run,
    "help": bench_help.run,
    "hooks": bench_hooks.run,
    "shards": bench_shards.run,
    "members": bench_members.run,
}


def circumstances(loop: str) -> dict[str, str]:
    """Return the versions and the machine that the results depend on."""
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
    parser.add_argument("--rounds", type=int, help="number of rounds of each side")
    parser.add_argument("--million", action="store_true", help="also reconnect with 1,000,000 keys")
    parser.add_argument("--stalled", type=int, help="number of keys of the stall benchmark")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    return options


def sizes_of(options: argparse.Namespace) -> Sizes:
    sizes = msgspec.structs.replace(QUICK if options.quick else Sizes(), loop=options.loop)
    if options.rounds:
        sizes = msgspec.structs.replace(sizes, rounds=options.rounds, faults=options.rounds)
    if options.million:
        sizes = msgspec.structs.replace(sizes, reconnected=(*sizes.reconnected, MILLION))
    if options.stalled:
        sizes = msgspec.structs.replace(sizes, stalled=options.stalled)
    return sizes


def main() -> None:
    options = arguments()
    sizes, environment = sizes_of(options), circumstances(options.loop)
    rows: list[Row] = []
    for name in options.names or BENCHMARKS:
        started = time.monotonic()
        rows += asyncio.run(BENCHMARKS[name](sizes))  # type: ignore[arg-type]
        print(
            f"{name}: measured in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True
        )
    print("\n" + table(rows))
    print(
        "\nMedians of alternating rounds, with the spread. naive: a nats-py watchall() loop that "
        "decodes each value and calls an async handler. Go: its ratio to naive, measured with "
        "nats.go and client-go's work queue, four workers, not in this run."
    )
    print("; ".join(f"{name} {value}" for name, value in environment.items()))
    if options.json:
        options.json.write_bytes(
            msgspec.json.format(msgspec.json.encode({"circumstances": environment, "rows": rows}))
        )


if __name__ == "__main__":
    main()
