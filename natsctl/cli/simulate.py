"""`natsctl simulate`: runs a controller in memory through schedules with faults."""

import functools
import os
import time
from typing import Any

import msgspec
import typer

from natsctl.cli.command import (
    INTERRUPTED,
    App,
    ControllerClass,
    interruptible,
    load_runnable_controller,
    settings,
)
from natsctl.cli.output import TABLE, OutputOption, write_result
from natsctl.cli.terminal import progress_bar, write_line, write_notice
from natsctl.cli.values import read_mappings
from natsctl.daemon.hook_requests import carry_requests
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.testing.simulation.run import Checks
from natsctl.testing.simulation.simulate import Simulation, mode_of, search_in_processes
from natsctl.testing.simulation.subject import subject_of

app = App()


@app.add(
    "natsctl simulate -c shops:Shops -f shops.yaml --shard --storm --runs 10000 -n auto",
    "natsctl simulate --hook shops.sync --primary shops --secondary routes -f shops.yaml",
    hooks=True,
    file="-f FILE | YAML or JSON file of objects; repeatable",
    runs="NUMBER>=1 | Number of runs",
    seed="NUMBER>=0 | Seed of the first run",
    processes="-n NUMBER | Number, or auto for all cores",
    ignore="FIELD | What may differ: bucket or field; repeatable",
    keep="BUCKET | What may stay: bucket or object; repeatable",
    leader_elect="In each run, three processes elect a leader",
    shard="In each run, three processes share the keys",
    storm="Longer runs, with more faults and administrators",
)
def simulate(  # noqa: C901 - one straight line
    *,
    controller: ControllerClass,
    file: list[str],
    runs: int = 500,
    seed: int = 0,
    processes: str = "1",
    ignore: list[str] | None = None,
    keep: list[str] | None = None,
    leader_elect: bool = False,
    shard: bool = False,
    storm: bool = False,
    output: OutputOption = TABLE,
) -> None:
    """Simulate a controller under faults, and find its bugs.

    The objects change while processes crash, answers are lost and caches lag. The first seed with a
    bug is shown with its shortest schedule (exit code 1). Documents of one key are its versions.
    """
    make = functools.partial(
        _simulation,
        controller,
        settings().nats,
        objects=read_mappings(file),
        checks=Checks(ignored=tuple(ignore or ()), kept=tuple(keep or ())),
        mode=mode_of(leader_elect=leader_elect, shard=shard),
        storm=storm,
    )
    if processes == "auto":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        count = cores or 1
    elif processes.isdecimal() and int(processes) > 0:
        count = int(processes)
    else:
        raise UsageError(f"--processes is a number above 0 or auto, not {processes!r}")
    seeds, begun = range(seed, seed + runs), time.monotonic()

    def progress(done: int) -> None:
        bar(description=f"simulating, {done / max(time.monotonic() - begun, 0.001):.0f} runs/s")
        bar(completed=done)

    with interruptible():
        simulation = make()  # reports invalid objects
        with progress_bar("simulating", runs) as bar:
            if count == 1:
                with simulation:
                    report = simulation.search(seeds, progress)
            else:
                report = search_in_processes(make, seeds, count, progress)
                report = msgspec.structs.replace(report, controller=simulation.subject.name)

    def table() -> None:
        if report.finding is not None:
            for line in str(report.finding).splitlines():
                write_line(line)
            write_line(f"found in run {report.runs} of {runs}")
            return
        begin = "interrupted: " if report.interrupted else ""
        done = "1 run" if report.runs == 1 else f"{report.runs} runs"
        write_line(f"{begin}nothing was found in {done} of {report.controller}")
        for place in () if report.interrupted else report.unread:
            write_notice(
                f"{report.controller} never opened {place}, of which the files have objects"
            )

    write_result(report.document(), output, names=[report.controller], table=table)
    if report.finding is not None:
        raise typer.Exit(1)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _simulation(path: str, options: NatsOptions, **arguments: Any) -> Simulation:
    simulated = type(load_runnable_controller(path))
    carry_requests(simulated, options)
    return Simulation(subject_of(simulated), **arguments)
