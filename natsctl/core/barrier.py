"""Nobody acts on a state older than their own last write.

Within a sync, reads see what the sync wrote. Before the next sync of the same key, the caches
involved have passed those writes; a cache that does not in time is read around, at the store.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from natsctl.core.informer import Informer
from natsctl.errors import NotFoundError
from natsctl.model.store import Stored

AnyInformer = Informer[Any]


class Sync:
    """One run of a handler: whose it is, and what it has written so far."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.created = 0
        self.updated = 0
        self.deleted = 0


class Written(msgspec.Struct, frozen=True):
    """What stands at a key after our write; None after a deletion."""

    revision: int
    stored: Stored | None


current_sync: ContextVar[Sync | None] = ContextVar("current_sync", default=None)


class Barrier:
    """Remembers each key's writes until the caches have passed them."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.waited_s = 0.0
        self.timeouts = 0
        self._timeout_s = timeout_s
        self._written: dict[str, dict[tuple[AnyInformer, str], Written]] = {}
        self._order: deque[tuple[str, AnyInformer, str, int]] = deque()

    @contextmanager
    def syncing(self, key: str) -> Iterator[Sync]:
        """Make *key* the one on whose behalf is read and written in this context."""
        sync = Sync(key)
        token = current_sync.set(sync)
        try:
            yield sync
        finally:
            current_sync.reset(token)

    def wrote(self, informer: AnyInformer, key: str, written: Written) -> None:
        """Remember a write of the current sync; outside one nobody waits for it."""
        sync = current_sync.get()
        if sync is not None:
            self._prune()
            self._written.setdefault(sync.key, {})[informer, key] = written
            self._order.append((sync.key, informer, key, written.revision))

    def read(self, informer: AnyInformer, key: str) -> Stored | None:
        """Return the object as the cache has it, or as this sync's key left it since."""
        written = self._newer(informer, key)
        return informer.cache.get(key) if written is None else written.stored

    def written_keys(self, informer: AnyInformer) -> list[str]:
        """Return the keys of this store that the current sync's key wrote last time or now."""
        sync = current_sync.get()
        written = self._written.get(sync.key, {}) if sync is not None else {}
        return [key for of, key in written if of is informer]

    async def wait(self, key: str) -> None:
        """Wait until every cache has passed what *key*'s syncs wrote.

        What a cache does not show in time is read from its store; raises `StoreError` where that
        cannot be done either.
        """
        written = self._written.get(key)
        if not written:
            return
        clock = asyncio.get_running_loop().time
        started = clock()
        deadline = started + self._timeout_s
        for (informer, name), write in list(written.items()):
            try:
                async with asyncio.timeout_at(deadline):
                    await informer.cache.passed(write.revision)
            except TimeoutError:
                self.timeouts += 1
                written[informer, name] = await _read(informer, name)
        self._prune()
        self.waited_s += clock() - started

    def _prune(self) -> None:
        """Forget, oldest first, what its cache has passed."""
        while self._order:
            key, informer, name, revision = self._order[0]
            if informer.cache.revision < revision:
                return
            self._order.popleft()
            writes = self._written.get(key, {})
            written = writes.get((informer, name))
            if written is not None and written.revision <= revision:
                del writes[informer, name]
            if not writes:
                self._written.pop(key, None)

    def _newer(self, informer: AnyInformer, key: str) -> Written | None:
        sync = current_sync.get()
        if sync is None:
            return None
        written = self._written.get(sync.key, {}).get((informer, key))
        if written is None or informer.cache.revision >= written.revision:
            return None
        return written


async def _read(informer: AnyInformer, key: str) -> Written:
    try:
        stored = await informer.store.get(key)
    except NotFoundError as gone:
        return Written(gone.deleted_at or 0, None)
    return Written(stored.revision, stored)
