"""Syncs every key again, once per interval, never all at once."""

import asyncio
import random
from collections.abc import Callable, Collection

from natsctl.slices import in_slices

STEP_S = 1.0  # between two parts of the keys
STEPS_MAX = 3600


async def keeps_up(oldest: Callable[[], float | None], *, within_s: float) -> None:
    """Wait until no key has been ready for longer than `STEP_S`, for *within_s* seconds at most.

    *oldest* returns the loop time at which the oldest ready key became ready. The keys of the
    first list are synced then, so that a resync does not sync them twice.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    pending = oldest() is not None
    while pending and clock() < deadline:
        await asyncio.sleep(min(STEP_S, within_s))
        since = oldest()
        pending = since is not None and clock() - since >= STEP_S


async def resync(
    keys: Callable[[], Collection[str]],
    add: Callable[[str], None],
    *,
    interval_s: float,
    start: float | None = None,
) -> None:
    """Call *add* for every key once per *interval_s*, spread evenly over it, until cancelled.

    The keys have the order of the cache, so a key has about the same time in each interval.
    *start* is the share of the keys before the first one, 0 to 1. It is random by default, so that
    several processes do not sync the same key at the same time.
    """
    steps = max(1, min(STEPS_MAX, int(interval_s / STEP_S)))
    start = random.random() if start is None else start  # noqa: S311 - spreads load, keeps no secret
    clock = asyncio.get_running_loop().time
    begun = clock()
    while True:
        ordered = tuple(keys())
        count, first = len(ordered), int(start * len(ordered))
        added, step = 0, 0
        while step < steps:
            step = -(-steps * (added + 1) // count) if count else steps  # the next that adds a key
            await asyncio.sleep(begun + interval_s * step / steps - clock())
            positions = range(added, count * step // steps)
            await in_slices((ordered[(first + number) % count] for number in positions), add)
            added = positions.stop
        begun += interval_s
