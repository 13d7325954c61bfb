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
    """What's known of a key that fails, or whose record has to be deleted.

    Attributes:
        failure: since when, and the last error; None if it's over and the record has to go.
        sync: the last failed sync in this process; None if another process has failed.
        handler: whose failure it is.
        stored: the record, as the watch has shown it or this process has written it.
    """

    failure: LastingFailure | None
    sync: Facts | None = None
    handler: str = ""
    stored: Stored | None = None


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
        self._unwritten: dict[str, float] = {}  # and the loop time at which each is written
        self._records = 0
        self._wake = asyncio.Event()

    def known(self, has: Callable[[str], bool] = lambda _: True) -> dict[str, LastingFailure]:
        """Return the failure of each failing key that this process *has*, synced here or not."""
        keys = self.keys.items()
        return {key: state.failure for key, state in keys if state.failure is not None and has(key)}

    def failed(self, key: str, sync: Facts, handler: str = "") -> None:
        state = self.keys.pop(key, None) or FailingKey(None)
        since_s = sync[1] if state.failure is None else state.failure.since_s
        state.failure, state.sync = LastingFailure(since_s, sync[4]), sync
        state.handler = handler
        self.keys[key] = state  # the newest
        if len(self.keys) > FAILING_MAX:
            self._forget(next(iter(self.keys)))
        if self.follows and (key in self._unwritten or len(self._unwritten) < KEPT_MAX):
            self._unwritten.setdefault(key, asyncio.get_running_loop().time() + SETTLE_S)
            self._wake.set()

    def recovered(self, key: str, handler: str) -> None:
        """Note that a sync succeeded: the key doesn't fail, unless another handler has failed."""
        state = self.keys.get(key)
        if state is not None and (state.sync is None or state.handler == handler):
            self._over(key, state)

    def keep_only(self, exists: Callable[[str], bool]) -> None:
        """Forget the failures of earlier processes for keys that nothing will sync."""
        for key, state in list(self.keys.items()):
            if state.sync is None and not exists(key):
                self._over(key, state)

    def _over(self, key: str, state: FailingKey) -> None:
        state.failure = state.sync = None
        if state.stored is None or not self.follows:
            self._forget(key)
        else:
            self._unwritten[key] = 0.0
            self._wake.set()

    def _forget(self, key: str) -> None:
        self._set_record(self.keys.pop(key), None)
        self._unwritten.pop(key, None)

    def _set_record(self, state: FailingKey, stored: Stored | None) -> None:
        self._records += (stored is not None) - (state.stored is not None)
        state.stored = stored

    def observe(self, name: str, stored: Stored | None) -> None:
        """Note a record as the watch shows it; None if it was deleted."""
        key = name.removeprefix(self.prefix)
        failure, state = None if stored is None else failure_in(stored.value), self.keys.get(key)
        if stored is None or failure is None:
            if state is not None and state.sync is None:
                self._forget(key)
            elif state is not None:
                self._set_record(state, None)
            return
        if state is None:
            state = self.keys[key] = FailingKey(failure)
        elif state.stored is not None and state.stored.revision >= stored.revision:
            return
        elif state.sync is None and state.failure is not None:
            state.failure = failure
        self._set_record(state, stored)

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
            state = self.keys.get(key)
            if state is None or due > until or key not in self._unwritten:
                continue
            failure = state.failure
            try:
                await self._write_one(store, key, state)
            except PermissionDeniedError:
                raise
            except (NotFoundError, ConflictError, InvalidKeyError):
                pass  # another process wrote it, or no record can have this name
            except StoreError as error:
                log.debug("cannot record a failing key", key=key, error=error)
                return False
            now = self.keys.get(key)
            if now is not None and key not in self._unwritten:
                self._over(key, now)  # it recovered during the write
            elif now is not None and now.failure is None and failure is None:
                self._forget(key)
            elif now is None or now.failure is failure:
                self._unwritten.pop(key, None)
            if until < math.inf:
                await asyncio.sleep(PACE_S)
        return True

    async def _write_one(self, store: Store, key: str, state: FailingKey) -> None:
        name, failure, seen = self.prefix + key, state.failure, state.stored
        if failure is None:
            await store.delete(name)
            self._set_record(state, None)
            return
        error = shortened(failure.error, ERROR_MAX)
        if seen is None and self._records >= KEPT_MAX:
            return
        if seen is not None and failure_in(seen.value) == LastingFailure(failure.since_s, error):
            return

        def change(current: Stored | None) -> bytes:
            known = None if current is None else failure_in(current.value)
            since_s = failure.since_s if known is None else min(known.since_s, failure.since_s)
            return msgspec.json.encode(LastingFailure(since_s, error))

        self.observe(name, (await rewrite(store, name, change, seen=seen)).stored)
