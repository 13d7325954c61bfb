"""A resync visits every key once per interval, evenly, never all at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from natsctl.controller.sync.resync import resync
from natsctl.testing.time import VirtualTimeLoop

INTERVAL_S = 600.0


class Visits:
    """Which keys were added, and when."""

    def __init__(self, keys: Collection[str]) -> None:
        self.keys = keys
        self.added: list[tuple[float, str]] = []

    def add(self, key: str) -> None:
        self.added.append((asyncio.get_running_loop().time(), key))

    def between(self, start: float, end: float) -> Counter[str]:
        return Counter(key for at, key in self.added if start < round(at, 3) <= end)

    @asynccontextmanager
    async def running(self, interval_s: float = INTERVAL_S) -> AsyncIterator[None]:
        task = asyncio.create_task(resync(lambda: self.keys, self.add, interval_s=interval_s))
        await asyncio.sleep(0)
        yield
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def visits() -> Visits:
    return Visits([f"k{number}" for number in range(3000)])


async def test_every_key_is_visited_once_per_interval(visits: Visits) -> None:
    async with visits.running():
        await asyncio.sleep(3 * INTERVAL_S)
    for turn in range(3):
        counts = visits.between(turn * INTERVAL_S, (turn + 1) * INTERVAL_S)
        assert counts == Counter(visits.keys)


async def test_a_key_is_visited_at_the_same_time_of_each_interval(visits: Visits) -> None:
    async with visits.running():
        await asyncio.sleep(2 * INTERVAL_S)
    times: dict[str, list[float]] = {}
    for at, key in visits.added:
        times.setdefault(key, []).append(at)
    assert {round(second - first, 3) for first, second in times.values()} == {INTERVAL_S}


async def test_nothing_is_visited_at_once(visits: Visits) -> None:
    async with visits.running():
        await asyncio.sleep(0.5)
    assert visits.added == []


async def test_visits_are_spread_evenly(visits: Visits) -> None:
    async with visits.running():
        await asyncio.sleep(INTERVAL_S)
    tenths = [sum(visits.between(n * 60.0, (n + 1) * 60.0).values()) for n in range(10)]
    assert min(tenths) > 200
    assert max(tenths) < 400


async def test_two_processes_visit_a_key_at_different_times(visits: Visits) -> None:
    other = Visits(visits.keys)
    async with visits.running(), other.running():
        await asyncio.sleep(INTERVAL_S)
    mine, theirs = ({key: at for at, key in one.added} for one in (visits, other))
    together = sum(round(mine[key]) == round(theirs[key]) for key in visits.keys)
    assert together < 100


async def test_keys_are_asked_for_anew_in_every_interval(visits: Visits) -> None:
    async with visits.running():
        await asyncio.sleep(INTERVAL_S)
        visits.keys = ["new"]
        await asyncio.sleep(INTERVAL_S)
    assert visits.between(INTERVAL_S + 1, 2 * INTERVAL_S) == Counter(["new"])


async def test_without_keys_it_waits_for_some() -> None:
    visits = Visits([])
    async with visits.running(10):
        await asyncio.sleep(15)
        visits.keys = ["a"]
        await asyncio.sleep(15)
    assert [key for _, key in visits.added] == ["a"]


@pytest.mark.parametrize("interval_s", [0.1, 1, 2.5, 100_000])
async def test_any_interval_is_kept(interval_s: float) -> None:
    visits = Visits(["a", "b"])
    async with visits.running(interval_s):
        await asyncio.sleep(4 * interval_s)
    assert Counter(key for _, key in visits.added) == {"a": 4, "b": 4}


async def test_what_a_loop_that_was_held_up_has_missed_is_made_up_for(visits: Visits) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with visits.running():
        await asyncio.sleep(INTERVAL_S / 4)
        loop.jump(INTERVAL_S / 2)
        await asyncio.sleep(INTERVAL_S / 4 + 0.1)
        assert visits.between(0, INTERVAL_S) == Counter(visits.keys)
        await asyncio.sleep(INTERVAL_S)
    assert visits.between(INTERVAL_S, 2 * INTERVAL_S) == Counter(visits.keys)
