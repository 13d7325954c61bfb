"""Answers pages of keys in their order: the primaries of a controller, or a whole bucket."""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import get_args

import msgspec
from msgspec.structs import replace

from natsctl.console.answers import Answer, masked_message
from natsctl.console.overview import Overview, State, cause_of, states_of
from natsctl.daemon.client import OldDaemonError
from natsctl.errors import NotFoundError, StoreError, StoreTimeoutError, UsageError
from natsctl.jetstream.bucket import Bucket, Message, StreamState
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.feed import names
from natsctl.model.keys import legal, matches
from natsctl.model.reports import PrimarySource
from natsctl.model.schemas.field_paths import Columns
from natsctl.operate.buckets import declared_columns, published_schemas
from natsctl.operate.fleet import retrieved
from natsctl.operate.objects import cells_of, headings_of
from natsctl.operate.statuses import ControllerStatuses, problem_of
from natsctl.slices import Slices, in_order
from natsctl.telemetry.hiding import abbreviated

LIMIT_MAX = 200  # rows of a page
TEXT_MAX = 500  # characters of a query
CELL_MAX = 200  # characters
BYTES_MAX = 4 * 1024 * 1024  # of the values of a page
NO_VALUE = b'{"metadata": {}}'  # of an object beyond that
COLUMNS_S = 30.0  # after which the declared columns of a bucket are read again
AT_ONCE_MAX = 10_000  # names that a page waits for; more are read while it shows what changed last
DRAWN_S = 0.3  # in which a browser draws these, before the names take a processor
NAMES_MAX = 4  # buckets whose names are kept
REST_FACTOR = 10.0  # how long names are used without a look, relative to the time to read them
REST_MIN_S = 0.2
GAPS_MAX = 10  # reads of one page, of which some find deleted keys only
IN_CLUSTER = "the primaries are in a cluster: only the keys that need attention are known"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A page of keys: those that begin with *prefix*, in a *state* that daemons report.

    `cause` is the reason of the state, as `cause_of` returns it. An empty one is any.
    """

    prefix: str = ""
    state: State | str = ""
    cause: str = ""
    offset: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        if not (self.offset >= 0 and 1 <= self.limit <= LIMIT_MAX):
            raise UsageError(f"offset is 0 or more, and limit is 1 to {LIMIT_MAX}")
        if max(len(self.prefix), len(self.cause)) > TEXT_MAX:
            raise UsageError(f"a prefix or a cause has at most {TEXT_MAX} characters")


class TableRow(msgspec.Struct, frozen=True):
    """One object: its cells, and its state as daemons report it."""

    key: str
    revision: int | None
    cells: list[str]
    state: str = ""
    reason: str = ""


class KeyTable(Answer, frozen=True, kw_only=True):
    """A page of keys, of a cluster if the bucket is empty.

    `total` counts the matching keys, with deleted ones that left a marker, and `states` the keys
    in each state, as daemons do. `note` is why the table isn't the whole truth. `off` is why an
    action isn't possible: `resync`, `pause` of keys, or `whole`, the pause of the controller.
    """

    bucket: str
    columns: list[str]
    rows: list[TableRow]
    offset: int
    next: int | None
    total: int
    states: dict[str, int] = msgspec.field(default_factory=dict)
    note: str = ""
    off: dict[str, str] = msgspec.field(default_factory=dict)


States = Mapping[str, tuple[str, str]]
"""The state of each key that isn't simply synced, and the reason."""


class _Names:
    def __init__(self, bucket: Bucket, pattern: str) -> None:
        self.bucket = bucket
        self.pattern = pattern
        self.keys: list[str] | None = None
        self.revision = -1
        self.state = StreamState("", 0, 0)
        self.rest_until = 0.0
        self.reading: asyncio.Task[None] | None = None

    @property
    def are_many(self) -> bool:
        return self.state.subjects > AT_ONCE_MAX

    def begin(self, *, after_s: float = 0.0) -> None:
        if self.reading is None:
            self.reading = asyncio.create_task(self._read(after_s), name="names")
            self.reading.add_done_callback(retrieved)

    async def _read(self, after_s: float) -> None:
        revision, clock = self.state.last_seq, asyncio.get_running_loop().time
        await asyncio.sleep(after_s)
        began = clock()
        self.keys = await in_order(await names(self.bucket, self.pattern))
        self.revision = revision
        self.rest_until = clock() + max(REST_MIN_S, REST_FACTOR * (clock() - began))

    async def ended(self) -> None:
        if (reading := self.reading) is None:
            return
        await asyncio.wait({reading})
        if self.reading is reading:
            self.reading = None
        if reading.cancelled():
            raise StoreTimeoutError(f"more than {NAMES_MAX} buckets are read at a time; retry")
        reading.result()

    async def close(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
            await asyncio.wait({self.reading})


class Keys:
    """The pages of one console."""

    def __init__(self, connection: Connection, overview: Overview) -> None:
        self._connection = connection
        self._overview = overview
        self._names = OrderedDict[tuple[str, str], _Names]()
        self._columns: dict[str, tuple[float, Columns]] = {}

    async def of_controller(self, name: str, query: Query, bucket: str = "") -> KeyTable:
        report = await self._overview.report(name)
        source = await self._source_of(report, bucket)
        states = states_of(report)
        counts = {state: getattr(report.row, state) or 0 for state in get_args(State)}
        if not source.bucket:
            keys = matching(states, query)
            page = keys[query.offset : query.offset + query.limit]
            after = query.offset + len(page)
            table = KeyTable(
                bucket="",
                columns=["KEY"],
                rows=[TableRow(key, None, [key], *states[key]) for key in page],
                offset=query.offset,
                next=after if after < len(keys) else None,
                total=len(keys),
                note=IN_CLUSTER,
            )
        elif query.state:
            table = await self._page(source.bucket, matching(states, query), query, states)
        else:
            table = await self._listed(source.bucket, source.keys, query, states)
        unnamed = counts.get(query.state, 0) - sum(
            state == query.state for state, _ in states.values()
        )
        if query.state and unnamed > 0:
            more = f"{unnamed:,} more keys are {query.state}: a daemon names the first 100"
            table = replace(table, note=more)
        return replace(table, states=counts, partial=report.row.partial)

    async def of_bucket(self, bucket: str, query: Query) -> KeyTable:
        if query.state:
            raise UsageError("only a controller knows the states of its keys")
        return await self._listed(bucket, ">", query, {})

    async def selected(self, name: str, query: Query, count_max: int) -> list[str]:
        """Return the keys of a controller in a state; raises `UsageError` if they are too many."""
        if not query.state:
            raise UsageError("name a state: an action on a filter needs one")
        keys = matching(states_of(await self._overview.report(name)), query)
        if len(keys) > count_max:
            raise UsageError(f"{len(keys)} keys match: an action takes at most {count_max}")
        return keys

    async def revisions(self, controller: str, bucket: str) -> tuple[int, int]:
        """Return the revisions of the bucket behind a page and of its names, if they are many."""
        bucket = await self.bucket_of(controller, bucket) if controller else bucket
        if not bucket:
            return 0, -1
        newest = (await Bucket(self._connection, bucket).state()).last_seq
        many = (one for (name, _), one in self._names.items() if name == bucket and one.are_many)
        return newest, max((one.revision for one in many), default=-1)

    async def close(self) -> None:
        for known in self._names.values():
            await known.close()

    async def bucket_of(self, controller: str, bucket: str = "") -> str:
        return (await self._source_of(await self._overview.report(controller), bucket)).bucket

    async def _source_of(self, report: ControllerStatuses, bucket: str = "") -> PrimarySource:
        row = report.row
        sources = row.sources
        if not sources:  # daemons don't report them; then the published schemas may
            with suppress(StoreError):
                sources = [
                    PrimarySource(schema.bucket, schema.keys)
                    for schema in await published_schemas(self._connection)
                    if schema.controller == row.name and schema.role == "primary"
                ]
        for source in sources:
            if bucket in ("", source.bucket):
                return source
        if bucket:
            raise NotFoundError(f"{row.name} has no primaries in bucket {bucket}")
        if row.partial is not None and not row.partial.answered:
            raise StoreTimeoutError(f"no daemon of {row.name} answers; retry")
        raise OldDaemonError(
            f"the daemon of {row.name} does not report the bucket of its primaries: it is still "
            "starting, or older than this console; choose the bucket under Buckets"
        )

    async def _listed(self, place: str, pattern: str, query: Query, states: States) -> KeyTable:
        """Return a page of the names of a bucket.

        More than `AT_ONCE_MAX` names are read in the background, because a first page mustn't wait
        for them: until they're there, you get the keys that changed last.
        """
        parent = query.prefix.rpartition(".")[0]
        if pattern == ">" and (place, pattern) not in self._names and legal(parent):
            pattern = f"{parent}.>"  # the server reads only these
        bucket = Bucket(self._connection, place)
        known = self._names.pop((place, pattern), None) or _Names(bucket, pattern)
        self._names[place, pattern] = known  # at the end
        while len(self._names) > NAMES_MAX:
            await self._names.popitem(last=False)[1].close()
        is_first, failure = not (query.prefix or query.offset), ""
        if known.reading is not None and known.reading.done():
            try:
                await known.ended()
            except StoreError as error:
                if not (is_first and known.are_many):
                    raise
                failure = f"the names could not be read: {problem_of(error).message}"
        if known.reading is None and asyncio.get_running_loop().time() >= known.rest_until:
            known.state = await known.bucket.state()
        if known.keys is None and known.are_many and is_first:
            table = await self._latest(known, query, states)
        else:
            if known.revision != known.state.last_seq:
                known.begin()
            if known.keys is None or not known.are_many:
                await known.ended()
            keys = _beginning(known.keys or (), query.prefix)
            table = await self._page(place, keys, query, states)
        return replace(table, note="; ".join(filter(None, (table.note, failure))))

    async def _latest(self, known: _Names, query: Query, states: States) -> KeyTable:
        """Return the keys that changed last, and only then begin to read all names."""
        bucket, state = known.bucket, known.state
        found = await asyncio.gather(
            *(bucket.after(state.last_seq - number, ">") for number in range(1, query.limit + 1)),
            return_exceptions=True,
        )
        newest: dict[str, Message] = {}
        for one in found:
            if isinstance(one, Message) and matches(known.pattern, one.key):
                newest.setdefault(one.key, one)
            elif isinstance(one, BaseException) and not isinstance(one, NotFoundError):
                raise one
        messages = [message for message in newest.values() if message.marker is None]
        table = await self._table(bucket.name, messages, query, states)
        known.begin(after_s=DRAWN_S)
        note = f"these changed last, while the console reads the names of {state.subjects:,} keys"
        return replace(table, total=len(newest), note=note)

    async def _page(
        self, bucket_name: str, keys: Sequence[str], query: Query, states: States
    ) -> KeyTable:
        bucket, place = Bucket(self._connection, bucket_name), query.offset
        messages: list[Message] = []
        for _ in range(GAPS_MAX):
            names = keys[place : place + query.limit - len(messages)]
            if not names:
                break
            place += len(names)
            newest = {message.key: message for message in await bucket.newest(names)}
            found = (newest[name] for name in names if name in newest)
            messages += [message for message in found if message.marker is None]
        table = await self._table(bucket_name, messages, query, states)
        return replace(table, next=place if place < len(keys) else None, total=len(keys))

    async def _table(
        self, bucket: str, messages: Sequence[Message], query: Query, states: States
    ) -> KeyTable:
        now = asyncio.get_running_loop().time()
        read_at, columns = self._columns.get(bucket, (-COLUMNS_S, {}))
        if now - read_at >= COLUMNS_S:
            columns = await declared_columns(self._connection, bucket)
            self._columns[bucket] = now, columns
        shown, slices, bytes_left = list[Message](), Slices(), BYTES_MAX
        for message in messages:
            bytes_left -= len(message.value)
            hidden = bytes_left < 0
            shown.append(replace(message, value=NO_VALUE) if hidden else masked_message(message))
            if slices.is_over():
                await slices.pause()
        headings, time = headings_of(shown, declared=columns), datetime.now(UTC)
        rows = []
        for message in shown:
            cells = cells_of(message, headings, time, declared=columns)
            cut = [abbreviated(cell, CELL_MAX) for cell in cells]
            state = states.get(message.key, ("", ""))
            rows.append(TableRow(message.key, message.revision, cut, *state))
        return KeyTable(
            bucket=bucket,
            columns=headings,
            rows=rows,
            offset=query.offset,
            next=None,
            total=len(rows),
            note="the values of this page are large: the last rows lack theirs" * (bytes_left < 0),
        )


def matching(states: States, query: Query) -> list[str]:
    """Return the keys whose state matches, in order; without a state, all that have one."""
    return sorted(
        key
        for key, (state, reason) in states.items()
        if key.startswith(query.prefix)
        and query.state in ("", state)
        and query.cause in ("", cause_of(key, reason))
    )


def _beginning(keys: Sequence[str], prefix: str) -> Sequence[str]:
    start = bisect_left(keys, prefix)
    return keys[start : bisect_left(keys, f"{prefix}\U0010ffff")] if prefix else keys
