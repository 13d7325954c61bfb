"""Simulations and replays have the same results with every version of Python.

The results are stored in `expected.json`, and the tests run with each version. After a change of
natsctl that changes them, `python -m tests.simulation.test_versions` writes the file again.
"""

import json
import random
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from natsctl import Controller, Object, kv, primary
from natsctl.testing import replay
from natsctl.testing.simulation.run import Checks
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import ControllerClass, subject_of
from tests.support.controllers import faulty
from tests.support.controllers import simulated_surfaces as surfaces

EXPECTED = Path(__file__).parent / "expected.json"
STORED = Path(__file__).parents[1] / "unit" / "testing" / "recordings"
RECORDING = STORED / "version2-controller.json"

BUGS: dict[str, ControllerClass] = {
    "controller": faulty.RandomNames,
    "swallowed error": faulty.SwallowsErrors,
    "watchers": surfaces.MissesDeletions,
    "resource": surfaces.StreamedWithoutSweep,
    "dynamic": surfaces.WatchedWithoutRetry,
}


class Shop(Object, frozen=True):
    spec: object = None


class Guesses(Controller):
    """Reads the clock and the randomness of its replay."""

    name = "shops"
    shops = primary(kv(Shop, bucket="shops"))
    read: tuple[str, ...] = ()

    async def sync_handler(self, key: str) -> float | None:
        values = random.random(), uuid4(), secrets.token_hex(8), time.time(), datetime.now(UTC)
        type(self).read = tuple(map(str, values))
        return None


def finding_of(controller: ControllerClass, seeds: range = range(500)) -> dict[str, object]:
    """Return the first finding of a controller, as it is stored."""
    with Simulation(subject_of(controller), faulty.DOCUMENTS, Checks()) as simulation:
        finding = simulation.search(seeds).finding
    stored: dict[str, object] = msgspec.to_builtins(finding)
    return stored


def values_of_a_replay() -> list[str]:
    """Return what a handler reads from the clock and from the randomness in a replay."""
    replay(RECORDING, Guesses)
    return list(Guesses.read)


def expected(name: str) -> Any:
    return json.loads(EXPECTED.read_text())[name]


@pytest.mark.parametrize("name", BUGS)
def test_a_simulation_finds_the_stored_finding(name: str) -> None:
    stored = expected(name)
    seeds = range(max(0, stored["seed"] - 3), stored["seed"] + 1)  # of all before it takes long
    assert json.loads(json.dumps(finding_of(BUGS[name], seeds))) == stored


def test_a_replay_reads_the_stored_time_and_random_values() -> None:
    assert values_of_a_replay() == expected("replay")


if __name__ == "__main__":
    results = {name: finding_of(controller) for name, controller in BUGS.items()}
    text = json.dumps({**results, "replay": values_of_a_replay()}, indent=1)
    EXPECTED.write_text(f"{text}\n")
