"""natsctl keeps its promises on every surface, and with several processes, whatever fails.

No change is lost, no handler acts on a state older than its own last write, and no two workers have
one key.
"""

from typing import Any

import pytest

from natsctl.testing.simulation.bench import Bench
from natsctl.testing.simulation.world.stores import SimulatedStores
from tests.support.controllers.simulated_promises import (
    GROUPS,
    BrokenPromiseError,
    Group,
    Ledger,
    check,
    controller,
)

SEEDS = range(100)  # the broken surfaces of this file fail within ten


def run(group: Group, seeds: range) -> None:
    with Bench() as bench:
        for seed in seeds:
            bench.run(check(group, seed))


@pytest.mark.parametrize("name", GROUPS)
def test_a_surface_keeps_its_promises(name: str) -> None:
    run(GROUPS[name], SEEDS)


def test_two_processes_without_an_election_break_a_promise() -> None:
    with pytest.raises(BrokenPromiseError, match="took a step"):
        run(Group(controller, processes=2), SEEDS)


def test_a_surface_that_keeps_its_first_state_breaks_a_promise() -> None:
    class Forgetful(Ledger):
        async def handle(self, key: str, text: str | None) -> None:
            await super().handle(key, self.handled.get(key, text))

    def forgetful(nats: SimulatedStores, ledger: Ledger) -> Any:
        first = Forgetful()
        first.handled = ledger.handled
        return controller(nats, first)

    with pytest.raises(BrokenPromiseError, match=r"was (not handled|handled last)"):
        run(Group(forgetful), SEEDS)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", GROUPS)
def test_a_surface_keeps_its_promises_in_ten_thousand_schedules(name: str) -> None:
    run(GROUPS[name], range(10_000))
