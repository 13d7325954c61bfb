"""`natsctl external`: shows the links to external resources, and resolves unknown results."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.usage import only
from natsctl.cli.output.printing import Output, OutputOption, write_result, write_table
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.errors import InvalidObjectError, NotFoundError, StoreMissingError, UsageError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore, bucket_names
from natsctl.managed.creation.links import (
    RECORDS,
    CreationLink,
    Standing,
    annotations_of,
    object_of,
    standing,
)
from natsctl.managed.creation.resolution import (
    domains_of,
    permit_adoption,
    resolve,
    unlink,
    unresolved,
)
from natsctl.managed.names import AnnotationNames
from natsctl.model import documents
from natsctl.model.keys import check_key
from natsctl.model.objects import Object
from natsctl.operate.buckets import existing_bucket
from natsctl.operate.entries import NONE, age

HEADINGS = ("BUCKET", "KEY", "REVISION", "STATE", "SINCE", "EXTERNAL NAME")

app = App()

BucketOption = Annotated[
    str | None,
    typer.Option("--bucket", help="Only this bucket [default: all buckets]", metavar="BUCKET"),
]
ObjectKeyArgument = Annotated[str, typer.Argument(help="Key of the object", metavar="KEY")]


class LinkState(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a link to an external resource.

    Attributes:
        domain: the domain of the annotations; the reconcilers of an object have different ones.
        revision: the revision of the object; 0 if the object does not exist.
        state: linked, adopted, unknown or lost.
        since: the time of the creation (RFC 3339); empty if it is not known.
        external_name: the name in the outside system; empty if it is not known.
    """

    bucket: str
    key: str
    domain: str
    revision: int
    state: Standing
    since: str
    external_name: str


class LinkRecord(msgspec.Struct, frozen=True):
    """The record of a link: the object's bucket and key, its annotation names, and the link."""

    bucket: str
    key: str
    names: AnnotationNames
    link: CreationLink


@app.callback()
def external() -> None:
    """Show the links to external resources, and resolve those with an unknown result."""


@app.add(
    "natsctl external list --bucket disks",
    "natsctl external list -o json | jq '.[].key'",
    name="list",
)
@connected
async def list_(
    options: NatsOptions, *, bucket: BucketOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show the links from objects to external resources.

    The state is linked, adopted, unknown or lost. An adopted resource existed before natsctl took
    it over. The state is unknown after an interrupted creation: the object is not synced until
    natsctl external resolve stores the result. It is lost if the object does not exist or names
    another external resource: check the outside system, and remove the link with natsctl external
    forget.
    """
    async with connect(options) as connection:
        names = await bucket_names(connection) if bucket is None else [bucket]
        records = await _records(connection)
        states = [state for name in names for state in await _states(connection, name, records)]
    if bucket is None:
        states += _states_without_bucket(records, names)
    keys = (state.key for state in states)
    write_result(states, output, names=keys, table=lambda: _write_table(states))


@app.add(
    "natsctl external resolve data --created --name vol-0a1b2c",
    "natsctl external resolve data --not-created --bucket disks",
    name="resolve",
)
@connected
async def resolve_(
    options: NatsOptions,
    *,
    key: ObjectKeyArgument,
    created: Annotated[
        bool | None,
        typer.Option(
            "--created/--not-created", help="Whether the resource exists in the outside system"
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="Name in the outside system", metavar="NAME")
    ] = "",
    bucket: BucketOption = None,
) -> None:
    """Resolve whether an object's external resource was created.

    With --created, the controller manages the resource, under --name if the outside system has
    given it a name. With --not-created, the controller creates the resource again.
    """
    check_key(key)
    if created is None:
        raise UsageError("check whether the resource exists, then give --created or --not-created")
    if name and not created:
        raise UsageError("--name needs --created")
    async with connect(options) as connection:
        store = await _unresolved_store(connection, key, bucket)
        await resolve(store, key, created=created, external_name=name)
    write_line(f"{store.kind.name}/{key} resolved: {'created' if created else 'not created'}")


@app.add("natsctl external adopt data", "natsctl external adopt data --bucket disks")
@connected
async def adopt(
    options: NatsOptions, *, key: ObjectKeyArgument, bucket: BucketOption = None
) -> None:
    """Let an object take over an external resource that natsctl didn't create.

    From then on the controller changes the resource as the object says, and deletes it with the
    object. The command sets the annotation natsctl.io/adopt, so the object says so by itself.
    """
    check_key(key)
    async with connect(options) as connection:
        stores = {
            name: BucketStore(Bucket(connection, name), Object)
            for name in await bucket_names(connection)
            if bucket in (None, name)
        }
        having = [name for name, store in stores.items() if await _is_object(store, key)]
        if not having:
            raise NotFoundError(
                f"{bucket or 'no bucket'} has {'no' if bucket else 'an'} object {key}"
            )
        name = only(having, f"several buckets have a {key}", "--bucket")
        await permit_adoption(stores[name], key)
    write_line(f"{name}/{key} adopts its external resource")


@app.add(
    "natsctl external forget data",
    "natsctl external forget data --bucket disks",
)
@connected
async def forget(
    options: NatsOptions, *, key: ObjectKeyArgument, bucket: BucketOption = None
) -> None:
    """Forget the link from an object to its external resource.

    The external resource stays, and no object manages it. If the object exists, the next
    reconciliation creates another resource for it.
    """
    check_key(key)
    async with connect(options) as connection:
        records = await _records(connection)
        name = await _linked_bucket(connection, key, bucket, records)
        if records:
            store = BucketStore(Bucket(connection, RECORDS.bucket), keys=RECORDS.keys)
            for record_key, record in records.items():
                if (record.bucket, record.key) == (name, key):
                    await store.delete(record_key, purge=True)
        if name in await bucket_names(connection):
            await unlink(BucketStore(Bucket(connection, name), Object), key)
    write_line(f"{name}/{key} forgotten")


async def _linked_bucket(
    connection: Connection, key: str, bucket: str | None, records: Mapping[str, LinkRecord]
) -> str:
    """Return the only bucket, or *bucket*, if the key has a link there."""
    names = await bucket_names(connection)
    linked = {record.bucket for record in records.values() if record.key == key}
    for name in names if bucket is None else {bucket} & {*names}:
        if domains_of(await _annotations(BucketStore(Bucket(connection, name), Object), key)):
            linked.add(name)
    if bucket is not None and bucket not in linked:
        raise NotFoundError(f"{bucket} does not have a link from {key} to an external resource")
    if not linked:
        raise NotFoundError(f"no bucket has a link from {key} to an external resource")
    return bucket or only(sorted(linked), f"several buckets have a link from {key}", "--bucket")


async def _unresolved_store(connection: Connection, key: str, bucket: str | None) -> BucketStore:
    """Return the store of *bucket*, or of the only bucket in which the key is unresolved."""
    if bucket is not None:
        return BucketStore(await existing_bucket(connection, bucket), Object)
    stores = {
        name: BucketStore(Bucket(connection, name), Object)
        for name in await bucket_names(connection)
    }
    names = [
        name
        for name, store in stores.items()
        if unresolved(await _annotations(store, key)) is not None
    ]
    if not names:
        raise NotFoundError(f"no bucket has a {key} with an unknown result")
    return stores[only(names, f"several buckets have such a {key}", "--bucket")]


async def _annotations(store: BucketStore, key: str) -> dict[str, str]:
    """Return the annotations of an object; empty if the object does not exist."""
    try:
        return annotations_of((await store.get(key)).value)
    except NotFoundError:
        return {}


async def _is_object(store: BucketStore, key: str) -> bool:
    try:
        documents.parse((await store.get(key)).value)
    except (NotFoundError, InvalidObjectError):
        return False
    return True


async def _records(connection: Connection) -> dict[str, LinkRecord]:
    """Return all records by the key of the record; empty if their bucket does not exist."""
    bucket = Bucket(connection, RECORDS.bucket)
    try:
        await bucket.state()
    except StoreMissingError:
        return {}
    records: dict[str, LinkRecord] = {}
    for message in await BucketStore(bucket, keys=RECORDS.keys).listing():
        names, object_bucket, key = object_of(message.key)
        link = RECORDS.decode(message.value)
        records[message.key] = LinkRecord(object_bucket, key, names, link)
    return records


async def _states(
    connection: Connection, name: str, records: Mapping[str, LinkRecord]
) -> list[LinkState]:
    """Return the states of the links from a bucket's objects."""
    bucket = await existing_bucket(connection, name)
    objects = {message.key: message for message in await BucketStore(bucket).listing()}
    bucket_records = defaultdict[str, list[LinkRecord]](list)
    for record in records.values():
        if record.bucket == name:
            bucket_records[record.key].append(record)
    states: list[LinkState] = []
    for key in sorted({*objects, *bucket_records}):
        message = objects.get(key)
        annotations = {} if message is None else annotations_of(message.value)
        revision = 0 if message is None else message.revision
        for record in _links(name, key, bucket_records.get(key, []), annotations):
            annotated = None if message is None else CreationLink.of(annotations, record.names)
            states += _state(record, revision, annotated)
    return states


def _states_without_bucket(
    records: Mapping[str, LinkRecord], names: list[str]
) -> Iterator[LinkState]:
    """Yield the states of links whose bucket does not exist."""
    for record in records.values():
        if record.bucket not in names:
            yield from _state(record, 0, None)


def _links(
    bucket: str, key: str, records: Iterable[LinkRecord], annotations: Mapping[str, str]
) -> list[LinkRecord]:
    """Return the records of an object, and an empty one for each further link that it holds."""
    links = {max(record.names.domains): record for record in records}
    for domain in domains_of(annotations):
        names = AnnotationNames(domain)
        links.setdefault(max(names.domains), LinkRecord(bucket, key, names, CreationLink()))
    return [links[domain] for domain in sorted(links)]


def _state(
    record: LinkRecord, revision: int, annotated: CreationLink | None
) -> Iterator[LinkState]:
    """Yield the state of a link, if there is one.

    *annotated* is the link in the object's annotations; None if the object does not exist.
    """
    recorded = record.link
    state = standing(recorded, annotated)
    if state is None:
        return
    link = recorded
    if annotated and state is not Standing.LOST and not recorded.answers(annotated):
        link = annotated
    creation = link.creation
    mark = creation.adopted or creation.succeeded or creation.pending
    since = "" if mark is None else mark.time.isoformat()
    yield LinkState(
        bucket=record.bucket,
        key=record.key,
        domain=record.names.domain,
        revision=revision,
        state=state,
        since=since,
        external_name=link.external_name,
    )


def _write_table(states: list[LinkState]) -> None:
    if states:
        now = datetime.now(UTC)
        write_table(HEADINGS, [_row(state, now) for state in states])
    else:
        write_notice("there are no links to external resources")


def _row(state: LinkState, now: datetime) -> list[str]:
    revision = str(state.revision) if state.revision else NONE
    since, external_name = age(state.since, now), state.external_name or NONE
    return [state.bucket, state.key, revision, state.state, since, external_name]
