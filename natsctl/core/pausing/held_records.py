"""Records in NATS which keys the processes of a controller have held for long.

A process that takes over the keys of another one reads from the record which keys the other process
held when it died, also on another machine. Each process has one record,
`controllers.NAME.held.PROCESS`, and writes it only if a sync takes long.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from natsctl.core.objects.compare_and_set import read, rewrite
from natsctl.errors import DECODE_ERRORS, ConflictError, NotFoundError, NotLeadingError, StoreError
from natsctl.model.store import Store, Stored
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

CLOSE_S = 1.0  # how long a stop waits until the record is deleted
KEYS_MAX = 1_000  # in a record; a process with more workers notes only so many

Name = tuple[str, str]  # the place and the key of an object


class HeldRecord(msgspec.Struct, frozen=True):
    """The keys that a process has held for long."""

    keys: tuple[Name, ...] = ()


def held_record(controller: str, process: str) -> str:
    """Return the key of the record of a process."""
    return f"controllers.{controller}.held.{process}"


class HeldRecords:
    """The records of all processes of a controller.

    Calls *on_change* when the record of this process has to be written.
    """

    def __init__(self, controller: str, process: str, on_change: Callable[[], None]) -> None:
        self.prefix = held_record(controller, "")
        self._process = process
        self._on_change = on_change
        self._own: dict[Name, None] = {}
        self._name = f"{self.prefix}{process}"
        self._exists = False  # whether the record exists
        self._written: tuple[Name, ...] = ()
        self._others: dict[str, HeldRecord] = {}

    def hold(self, place: str, key: str) -> None:
        """Note that this process has held the key for long."""
        if len(self._own) < KEYS_MAX:
            self._own[place, key] = None
            self._on_change()

    def release(self, place: str, key: str) -> None:
        """Note that this process holds the key no more."""
        if (place, key) in self._own:
            del self._own[place, key]
            self._on_change()

    def observe(self, name: str, value: bytes | None) -> None:
        """Note the record of a process; None if the record was deleted."""
        process = name.removeprefix(self.prefix)
        record = HeldRecord()
        if value is not None:
            with suppress(*DECODE_ERRORS):
                record = msgspec.json.decode(value, type=HeldRecord)
        if value is None or process == self._process:
            self._others.pop(process, None)
        else:
            self._others[process] = record

    def left_by_others(self, place: str, holds: Callable[[str], bool]) -> list[tuple[str, str]]:
        """Return the keys in *place* that this process *holds* now and others held, by process."""
        return [
            (key, process)
            for process, record in self._others.items()
            for key_place, key in record.keys
            if key_place == place and holds(key)
        ]

    async def try_write(self, store: Store) -> bool:
        """Write the record of this process, if it has changed.

        Returns False after a failure, which is logged: the caller tries again later.
        """
        keys = tuple(self._own)
        if keys == self._written:
            return True
        value = msgspec.json.encode(HeldRecord(keys))
        try:
            await rewrite(store, self._name, lambda _: value, seen=await read(store, self._name))
        except NotLeadingError:
            pass  # the next change writes the record
        except StoreError as error:
            log.warning("cannot record the keys that are held for long", error=error)
            return False
        else:
            self._written, self._exists = keys, True
        return True

    async def close(self, store: Store) -> None:
        """Delete the record of this process, so that the next process counts no death.

        Keys that are still held stay in the record.
        """
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if self._own:
                    await self.try_write(store)
                elif self._exists:
                    await store.delete(self._name)

    async def remove(self, store: Store, place: str, holds: Callable[[str], bool]) -> None:
        """Remove the keys of `left_by_others` from the records; raises `StoreError`."""
        for process, record in list(self._others.items()):
            remaining = tuple(
                (key_place, key)
                for key_place, key in record.keys
                if key_place != place or not holds(key)
            )
            if remaining and remaining == record.keys:
                continue
            with suppress(NotFoundError, ConflictError):  # the process changed it: it lives
                await self._replace(store, f"{self.prefix}{process}", record, remaining)

    async def _replace(
        self, store: Store, name: str, record: HeldRecord, keys: tuple[Name, ...]
    ) -> None:
        stored: Stored = await store.get(name)
        if stored.value != msgspec.json.encode(record):
            return
        if keys:
            value = msgspec.json.encode(HeldRecord(keys))
            await store.update(name, value, revision=stored.revision)
        else:
            await store.delete(name, revision=stored.revision)
