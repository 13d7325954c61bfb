"""Finds the bucket that a user names, its published kinds, and the objects that labels select."""

import re
from collections.abc import AsyncIterator, Sequence
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
from natsctl.operate.objects import labels_of, object_in, parse_names

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
    of_kind: set[str] = set()
    with suppress(StoreError):  # the user may lack the permission to read schemas
        schemas = await published_schemas(connection)
        of_kind = {one.bucket for one in schemas if name in (one.kind, one.kind.partition(".")[0])}
    bucket = Bucket(connection, of_kind.pop() if len(of_kind) == 1 else name)
    try:
        await bucket.state()
    except StoreMissingError as missing:
        if create:
            await bucket.ensure(KvKind(Object, bucket=bucket.name))
            return bucket
        hint = ""
        with suppress(StoreError):  # the user may lack the permission to list buckets
            known = await bucket_names(connection)
            listed = f": there are {', '.join(known[:BUCKETS_MAX])}"
            hint = did_you_mean(name, known) or listed if known else ": there are no buckets yet"
        hint += "; --create-bucket creates it" if create is False else ""
        raise StoreMissingError(f"there is no bucket {name}{hint}") from missing
    return bucket


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
        labels, keys = Selector.parse(selector), dict[str, list[str] | None]()
        if not (selector or whole):
            for name in parse_names(words, otherwise=otherwise):
                keys[name.bucket] = [*(keys.get(name.bucket) or ()), name.key]
        elif len(words) == 1 and "/" not in words[0]:
            keys[words[0]] = None
        else:
            option = "--selector chooses among the keys" if selector else "--all is for every key"
            raise UsageError(f"{option} of a bucket: give the bucket alone")
        return cls(keys, labels)

    async def open(self, connection: Connection) -> list[tuple[Bucket, list[str]]]:
        """Return each bucket and its chosen keys; raises as `existing_bucket` does."""
        found: list[tuple[Bucket, list[str]]] = []
        for name, keys in self.keys.items():
            bucket = await existing_bucket(connection, name)
            if keys is None:
                listed = await BucketStore(bucket).listing()
                chosen = [one.key for one in listed if matches(one.value, self.labels)]
                found.append((bucket, chosen))
            else:
                found.append((bucket, keys))
        return found


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
        messages = await records.newest(await key_names(records, f"{PREFIX}.*.{bucket}"))
    except StoreMissingError:
        return []
    schemas = (KindSchema.parse(message.value) for message in messages if not message.marker)
    return sorted(filter(None, schemas), key=lambda schema: schema.kind)


async def declared_columns(connection: Connection, bucket: str) -> Columns:
    """Return the columns of a bucket's kinds, of the most important kind first.

    Returns none if the schemas cannot be read. A column that is not valid is left out.
    """
    columns: dict[str, FieldPath] = {}
    with suppress(StoreError):  # a table without these columns is better than none
        schemas = await published_schemas(connection, bucket)
        for schema in sorted(schemas, key=lambda schema: schema.rank, reverse=True):
            with suppress(UsageError):
                columns = {**parse_columns(schema.columns), **columns}
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
