"""The cost of recordings.

Two controllers, one with recordings and one without, sync the same keys over memory stores by
turns. All seconds are processor time, because other processes disturb processor time least.
"""

import asyncio
from contextlib import AsyncExitStack
from statistics import median
from time import process_time

import msgspec

from natsctl import Controller, Object, kv, primary, secondary
from natsctl.core.environment import within
from natsctl.core.record.recordings import Recordings
from natsctl.testing import Harness, MemoryStores, running
from tests.benchmarks.support.measured_server import Sizes
from tests.benchmarks.support.results import Row, limited, shown

KEYS = 200
ROUNDS = 15
PAIRS = 9
COST_MAX = 1.02


class JobSpec(msgspec.Struct, frozen=True):
    image: str
    replicas: int = 1
    labels: dict[str, str] = {}


class Job(Object, frozen=True):
    spec: JobSpec


class Jobs(Controller):
    """Reads its primary, and applies a secondary that is up to date."""

    jobs = primary(kv(Job, bucket="jobs"))
    copies = secondary(kv(Job, bucket="copies"))

    async def sync_handler(self, key: str) -> None:
        job = self.jobs.get(key)
        if job is not None:
            await self.copies.apply(key, job)


async def _started(stack: AsyncExitStack, recordings: Recordings | None) -> Harness:
    stores = MemoryStores()
    jobs = stores.store(Jobs.jobs.kind)
    labels = {f"name-{number}": "a value of some length" for number in range(8)}
    spec = {"image": "registry.example.com/team/image:1.2.3", "replicas": 3, "labels": labels}
    for number in range(KEYS):
        await jobs.create(f"job-{number}", msgspec.json.encode({"spec": spec}))
    with within(recordings=recordings):
        harness = await stack.enter_async_context(running(Jobs(), stores=stores))
    await _idle(harness)
    return harness


async def _idle(harness: Harness) -> None:
    while not harness.runtime.idle:  # noqa: ASYNC110 - a runtime has no event for this
        await asyncio.sleep(0.001)


async def _resync(harness: Harness) -> float:
    """Return the seconds of processor time that a sync of each key takes."""
    begun = process_time()
    harness.runtime.resync()
    await _idle(harness)
    return (process_time() - begun) / KEYS


async def cost() -> tuple[float, float]:
    """Return the seconds of a sync with recordings over those without, and the seconds without.

    Of each controller, the fastest round counts: the others were disturbed. The result is the
    median of several pairs of controllers, since the memory of each is laid out differently.
    """
    pairs = [await _pair() for _ in range(PAIRS)]
    return median(recorded / plain for plain, recorded in pairs), median(dict(pairs))


async def _pair() -> tuple[float, float]:
    """Return the seconds of a sync without recordings, and with recordings."""
    async with AsyncExitStack() as stack:
        plain = await _started(stack, None)
        recorded = await _started(stack, Recordings())
        taken: dict[Harness, list[float]] = {plain: [], recorded: []}
        for number in range(ROUNDS):
            for harness in (plain, recorded) if number % 2 else (recorded, plain):
                taken[harness].append(await _resync(harness))
        return min(taken[plain]), min(taken[recorded])


async def run(_sizes: Sizes) -> list[Row]:
    ratio, seconds = await cost()
    return [
        limited("recordings: processor time of a sync, over none", "x", [ratio], at_most=COST_MAX),
        shown("  sync without recordings", "µs", [seconds * 1e6]),
    ]
