"""Searches, sorts and pages the objects of a listing."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

import msgspec

from natsctl.console.answers import Answer
from natsctl.console.orders import Order, rank_by
from natsctl.console.reads.listings import BucketListing
from natsctl.console.reads.masking import masked_message
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.bucket.bucket import Message
from natsctl.jetstream.bucket.entries import cells_of, headings_of
from natsctl.model.schemas.field_paths import Columns
from natsctl.slices import Slices, in_slices
from natsctl.telemetry.hiding import abbreviated

LIMIT_MAX = 200  # rows of a page
SEARCH_MAX = 200  # characters
CELL_MAX = 200  # characters
BYTES_MAX = 4 * 1024 * 1024  # of the values of a page
NO_VALUE = b'{"metadata": {}}'  # of an object beyond that
COMPLETE_S = 5.0  # how long a selection waits for the listing
ORDERS_MAX = 4  # of one listing that are kept


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
        sorts: the columns that the table can be sorted by.
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


class Tables:
    """Answers queries, and keeps the orders of the last ones."""

    def __init__(self) -> None:
        self._orders = WeakKeyDictionary[BucketListing, dict[tuple[str, str, str], Order]]()

    async def page(
        self,
        listing: BucketListing,
        query: Query,
        *,
        columns: Columns,
        states: Mapping[str, tuple[str, str]],
    ) -> Table:
        """Return a page; *states* has the state and the reason of each key that has one."""
        await listing.named()
        if query.labels or query.sort != "KEY":
            await _completed(listing)
            total, keys = await self._ordered(listing, query, columns)
        else:
            total, keys = await _by_key(listing, query)
        messages = await listing.messages(keys)
        shown = await _without_secrets(messages)
        headings = headings_of(shown, declared=columns)
        now = datetime.now(UTC)

        def row(message: Message) -> TableRow:
            cells = cells_of(message, headings, now, declared=columns)
            cut = [abbreviated(cell, CELL_MAX) for cell in cells]
            state = states.get(message.key, ("", ""))
            return TableRow(message.key, message.revision, cut, *state)

        return Table(
            bucket=listing.bucket.name,
            columns=headings,
            sorts=[heading for heading in headings if heading != "VALUE"],
            rows=[row(message) for message in shown],
            offset=query.offset,
            total=total,
            keys=len(await listing.keys()),
            complete=listing.complete,
            note=_partial_note(listing, shown),
        )

    async def _ordered(
        self, listing: BucketListing, query: Query, columns: Columns
    ) -> tuple[int, list[str]]:
        """Return the number of matching keys, and those of the page."""
        orders = self._orders.setdefault(listing, {})
        place = (query.search, query.labels, query.sort)
        order = orders.pop(place, None)
        if order is None:
            order = Order(listing, query.search, rank_by(query.labels, query.sort, columns))
        orders[place] = order
        while len(orders) > ORDERS_MAX:
            del orders[next(iter(orders))]
        await order.refresh()
        start, stop = _page_range(query, len(order))
        keys = order.keys(start, stop)
        return len(order), keys[::-1] if query.descending else keys


async def _without_secrets(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with masked values, as long as they have `BYTES_MAX` bytes together.

    The others have no value.
    """
    shown, slices, bytes_left = list[Message](), Slices(), BYTES_MAX
    for message in messages:
        bytes_left -= len(message.value)
        if bytes_left >= 0:
            shown.append(masked_message(message))
        else:
            shown.append(msgspec.structs.replace(message, value=NO_VALUE))
        if slices.is_over():
            await slices.pause()
    return shown


def _partial_note(listing: BucketListing, shown: Sequence[Message]) -> str:
    """Return why a page is not the whole truth; empty if it is."""
    if not listing.values:
        return "the bucket is large: only its keys can be searched"
    if any(message.value is NO_VALUE for message in shown):
        return "the values of this page are large: the last rows are shown without theirs"
    return ""


async def _by_key(listing: BucketListing, query: Query) -> tuple[int, list[str]]:
    """Return the number of matching keys, and those of the page, in the order of keys."""
    keys = await listing.keys()
    if query.search:
        matching = list[str]()
        await in_slices(
            tuple(keys), lambda key: matching.append(key) if query.search in key else None
        )
        keys = matching
    start, stop = _page_range(query, len(keys))
    page = keys[start:stop]
    return len(keys), page[::-1] if query.descending else page


def _page_range(query: Query, total: int) -> tuple[int, int]:
    """Return the places of a page, in ascending order."""
    first, last = min(query.offset, total), min(query.offset + query.limit, total)
    return (total - last, total - first) if query.descending else (first, last)


async def _completed(listing: BucketListing) -> None:
    if not listing.values:
        raise UsageError("the bucket is large: it is sorted by key, without a label filter")
    if not await listing.completed(COMPLETE_S):
        raise NatsctlError(
            f"bucket {listing.bucket.name} is still being listed: it can be filtered by labels and "
            "sorted by other columns when its listing has arrived"
        )
