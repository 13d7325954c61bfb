"""Records in NATS which keys a process syncs, if it can't write a file.

A process without a writable disk has one record, `controllers.NAME.held.PROCESS`, from its first
sync to an orderly stop. A record that is left shows the next process that this one died, but at
first not with which keys. So the next process adds each key to its record before it syncs the key,
until it has synced everything once.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec

from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.pausing.claims import ClaimedKeys, Left
from natsctl.errors import DECODE_ERRORS, ConflictError, NotFoundError, NotLeadingError, StoreError
from natsctl.model.store import Store, Stored
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

CLOSE_S = 1.0  # how long a stop waits until the record is deleted

Name = tuple[str, str]  # the place and the key of an object


class ClaimRecord(msgspec.Struct, frozen=True):
    """The keys that a process syncs, on which host, and whether it syncs one key alone."""

    keys: tuple[Name, ...] = ()
    host: str = ""
    alone: bool = False


def claim_record(controller: str, process: str) -> str:
    """Return the key of the record of a process."""
    return f"controllers.{controller}.held.{process}"


class ClaimRecords:
    """The records of all processes of a controller.

    Calls *on_change* when the record of this process has to be written.
    """

    def __init__(self, controller: str, claims: ClaimedKeys, on_change: Callable[[], None]) -> None:
        self.prefix = claim_record(controller, "")
        self._process = claims.process
        self._wary = claims.wary
        self._on_change = on_change
        self._name = f"{self.prefix}{claims.process}"
        self._host = socket.gethostname()
        self._claimed: dict[Name, None] = {}
        self._alone = False
        self._stored: Stored | None = None  # the record as it was written last
        self._written = ClaimRecord()
        self._begun = False
        self._writing = asyncio.Lock()
        self._others: dict[str, ClaimRecord] = {}

    async def begin(self, store: Store) -> None:
        """Write the record of this process, which shows that it runs."""
        self._begun = True
        await self.try_write(store)

    async def claim(self, store: Store, name: Name, *, alone: bool) -> None:
        """Note that this process begins to sync the key, and return when the record shows it.

        Without the record, the sync begins all the same: nothing else would ever be synced.
        """
        self._claimed[name], self._alone = None, alone
        self._wary.add(self)
        await self.try_write(store)

    def release(self, name: Name) -> None:
        """Note that this process syncs the key no more."""
        if name in self._claimed:
            del self._claimed[name]
            self._alone = False
            self._on_change()
            if not self._claimed:
                self._wary.discard(self)

    def observe(self, name: str, value: bytes | None) -> None:
        """Note the record of a process; None if the record was deleted."""
        process = name.removeprefix(self.prefix)
        record = ClaimRecord()
        if value is not None:
            with suppress(*DECODE_ERRORS):
                record = msgspec.json.decode(value, type=ClaimRecord)
        if value is None or process == self._process:
            self._others.pop(process, None)
        else:
            self._others[process] = record

    def left_behind(
        self, place: str, holds: Callable[[str], bool], *, shared: bool
    ) -> dict[str, Left]:
        """Return, by process, the keys in *place* that others left and this process *holds* now.

        The members of a group that are alive have records too. So if the keys are *shared*, only
        two kinds of records count: those with keys that this process holds now, and those of this
        host, where only one process without a disk runs.
        """
        found = {}
        for process, record in self._others.items():
            keys = tuple(key for key_place, key in record.keys if key_place == place and holds(key))
            if keys or not shared or record.host == self._host:
                alone = record.alone and len(record.keys) == 1
                found[process] = Left(process, keys, alone=alone)
        return found

    async def remove(self, store: Store, left: dict[str, Left], place: str) -> None:
        """Remove what `left_behind` returned from the records; raises `StoreError`."""
        for process, keys in left.items():
            record = self._others.get(process)
            if record is None:
                continue
            remaining = tuple(
                name for name in record.keys if name[0] != place or name[1] not in keys.keys
            )
            with suppress(NotFoundError, ConflictError):  # the process changed it: it lives
                await self._replace(store, f"{self.prefix}{process}", record, remaining)

    async def _replace(
        self, store: Store, name: str, record: ClaimRecord, keys: tuple[Name, ...]
    ) -> None:
        stored: Stored = await store.get(name)
        if stored.value != msgspec.json.encode(record):
            return
        if keys:
            value = msgspec.json.encode(msgspec.structs.replace(record, keys=keys, alone=False))
            await store.update(name, value, revision=stored.revision)
        else:
            await store.delete(name, revision=stored.revision)

    async def try_write(self, store: Store) -> bool:
        """Write the record of this process, if it has changed.

        Returns False after a failure, which is logged: the caller tries again later.
        """
        if not self._begun:
            return True
        async with self._writing:  # the claims of several workers are one write
            record = ClaimRecord(tuple(self._claimed), self._host, self._alone)
            if self._stored is not None and record == self._written:
                return True
            value = msgspec.json.encode(record)
            try:
                seen = self._stored or await read(store, self._name)
                self._stored = (await rewrite(store, self._name, lambda _: value, seen=seen)).stored
            except NotLeadingError:
                return True  # the next change writes the record
            except StoreError as error:
                self._stored = None
                log.warning("cannot record the keys that are synced", error=error)
                return False
            self._written = record
            return True

    async def close(self, store: Store, *, syncing: bool) -> None:
        """Delete the record of this process, so that the next process finds no death.

        It stays if the process is still *syncing* a key, which can't be stopped.
        """
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if self._begun and not syncing:
                    await store.delete(self._name)
