"""Opens the bucket of a command, and defines the arguments that select objects in it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import typer

from natsctl.cli.output.formats import Format
from natsctl.cli.output.printing import Output
from natsctl.daemon.published import declared_columns, published_schemas
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import StoreError, StoreMissingError, UsageError
from natsctl.jetstream.bucket.browse import bucket_names
from natsctl.jetstream.bucket.bucket import Bucket, Message
from natsctl.jetstream.bucket.entries import labels_of, object_in
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.kinds import KvKind
from natsctl.model.objects import Object
from natsctl.model.schemas.field_paths import Columns
from natsctl.model.selectors import Selector

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


async def existing_bucket(
    connection: Connection, name: str, *, create: bool | None = None
) -> Bucket:
    """Return a bucket, or that of the kind of this name; if neither exists, *create* it.

    *create* is the value of `--create-bucket`, None for a command without that option. Raises
    `StoreMissingError` that suggests a similar name or the option, unless *create*.
    """
    if _BUCKET.fullmatch(name):
        with suppress(StoreMissingError):
            bucket = Bucket(connection, name)
            await bucket.state()
            return bucket
    bucket = Bucket(connection, await _bucket_of_kind(connection, name) or name)
    try:
        await bucket.state()
    except StoreMissingError as missing:
        if not create:
            hint = "; --create-bucket creates it" if create is False else ""
            message = await _missing_message(connection, name)
            raise StoreMissingError(f"{message}{hint}") from missing
        await bucket.ensure(KvKind(Object, bucket=bucket.name))
    return bucket


async def _bucket_of_kind(connection: Connection, name: str) -> str:
    """Return the bucket of the published kind of this name; empty if there isn't exactly one."""
    try:
        schemas = await published_schemas(connection)
    except StoreError:  # the user may lack the permission to read schemas
        return ""
    named = {
        schema.bucket for schema in schemas if name in (schema.kind, schema.kind.partition(".")[0])
    }
    return named.pop() if len(named) == 1 else ""


async def _missing_message(connection: Connection, name: str) -> str:
    missing = f"there is no bucket {name}"
    try:
        names = await bucket_names(connection)
    except StoreError:  # the user may lack the permission to list buckets
        return missing
    if not names:
        return f"{missing}: there are no buckets yet"
    similar = did_you_mean(name, names)
    return f"{missing}{similar or ': there are ' + ', '.join(names[:BUCKETS_MAX])}"


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


def selected(messages: list[Message], selector: Selector) -> list[Message]:
    """Return the entries whose labels match."""
    return [message for message in messages if matches(message.value, selector)]


def matches(value: bytes, selector: Selector) -> bool:
    """Return whether the labels of the object in a value match."""
    return not selector.requirements or selector.matches(labels_of(object_in(value)))
