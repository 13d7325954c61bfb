"""Records the link from each object to its external resource in a separate bucket.

The annotations of an object hold its link as well, but a client that replaces the whole object
removes them. The record then prevents the creation of a second external resource.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from natsctl.core.compare_and_set import read
from natsctl.errors import ConflictError, InvalidObjectError, NotFoundError
from natsctl.managed.creation.creation import Creation, OtherCreationError
from natsctl.managed.names import AnnotationNames
from natsctl.model import documents
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import OpenStore, Store, Stored

PREFIX = "links"


class CreationLink(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The name of an object's external resource, and the state of its creation.

    The texts are those of the annotations.
    """

    external_name: str = ""
    pending: str = ""
    succeeded: str = ""
    failed: str = ""
    adopted: str = ""

    @classmethod
    def of(cls, annotations: Mapping[str, str], names: AnnotationNames) -> "CreationLink":
        """Return the link that the annotations hold."""
        texts = names.link(annotations)
        return cls(*(texts.get(name, "") for name in _names(names)))

    def annotations(self, names: AnnotationNames) -> dict[str, str]:
        """Return the annotations that hold the link."""
        texts = msgspec.structs.astuple(self)
        return {name: text for name, text in zip(_names(names), texts, strict=True) if text}

    @property
    def creation(self) -> Creation:
        """The state of the last creation."""
        names = AnnotationNames()
        return Creation.of(self.annotations(names), names)

    def __bool__(self) -> bool:
        """Return whether the link has any content."""
        return self != CreationLink()

    def answers(self, other: "CreationLink") -> bool:
        """Return whether this link has the result of a creation that *other* has only begun."""
        same_creation = self.pending == other.pending
        return same_creation and other.creation.unknown and not self.creation.unknown

    def contradicts(self, other: "CreationLink") -> bool:
        """Return whether this link may lead to another external resource than *other* does."""
        if self.creation.unknown and self.pending != other.pending:
            return True
        return bool(self.external_name) and self.external_name != other.external_name


class Standing(StrEnum):
    """The state of a link."""

    LINKED = "linked"
    ADOPTED = "adopted"
    """The object took over a resource that natsctl didn't create."""
    UNKNOWN = "unknown"
    """A creation has begun, and its result is not known."""
    LOST = "lost"
    """There is a record, but its object is gone or names another external resource."""


def standing(recorded: CreationLink, held: CreationLink | None) -> Standing | None:
    """Return the state of the link that is recorded and that the object holds.

    *held* is None if the object does not exist. Returns None if there is nothing to show: no
    record, or nothing was created.
    """
    if held is None:
        exists = recorded.external_name or recorded.creation.unknown
        return Standing.LOST if exists else None
    link = recorded if not held or recorded.answers(held) else held
    if link is held and recorded.contradicts(held):
        return Standing.LOST
    if link.creation.unknown:
        return Standing.UNKNOWN
    if not (recorded and link.external_name):
        return None
    return Standing.LINKED if link.creation.adopted is None else Standing.ADOPTED


RECORDS: KvKind[CreationLink] = kv(
    CreationLink, bucket="natsctl", keys=f"{PREFIX}.>", history=1, replicas=None
)
"""The link records, one for each managed object in NATS; see `record_key`."""


def record_key(bucket: str, key: str, names: AnnotationNames) -> str:
    """Return the key of an object's record, among the records of one domain of annotations."""
    domain = max(names.domains).replace(".", "_")
    return f"{PREFIX}.{domain}.{bucket}.{key}"


class Links(msgspec.Struct, eq=False, kw_only=True):
    """Reads and writes the records of one bucket's objects.

    An object without a record may have had a link before it was replaced. Then the link comes from
    the newest earlier revision that the bucket still has.
    """

    objects: Store
    kind: KvKind[Any]
    names: AnnotationNames
    open_records: OpenStore
    _records: Store | None = None
    _last_seen: dict[str, tuple[int, CreationLink]] = {}
    """The revision and the link of the last record that was read or written, by key."""

    async def read(self, key: str) -> CreationLink:
        """Return the recorded link of the object, read at the stream's leader."""
        stored = await read(await self._store(), self._key(key))
        if stored is not None:
            return self._note_seen(key, stored)
        self._last_seen[key] = 0, CreationLink()
        return await self._former_link(key)

    async def write(self, key: str, link: CreationLink) -> None:
        """Record the link, upon exactly the record that was last seen.

        Raises `OtherCreationError` if another process has recorded another creation since.
        """
        if key not in self._last_seen:
            await self.read(key)
        revision, last_link = self._last_seen[key]
        if last_link == link:
            return
        try:
            self._last_seen[key] = await self._put(key, link, revision), link
        except ConflictError as error:
            newest = await read(await self._store(), self._key(key))
            recorded = CreationLink() if newest is None else self._note_seen(key, newest)
            if recorded.pending != link.pending:
                raise OtherCreationError(f"another creation was begun for {key}") from error
            if recorded != link:
                revision = 0 if newest is None else newest.revision
                self._last_seen[key] = await self._put(key, link, revision), link

    async def forget(self, key: str) -> None:
        """Remove the record, because the object will be removed."""
        self._last_seen.pop(key, None)
        try:
            await (await self._store()).delete(self._key(key), purge=True)
        except NotFoundError:
            return

    def last_seen(self, key: str) -> tuple[int | None, CreationLink]:
        """Return the revision and the link of the record that was last seen, None if none was."""
        return self._last_seen.get(key, (None, CreationLink()))

    def see(self, key: str, revision: int, link: CreationLink) -> None:
        """Remember a record, as `last_seen` returned it."""
        self._last_seen[key] = revision, link

    async def peek(self, key: str) -> None:
        """Read the record for a recording; nothing is remembered."""
        await read(await self._store(), self._key(key))

    async def _put(self, key: str, link: CreationLink, revision: int) -> int:
        store, value = await self._store(), msgspec.json.encode(link)
        if revision:
            return (await store.update(self._key(key), value, revision=revision)).revision
        return (await store.create(self._key(key), value)).revision

    async def _former_link(self, key: str) -> CreationLink:
        """Return the link of the newest earlier revision that has one, since the last deletion."""
        for state in reversed(await self.objects.history(key)):
            if not isinstance(state, Stored):
                break
            link = CreationLink.of(annotations_of(state.value), self.names)
            if link:
                return link
        return CreationLink()

    def _note_seen(self, key: str, stored: Stored) -> CreationLink:
        link = RECORDS.decode(stored.value)
        self._last_seen[key] = stored.revision, link
        return link

    def _key(self, key: str) -> str:
        return record_key(self.kind.bucket, key, self.names)

    async def _store(self) -> Store:
        if self._records is None:
            self._records = await self.open_records(RECORDS)
        return self._records


def object_of(key: str) -> tuple[AnnotationNames, str, str]:
    """Return the names, the bucket and the key of the object with this record; see `record_key`."""
    _, domain, bucket, object_key = key.split(".", 3)
    return AnnotationNames(domain.replace("_", ".")), bucket, object_key


def annotations_of(value: bytes) -> dict[str, str]:
    """Return the annotations in a stored value; none if the value is not an object."""
    try:
        annotations = documents.annotations_of(documents.parse(value))
    except InvalidObjectError:
        return {}
    return {name: text for name, text in annotations.items() if isinstance(text, str)}


def _names(names: AnnotationNames) -> tuple[str, ...]:
    results = (names.create_succeeded, names.create_failed, names.adopted)
    return names.external_name, names.create_pending, *results
