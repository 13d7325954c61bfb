"""Syncs every key again, once per interval, never all at once."""

import asyncio
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection

SLICE_S = 1.0  # between two slices of the keys
SLICES_MAX = 3600


async def keeps_up(oldest: Callable[[], float | None], *, within_s: float) -> None:
    """Wait until no key has been ready for longer than `SLICE_S`, for *within_s* seconds at most.

    *oldest* returns the loop time at which the oldest ready key became ready. The keys of the
    first list are synced then, so that a resync does not sync them twice.
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

    The time of a key within the interval depends on the key and on a random number of the process,
    so that several processes do not sync the same key at the same time.
    """
    count = max(1, min(SLICES_MAX, int(interval_s / SLICE_S)))
    salt = random.randbytes(4)  # noqa: S311 - spreads load, keeps no secret
    clock = asyncio.get_running_loop().time
    begun = clock()
    while True:
        slices: dict[int, list[str]] = defaultdict(list)
        for key in keys():
            slices[zlib.crc32(key.encode(), zlib.crc32(salt)) % count].append(key)
        for number in sorted({*slices, count - 1}):
            await asyncio.sleep(begun + interval_s * (number + 1) / count - clock())
            for key in slices[number]:
                add(key)
        begun += interval_s
