"""A controller that counts its syncs, and writes its progress to a file of its process."""

import asyncio
import os
import time
from pathlib import Path

import msgspec

from natsctl import Controller, primary
from tests.benchmarks.support.dataset import ITEMS

COUNTS = "COUNTING_FOLDER"
"""The variable with the folder of the files."""

BUSY_S = 0.0005  # of processor time for a sync of `BusyCounting`
PERIOD_S = 0.05  # between two writes of the file
STARTED = time.monotonic()  # when the process had imported natsctl


class Progress(msgspec.Struct, frozen=True):
    """The syncs of a process, the newest version that it has handled, and its memory.

    `began` is the monotonic time at which the process began, `last` that of its last sync. `keys`
    counts the keys with the newest version; 0 if that is the first version.
    """

    syncs: int
    began: float
    last: float
    version: int
    keys: int
    rss_bytes: int


class Counting(Controller):
    """Counts its syncs, and the keys whose newest version it has handled."""

    items = primary(ITEMS)

    def __init__(self) -> None:
        self._version = 0
        self._keys: set[str] = set()
        self._syncs = 0
        self._last = STARTED

    async def start(self) -> None:
        self._writer = asyncio.create_task(self._write())

    async def clean(self) -> None:
        self._writer.cancel()

    async def sync_handler(self, key: str) -> float | None:
        item = self.items.get(key)
        if item is not None:
            if item.spec.replicas > self._version:
                self._version, self._keys = item.spec.replicas, set()
            if self._version and item.spec.replicas == self._version:
                self._keys.add(key)
            self._syncs += 1
            self._last = time.monotonic()
        return None

    async def _write(self) -> None:
        """Write the progress whenever it has changed."""
        file = Path(os.environ[COUNTS]) / f"{os.getpid()}.json"
        written = -1
        while True:
            if written != self._syncs:
                written = self._syncs
                progress = Progress(
                    syncs=self._syncs,
                    began=STARTED,
                    last=self._last,
                    version=self._version,
                    keys=len(self._keys),
                    rss_bytes=_rss_bytes(),
                )
                partial = file.with_suffix(".new")
                partial.write_bytes(msgspec.json.encode(progress))
                partial.rename(file)
            await asyncio.sleep(PERIOD_S)


class BusyCounting(Counting):
    """Counts its syncs, each of which uses the processor for `BUSY_S` seconds."""

    name = "busy"

    async def sync_handler(self, key: str) -> float | None:
        until = time.thread_time() + BUSY_S
        while time.thread_time() < until:
            pass
        return await super().sync_handler(key)


def progress_of(file: Path) -> Progress | None:
    """Return the progress in a file, None if the file is gone."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Progress)
    except FileNotFoundError:
        return None


def _rss_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
