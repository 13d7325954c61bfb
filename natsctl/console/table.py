"""Searches, sorts and pages the objects of a listing."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from natsctl.console.answers import Answer
from natsctl.console.reads.listings import Listing
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.bucket.bucket import Message
from natsctl.jetstream.bucket.entries import cells_of, headings_of, labels_of, object_in
from natsctl.model.schemas.field_paths import Columns
from natsctl.model.selectors import Selector
from natsctl.slices import Slices

LIMIT_MAX = 200  # rows of a page
SEARCH_MAX = 200  # characters
COMPLETE_S = 5.0  # how long a selection waits for the listing
QUERIES_MAX = 8  # whose results are remembered


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a table.

    Attributes:
        search: a text that the keys contain.
        labels: a selector as in `kubectl -l`.
        sort: the column to sort by.
        descending: whether the last row comes first.
        offset: the number of rows before the page.
        limit: the number of rows of the page.
    """

    search: str = ""
    labels: str = ""
    sort: str = "KEY"
    descending: bool = False
    offset: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        """Raise `UsageError` if a number or a text is out of range."""
        if not (self.offset >= 0 and 1 <= self.limit <= LIMIT_MAX):
            raise UsageError(f"offset is 0 or more, and limit is 1 to {LIMIT_MAX}")
        if len(self.search) > SEARCH_MAX:
            raise UsageError(f"search for at most {SEARCH_MAX} characters")


class TableRow(msgspec.Struct, frozen=True):
    """One object: its cells, and its state as daemons report it."""

    key: str
    revision: int | None
    cells: list[str]
    state: str = ""
    reason: str = ""


class Table(Answer, frozen=True, kw_only=True):
    """A page of objects.

    Attributes:
        bucket: the bucket; empty for a cluster.
        columns: the headings.
        sorts: the columns that the table can be sorted by.
        rows: the rows of the page.
        offset: the number of rows before the page.
        total: the number of matching rows.
        keys: the number of all rows.
        complete: whether the listing has arrived.
        note: why the table is not the whole truth; empty if it is.
    """

    bucket: str
    columns: list[str]
    sorts: list[str]
    rows: list[TableRow]
    offset: int
    total: int
    keys: int
    complete: bool
    note: str = ""


SortKey = Callable[[Message], Any]


class Tables:
    """Answers queries, and remembers the order of the last ones until an object changes."""

    def __init__(self) -> None:
        self._orders = WeakKeyDictionary[Listing, dict[Query, tuple[int, list[str]]]]()

    async def page(
        self,
        listing: Listing,
        query: Query,
        *,
        columns: Columns,
        states: Mapping[str, tuple[str, str]],
    ) -> Table:
        """Return a page; *states* has the state and the reason of each key that has one."""
        await listing.named()
        if query.labels or query.sort != "KEY":
            await _completed(listing)
        keys = await self._keys(listing, query, columns)
        part = keys[query.offset : query.offset + query.limit]
        messages = await listing.messages(part)
        headings = headings_of(messages, declared=columns)
        now = datetime.now(UTC)
        rows = [
            TableRow(
                message.key,
                message.revision,
                cells_of(message, headings, now, declared=columns),
                *states.get(message.key, ("", "")),
            )
            for message in messages
        ]
        return Table(
            bucket=listing.bucket.name,
            columns=headings,
            sorts=[heading for heading in headings if heading != "VALUE"],
            rows=rows,
            offset=query.offset,
            total=len(keys),
            keys=len(listing.keys),
            complete=listing.complete,
            note="" if listing.values else "the bucket is large: only its keys can be searched",
        )

    async def _keys(self, listing: Listing, query: Query, columns: Columns) -> list[str]:
        """Return the matching keys in the order of the query."""
        orders = self._orders.setdefault(listing, {})
        whole = msgspec.structs.replace(query, offset=0, limit=1)
        changes, keys = orders.pop(whole, (-1, []))
        if changes != listing.changes:
            changes, keys = listing.changes, await _ordered(listing, query, columns)
        orders[whole] = changes, keys
        while len(orders) > QUERIES_MAX:
            del orders[next(iter(orders))]
        return keys


async def _completed(listing: Listing) -> None:
    if not listing.values:
        raise UsageError("the bucket is large: it is sorted by key, without a label filter")
    if not await listing.completed(COMPLETE_S):
        raise NatsctlError(
            f"bucket {listing.bucket.name} is still being listed: it can be filtered by labels and "
            "sorted by other columns when its listing has arrived"
        )


async def _ordered(listing: Listing, query: Query, columns: Columns) -> list[str]:
    keys = [key for key in listing.keys if query.search in key]
    selector = Selector.parse(query.labels)
    sort_key = None if query.sort == "KEY" else _sort_key(query.sort, columns)
    if not selector.requirements and sort_key is None:
        return _directed(keys, query)
    matching: list[tuple[Any, str]] = []
    slices = Slices()
    for key in keys:
        stored = listing.get(key)
        if stored is not None:
            message = listing.store.dated(stored)
            document = object_in(message.value) if selector.requirements else None
            if not selector.requirements or selector.matches(labels_of(document)):
                matching.append((0 if sort_key is None else sort_key(message), key))
        if slices.over:
            await slices.pause()
    matching.sort()
    return _directed([key for _, key in matching], query)


def _directed(keys: list[str], query: Query) -> list[str]:
    return keys[::-1] if query.descending else keys


def _sort_key(column: str, columns: Columns) -> SortKey:
    """Return the function that returns the place of an entry in the order of a column."""
    path = columns.get(column)
    if path is not None:
        return lambda message: path.sort_key(object_in(message.value))
    match column:
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
