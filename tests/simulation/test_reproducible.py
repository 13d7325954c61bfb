"""The same seed gives the same run, in every process and however many runs came before."""

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable

import msgspec
import pytest

from natsctl.testing.simulation.bench import Bench
from natsctl.testing.simulation.network import Network
from natsctl.testing.simulation.process import Division
from natsctl.testing.simulation.run import Checks, Ran, Schedule
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import ControllerClass, subject_of
from tests.support.controllers.faulty import DOCUMENTS, ManagedShops, RandomNames, ReservedPort

SEEDS = range(3)  # each way to divide the work
PROGRAM = """
import json
from tests.simulation.test_reproducible import SEEDS, RandomNames, runs_of, shown

print(json.dumps([shown(ran) for ran in runs_of(RandomNames, SEEDS)]))
"""


def runs_of(controller: ControllerClass, seeds: Iterable[int]) -> list[Ran]:
    """Run the seeds, with one process and with three in turn."""
    with Simulation(subject_of(controller), DOCUMENTS, Checks()) as simulation:
        return [simulation.run(schedule(simulation, seed)) for seed in seeds]


def schedule(simulation: Simulation, seed: int) -> Schedule:
    mode = (Division.ELECTED, Division.ALONE, Division.SHARED)[seed % 3]
    return msgspec.structs.replace(simulation.schedule(seed), mode=mode)


def shown(ran: Ran) -> list[object]:
    return [ran.script, [*map(str, ran.faults)], [*map(str, ran.writes)], str(ran.violation)]


def runs_with(hash_seed: str) -> object:
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = (sys.executable, "-c", PROGRAM)
    result = subprocess.run(command, env=environ, check=True, capture_output=True)
    return json.loads(result.stdout)


def test_a_run_does_not_depend_on_hash_randomization() -> None:
    assert runs_with("1") == runs_with("2")


@pytest.mark.parametrize("controller", [RandomNames, ReservedPort, ManagedShops])
def test_a_run_does_not_depend_on_the_runs_before(controller: ControllerClass) -> None:
    forward = runs_of(controller, SEEDS)
    backward = runs_of(controller, reversed(SEEDS))
    assert [shown(ran) for ran in forward] == [shown(ran) for ran in reversed(backward)]


def test_a_timer_does_not_fire_in_a_later_run() -> None:
    fired: list[str] = []

    async def first() -> None:
        asyncio.get_running_loop().call_later(5, fired.append, "first")

    with Bench() as bench:
        bench.run(first())
        bench.run(asyncio.sleep(10))
    assert fired == []


def test_nothing_of_a_run_stays_in_memory() -> None:
    with Simulation(subject_of(RandomNames), DOCUMENTS, Checks()) as simulation:
        for seed in SEEDS:
            simulation.run(schedule(simulation, seed))
        gc.collect()
        networks = [candidate for candidate in gc.get_objects() if isinstance(candidate, Network)]
    assert len(networks) <= 1  # of the last run


def test_objects_that_the_program_exempts_from_collections_stay_exempt() -> None:
    gc.freeze()
    with Bench() as bench:
        bench.run(asyncio.sleep(1))
    assert gc.get_freeze_count() > 0
