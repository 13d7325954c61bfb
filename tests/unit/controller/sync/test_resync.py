"""A resync enqueues every key once per interval, spread evenly."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from natsctl.controller.sync.resync import STEP_S, keeps_up, resync
from natsctl.testing import VirtualTimeLoop

INTERVAL_S = 600.0


class Resync:
    """Records the keys that a resync adds, each with its time in seconds."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.added: list[tuple[float, str]] = []

    def iterate(self, start: float) -> Iterator[str]:
        first = int(start * len(self.keys))
        return iter([*self.keys[first:], *self.keys[:first]])

    def add(self, key: str) -> None:
        self.added.append((asyncio.get_running_loop().time(), key))

    def between(self, start: float, end: float) -> Counter[str]:
        return Counter(key for added_at, key in self.added if start < round(added_at, 3) <= end)

    @asynccontextmanager
    async def running(
        self, interval_s: float = INTERVAL_S, start: float | None = None
    ) -> AsyncIterator[None]:
        syncing = resync(
            self.iterate, lambda: len(self.keys), self.add, interval_s=interval_s, start=start
        )
        task = asyncio.create_task(syncing)
        await asyncio.sleep(0)
        yield
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def running_resync() -> Resync:
    return Resync([f"k{number}" for number in range(3000)])


async def test_every_key_is_enqueued_once_per_interval(running_resync: Resync) -> None:
    async with running_resync.running():
        await asyncio.sleep(3 * INTERVAL_S)
    for turn in range(3):
        counts = running_resync.between(turn * INTERVAL_S, (turn + 1) * INTERVAL_S)
        assert counts == Counter(running_resync.keys)


async def test_a_key_is_enqueued_at_the_same_time_of_each_interval(running_resync: Resync) -> None:
    async with running_resync.running():
        await asyncio.sleep(2 * INTERVAL_S)
    times: dict[str, list[float]] = {}
    for added_at, key in running_resync.added:
        times.setdefault(key, []).append(added_at)
    assert {round(second - first, 3) for first, second in times.values()} == {INTERVAL_S}


async def test_nothing_is_enqueued_immediately(running_resync: Resync) -> None:
    async with running_resync.running():
        await asyncio.sleep(0.5)
    assert running_resync.added == []


async def test_keys_are_spread_evenly_over_the_interval(running_resync: Resync) -> None:
    async with running_resync.running():
        await asyncio.sleep(INTERVAL_S)
    tenths = [sum(running_resync.between(n * 60.0, (n + 1) * 60.0).values()) for n in range(10)]
    assert min(tenths) > 200
    assert max(tenths) < 400


async def test_two_processes_enqueue_a_key_at_different_times(running_resync: Resync) -> None:
    second_resync = Resync(running_resync.keys)
    async with running_resync.running(start=0.1), second_resync.running(start=0.7):
        await asyncio.sleep(INTERVAL_S)
    mine, theirs = (
        {key: added_at for added_at, key in resync.added}
        for resync in (running_resync, second_resync)
    )
    assert min(abs(mine[key] - theirs[key]) for key in running_resync.keys) > 0.3 * INTERVAL_S


async def test_each_process_starts_with_a_random_key(running_resync: Resync) -> None:
    firsts = set()
    for _ in range(5):
        running_resync.added.clear()
        async with running_resync.running():
            await asyncio.sleep(1)
        firsts.add(running_resync.added[0][1])
    assert len(firsts) > 1


async def test_the_keys_are_read_again_in_every_interval(running_resync: Resync) -> None:
    async with running_resync.running():
        await asyncio.sleep(INTERVAL_S)
        running_resync.keys = ["new"]
        await asyncio.sleep(INTERVAL_S)
    assert running_resync.between(INTERVAL_S + 1, 2 * INTERVAL_S) == Counter(["new"])


async def test_keys_that_come_in_an_interval_are_spread_over_the_next_one() -> None:
    running_resync = Resync(["first"])
    async with running_resync.running():
        await asyncio.sleep(INTERVAL_S / 2)
        running_resync.keys = ["first", *(f"new-{number}" for number in range(60))]
        await asyncio.sleep(1.5 * INTERVAL_S)
    assert running_resync.between(1, INTERVAL_S).total() == 1
    tenths = [
        sum(running_resync.between(600.0 + n * 60.0, 660.0 + n * 60.0).values()) for n in range(10)
    ]
    assert max(tenths) <= 7


async def test_without_keys_a_resync_waits_for_the_first_key() -> None:
    running_resync = Resync([])
    async with running_resync.running(10):
        await asyncio.sleep(15)
        running_resync.keys = ["a"]
        await asyncio.sleep(15)
    assert [key for _, key in running_resync.added] == ["a"]


@pytest.mark.parametrize("interval_s", [0.1, 1, 2.5, 100_000])
async def test_any_interval_is_kept(interval_s: float) -> None:
    running_resync = Resync(["a", "b"])
    async with running_resync.running(interval_s):
        await asyncio.sleep(4 * interval_s)
    assert Counter(key for _, key in running_resync.added) == {"a": 4, "b": 4}


async def test_a_blocked_loop_catches_up_on_missed_keys(running_resync: Resync) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with running_resync.running():
        await asyncio.sleep(INTERVAL_S / 4)
        loop.jump(INTERVAL_S / 2)
        await asyncio.sleep(INTERVAL_S / 4 + 0.1)
        assert running_resync.between(0, INTERVAL_S) == Counter(running_resync.keys)
        await asyncio.sleep(INTERVAL_S)
    assert running_resync.between(INTERVAL_S, 2 * INTERVAL_S) == Counter(running_resync.keys)


class Ready:
    """Returns since when the oldest key is ready: for *key_s* seconds, until a time."""

    def __init__(self, until: float, key_s: float = 10.0) -> None:
        self._until = until
        self._key_s = key_s

    def __call__(self) -> float | None:
        now = asyncio.get_running_loop().time()
        return now - self._key_s if now < self._until else None


class TestKeepsUp:
    """A resync begins when the keys of the first list are synced."""

    async def kept_up(self, oldest: Ready, within_s: float = 100.0) -> float:
        """Return the time at which the queue keeps up."""
        await keeps_up(oldest, within_s=within_s)
        return asyncio.get_running_loop().time()

    async def test_a_queue_without_keys_keeps_up_at_once(self) -> None:
        assert await self.kept_up(Ready(until=0)) == 0

    async def test_keys_that_are_ready_for_long_are_waited_for(self) -> None:
        assert await self.kept_up(Ready(until=10)) == 10

    async def test_keys_that_have_just_become_ready_are_not_waited_for(self) -> None:
        assert await self.kept_up(Ready(until=50, key_s=STEP_S / 2)) == STEP_S

    async def test_the_wait_has_a_limit(self) -> None:
        assert await self.kept_up(Ready(until=1e6)) == 100

    async def test_a_short_limit_is_kept(self) -> None:
        assert await self.kept_up(Ready(until=1e6), within_s=STEP_S / 4) == STEP_S / 4
