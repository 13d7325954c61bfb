"""`natsctl simulate`: runs a controller in memory through schedules with faults."""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer

from natsctl.cli.daemon.cores import usable_cores
from natsctl.cli.documents.manifests import read_mappings
from natsctl.cli.framework.command import INTERRUPTED, App, interruptible
from natsctl.cli.framework.controller_options import ControllerOption
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.hook_options import with_hook
from natsctl.cli.framework.options import with_options
from natsctl.cli.output.encoding import json_text
from natsctl.cli.output.printing import OUTPUT_OPTION, TextOutput
from natsctl.cli.output.terminal import progress_bar, write_line, write_notice, write_text
from natsctl.daemon.hook_requests import carry_requests
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.testing.simulation.finding import Report
from natsctl.testing.simulation.run import Checks
from natsctl.testing.simulation.simulate import Simulation, search_in_processes
from natsctl.testing.simulation.subject import subject_of

app = App()

Documents = Sequence[Mapping[str, Any]]


@app.add(
    "natsctl simulate -c controllers.greetings:Greetings -f greetings.yaml",
    "natsctl simulate -c controllers.greetings:Greetings -f greetings.yaml --seed 8127 --runs 1",
    "natsctl simulate -c shops:Shops -f shops.yaml --runs 10000 -n auto -o json",
    "natsctl simulate --hook shops.sync --primary shops --secondary routes -f shops.yaml",
    notes="Several documents for one key are its versions, in order.",
)
@with_hook
@with_options("nats", "nats", value=lambda effective: effective.nats)
def simulate(
    *,
    nats: NatsOptions,
    controller: ControllerOption,
    file: Annotated[
        list[str],
        typer.Option(
            "--file", "-f", metavar="FILE", help="YAML or JSON file with objects; repeatable"
        ),
    ],
    runs: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Number of runs")] = 500,
    seed: Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Seed of the first run")] = 0,
    processes: Annotated[
        str,
        typer.Option(
            "--processes", "-n", metavar="NUMBER", help="Number of processes, or auto for all cores"
        ),
    ] = "1",
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Bucket, or field such as routes.spec.port, that may differ between runs; "
            "repeatable",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BUCKET",
            help="Bucket, or object such as trail/pier, that stays when all primaries are deleted; "
            "repeatable",
        ),
    ] = None,
    output: Annotated[TextOutput, OUTPUT_OPTION] = "text",
) -> None:
    """Simulate a controller under faults, and find the bugs of a bad day.

    Each run creates, edits and deletes the objects of the files in memory and in virtual time,
    while the process crashes, answers are lost, stores are away and caches lag. The controller must
    become idle, make the same objects as without faults, write nothing in one more resync, and
    leave nothing behind. The first seed that violates this is shown with its shortest schedule.

    A hook is asked for real: its service has to run, and virtual time waits for its answers.

    Exit codes: 0 if nothing was found, 1 if a property is violated.
    """
    documents = read_mappings(file)
    checks = Checks(ignored=tuple(ignore or ()), kept=tuple(keep or ()))
    make = functools.partial(_simulation, controller, nats, documents, checks)
    seeds, count = range(seed, seed + runs), _count(processes)
    with interruptible():
        report = _search(make, seeds, count)
    if output == "json":
        write_text(json_text(report.document()))
    else:
        _write(report, runs)
    if report.finding is not None:
        raise typer.Exit(1)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _simulation(
    path: str, options: NatsOptions, documents: Documents, checks: Checks
) -> Simulation:
    simulated = type(load_runnable_controller(path))
    carry_requests(simulated, options)
    return Simulation(subject_of(simulated), documents, checks)


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
