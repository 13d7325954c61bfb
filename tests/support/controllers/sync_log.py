"""A controller that records every step of its syncs in a file that all processes share."""

import asyncio
import os
from pathlib import Path

import msgspec

from natsctl import Controller, Object, kv, primary

TURNS = "turns"
RECORDS = "TURNS_RECORDS"
"""The environment variable with the path of the file."""

HELD = ".held"
"""The end of the path of a file beside that one: the keys in it are synced until they leave it."""

AGAIN = "TURNS_AGAIN_S"
"""The environment variable with the seconds until a key is synced again."""

STEPS = 4
PAUSE_S = 0.02


class Record(msgspec.Struct, frozen=True):
    """One entry of the file: a process began a sync, took a step or ended the sync.

    `at` is when the event loop began the iteration that took it, on the clock that all processes
    of the machine share: nothing in a process can stop what the loop has begun to run already.
    """

    pid: int
    what: str
    key: str
    at: float


class Turns(Controller):
    """Syncs every key repeatedly, in several steps."""

    turns = primary(kv(Object, bucket=TURNS))

    async def start(self) -> None:
        # O_APPEND writes each record as a whole, so the file has the order of the steps
        self.file = os.open(os.environ[RECORDS], os.O_WRONLY | os.O_APPEND)
        self.held = Path(os.environ[RECORDS] + HELD)

    async def sync_handler(self, key: str) -> float | None:
        if self.turns.get(key) is None:
            return None
        self.record("begin", key)
        try:
            for _ in range(STEPS):
                await asyncio.sleep(PAUSE_S)
                self.record("step", key)
            while key in self.held.read_text().split():
                await asyncio.sleep(PAUSE_S)
                self.record("step", key)
            await self.turns.update_status(key, {"pid": os.getpid()})
            self.record("step", key)
        finally:
            self.record("end", key)
        return float(os.environ.get(AGAIN, PAUSE_S))

    def record(self, event: str, key: str) -> None:
        began_s = asyncio.get_running_loop().time()  # uvloop's stands still in an iteration
        line = msgspec.json.encode(Record(os.getpid(), event, key, began_s)) + b"\n"
        os.write(self.file, line)


class Overlap(AssertionError):  # noqa: N818 - an observation
    """Two processes synced one key at the same time."""


class Book:
    """A reader of the file of records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = Path(f"{path}{HELD}")
        path.touch()
        self.held.touch()
        self._records: list[Record] = []
        self._read_bytes = 0

    def records(self) -> list[Record]:
        """Return all records; each call reads the new ones, because tests call it very often."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            *lines, _incomplete = file.read().split(b"\n")
        self._read_bytes += sum(len(line) + 1 for line in lines)
        self._records += [msgspec.json.decode(line, type=Record) for line in lines]
        return self._records

    def check(self) -> None:
        """Raise `Overlap` if a process took a step of a sync after another one began the key.

        The end of a sync may be late, or missing if the process was killed. The order of the file
        would not do: a machine that's too busy pauses a process anywhere.
        """
        holders: dict[str, tuple[int, float]] = {}  # who began each key last, and when
        for number, record in enumerate(self.records()):
            holder, began = holders.get(record.key, (0, 0.0))
            if record.what == "begin" and record.at >= began:
                holders[record.key] = record.pid, record.at
            elif record.what == "end" and record.pid == holder:
                holders[record.key] = 0, began
            elif record.what == "step" and record.pid != holder and record.at > began:
                raise Overlap(
                    f"record {number}: {record.pid} continues {record.key}, which {holder} "
                    f"began {record.at - began:.3f} s before"
                )
