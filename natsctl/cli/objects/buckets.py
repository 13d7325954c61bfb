"""The bucket that a command is about: found, or told which one may have been meant."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.output.entries import labels_of, object_in
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import StoreError, StoreMissingError, UsageError
from natsctl.jetstream.bucket.browse import bucket_names
from natsctl.jetstream.bucket.bucket import Bucket, Message
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.kinds import KvKind
from natsctl.model.objects import Object
from natsctl.model.selectors import Selector

BucketArgument = Annotated[str, typer.Argument(help="a KV bucket's name", metavar="BUCKET")]
KeyArgument = Annotated[str, typer.Argument(help="a key of it", metavar="KEY")]
SelectorOption = Annotated[
    str,
    typer.Option(
        "--selector",
        "-l",
        help="only objects with these labels, as in a=b,c!=d,e",
        metavar="LABELS",
    ),
]
KeysOption = Annotated[
    str,
    typer.Option(
        "--keys", help="only keys that match: * is one token, > the rest", metavar="PATTERN"
    ),
]
CreateOption = Annotated[
    bool, typer.Option("--create-bucket", help="make a bucket that is missing")
]

_PATTERN = re.compile(r"(\*|[-/_=a-zA-Z0-9]+)(\.(\*|[-/_=a-zA-Z0-9]+))*(\.>)?|>")


@asynccontextmanager
async def bucket_of(
    options: NatsOptions, name: str, *, create: bool = False
) -> AsyncIterator[Bucket]:
    """Connect, and give the bucket.

    Raises `StoreMissingError` that says which bucket may have been meant, unless *create*.
    """
    async with connect(options) as connection:
        yield await existing(connection, name, create=create)


async def existing(connection: Connection, name: str, *, create: bool = False) -> Bucket:
    """Return the bucket, which exists; see `bucket_of`."""
    bucket = Bucket(connection, name)
    try:
        await bucket.state()
    except StoreMissingError as missing:
        if not create:
            raise StoreMissingError(await _advice(connection, name)) from missing
        await bucket.ensure(KvKind(Object, bucket=name))
    return bucket


async def _advice(connection: Connection, name: str) -> str:
    try:
        known = await bucket_names(connection)
    except StoreError:  # not everybody may list them
        return f"there is no bucket {name}"
    nearest = did_you_mean(name, known)
    if nearest:
        return f"there is no bucket {name}{nearest}"
    shown = f"there are {', '.join(known[:10])}" if known else "there is none at all yet"
    return f"there is no bucket {name}: {shown}"


def pattern_of(keys: str) -> str:
    """Return the pattern; raises `UsageError` where no key could match it."""
    if not _PATTERN.fullmatch(keys):
        raise UsageError(f"--keys {keys!r} is no pattern of keys: write sites.* or sites.> or >")
    return keys


def selected(messages: list[Message], selector: Selector) -> list[Message]:
    """Return the entries whose labels are meant."""
    if not selector.requirements:
        return messages
    return [message for message in messages if matches(message.value, selector)]


def matches(value: bytes, selector: Selector) -> bool:
    """Say whether the labels in a value are meant."""
    return not selector.requirements or selector.matches(labels_of(object_in(value)))
