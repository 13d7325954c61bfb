"""Records in NATS which keys of a controller fail, since when, and why.

A failure that lasts has the record `controllers.NAME.failing.KEY`. It outlives the process: the
next one knows at once which keys fail and since when, and you see them while no process runs.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

import msgspec

from natsctl.core.compare_and_set import read, rewrite
from natsctl.errors import (
    DECODE_ERRORS,
    ConflictError,
    InvalidKeyError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
)
from natsctl.model.store import Store, Stored
from natsctl.telemetry.hiding import shortened
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SETTLE_S = 5.0  # a failure that is over sooner leaves no record
PACE_S = 0.005  # between two records, so that writes of objects come first
RETRY_S = 5.0
CLOSE_S = 1.0  # how long a stop may take to write the last records
KEPT_MAX = 10_000  # records of a controller; further failures start over with the process
ERROR_MAX = 500  # characters


class LastingFailure(msgspec.Struct, frozen=True, gc=False):
    """A key that fails: since when, in seconds since 1970, and the last error."""

    since_s: float
    error: str


def failing_prefix(controller: str) -> str:
    """Return what the keys of the records of a controller begin with."""
    return f"controllers.{controller}.failing."


def failure_in(value: bytes) -> LastingFailure | None:
    """Return the failure in a record, None if the record does not decode."""
    try:
        return msgspec.json.decode(value, type=LastingFailure)
    except DECODE_ERRORS:
        return None


class FailingRecords:
    """The records of one controller, as a watch shows them and as this process writes them.

    `recorded` has the failures of all processes by key. A key is only written or deleted after this
    process has synced it.
    """

    def __init__(self, controller: str) -> None:
        self.prefix = failing_prefix(controller)
        self.recorded: dict[str, LastingFailure] = {}
        self.follows = False  # whether there is a store for the records
        self._stored: dict[str, Stored] = {}
        self._unwritten: dict[str, _Unwritten] = {}
        self._wake = asyncio.Event()

    def failed(self, key: str, failure: LastingFailure) -> None:
        """Note that a sync of the key failed in this process."""
        before = self._unwritten.get(key)
        if not self.follows or (before is None and len(self._unwritten) >= KEPT_MAX):
            return
        due = asyncio.get_running_loop().time() + SETTLE_S if before is None else before.due
        error = shortened(failure.error, ERROR_MAX)
        self._unwritten[key] = _Unwritten(due, LastingFailure(failure.since_s, error))
        self._wake.set()

    def over(self, key: str) -> None:
        """Note that the key does not fail any more."""
        self._unwritten.pop(key, None)
        if self.recorded.pop(key, None) is not None and self.follows:
            self._unwritten[key] = _Unwritten(0.0, None)
            self._wake.set()

    def keep_only(self, exists: Callable[[str], bool]) -> None:
        """Forget the keys that do not exist any more: nothing will sync them."""
        for key in [key for key in self.recorded if not exists(key)]:
            self.over(key)

    def observe(self, name: str, stored: Stored | None) -> None:
        """Note a record as the watch shows it; None if it was deleted."""
        key = name.removeprefix(self.prefix)
        failure = None if stored is None else failure_in(stored.value)
        if stored is None or failure is None:
            self._stored.pop(key, None)
            self.recorded.pop(key, None)
            return
        known, unwritten = self._stored.get(key), self._unwritten.get(key)
        if known is None or known.revision < stored.revision:
            self._stored[key] = stored
            if unwritten is None or unwritten.failure is not None:
                self.recorded[key] = failure

    async def write(self, store: Store) -> None:
        """Write the records that have to change, each once it is settled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                first = min((unwritten.due for unwritten in self._unwritten.values()), default=0.0)
                await asyncio.sleep(max(0.0, first - loop.time()))
                if not await self._try_write(store, until=loop.time()):
                    await asyncio.sleep(RETRY_S)
                if self._unwritten:
                    self._wake.set()
        except PermissionDeniedError as error:
            self.follows = False
            self._unwritten.clear()
            log.warning("cannot record which keys fail: a restart forgets since when", error=error)

    async def close(self, store: Store) -> None:
        """Write all that `write` has left when it was cancelled, for a second at most."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._try_write(store, until=math.inf)

    async def _try_write(self, store: Store, *, until: float) -> bool:
        """Write the records that are due; return False if the store did not accept one.

        Raises `PermissionDeniedError`.
        """
        for key, unwritten in list(self._unwritten.items()):
            if unwritten.due > until or self._unwritten.get(key) is not unwritten:
                continue
            try:
                await self._write_one(store, key, unwritten.failure)
            except PermissionDeniedError:
                raise
            except (NotFoundError, ConflictError, InvalidKeyError):
                pass  # another process wrote it, or no record can have this name
            except StoreError as error:
                log.debug("cannot record a failing key", key=key, error=error)
                return False
            if self._unwritten.get(key) is unwritten:
                del self._unwritten[key]
            elif key not in self._unwritten:
                self.over(key)  # it recovered during the write
            if until < math.inf:
                await asyncio.sleep(PACE_S)
        return True

    async def _write_one(self, store: Store, key: str, failure: LastingFailure | None) -> None:
        name = self.prefix + key
        if failure is None:
            self._stored.pop(key, None)
            await store.delete(name)
            return
        if self.recorded.get(key) == failure:
            return
        if key not in self.recorded and len(self.recorded) >= KEPT_MAX:
            return

        def change(current: Stored | None) -> bytes:
            known = None if current is None else failure_in(current.value)
            since_s = failure.since_s if known is None else min(known.since_s, failure.since_s)
            return msgspec.json.encode(LastingFailure(since_s, failure.error))

        seen = self._stored.get(key) or await read(store, name)
        self.observe(name, (await rewrite(store, name, change, seen=seen)).stored)


class _Unwritten(msgspec.Struct, frozen=True, gc=False):
    """A record to write, or to delete without a failure, at this loop time."""

    due: float
    failure: LastingFailure | None
