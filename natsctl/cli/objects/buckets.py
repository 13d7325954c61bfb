"""Opens the bucket of a command, and defines the arguments that select objects in it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.output.formats import Format
from natsctl.cli.output.printing import Output
from natsctl.daemon.published import declared_columns
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import connect
from natsctl.jetstream.options import NatsOptions
from natsctl.model.schemas.field_paths import Columns
from natsctl.operate.buckets import existing_bucket

BucketArgument = Annotated[
    str, typer.Argument(help="Name of the KV bucket, or of a kind", metavar="BUCKET")
]
SelectorOption = Annotated[
    str,
    typer.Option(
        "--selector",
        "-l",
        help="Only objects whose labels match, such as a=b,c!=d,e",
        metavar="LABELS",
    ),
]
KeysOption = Annotated[
    str,
    typer.Option(
        "--keys",
        help="Only keys that match; * matches one token, > the remaining tokens",
        metavar="PATTERN",
    ),
]
CreateOption = Annotated[
    bool, typer.Option("--create-bucket", help="Create the bucket if it does not exist")
]

BUCKETS_MAX = 10
"""Buckets that an error lists."""

_BUCKET = re.compile(r"[-_a-zA-Z0-9]+")
_PATTERN = re.compile(r"(\*|[-/_=a-zA-Z0-9]+)(\.(\*|[-/_=a-zA-Z0-9]+))*(\.>)?|>")


@asynccontextmanager
async def open_bucket(options: NatsOptions, name: str) -> AsyncIterator[Bucket]:
    """Connect to NATS and open a bucket; raises as `existing_bucket` does."""
    async with connect(options) as connection:
        yield await existing_bucket(connection, name)


async def columns_for(bucket: Bucket, output: Format) -> Columns:
    """Return the declared columns of a bucket's kinds if the format is a table of them."""
    if output in (Output.TABLE, Output.WIDE):
        return await declared_columns(bucket.connection, bucket.name)
    return {}


def check_pattern(keys: str) -> str:
    """Return the pattern; raises `UsageError` if it cannot match a key."""
    if not _PATTERN.fullmatch(keys):
        raise UsageError(f"--keys {keys!r} is not a pattern of keys: write sites.* or sites.> or >")
    return keys
