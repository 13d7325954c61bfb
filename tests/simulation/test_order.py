"""Two keys are synced at the same time, in any order of their steps."""

from itertools import permutations

from natsctl.testing.simulation.objects import Desired
from natsctl.testing.simulation.run import Checks, Schedule
from natsctl.testing.simulation.script import Put
from natsctl.testing.simulation.simulate import Simulation
from natsctl.testing.simulation.subject import subject_of
from tests.support.controllers.faulty import DOCUMENTS, SHOPS
from tests.support.controllers.fragile import TwoSteps

SCRIPT = tuple(Put(Desired(SHOPS, key, {"spec": {"image": "one"}})) for key in ("a", "b"))


def test_the_steps_of_two_keys_happen_in_every_order() -> None:
    steps = ("a.1", "a.2", "b.1", "b.2")
    orders = {
        order
        for order in permutations(steps)
        if order.index("a.1") < order.index("a.2") and order.index("b.1") < order.index("b.2")
    }
    with Simulation(subject_of(TwoSteps), DOCUMENTS, Checks()) as simulation:
        ran = [simulation.run(Schedule(seed, SCRIPT, ())) for seed in range(30)]
    created = [
        tuple(write.target.removeprefix("parts/") for write in run.writes[:4]) for run in ran
    ]
    assert set(created) == orders
