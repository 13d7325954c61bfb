"""Finds the bucket that a user names, its published kinds, and the objects that labels select."""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError, StoreError, StoreMissingError, UsageError
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.feed import names as key_names
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore, bucket_names
from natsctl.model.kinds import KvKind
from natsctl.model.objects import Object
from natsctl.model.schemas.field_paths import Columns, FieldPath, parse_columns
from natsctl.model.schemas.kind_schema import PREFIX, SCHEMAS, KindSchema
from natsctl.model.selectors import Selector
from natsctl.operate.entries import labels_of, object_in
from natsctl.operate.names import parse_names

BUCKETS_MAX = 10  # that an error lists

_BUCKET = re.compile(r"[-_a-zA-Z0-9]+")


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


class Selection(msgspec.Struct, frozen=True):
    """The objects of a command: those that its words name, or those of one bucket that match.

    `keys` has the keys by bucket; None stands for all keys whose objects have the labels.
    """

    keys: dict[str, list[str] | None]
    labels: Selector

    @classmethod
    def of(
        cls, words: Sequence[str], selector: str = "", *, whole: bool = False, otherwise: str = ""
    ) -> "Selection":
        """Return the selection of *words* and the text of `--selector`; *whole* is `--all`.

        Raises `UsageError` as `parse_names` does, or if the words aren't one bucket.
        """
        labels = Selector.parse(selector)
        if selector or whole:
            if len(words) != 1 or "/" in words[0]:
                option = (
                    "--selector chooses among the keys" if selector else "--all is for every key"
                )
                raise UsageError(f"{option} of a bucket: give the bucket alone")
            return cls({words[0]: None}, labels)
        keys: dict[str, list[str] | None] = {}
        for name in parse_names(words, otherwise=otherwise):
            keys[name.bucket] = [*(keys.get(name.bucket) or ()), name.key]
        return cls(keys, labels)

    async def open(self, connection: Connection) -> list[tuple[Bucket, list[str]]]:
        """Return each bucket and its chosen keys; raises as `existing_bucket` does."""
        found: list[tuple[Bucket, list[str]]] = []
        for name, keys in self.keys.items():
            bucket = await existing_bucket(connection, name)
            if keys is None:
                listed = selected(await BucketStore(bucket).listing(), self.labels)
                keys = [message.key for message in listed]  # noqa: PLW2901 - those that match
            found.append((bucket, keys))
        return found


def selected(messages: Iterable[Message], selector: Selector) -> list[Message]:
    """Return the entries whose labels match."""
    return [message for message in messages if matches(message.value, selector)]


def matches(value: bytes, selector: Selector) -> bool:
    """Return whether the labels of the object in a value match."""
    return not selector.requirements or selector.matches(labels_of(object_in(value)))


async def published_schemas(connection: Connection, bucket: str = "*") -> list[KindSchema]:
    """Return the schemas of the kinds of a bucket, by default of all buckets, sorted by kind.

    Returns none if no daemon has published one. A schema that cannot be read is left out. Raises
    `PermissionDeniedError` if the user may not read the bucket `natsctl`, and other `StoreError`s.
    """
    records = Bucket(connection, SCHEMAS.bucket)
    try:
        keys = await key_names(records, f"{PREFIX}.*.{bucket}")
        messages = await records.newest(keys)
    except StoreMissingError:
        return []
    schemas = (KindSchema.parse(message.value) for message in messages if not message.marker)
    return sorted((schema for schema in schemas if schema is not None), key=lambda s: s.kind)


async def declared_columns(connection: Connection, bucket: str) -> Columns:
    """Return the columns of a bucket's kinds, of the most important kind first.

    Returns none if the schemas cannot be read. A column that is not valid is left out.
    """
    try:
        schemas = await published_schemas(connection, bucket)
    except StoreError:  # a table without these columns is better than none
        return {}
    columns: dict[str, FieldPath] = {}
    for schema in sorted(schemas, key=lambda schema: schema.rank, reverse=True):
        try:
            parsed = parse_columns(schema.columns)
        except UsageError:
            continue
        columns = {**parsed, **columns}
    return columns


def message_at(bucket: str, messages: Sequence[Message], key: str, revision: int) -> Message:
    """Return the message of a key at a revision; raises `NotFoundError` if it isn't kept."""
    if not messages:
        raise NotFoundError(f"{bucket} has no {key}, and no revision of it")
    for message in messages:
        if message.revision == revision:
            return message
    kept = ", ".join(str(message.revision) for message in messages)
    raise NotFoundError(
        f"{bucket}/{key} has no revision {revision}, or not any more: it has {kept}"
    )
