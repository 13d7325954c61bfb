"""Keeps the objects that match a query in order, while objects change."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from natsctl.errors import UsageError
from natsctl.jetstream.bucket.bucket import Message
from natsctl.jetstream.bucket.entries import cells_of, labels_of, object_in
from natsctl.model.schemas.field_paths import Columns
from natsctl.model.selectors import Selector
from natsctl.slices import in_order, in_slices

Rank = Callable[[Message], Any]
"""Returns the place of an object in the order of a column; None if the object does not match."""


class Objects(Protocol):
    """The objects that are put in order; see `Listing`."""

    @property
    def changes(self) -> int:
        """The number of changes."""
        ...

    async def keys(self) -> Sequence[str]:
        """Return all keys."""
        ...

    def changed_since(self, changes: int) -> Sequence[str] | None:
        """Return the keys of all changes after that number; None if they are not known."""
        ...

    def message(self, key: str) -> Message | None:
        """Return an object; None if it does not exist."""
        ...


class Order:
    """The keys that match, in the order of their ranks.

    After a change, only the changed keys are ranked again. `keys` has them as of the last refresh.
    """

    def __init__(self, objects: Objects, search: str, rank: Rank) -> None:
        self._objects = objects
        self._search = search
        self._rank = rank
        self._pairs: list[tuple[Any, str]] = []  # rank and key, sorted
        self._ranks: dict[str, Any] = {}
        self._seen = -1  # changes of the objects
        self._refreshing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._pairs)

    def keys(self, start: int, stop: int) -> list[str]:
        """Return the keys from place *start* to before *stop*."""
        return [key for _, key in self._pairs[start:stop]]

    async def refresh(self) -> None:
        """Rank the keys that changed since the last refresh, or all if these are not known."""
        async with self._refreshing:
            changed = self._objects.changed_since(self._seen)
            self._seen = self._objects.changes
            if changed is None:
                await self._rank_all()
            else:
                await in_slices(dict.fromkeys(changed), self._move_to_rank)

    async def _rank_all(self) -> None:
        ranks = dict[str, Any]()

        def rank_key(key: str) -> None:
            rank = self._rank_of(key)
            if rank is not None:
                ranks[key] = rank

        await in_slices(tuple(await self._objects.keys()), rank_key)
        pairs = await in_order((rank, key) for key, rank in ranks.items())
        self._ranks, self._pairs = ranks, pairs

    def _move_to_rank(self, key: str) -> None:
        old, new = self._ranks.pop(key, None), self._rank_of(key)
        if old is not None:
            del self._pairs[bisect_left(self._pairs, (old, key))]
        if new is not None:
            self._ranks[key] = new
            insort(self._pairs, (new, key))

    def _rank_of(self, key: str) -> Any:
        message = self._objects.message(key) if self._search in key else None
        return None if message is None else self._rank(message)


def rank_by(labels: str, column: str, columns: Columns) -> Rank:
    """Return the rank of objects with these labels by a column, of which some are declared.

    Raises `UsageError` for a malformed selector, and for a column without an order.
    """
    selector, place = Selector.parse(labels), _place_in(column, columns)
    if not selector.requirements:
        return place

    def rank(message: Message) -> Any:
        document = object_in(message.value)
        return place(message) if selector.matches(labels_of(document)) else None

    return rank


def _place_in(column: str, columns: Columns) -> Rank:
    path = columns.get(column)
    if path is not None:
        return lambda message: path.sort_key(object_in(message.value))
    match column:
        case "KEY":
            return lambda _: 0
        case "REVISION":
            return lambda message: message.revision
        case "AGE":
            return lambda message: message.created
        case "GENERATION" | "READY" | "VERSION":
            now = datetime.now(UTC)
            return lambda message: _natural(cells_of(message, [column], now)[0])
        case _:
            raise UsageError(f"the table cannot be sorted by {column!r}")


def _natural(cell: str) -> tuple[int, str]:
    return (int(cell), "") if cell.isdecimal() else (0, cell)
