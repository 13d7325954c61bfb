"""Answers for the tables of objects: the primaries of a controller, or a whole bucket."""

import asyncio

import msgspec

from natsctl.console.reads.listings import BucketListing, Listings
from natsctl.console.table import Query, Table, TableRow, Tables
from natsctl.core.explain import PrimarySource
from natsctl.daemon.published import declared_columns, published_schemas
from natsctl.errors import NotFoundError, StoreError, StoreTimeoutError
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.schemas.field_paths import Columns
from natsctl.operate.fleet import Fleet
from natsctl.operate.problems import OldDaemonError
from natsctl.operate.statuses import ControllerStatuses, reports_of

COLUMNS_S = 30.0  # after which the declared columns of a bucket are read again
IN_CLUSTER = "the primaries are in a cluster: the table has the keys that need attention only"


class Keys:
    """The tables of one console."""

    def __init__(self, connection: Connection, fleet: Fleet, listings: Listings) -> None:
        self._connection = connection
        self._fleet = fleet
        self._listings = listings
        self._tables = Tables()
        self._columns: dict[str, tuple[float, Columns]] = {}

    async def of_controller(self, name: str, query: Query, bucket: str = "") -> Table:
        """Return the primaries of a controller, of one *bucket* if it has several.

        Raises `NoDaemonError` or `NotFoundError` if no daemon runs the controller, and
        `OldDaemonError` if its daemons do not report where its primaries are.
        """
        reports = await self._reports(name)
        states = states_of(reports)
        source = await self.source_of(reports, bucket)
        if not source.bucket:
            return _attention(states, query, reports)
        listing = await self._listings.open(source.bucket, source.keys)
        columns = await self._columns_of(source.bucket)
        table = await self._tables.page(listing, query, columns=columns, states=states)
        return msgspec.structs.replace(table, partial=reports.row.partial)

    async def of_bucket(self, bucket: str, query: Query) -> Table:
        """Return the objects of a bucket, whether or not a daemon runs."""
        listing = await self._listings.open(bucket)
        columns = await self._columns_of(bucket)
        return await self._tables.page(listing, query, columns=columns, states={})

    async def listing(self, controller: str, bucket: str) -> BucketListing | None:
        """Return the listing behind a table; None for objects in a cluster."""
        if not controller:
            return await self._listings.open(bucket)
        source = await self.source_of(await self._reports(controller), bucket)
        return await self._listings.open(source.bucket, source.keys) if source.bucket else None

    async def bucket_of(self, controller: str, bucket: str = "") -> str:
        """Return the bucket of a controller's primaries; empty for a cluster."""
        return (await self.source_of(await self._reports(controller), bucket)).bucket

    async def source_of(self, reports: ControllerStatuses, bucket: str = "") -> PrimarySource:
        """Return where the primaries of a controller are; raises as `of_controller` does."""
        sources = reports.row.sources or await self._published(reports.row.name)
        for source in sources:
            if bucket in ("", source.bucket):
                return source
        if bucket:
            raise NotFoundError(f"{reports.row.name} has no primaries in bucket {bucket}")
        if reports.row.partial is not None and not reports.row.partial.answered:
            raise StoreTimeoutError(f"no daemon of {reports.row.name} answers; retry")
        raise OldDaemonError(
            f"the daemon of {reports.row.name} does not report the bucket of its primaries: it is "
            "still starting, or older than this console; choose the bucket under Buckets"
        )

    async def _reports(self, name: str) -> ControllerStatuses:
        daemons = await self._fleet.daemons()
        return await reports_of(daemons, daemons.controller(name))

    async def _published(self, controller: str) -> list[PrimarySource]:
        """Return where primaries are by the published schemas, if daemons do not report it."""
        try:
            schemas = await published_schemas(self._connection)
        except StoreError:
            return []
        return [
            PrimarySource(schema.bucket, schema.keys)
            for schema in schemas
            if schema.controller == controller and schema.role == "primary"
        ]

    async def _columns_of(self, bucket: str) -> Columns:
        now = asyncio.get_running_loop().time()
        read_at, columns = self._columns.get(bucket, (-COLUMNS_S, {}))
        if now - read_at >= COLUMNS_S:
            columns = await declared_columns(self._connection, bucket)
            self._columns[bucket] = now, columns
        return columns


def states_of(reports: ControllerStatuses) -> dict[str, tuple[str, str]]:
    """Return the state and the reason of each key that daemons name, the most urgent state."""
    states: dict[str, tuple[str, str]] = {}
    for status in reports.working:
        lists = (
            ("quarantined", status.quarantined),
            ("invalid", status.invalid),
            ("failing", status.failing),
            ("paused", status.paused),
        )
        for state, reasons in lists:
            for key, reason in reasons.items():
                states.setdefault(key, (state, reason))
    return states


def _attention(
    states: dict[str, tuple[str, str]], query: Query, reports: ControllerStatuses
) -> Table:
    """Return the table of a controller whose primaries are in a cluster."""
    keys = sorted((key for key in states if query.search in key), reverse=query.descending)
    rows = [
        TableRow(key, None, [key], *states[key])
        for key in keys[query.offset : query.offset + query.limit]
    ]
    return Table(
        bucket="",
        columns=["KEY"],
        sorts=["KEY"],
        rows=rows,
        offset=query.offset,
        total=len(keys),
        keys=reports.row.primaries or len(keys),
        complete=True,
        note=IN_CLUSTER,
        partial=reports.row.partial,
    )
