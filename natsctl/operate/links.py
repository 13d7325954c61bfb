"""The links from objects to external resources: what state they're in, and how one is forgotten."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum

import msgspec

from natsctl.errors import NotFoundError, StoreMissingError
from natsctl.jetstream.bucket import Bucket, Message
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
    links = defaultdict[tuple[str, str], dict[str, _Record]](dict)
    for record in (await _records(connection)).values():
        links[record.bucket, record.key][max(record.names.domains)] = record
    objects: dict[tuple[str, str], Message] = {}
    only = ""
    for name in await bucket_names(connection) if bucket is None else [bucket]:
        source = await existing_bucket(connection, name)
        only = source.name if bucket is not None else ""
        for message in await BucketStore(source).listing():
            place = source.name, message.key
            for domain in domains_of(annotations_of(message.value)):
                held_by = AnnotationNames(domain)
                links[place].setdefault(max(held_by.domains), _Record(*place, held_by))
            if place in links:
                objects[place] = message
    return [
        state
        for place in sorted(links)
        if only in ("", place[0])
        for _, record in sorted(links[place].items())
        for state in _state(record, objects.get(place))
    ]


async def forget_link(connection: Connection, name: Name) -> None:
    """Remove the links of an object, and their records."""
    exists = name.bucket in await bucket_names(connection)
    store = BucketStore(Bucket(connection, name.bucket), Object)
    annotations: dict[str, str] = {}
    if exists:
        with suppress(NotFoundError):
            annotations = annotations_of((await store.get(name.key)).value)
    records = await _records(connection)
    place = name.bucket, name.key
    recorded = [one for one in records if (records[one].bucket, records[one].key) == place]
    if not recorded and not domains_of(annotations):
        raise NotFoundError(f"{name} has no link to an external resource")
    for record_key in recorded:
        await BucketStore(Bucket(connection, RECORDS.bucket)).delete(record_key, purge=True)
    if exists:
        await unlink(store, name.key)


async def _records(connection: Connection) -> dict[str, _Record]:
    records: dict[str, _Record] = {}
    listed: list[Message] = []
    bucket = Bucket(connection, RECORDS.bucket)
    with suppress(StoreMissingError):
        await bucket.state()
        listed = await BucketStore(bucket, keys=RECORDS.keys).listing()
    for message in listed:
        _, domain, object_bucket, key = message.key.split(".", 3)
        names = AnnotationNames(domain.replace("_", "."))
        records[message.key] = _Record(object_bucket, key, names, RECORDS.decode(message.value))
    return records


def _state(record: _Record, object_: Message | None) -> Iterator[LinkState]:
    """Yield the state of a link, unless nothing is recorded or nothing was created."""
    recorded, held = record.link, None
    if object_ is not None:
        held = CreationLink.of(annotations_of(object_.value), record.names)
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
        revision=0 if object_ is None else object_.revision,
        state=state,
        since=Mark.parse(mark).time.isoformat() if mark else "",
        external_name=link.external_name,
    )
