"""Syncs every key again, once per interval, never all at once."""

import asyncio
import random
import zlib
from collections.abc import Callable, Collection

SLICE_S = 1.0  # keys are added in portions about this far apart
SLICES_MAX = 3600


async def keeps_up(oldest: Callable[[], float | None], *, within_s: float) -> None:
    """Wait until no key has been ready for longer than a slice, *within_s* at most.

    *oldest* returns the loop time at which the oldest ready key became ready. Keys of the start
    are then synced, and a resync does not sync them twice.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    pending = oldest() is not None
    while pending and clock() < deadline:
        await asyncio.sleep(min(SLICE_S, within_s))
        since = oldest()
        pending = since is not None and clock() - since >= SLICE_S


async def resync(
    keys: Callable[[], Collection[str]], add: Callable[[str], None], *, interval_s: float
) -> None:
    """Call *add* for every key once per *interval_s*, spread evenly over it, until cancelled.

    Which part of the interval is a key's turn depends on the key and on a number drawn at the
    start, so that several processes do not visit the same key at the same time.
    """
    slices = max(1, min(SLICES_MAX, int(interval_s / SLICE_S)))
    salt = random.randbytes(4)  # noqa: S311 - spreads load, keeps no secret
    clock = asyncio.get_running_loop().time
    begun = clock()
    while True:
        turns: list[list[str]] = [[] for _ in range(slices)]
        for key in keys():
            turns[zlib.crc32(key.encode(), zlib.crc32(salt)) % slices].append(key)
        for number, turn in enumerate(turns, start=1):
            await asyncio.sleep(begun + interval_s * number / slices - clock())
            for key in turn:
                add(key)
        begun += interval_s
