"""`natsctl simulate`: runs a controller in memory through schedules with faults."""

import functools
import os
import time
from collections.abc import Mapping, Sequence
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

Documents = Sequence[Mapping[str, Any]]

_ALL = os.cpu_count() or 1


@app.add(
    "natsctl simulate -c shops:Shops -f shops.yaml --shard --storm --runs 10000 -n auto",
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
    leader_elect: Annotated[
        bool, typer.Option("--leader-elect", help="In each run, three processes elect a leader")
    ] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="In each run, three processes share the keys")
    ] = False,
    storm: Annotated[
        bool, typer.Option("--storm", help="Longer runs, with more faults and administrators")
    ] = False,
    output: OutputOption = TABLE,
) -> None:
    """Simulate a controller under faults, and find the bugs of a bad day.

    The objects change while processes crash, answers are lost and caches lag. The first seed with a
    bug is shown with its shortest schedule (exit code 1). Documents of one key are its versions.
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
            bar(description=f"simulating, {done / max(time.monotonic() - begun, 0.001):.0f} runs/s")
            bar(completed=done)

        if processes == 1:
            with simulation:
                return simulation.search(seeds, progress)
        report = search_in_processes(make, seeds, processes, progress)
        return msgspec.structs.replace(report, controller=simulation.subject.name)


def _count(processes: str) -> int:
    if processes == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _ALL
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
