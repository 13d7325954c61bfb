"""natsctl keeps its promises on every surface, whatever fails and whoever interferes.

No change is lost, no sync acts on a state older than its own last write, and no two workers have
one key: with one process, with three that elect a leader, and with three that share the keys.
"""

from collections.abc import Callable
from typing import Any

import pytest

from natsctl import secondary
from natsctl.core.coordination.shares import Shares
from natsctl.testing import MemoryStore, SimulationError, simulate
from natsctl.testing.simulation.process import Division
from natsctl.testing.simulation.properties import Property
from natsctl.testing.simulation.run import Checks
from natsctl.testing.simulation.simulate import Simulation, mode_of
from natsctl.testing.simulation.subject import ControllerClass, subject_of
from tests.support.controllers import careful
from tests.support.controllers import simulated_surfaces as surfaces
from tests.support.controllers.faulty import DOCUMENTS, PARTS, Shop, part

CONTROLLERS: dict[str, ControllerClass] = {
    "two stores": careful.TwoStores,
    "finalizers": careful.Held,
    "watchers": careful.Watched,
    "watchers in a cluster": careful.WatchedInACluster,
    "managed": careful.ManagedShops,
    "managed in a cluster": careful.ManagedInACluster,
    "resource": surfaces.StreamedSigns,
    "dynamic": surfaces.WatchedSigns,
}
MODES: dict[str, dict[str, Any]] = {
    "alone": {},
    "elected": {"leader_elect": True},
    "shared": {"shard": True},
}
CASES = [
    pytest.param(controller, mode, id=f"{name}, {mode}")
    for name, controller in CONTROLLERS.items()
    for mode in MODES
    if mode == "alone" or subject_of(controller).modes
]


def run(controller: ControllerClass, runs: int, **options: Any) -> None:
    objects = careful.documents_of(tuple(subject_of(controller).primaries))
    simulate(controller, objects=objects, runs=runs, **options)


LONG = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("runs", [2, pytest.param(1000, marks=LONG)])
@pytest.mark.parametrize(("controller", "mode"), CASES)
def test_a_surface_keeps_its_promises(controller: ControllerClass, mode: str, runs: int) -> None:
    run(controller, runs, **MODES[mode])


@pytest.mark.parametrize("runs", [1, pytest.param(1000, marks=LONG)])
@pytest.mark.parametrize(("controller", "mode"), CASES)
def test_a_surface_keeps_its_promises_in_storms(
    controller: ControllerClass, mode: str, runs: int
) -> None:
    run(controller, runs, storm=True, **MODES[mode])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_watchers_of_one_process_pass_ten_thousand_runs() -> None:
    """Nobody watches their signs, so a late write of a former leader would stay there."""
    subject = subject_of(surfaces.SignsOfShops)
    with Simulation(subject, DOCUMENTS, Checks(), mode=Division.ALONE) as simulation:
        assert simulation.search(range(10_000)).finding is None


@pytest.mark.parametrize("mode", ["elected", "shared"])
def test_processes_that_take_without_an_end_mark_break_a_promise(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(Shares, "ended", lambda self, session: session != self.lease.session)
    objects = careful.documents_of(tuple(subject_of(careful.Held).primaries))
    division = mode_of(**{"leader_elect": False, "shard": False} | MODES[mode])
    with Simulation(subject_of(careful.Held), objects, Checks(), mode=division) as simulation:
        ran = (simulation.run(simulation.schedule(seed)) for seed in range(20))
        violation = next(filter(None, (run.violation for run in ran)))  # not shrunk: that's slow
    assert violation.property is Property.EXCLUSIVE
    assert "work on the same keys" in violation.detail


@pytest.mark.parametrize("fault", [MemoryStore.rename, MemoryStore.turn_back_clock])
def test_an_administrator_renames_subjects_and_sets_clocks_back(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[MemoryStore], None]
) -> None:
    stores: list[MemoryStore] = []

    def noted(store: MemoryStore) -> None:
        stores.append(store)
        fault(store)

    monkeypatch.setattr(MemoryStore, fault.__name__, noted)
    run(careful.Held, 3, storm=True)
    assert stores


class Forgetful(careful.Shops):
    """Acts on the first state of a shop that it saw."""

    parts = secondary(PARTS)

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Shop] = {}

    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(key, part(self.first.setdefault(key, shop)))


def test_a_lost_change_is_found() -> None:
    with pytest.raises(SimulationError, match="the result differs"):
        run(Forgetful, 20)
