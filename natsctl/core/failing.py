"""Knows which keys of a controller fail, since when and why, and records it in NATS.

A failure that lasts has the record `controllers.NAME.failing.KEY`. It outlives the process: the
next one knows at once which keys fail and since when, and you see them while no process runs.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import msgspec

from natsctl.core.compare_and_set import rewrite
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
)
from natsctl.model.bookkeeping import LastingFailure, failing_prefix, failure_in
from natsctl.model.store import Store, Stored
from natsctl.telemetry.hiding import shortened
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SETTLE_S = 5.0  # a failure that is over sooner leaves no record
PACE_S = 0.005  # between two records, so that writes of objects come first
RETRY_S = 5.0
CLOSE_S = 1.0  # how long a stop may take to write the last records
KEPT_MAX = 10_000  # records of a controller; further failures start over with the process
FAILING_MAX = 200_000  # failing keys that are known
ERROR_MAX = 500  # characters


Facts: TypeAlias = tuple[str, float, float, int | None, str, int, int, int]
"""A sync as it's kept: the fields of a `SyncRecord`, with seconds since 1970 as its start.

A tuple takes a third of the time of a struct; a record is made of it when somebody looks at it.
"""


class FailingKey(msgspec.Struct, gc=False):
    """A key that fails: since when, and the last error.

    Attributes:
        sync: the last failed sync in this process; None if another process has failed.
        handler: whose failure it is.
    """

    failure: LastingFailure
    sync: Facts | None = None
    handler: str = ""


class FailingKeys:
    """The keys of one controller that fail, in this process or by their records.

    A key fails until a sync of it succeeds. At most `FAILING_MAX` keys are known, those that failed
    last. A record is only written or deleted after this process has synced its key, or if the
    object is gone.
    """

    def __init__(self, controller: str) -> None:
        self.prefix = failing_prefix(controller)
        self.follows = False  # whether there is a store for the records
        self.keys: dict[str, FailingKey] = {}  # to look at
        self._records: dict[str, Stored] = {}  # as the watch shows them, or as written
        self._unwritten: dict[str, float] = {}  # and the loop time at which each is written
        self._wake = asyncio.Event()

    def known(self, has: Callable[[str], bool] = lambda _: True) -> dict[str, LastingFailure]:
        """Return the failure of each failing key that this process *has*, synced here or not."""
        return {key: state.failure for key, state in self.keys.items() if has(key)}

    def failed(self, key: str, sync: Facts, handler: str = "") -> None:
        before = self.keys.pop(key, None)
        since_s = sync[1] if before is None else before.failure.since_s
        self.keys[key] = FailingKey(LastingFailure(since_s, sync[4]), sync, handler)  # the newest
        if len(self.keys) > FAILING_MAX:
            oldest = next(iter(self.keys))
            del self.keys[oldest]
            self._unwritten.pop(oldest, None)
        if self.follows and (key in self._unwritten or len(self._unwritten) < KEPT_MAX):
            self._unwritten.setdefault(key, asyncio.get_running_loop().time() + SETTLE_S)
            self._wake.set()

    def recovered(self, key: str, handler: str) -> None:
        """Note that a sync succeeded: the key doesn't fail, unless another handler has failed."""
        state = self.keys.get(key)
        if state is not None and (state.sync is None or state.handler == handler):
            self._over(key)

    def keep_only(self, exists: Callable[[str], bool]) -> None:
        """Forget the failures of earlier processes for keys that nothing will sync."""
        for key, state in list(self.keys.items()):
            if state.sync is None and not exists(key):
                self._over(key)

    def _over(self, key: str) -> None:
        self.keys.pop(key, None)
        self._unwritten.pop(key, None)
        if key in self._records and self.follows:
            self._unwritten[key] = 0.0
            self._wake.set()

    def observe(self, name: str, stored: Stored | None) -> None:
        """Note a record as the watch shows it; None if it was deleted."""
        key = name.removeprefix(self.prefix)
        state, known = self.keys.get(key), self._records.get(key)
        failure = None if stored is None else failure_in(stored.value)
        if stored is None or failure is None:
            self._records.pop(key, None)
            if state is not None and state.sync is None:
                self._over(key)
        elif known is None or known.revision < stored.revision:
            self._records[key] = stored
            if state is None and key not in self._unwritten:  # else it has to be deleted
                self.keys[key] = FailingKey(failure)
            elif state is not None and state.sync is None:
                state.failure = failure

    async def write(self, store: Store) -> None:
        """Write the records that have to change, each once it is settled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                first = min(self._unwritten.values(), default=0.0)
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
        for key, due in list(self._unwritten.items()):
            if due > until or key not in self._unwritten:
                continue
            state = self.keys.get(key)
            try:
                await self._write_one(store, key)
            except PermissionDeniedError:
                raise
            except (NotFoundError, ConflictError, InvalidKeyError):
                pass  # another process wrote it, or no record can have this name
            except StoreError as error:
                log.debug("cannot record a failing key", key=key, error=error)
                return False
            if state is None:
                self._records.pop(key, None)
            if key not in self._unwritten:
                self._over(key)  # it recovered during the write
            elif self.keys.get(key) is state:
                del self._unwritten[key]
            if until < math.inf:
                await asyncio.sleep(PACE_S)
        return True

    async def _write_one(self, store: Store, key: str) -> None:
        name, state, seen = self.prefix + key, self.keys.get(key), self._records.get(key)
        if state is None:
            await store.delete(name)
            return
        failure = LastingFailure(state.failure.since_s, shortened(state.failure.error, ERROR_MAX))
        if seen is None and len(self._records) >= KEPT_MAX:
            return
        if seen is not None and failure_in(seen.value) == failure:
            return

        def change(current: Stored | None) -> bytes:
            known = None if current is None else failure_in(current.value)
            since_s = failure.since_s if known is None else min(known.since_s, failure.since_s)
            return msgspec.json.encode(LastingFailure(since_s, failure.error))

        self._records[key] = (await rewrite(store, name, change, seen=seen)).stored
