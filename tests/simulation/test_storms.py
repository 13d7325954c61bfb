"""Three processes keep natsctl's promises in storms, whether they elect a leader or share the keys.

Every object is in the cloud or in two stores as its last state wants it, and those of deleted
objects are gone. No two workers have one key, and no sync of a paused key begins.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
import pytest

from natsctl.testing.simulation.bench import Bench
from tests.support.controllers.simulated_promises import BrokenPromiseError
from tests.support.controllers.simulated_storms import STORMS, Storm, StormGroup

Mode = Literal["elected", "shared"]
MODES: tuple[Mode, ...] = ("elected", "shared")


def run(group: StormGroup, seeds: Iterable[int]) -> None:
    with Bench() as bench:
        for seed in seeds:
            bench.run(Storm(group, seed).run())


def group_of(name: str, mode: Mode) -> StormGroup:
    return msgspec.structs.replace(STORMS[name], mode=mode)


@pytest.mark.parametrize("name", STORMS)
def test_a_leader_and_its_standbys_keep_their_promises(name: str) -> None:
    run(group_of(name, "elected"), range(2))


@pytest.mark.parametrize("name", ["two stores", "finalizers"])
def test_processes_that_share_keys_keep_their_promises(name: str) -> None:
    run(group_of(name, "shared"), range(1))


def test_processes_that_do_not_know_each_other_break_a_promise() -> None:
    apart = msgspec.structs.replace(STORMS["finalizers"], mode="apart")
    with pytest.raises(BrokenPromiseError, match="took a step"):
        run(apart, range(1))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", STORMS)
def test_processes_keep_their_promises_in_a_thousand_storms(name: str, mode: Mode) -> None:
    run(group_of(name, mode), range(1000))
