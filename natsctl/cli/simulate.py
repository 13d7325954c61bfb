"""`natsctl simulate`: runs a controller in memory through schedules with faults."""

import functools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from natsctl.cli.arguments import ControllerOption, load_runnable_controller, with_hook
from natsctl.cli.command import INTERRUPTED, App, interruptible, settings
from natsctl.cli.output import TABLE, OutputOption, write_result
from natsctl.cli.terminal import progress_bar, write_line, write_notice
from natsctl.cli.values import read_mappings
from natsctl.daemon.hook_requests import carry_requests
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.testing.simulation.finding import Report
from natsctl.testing.simulation.run import Checks
from natsctl.testing.simulation.simulate import Simulation, mode_of, search_in_processes
from natsctl.testing.simulation.subject import subject_of
from natsctl.testing.simulation.world.process import Division

app = App()

CGROUPS = Path("/sys/fs/cgroup")

OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cores(*, cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Return the number of cores that this process may use, at least 1.

    The CPU affinity of the process and the CPU quotas of its control groups limit the number. A
    quota of 2.5 cores counts as 2, because a third process would be throttled.

    Args:
        cgroups: where the control groups are mounted.
        own: the file that names the control groups of this process.
    """
    quotas = [int(quota) for quota in _quotas(cgroups, own)]
    return max(1, min([_affinity(), *quotas]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """Yield the quotas in cores of this process's control groups, from the inner to the outer."""
    for line in _text(own).splitlines():
        _, _, controllers_and_name = line.partition(":")
        controllers, _, name = controllers_and_name.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        folder = root / name.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                quota = _quota_2(group) if not controllers else _quota_1(group)
                if quota is not None:
                    yield quota


def _quota_2(group: Path) -> float | None:
    """Return the quota of a group of version 2: `cpu.max` has the quota and the period."""
    return _cores(*_text(group / "cpu.max").split())


def _quota_1(group: Path) -> float | None:
    """Return the quota of a group of version 1, which has a file for each number."""
    return _cores(
        *_text(group / "cpu.cfs_quota_us").split(), *_text(group / "cpu.cfs_period_us").split()
    )


def _cores(*words: str) -> float | None:
    """Return the quota divided by the period; None if there is no quota."""
    match words:
        case (quota, period) if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
        case _:
            return None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


Documents = Sequence[Mapping[str, Any]]


@app.add(
    "natsctl simulate -c controllers.greetings:Greetings -f greetings.yaml",
    "natsctl simulate -c shops:Shops -f shops.yaml --runs 10000 -n auto -o json",
    "natsctl simulate -c shops:Shops -f shops.yaml --shard --storm",
    "natsctl simulate --hook shops.sync --primary shops --secondary routes -f shops.yaml",
)
@with_hook
def simulate(
    *,
    controller: ControllerOption,
    file: Annotated[
        list[str],
        typer.Option(
            "--file", "-f", metavar="FILE", help="YAML or JSON file of objects; repeatable"
        ),
    ],
    runs: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Number of runs")] = 500,
    seed: Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Seed of the first run")] = 0,
    processes: Annotated[
        str,
        typer.Option("--processes", "-n", metavar="NUMBER", help="Number, or auto for all cores"),
    ] = "1",
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="What may differ: bucket or field; repeatable",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BUCKET",
            help="What may stay: bucket or object; repeatable",
        ),
    ] = None,
    output: OutputOption = TABLE,
) -> None:
    """Simulate a controller under faults, and find the bugs of a bad day.

    Each run creates, edits and deletes the objects in memory, while processes crash, answers are
    lost and caches lag. The controller must become idle, make the same objects as without faults,
    and leave nothing behind. The first seed that breaks this is shown with its shortest schedule,
    and the exit code is 1. Several documents for one key are its versions, in order.
    """
    documents = read_mappings(file)
    checks = Checks(ignored=tuple(ignore or ()), kept=tuple(keep or ()))
    mode = mode_of(leader_elect=leader_elect, shard=shard)
    make = functools.partial(
        _simulation, controller, settings().nats, documents, checks, mode=mode, storm=storm
    )
    seeds, count = range(seed, seed + runs), _count(processes)
    with interruptible():
        report = _search(make, seeds, count)
    names = [report.controller]
    write_result(report.document(), output, names=names, table=lambda: _write(report, runs))
    if report.finding is not None:
        raise typer.Exit(1)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _simulation(
    path: str,
    options: NatsOptions,
    documents: Documents,
    checks: Checks,
    *,
    mode: Division | None,
    storm: bool,
) -> Simulation:
    simulated = type(load_runnable_controller(path))
    carry_requests(simulated, options)
    return Simulation(subject_of(simulated), documents, checks, mode=mode, storm=storm)


def _search(make: "functools.partial[Simulation]", seeds: range, processes: int) -> Report:
    begun = time.monotonic()
    simulation = make()  # reports invalid objects
    with progress_bar("simulating", len(seeds)) as bar:

        def progress(done: int) -> None:
            bar.describe(f"simulating, {done / max(time.monotonic() - begun, 0.001):.0f} runs/s")
            bar.reach(done)

        if processes == 1:
            with simulation:
                return simulation.search(seeds, progress)
        report = search_in_processes(make, seeds, processes, progress)
        return msgspec.structs.replace(report, controller=simulation.subject.name)


def _count(processes: str) -> int:
    if processes == "auto":
        return usable_cores()
    if processes.isdecimal() and int(processes) > 0:
        return int(processes)
    raise UsageError(f"--processes is a number above 0 or auto, not {processes!r}")


def _write(report: Report, runs: int) -> None:
    if report.finding is not None:
        for line in str(report.finding).splitlines():
            write_line(line)
        write_line(f"found in run {report.runs} of {runs}")
        return
    begin = "interrupted: " if report.interrupted else ""
    count = "1 run" if report.runs == 1 else f"{report.runs} runs"
    write_line(f"{begin}nothing was found in {count} of {report.controller}")
    for place in () if report.interrupted else report.unread:
        write_notice(f"{report.controller} never opened {place}, of which the files have objects")
