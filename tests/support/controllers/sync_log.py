"""A controller that is seen at its work: every step goes into a file that all processes share."""

import asyncio
import os
from pathlib import Path

import msgspec

from natsctl import Controller, Object, kv, primary

TURNS = "turns"
RECORDS = "TURNS_RECORDS"
"""The variable that names the file."""

AGAIN = "TURNS_AGAIN_S"
"""The variable that says how soon a key is visited again."""

STEPS = 5
PAUSE_S = 0.01


class Record(msgspec.Struct, frozen=True):
    """What a process did: it began with a key, took a step, or ended."""

    pid: int
    what: str
    key: str


class Turns(Controller):
    """Visits every key again and again, in several steps."""

    turns = primary(kv(Object, bucket=TURNS))

    async def start(self) -> None:
        # appended to at once and as a whole, so that the file has the order of things
        self.file = os.open(os.environ[RECORDS], os.O_WRONLY | os.O_APPEND)

    async def sync_handler(self, key: str) -> float | None:
        if self.turns.get(key) is None:
            return None
        self.record("begin", key)
        try:
            for _ in range(STEPS):
                await asyncio.sleep(PAUSE_S)
                self.record("step", key)
            await self.turns.update_status(key, {"pid": os.getpid()})
            self.record("step", key)
        finally:
            self.record("end", key)
        return float(os.environ.get(AGAIN, PAUSE_S))

    def record(self, what: str, key: str) -> None:
        line = msgspec.json.encode(Record(os.getpid(), what, key)) + b"\n"
        os.write(self.file, line)


class Overlap(AssertionError):  # noqa: N818 - what was seen
    """Two processes were at one key at the same time."""


class Book:
    """The file of records, as it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def records(self) -> list[Record]:
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line, type=Record) for line in lines]

    def check(self, *, excused: frozenset[int] = frozenset()) -> None:
        """Raise `Overlap` where two processes were at one key at the same time.

        Of those who are *excused*, having been killed or stopped in the middle, an end may be
        missing or late: but they take no step once another process has begun.
        """
        at: dict[str, int] = {}
        for number, record in enumerate(self.records()):
            pid, key = record.pid, record.key
            other = at.get(key, pid)
            match record.what:
                case "begin":
                    if other != pid and other not in excused:
                        raise Overlap(f"record {number}: {pid} begins {key}, where {other} is")
                    at[key] = pid
                case "step":
                    if at.get(key) != pid:
                        raise Overlap(f"record {number}: {pid} goes on with {key}, it is {other}'s")
                case _:
                    if other == pid:
                        at.pop(key, None)
