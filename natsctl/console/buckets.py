"""Answers for the list of buckets."""

import asyncio
from collections.abc import Mapping

import msgspec

from natsctl.console.answers import Answer
from natsctl.errors import NatsctlError
from natsctl.jetstream.bucket.browse import bucket_names
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import Connection
from natsctl.operate.problems import Problem, problem_of

BUCKETS_MAX = 500
READS = 16  # buckets that are read at the same time


class BucketRow(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket: its keys with deleted ones, its bytes, and the controllers of its primaries.

    The numbers are None if the bucket cannot be read; `error` has the reason.
    """

    name: str
    values: int | None = None
    bytes: int | None = None
    history: int | None = None
    controllers: list[str] = []
    error: Problem | None = None


class Buckets(Answer, frozen=True, kw_only=True):
    """The buckets that the user may list; `more` counts those that are left out."""

    buckets: list[BucketRow]
    more: int


async def buckets(connection: Connection, controllers: Mapping[str, list[str]]) -> Buckets:
    """Return the buckets; *controllers* names the controllers of each bucket."""
    names = await bucket_names(connection)
    limit = asyncio.Semaphore(READS)

    async def read(name: str) -> BucketRow:
        async with limit:
            return await _row(connection, name, controllers.get(name, []))

    rows = await asyncio.gather(*map(read, names[:BUCKETS_MAX]))
    return Buckets(buckets=rows, more=len(names[BUCKETS_MAX:]))


async def _row(connection: Connection, name: str, controllers: list[str]) -> BucketRow:
    try:
        info = await Bucket(connection, name).info()
    except (NatsctlError, TimeoutError) as error:
        return BucketRow(name=name, controllers=controllers, error=problem_of(error))
    return BucketRow(
        name=name,
        values=info["state"].get("num_subjects", 0),
        bytes=info["state"]["bytes"],
        history=info["config"].get("max_msgs_per_subject"),
        controllers=controllers,
    )
