"""Finds the keys that a sync loop has held for long, for the record of this process in NATS.

Only a sync that waits can take long, so a short sync costs nothing.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from natsctl.core.pausing.held_file import state_directory
from natsctl.core.pausing.held_records import HeldRecords
from natsctl.core.pausing.paused_keys import PausedKeys
from natsctl.core.workqueue import Place, WorkQueue

LONG_S = 1.0
EARLY_S = 0.001  # a timer may fire this much too early


class LongSyncs(msgspec.Struct, eq=False):
    """The keys that one sync loop has held for longer than `LONG_S` seconds."""

    place: str  # of the objects
    queue: WorkQueue[Any]
    records: HeldRecords
    workers: int
    _long: set[str] = set()
    _timer: asyncio.TimerHandle | None = None  # runs only while keys are held

    def wait(self) -> None:
        """Note that a sync begins to wait."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONG_S, self._record_long_syncs)

    def end(self, key: str) -> None:
        """Note that the sync of the key, which has waited, ends."""
        if key in self._long:
            self._long.discard(key)
            self.records.release(self.place, key)

    def close(self) -> None:
        """Look for no more keys."""
        if self._timer is not None:
            self._timer.cancel()

    def _record_long_syncs(self) -> None:
        loop = asyncio.get_running_loop()
        held = dict(self._held())
        for key, since in held.items():
            if key not in self._long and loop.time() - since >= LONG_S - EARLY_S:
                self._long.add(key)
                self.records.hold(self.place, key)
        self._timer = loop.call_later(LONG_S, self._record_long_syncs) if held else None

    def _held(self) -> Iterator[tuple[str, float]]:
        for work in self.queue.first(self.workers):
            if work.place is not Place.CLAIMED:
                return  # claimed keys come first
            yield str(work.key), work.at


@contextmanager
def long_syncs(
    paused: PausedKeys, queue: WorkQueue[Any], records: HeldRecords, workers: int
) -> Iterator[LongSyncs | None]:
    """Find the keys that are held for long while the context lasts.

    Yields None if the process has no state directory, or the sync loop has no name.
    """
    if state_directory.get() is None or not paused.name:
        yield None
        return
    syncs = LongSyncs(paused.place, queue, records, workers)
    try:
        yield syncs
    finally:
        syncs.close()
