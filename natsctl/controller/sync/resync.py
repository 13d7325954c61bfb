"""Syncs every key again, once per interval, never all at once."""

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

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
    keys: Callable[[float], Iterator[str]],
    count: Callable[[], int],
    add: Callable[[str], None],
    *,
    interval_s: float,
    start: float | None = None,
) -> None:
    """Call *add* for every key once per *interval_s*, spread evenly over it, until cancelled.

    *keys* returns all keys, and takes the share of them that is before the first one, 0 to 1. They
    have the order of the cache, so a key has about the same time in each interval. *start* is that
    share. It is random by default, so that several processes do not sync the same key at the same
    time. *count* returns about how many keys there are. An interval adds no more keys than there
    are at its start; the next interval continues with the others.
    """
    steps = max(1, min(STEPS_MAX, int(interval_s / STEP_S)))
    start = random.random() if start is None else start  # noqa: S311 - spreads load, keeps no secret
    clock = asyncio.get_running_loop().time
    circle, begun = _Circle(partial(keys, start)), clock()
    while True:
        total, added, step = count(), 0, 0
        while step < steps:
            step = -(-steps * (added + 1) // total) if added < total else steps
            await asyncio.sleep(begun + interval_s * step / steps - clock())
            due = total * step // steps
            await in_slices(circle.take(due - added), add)
            added = due
        begun += interval_s


class _Circle:
    """Takes keys one after the other, and the first one again after the last."""

    def __init__(self, keys: Callable[[], Iterator[str]]) -> None:
        self._keys = keys
        self._remaining = keys()

    def take(self, number: int) -> Iterator[str]:
        """Return the next keys, fewer if there are fewer."""
        for key in islice(self._remaining, number):
            number -= 1
            yield key
        if number:
            self._remaining = self._keys()
            yield from islice(self._remaining, number)
