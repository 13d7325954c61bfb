"""The links from objects to external resources: what state they're in, and how one is forgotten."""

from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from natsctl.errors import NotFoundError, StoreMissingError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.store import BucketStore, bucket_names
from natsctl.managed.links import (
    RECORDS,
    AnnotationNames,
    CreationLink,
    Mark,
    annotations_of,
    domains_of,
    unlink,
)
from natsctl.model.objects import Object
from natsctl.operate.buckets import existing_bucket
from natsctl.operate.objects import Name


class Standing(StrEnum):
    """The state of a link."""

    LINKED = "linked"
    ADOPTED = "adopted"
    """The object took over a resource that natsctl didn't create."""
    UNKNOWN = "unknown"
    """A creation has begun, and its result is not known."""
    LOST = "lost"
    """There is a record, but its object is gone or names another external resource."""


class LinkState(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a link to an external resource.

    Attributes:
        domain: the domain of the annotations; the reconcilers of an object have different ones.
        revision: the revision of the object; 0 if the object does not exist.
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


class _Record(msgspec.Struct, frozen=True):
    """The record of a link, and its object; the link is empty if only annotations have it."""

    bucket: str
    key: str
    names: AnnotationNames
    link: CreationLink = CreationLink()


async def link_states(connection: Connection, bucket: str | None) -> list[LinkState]:
    """Return the states of all links, or of those from one bucket's objects."""
    records = defaultdict[str, dict[str, list[_Record]]](lambda: defaultdict(list))
    for record in (await _records(connection)).values():
        records[record.bucket][record.key].append(record)
    names = await bucket_names(connection) if bucket is None else [bucket]
    states: list[LinkState] = []
    for name in names:
        source = await existing_bucket(connection, name)
        objects = {message.key: message for message in await BucketStore(source).listing()}
        recorded = records.pop(source.name, {})
        for key in sorted({*objects, *recorded}):
            message = objects.get(key)
            annotations = {} if message is None else annotations_of(message.value)
            links = {max(record.names.domains): record for record in recorded.get(key, ())}
            for domain in domains_of(annotations):
                held_by = AnnotationNames(domain)
                links.setdefault(max(held_by.domains), _Record(source.name, key, held_by))
            for _, link in sorted(links.items()):
                held = None if message is None else CreationLink.of(annotations, link.names)
                states += _state(link, 0 if message is None else message.revision, held)
    if bucket is None:
        for of_bucket in records.values():
            for of_object in of_bucket.values():
                for link in of_object:
                    states += _state(link, 0, None)
    return states


async def forget_link(connection: Connection, name: Name) -> None:
    """Remove the links of an object, and their records."""
    exists = name.bucket in await bucket_names(connection)
    store = BucketStore(Bucket(connection, name.bucket), Object)
    records = [
        record_key
        for record_key, record in (await _records(connection)).items()
        if (record.bucket, record.key) == (name.bucket, name.key)
    ]
    if not records and not (exists and domains_of(await _annotations(store, name.key))):
        raise NotFoundError(f"{name} has no link to an external resource")
    recorded = BucketStore(Bucket(connection, RECORDS.bucket), keys=RECORDS.keys)
    for record_key in records:
        await recorded.delete(record_key, purge=True)
    if exists:
        await unlink(store, name.key)


async def _annotations(store: BucketStore, key: str) -> dict[str, str]:
    try:
        return annotations_of((await store.get(key)).value)
    except NotFoundError:
        return {}


async def _records(connection: Connection) -> dict[str, _Record]:
    """Return all records by their keys, see `record_key`; empty without their bucket."""
    bucket = Bucket(connection, RECORDS.bucket)
    try:
        await bucket.state()
    except StoreMissingError:
        return {}
    records: dict[str, _Record] = {}
    for message in await BucketStore(bucket, keys=RECORDS.keys).listing():
        _, domain, object_bucket, key = message.key.split(".", 3)
        names = AnnotationNames(domain.replace("_", "."))
        records[message.key] = _Record(object_bucket, key, names, RECORDS.decode(message.value))
    return records


def _state(record: _Record, revision: int, held: CreationLink | None) -> Iterator[LinkState]:
    """Yield the state of a link, unless nothing is recorded or nothing was created.

    *held* is the link in the object's annotations; None if the object does not exist.
    """
    recorded = record.link
    link = recorded if not held or recorded.answers(held) else held
    if held is None:
        if not (recorded.external_name or recorded.unknown):
            return
        state = Standing.LOST
    elif link is held and recorded.contradicts(held):
        state, link = Standing.LOST, recorded
    elif link.unknown:
        state = Standing.UNKNOWN
    elif recorded and link.external_name:
        state = Standing.ADOPTED if link.adopted else Standing.LINKED
    else:
        return
    mark = link.adopted or link.succeeded or link.pending
    yield LinkState(
        bucket=record.bucket,
        key=record.key,
        domain=record.names.domain,
        revision=revision,
        state=state,
        since=Mark.parse(mark).time.isoformat() if mark else "",
        external_name=link.external_name,
    )
