"""Nobody acts on a state older than their own last write.

Within a sync, reads see what the sync wrote. Before the next sync of the same key, the caches
involved have passed those writes; a cache that does not in time is read around, at the store.
"""

import asyncio
from collections import defaultdict, deque
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import msgspec

from natsctl.core.cache.cache import Cache
from natsctl.core.cache.informer import Informer
from natsctl.core.objects.compare_and_set import Written
from natsctl.errors import NotFoundError, StoreMissingError
from natsctl.model.manifests import Reference
from natsctl.model.store import Stored

AnyInformer = Informer[Any]


class Sync:
    """One run of a handler: whose it is, and what it has written so far.

    Used as `with Sync(key) as sync:`; within, it is what is read and written on behalf of.
    """

    __slots__ = (
        "_token",
        "created",
        "deleted",
        "generation",
        "key",
        "manual",
        "touched",
        "updated",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.manual = False  # a person asked for it
        self.generation = 0  # of the key's object, as the handler has seen it
        self.created = 0
        self.updated = 0
        self.deleted = 0
        self.touched: list[Reference] = []  # of a cluster: what was created, updated or deleted

    def __enter__(self) -> Self:
        self._token = current_sync.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current_sync.reset(self._token)


class _Unseen(msgspec.Struct, frozen=True, eq=False):
    written: Written
    incarnation: str  # of the cache when it was written


current_sync: ContextVar[Sync | None] = ContextVar("current_sync", default=None)


class Barrier:
    """Remembers each key's writes until the caches have passed them."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.waited_s = 0.0
        self.timeouts = 0
        self._timeout_s = timeout_s
        self._written: dict[str, dict[tuple[AnyInformer, str], _Unseen]] = {}
        self._order: dict[AnyInformer, deque[tuple[str, str, _Unseen]]] = defaultdict(deque)

    def wrote(self, informer: AnyInformer, key: str, written: Written) -> None:
        """Remember a write of the current sync; outside one nobody waits for it."""
        sync = current_sync.get()
        if sync is not None:
            self._prune(informer)
            self._remember(sync.key, informer, key, written)

    def read(self, informer: AnyInformer, key: str) -> Stored | None:
        """Return the object as the cache has it, or as this sync's key left it since."""
        written = self._newer(informer, key)
        return informer.cache.get(key) if written is None else written.stored

    def newest(self, informer: AnyInformer, key: str) -> Stored | None:
        """Return the same, but the newest state, be it valid or not."""
        written = self._newer(informer, key)
        return informer.cache.newest(key) if written is None else written.stored

    def written_keys(self, informer: AnyInformer) -> set[str]:
        """Return the keys of this store that the current sync's key wrote last time or now."""
        sync = current_sync.get()
        written = self._written.get(sync.key, {}) if sync is not None else {}
        return {key for of, key in written if of is informer}

    def awaits(self, key: str) -> bool:
        """Say whether a cache may not have passed yet what *key*'s syncs wrote."""
        return key in self._written

    async def wait(self, key: str) -> None:
        """Wait until every cache has passed what *key*'s syncs wrote.

        What a cache does not show in time is read from its store; raises `StoreError` where that
        cannot be done either.
        """
        written = self._written.get(key, {})
        clock = asyncio.get_running_loop().time
        started = clock()
        deadline = started + self._timeout_s
        for (informer, name), unseen in list(written.items()):
            if not await self._passed(informer, name, unseen, deadline):
                self._remember(key, informer, name, await _read(informer, name))
            self._prune(informer)
        self.waited_s += clock() - started

    async def _passed(
        self, informer: AnyInformer, key: str, unseen: "_Unseen", deadline: float
    ) -> bool:
        """Wait for the cache; False where it is too late, or is now the cache of another store."""
        if unseen.incarnation != informer.cache.incarnation:
            return False
        try:
            async with asyncio.timeout_at(deadline):
                if unseen.written.stored is None:
                    await informer.cache.left_behind(key, unseen.written.revision)
                else:
                    await informer.cache.passed(unseen.written.revision)
        except TimeoutError:
            self.timeouts += 1
            return False
        return True

    def _remember(self, owner: str, informer: AnyInformer, key: str, written: Written) -> None:
        unseen = _Unseen(written, informer.cache.incarnation)
        self._written.setdefault(owner, {})[informer, key] = unseen
        self._order[informer].append((owner, key, unseen))

    def _prune(self, informer: AnyInformer) -> None:
        """Forget, oldest first, what the cache has passed; for a lost store nobody waits."""
        order, cache = self._order[informer], informer.cache
        while order:
            owner, key, unseen = order[0]
            passed = _has_passed(cache, key, unseen.written)
            if not passed and unseen.incarnation == cache.incarnation:
                return
            order.popleft()
            writes = self._written.get(owner, {})
            if passed and writes.get((informer, key)) is unseen:
                del writes[informer, key]
                if not writes:
                    del self._written[owner]

    def _newer(self, informer: AnyInformer, key: str) -> Written | None:
        sync = current_sync.get()
        if sync is None or not self._written:
            return None
        unseen = self._written.get(sync.key, {}).get((informer, key))
        if unseen is None or _has_passed(informer.cache, key, unseen.written):
            return None
        return unseen.written


def _has_passed(cache: Cache[Any], key: str, written: Written) -> bool:
    """Say whether the cache is past the write: past its revision, and past what it deleted."""
    if cache.revision < written.revision:
        return False
    return written.stored is not None or not cache.shows(key, written.revision)


async def _read(informer: AnyInformer, key: str) -> Written:
    try:
        stored = await informer.store.get(key)
    except StoreMissingError:
        if not informer.absent:
            raise
        return Written(0, None)  # the kind is gone, and its objects with it
    except NotFoundError as gone:
        shown = informer.cache.newest(key)
        return Written(gone.deleted_at or (shown.revision if shown else 0), None)
    return Written(stored.revision, stored)
