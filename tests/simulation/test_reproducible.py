"""The same seed gives the same run in every process."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json
from natsctl.testing.simulation.choices import Choices
from natsctl.testing.simulation.run import Checks
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import subject_of
from tests.support.controllers.faulty import DOCUMENTS, RandomNames

with Simulation(subject_of(RandomNames), DOCUMENTS, Checks()) as simulation:
    runs = [simulation.run(simulation.schedule(seed)) for seed in range(12)]
print(json.dumps([[ran.script, [*map(str, ran.faults)], [*map(str, ran.writes)]] for ran in runs]))
"""


def runs_with(hash_seed: str) -> object:
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = (sys.executable, "-c", PROGRAM)
    result = subprocess.run(command, env=environ, check=True, capture_output=True)
    return json.loads(result.stdout)


def test_a_run_does_not_depend_on_hash_randomization() -> None:
    assert runs_with("1") == runs_with("2")
