"""`natsctl external`: the links from objects to external resources."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.objects.buckets import existing
from natsctl.cli.output.entries import NONE, age
from natsctl.cli.output.printing import Output, OutputOption, line, write_found, write_table
from natsctl.cli.output.terminal import say
from natsctl.errors import NotFoundError, StoreMissingError, UsageError
from natsctl.jetstream.bucket.browse import BucketStore, bucket_names
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.managed.creation.links import (
    RECORDS,
    Link,
    Standing,
    annotations_of,
    object_of,
    standing,
)
from natsctl.managed.creation.resolution import domains_of, resolve, unlink, unresolved
from natsctl.managed.names import AnnotationNames
from natsctl.model.keys import check_key
from natsctl.model.objects import Object

app = commands()

BucketOption = Annotated[
    str | None, typer.Option("--bucket", help="only this bucket; all by default", metavar="BUCKET")
]


class Shown(msgspec.Struct, frozen=True, rename="camel"):
    """A link to an external resource; the revision is the object's, 0 if there is none."""

    bucket: str
    key: str
    revision: int
    state: Standing
    since: str
    external_name: str


class Recorded(msgspec.Struct, frozen=True):
    """A record: whose link it is, under which names, and the link."""

    bucket: str
    key: str
    names: AnnotationNames
    link: Link


@app.callback()
def external() -> None:
    """See links to external resources, and settle those that need a person."""


@app.command(
    "list",
    cls=Command,
    epilog=examples(
        "natsctl external list --bucket disks",
        "natsctl external list -o json | jq '.[].key'",
    ),
)
@connected
async def show(
    options: NatsOptions, *, bucket: BucketOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show the links from objects to external resources.

    The state is linked, unknown or lost. After an interrupted creation it is unknown, and nothing
    is done for the object until natsctl external resolve tells the result. A lost link is one
    whose object is gone, or names another external resource: look in the outside system, then
    remove it with natsctl external forget.
    """
    async with connect(options) as connection:
        names = await bucket_names(connection) if bucket is None else [bucket]
        recorded = await _records(connection)
        found = [each for name in names for each in await _links(connection, name, recorded)]
        found += _without_bucket(recorded, names) if bucket is None else []
    write_found(found, output, names=(each.key for each in found), table=lambda: _show(found))


@app.command(
    "resolve",
    cls=Command,
    epilog=examples(
        "natsctl external resolve data --created --name vol-0a1b2c",
        "natsctl external resolve data --not-created --bucket disks",
    ),
)
@connected
async def settle(
    options: NatsOptions,
    *,
    key: Annotated[str, typer.Argument(help="the object's key", metavar="KEY")],
    created: Annotated[
        bool | None,
        typer.Option("--created/--not-created", help="what you have found in the outside system"),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="how the outside system calls it", metavar="NAME")
    ] = "",
    bucket: BucketOption = None,
) -> None:
    """Say whether an object's external resource was created.

    With --created it is managed from now on, under --name where the system has named it. With
    --not-created it is created anew.
    """
    check_key(key)
    if created is None:
        raise UsageError("look whether it exists, then say --created or --not-created")
    if name and not created:
        raise UsageError("--name is of what was created")
    async with _found(options, key, bucket) as store:
        await resolve(store, key, created=created, external_name=name)
        line(f"{store.kind.name}/{key} resolved: {'created' if created else 'not created'}")


@app.command(
    "forget",
    cls=Command,
    epilog=examples(
        "natsctl external forget data",
        "natsctl external forget data --bucket disks",
    ),
)
@connected
async def forget(
    options: NatsOptions,
    *,
    key: Annotated[str, typer.Argument(help="the object's key", metavar="KEY")],
    bucket: BucketOption = None,
) -> None:
    """Forget the link from an object to its external resource.

    The external resource stays as it is, and is nobody's. If the object exists, the next
    reconciliation creates another one for it.
    """
    check_key(key)
    async with connect(options) as connection:
        recorded = await _records(connection)
        name = await _linked_bucket(connection, key, bucket, recorded)
        if recorded:
            records = BucketStore(Bucket(connection, RECORDS.bucket), keys=RECORDS.keys)
            for at, found in recorded.items():
                if (found.bucket, found.key) == (name, key):
                    await records.delete(at, purge=True)
        if name in await bucket_names(connection):
            await unlink(BucketStore(Bucket(connection, name), Object), key)
        line(f"{name}/{key} forgotten")


async def _linked_bucket(
    connection: Connection, key: str, bucket: str | None, recorded: dict[str, Recorded]
) -> str:
    """Return the one bucket in which the key has a link."""
    names = await bucket_names(connection)
    wanted = names if bucket is None else [bucket]
    linked = {found.bucket for found in recorded.values() if found.key == key}
    for name in {*wanted} & {*names}:
        if domains_of(await _annotations(BucketStore(Bucket(connection, name), Object), key)):
            linked.add(name)
    fitting = sorted(linked if bucket is None else linked & {bucket})
    if not fitting:
        where = "no bucket has" if bucket is None else f"{bucket} does not have"
        raise NotFoundError(f"{where} a link from {key} to an external resource")
    if len(fitting) > 1:
        raise UsageError(
            f"several buckets have a link from {key}: give --bucket, one of {', '.join(fitting)}"
        )
    return fitting[0]


async def _annotations(store: BucketStore, key: str) -> dict[str, str]:
    try:
        return annotations_of((await store.get(key)).value)
    except NotFoundError:
        return {}


@asynccontextmanager
async def _found(options: NatsOptions, key: str, bucket: str | None) -> AsyncIterator[BucketStore]:
    """Give the one bucket in which the key has something to settle."""
    async with connect(options) as connection:
        if bucket is not None:
            yield BucketStore(await existing(connection, bucket), Object)
            return
        names = await bucket_names(connection)
        stores = [BucketStore(Bucket(connection, name), Object) for name in names]
        fitting = [store for store in stores if await _is_unresolved(store, key)]
        if not fitting:
            raise NotFoundError(f"no bucket has a {key} with an unknown result")
        if len(fitting) > 1:
            named = ", ".join(store.kind.name for store in fitting)
            raise UsageError(f"several buckets have such a {key}: say --bucket, one of {named}")
        yield fitting[0]


async def _is_unresolved(store: BucketStore, key: str) -> bool:
    return unresolved(await _annotations(store, key)) is not None


async def _records(connection: Connection) -> dict[str, Recorded]:
    """Return every record by its own key; none if nothing was ever recorded."""
    bucket, found = Bucket(connection, RECORDS.bucket), dict[str, Recorded]()
    try:
        await bucket.state()
    except StoreMissingError:
        return found
    for message in await BucketStore(bucket, keys=RECORDS.keys).listing():
        names, of, key = object_of(message.key)
        found[message.key] = Recorded(of, key, names, RECORDS.decode(message.value))
    return found


async def _links(connection: Connection, name: str, recorded: dict[str, Recorded]) -> list[Shown]:
    """Return the links of one bucket's objects."""
    bucket = await existing(connection, name)
    objects = {message.key: message for message in await BucketStore(bucket).listing()}
    own = {found.key: found for found in recorded.values() if found.bucket == name}
    shown: list[Shown] = []
    for key in sorted({*objects, *own}):
        message, record = objects.get(key), own.get(key)
        annotations = {} if message is None else annotations_of(message.value)
        names = _names(annotations) if record is None else record.names
        held = None if message is None else Link.of(annotations, names)
        link = Link() if record is None else record.link
        shown += _shown(name, key, 0 if message is None else message.revision, link, held)
    return shown


def _without_bucket(recorded: dict[str, Recorded], names: list[str]) -> list[Shown]:
    """Return the links of objects whose whole bucket is gone."""
    left = (found for found in recorded.values() if found.bucket not in names)
    return [each for at in left for each in _shown(at.bucket, at.key, 0, at.link, None)]


def _names(annotations: Mapping[str, str]) -> AnnotationNames:
    """Return the names of the creation with an unknown result, or else ours."""
    intent = unresolved(annotations)
    return AnnotationNames() if intent is None else intent[0]


def _shown(
    bucket: str, key: str, revision: int, recorded: Link, held: Link | None
) -> Iterator[Shown]:
    state = standing(recorded, held)
    if state is None:
        return
    link = held if held and not recorded.answers(held) and state is not Standing.LOST else recorded
    mark = link.creation.succeeded or link.creation.pending
    since = "" if mark is None else mark.at.isoformat()
    yield Shown(bucket, key, revision, state, since, link.external_name)


def _show(found: list[Shown]) -> None:
    if not found:
        say("there are no links to external resources")
        return
    now = datetime.now(UTC)
    headings = ["BUCKET", "KEY", "REVISION", "STATE", "SINCE", "EXTERNAL NAME"]
    write_table(
        headings,
        [
            [
                *(at.bucket, at.key, str(at.revision) if at.revision else NONE, at.state),
                *(age(at.since, now), at.external_name or NONE),
            ]
            for at in found
        ],
    )
