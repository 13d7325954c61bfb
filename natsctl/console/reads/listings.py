"""Keeps the objects of the buckets that somebody browses, up to date by one watch per bucket."""

import asyncio
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from natsctl.core.informer import Informer
from natsctl.core.table import Keeping
from natsctl.errors import StoreError, StoreMissingError, StoreTimeoutError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Bucket, Message
from natsctl.jetstream.bucket.consumer import names
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.store import Change
from natsctl.operate.background import retrieved
from natsctl.slices import in_order

BUCKETS_MAX = 4  # that are watched at a time; the one that was read longest ago is given up
BYTES_MAX = 512 * 1024 * 1024  # of a bucket whose values are kept
NAMES_MIN = 5_000  # keys of a bucket whose names are read before its values
NAMED_S = 20.0  # how long a page waits for the keys
LOG_MAX = 10_000  # changes that are kept by key
IDLE_S = 300.0  # a bucket that nobody reads for longer is not watched any more

OnKey = Callable[[str], object]
"""Called with each key that changed."""


class BucketListing:
    """The objects of one bucket; `Listings` opens and closes it.

    The names of many keys are known long before their values, so they are read first. Until the
    listing is complete, `keys` has these names, perhaps with deleted keys. A large bucket has only
    its keys here; `values` is False then, and values are read one by one. `changes` counts the
    changes.
    """

    def __init__(self, bucket: Bucket, keys: str, *, values: bool, names_first: bool) -> None:
        self.bucket = bucket
        self.values = values
        self.changes = 0
        self._pattern = keys
        self._names: list[str] = []
        self.store = BucketStore(bucket, keys=keys)
        self._informer = Informer(
            self.store,
            self.store.kind,
            on_listed=self._listed,
            keeping=None if values else Keeping(_keeps_none),
        )
        self._synced = self._informer.cache.synced
        self._named = asyncio.Event() if names_first else self._synced
        self._order: list[str] | None = None
        self._ordering = asyncio.Lock()
        self._log = deque[str](maxlen=LOG_MAX)  # the keys that changed last
        self._listeners: list[OnKey] = []
        self._task = asyncio.create_task(self._run(), name=f"watch of {bucket.name}")
        self._task.add_done_callback(retrieved)

    @property
    def complete(self) -> bool:
        """True once the first listing has arrived."""
        return self._informer.cache.synced.is_set()

    @property
    def ended(self) -> bool:
        """True if the bucket is not watched any more, because it does not exist."""
        return self._task.done()

    async def named(self) -> None:
        """Wait until the keys are known; raises the error of a bucket that cannot be read."""
        await self._wait(self._named, NAMED_S)
        if not self._named.is_set():
            raise StoreTimeoutError(f"bucket {self.bucket.name} was not listed in {NAMED_S:g} s")

    async def completed(self, timeout_s: float) -> bool:
        """Wait until the listing is complete, and return whether it is; raises as `named` does."""
        await self._wait(self._synced, timeout_s)
        return self.complete

    async def _wait(self, event: asyncio.Event, timeout_s: float) -> None:
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait(
                (waiting, self._task), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if self._task.cancelled():
            raise StoreError(f"{self.bucket.name} is not watched any more: too many buckets are")
        if self._task.done():
            self._task.result()
        if not event.is_set() and self._informer.failure is not None:
            raise self._informer.failure

    async def keys(self) -> list[str]:
        """Return all keys in order; do not change the list."""
        if not self.complete:
            return self._names
        async with self._ordering:
            while self._order is None:
                changes_before = self.changes
                ordered = await in_order(self._informer.cache.keys())
                changed = self.changed_since(changes_before)
                if changed is not None:  # otherwise too much has changed since
                    self._order = ordered
                    for key in changed:
                        self._place(key)
            return self._order

    def changed_since(self, changes: int) -> list[str] | None:
        """Return the keys of all changes after that number; None if they are not known any more."""
        missed = self.changes - changes
        return None if missed > len(self._log) else list(islice(reversed(self._log), missed))

    def message(self, key: str) -> Message | None:
        """Return the object as it was last seen; None if it does not exist."""
        stored = self._informer.cache.get(key)
        return None if stored is None else self.store.dated(stored)

    async def messages(self, keys: list[str]) -> list[Message]:
        """Return the values of these keys in the same order, without those that do not exist."""
        if self.complete and self.values:
            return [message for message in map(self.message, keys) if message is not None]
        newest = {message.key: message for message in await self.bucket.newest(keys)}
        return [newest[key] for key in keys if key in newest and newest[key].marker is None]

    @contextmanager
    def notifying(self, on_key: OnKey) -> Iterator[None]:
        """Call *on_key* for each change of an object while the context lasts."""
        self._listeners.append(on_key)
        try:
            yield
        finally:
            self._listeners.remove(on_key)

    async def until_ended(self, timeout_s: float) -> None:
        """Wait until the bucket is not watched any more, for *timeout_s* at most."""
        await asyncio.wait((self._task,), timeout=timeout_s)

    async def close(self) -> None:
        """End the watch."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        if self._named is not self._synced:
            self._names = await in_order(await names(self.bucket, self._pattern))
            self._named.set()
        async with self._informer.subscribe(self._changed):
            await self._informer.run(is_final=lambda error: isinstance(error, StoreMissingError))

    def _listed(self) -> None:
        self._order, self._names = None, []
        self._log.clear()
        self.changes += 1

    def _changed(self, change: Change[Any]) -> None:
        self.changes += 1
        self._log.append(change.key)
        if (change.before is None) is not (change.after is None):
            self._place(change.key)
        for on_key in self._listeners:
            on_key(change.key)

    def _place(self, key: str) -> None:
        """Add the key to the order if it exists; otherwise remove it."""
        order = self._order
        if order is None:
            return
        place, exists = bisect_left(order, key), key in self._informer.cache
        is_listed = order[place : place + 1] == [key]
        if exists and not is_listed:
            order.insert(place, key)
        elif is_listed and not exists:
            del order[place]


class Listings:
    """The listings of the buckets that were read last, by bucket and pattern of keys.

    The values of a bucket with more than *bytes_max* bytes are not kept.
    """

    def __init__(self, connection: Connection, *, bytes_max: int = BYTES_MAX) -> None:
        self._connection = connection
        self._bytes_max = bytes_max
        self._open: OrderedDict[tuple[str, str], BucketListing] = OrderedDict()
        self._read: dict[tuple[str, str], float] = {}
        self._opening = asyncio.Lock()

    async def open(self, bucket: str, keys: str = ">") -> BucketListing:
        """Return the listing of the keys that match; its first listing may not have arrived.

        Raises `StoreMissingError` if the bucket does not exist, and other errors of a request.
        """
        place = (bucket, keys)
        async with self._opening:
            await self._close_idle()
            listing = self._open.get(place)
            if listing is None or listing.ended:
                listing = await self._watched(bucket, keys)
                self._open[place] = listing
            self._open.move_to_end(place)
            self._read[place] = asyncio.get_running_loop().time()
            while len(self._open) > BUCKETS_MAX:
                await self._close(next(iter(self._open)))
            return listing

    async def close(self) -> None:
        """End all watches."""
        for place in list(self._open):
            await self._close(place)

    async def _watched(self, name: str, keys: str) -> BucketListing:
        bucket = Bucket(self._connection, name)
        state = (await bucket.info())["state"]
        return BucketListing(
            bucket,
            keys,
            values=state["bytes"] <= self._bytes_max,
            names_first=state.get("num_subjects", 0) > NAMES_MIN,
        )

    async def _close_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for place, read_at in list(self._read.items()):
            if now - read_at > IDLE_S:
                await self._close(place)

    async def _close(self, place: tuple[str, str]) -> None:
        self._read.pop(place, None)
        with suppress(KeyError):
            await self._open.pop(place).close()


def _keeps_none(_key: str) -> bool:
    return False
