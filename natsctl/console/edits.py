"""Edits and restores objects, as the page shows them: without secrets, and checked before."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from natsctl.console.answers import Answer
from natsctl.console.masking import masked_document, shown_differences
from natsctl.daemon.published import published_schemas
from natsctl.errors import (
    DECODE_ERRORS,
    ConflictError,
    InvalidObjectError,
    NotFoundError,
    StoreError,
    UsageError,
)
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.store import BucketStore
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.objects import Object
from natsctl.model.plans.differences import Difference
from natsctl.model.schemas.kind_schema import KindSchema
from natsctl.operate.desired import desired, restorable, with_reserved, with_stored_version
from natsctl.operate.entries import object_in
from natsctl.telemetry.hiding import MASK

FAULTS_MAX = 20
_objects = Kind(Object, "object")


class ObjectDraft(Answer, frozen=True, kw_only=True):
    """An object to edit, without secrets, status and bookkeeping, and its revision."""

    text: str
    revision: int


class Preview(msgspec.Struct, frozen=True):
    """What a change would change, and why it is refused; it is stored if nothing is."""

    differences: list[Difference]
    faults: list[str]


class NextValue(msgspec.Struct, frozen=True):
    """The next value of an object; *before* is None if the object does not exist now."""

    store: BucketStore
    key: str
    before: Message | None
    value: bytes

    async def preview(self, connection: Connection) -> Preview:
        """Return the fields that change, and the faults by the published schema."""
        after = Message(self.key, 0, self.value, None, "")
        differences = shown_differences(self.store, self.before, after)
        schemas: list[KindSchema] = []
        with suppress(StoreError):  # without the permission to read them, the daemon is the judge
            schemas = await published_schemas(connection, self.store.kind.name)
        return Preview(differences, _faults(schemas, self.key, self.value))

    async def store_it(self) -> int:
        """Store the value, and return its revision; raises `ConflictError` if it came too late."""
        if self.before is None:
            return (await self.store.create(self.key, self.value)).revision
        revision = self.before.revision
        return (await self.store.update(self.key, self.value, revision=revision)).revision


async def draft(connection: Connection, bucket: str, key: str) -> ObjectDraft:
    """Return an object to edit; raises `UsageError` if it is no JSON object of natsctl's form."""
    message = await Bucket(connection, bucket).last(key)
    document = _document(message)
    shown = _compact(masked_document(desired(document)))
    text = msgspec.json.format(exact_json.encode(shown), indent=2).decode()
    return ObjectDraft(text=text, revision=message.revision)


async def edited(
    connection: Connection, bucket: str, key: str, text: str, revision: int
) -> NextValue:
    """Return the change that an edited draft makes.

    A masked secret keeps its value. Raises `ConflictError` if the object changed since the draft,
    and `UsageError` for a text that is no object, or with a mask in another place.
    """
    store = BucketStore(Bucket(connection, bucket))
    message = await Bucket(connection, bucket).last(key)
    before = _document(message)
    if message.revision != revision:
        raise ConflictError(
            f"{bucket}/{key} changed since you opened it: it has revision {message.revision} now"
        )
    try:
        new = exact_json.decode(text.encode())
    except DECODE_ERRORS as error:
        raise UsageError(f"this is not JSON: {error}") from error
    if not isinstance(new, dict):
        raise UsageError("an object is a JSON object with a spec")
    whole = desired(before)
    unmasked = _unmasked(new, masked_document(whole), whole, "")
    return _change(store, message, before, with_reserved(unmasked, before))


async def restored(connection: Connection, bucket: str, key: str, revision: int) -> NextValue:
    """Return the change that restores an earlier revision: spec, labels and annotations.

    Raises `NotFoundError` if the revision is not kept, and `UsageError` if it is a deletion or has
    the present state.
    """
    store = BucketStore(Bucket(connection, bucket))
    messages = await store.messages(key)
    earlier = next((message for message in messages if message.revision == revision), None)
    if earlier is None:
        raise NotFoundError(f"{bucket}/{key} has no revision {revision}, or not any more")
    if earlier.marker:
        raise UsageError(f"revision {revision} is a deletion: nothing can be restored from it")
    document, newest = _document(earlier), messages[-1]
    before = None if newest.marker else _document(newest)
    new = with_reserved(with_stored_version(restorable(document), document), before)
    return _change(store, None if newest.marker else newest, before, new, key=key)


def _change(
    store: BucketStore,
    message: Message | None,
    before: Document | None,
    new: Document,
    *,
    key: str = "",
) -> NextValue:
    stamped = _compact(documents.stamp(before, new))
    if before is not None and documents.same(stamped, before):
        raise UsageError("nothing would change")
    value = documents.render(stamped)
    try:
        _objects.metadata(value)
    except InvalidObjectError as error:
        raise UsageError(f"the object would not be valid: {error}") from error
    return NextValue(store, key if message is None else message.key, message, value)


def _compact(document: Document) -> Document:
    """Return the document without empty metadata."""
    metadata = {name: field for name, field in documents.metadata_of(document).items() if field}
    others = documents.without(document, "metadata")
    return {"metadata": metadata, **others} if metadata else others


def _document(message: Message) -> Document:
    document = None if message.marker else object_in(message.value)
    if document is None:
        raise UsageError(f"{message.key} is not an object with a spec: use natsctl put")
    return document


def _unmasked(new: Any, masked: Any, whole: Any, path: str) -> Any:
    """Return *new* with the secrets of *whole* where it equals what the page showed."""
    if new == masked:
        return whole
    if isinstance(new, dict):
        shown = masked if isinstance(masked, dict) else {}
        known = whole if isinstance(whole, dict) else {}
        return {
            name: _unmasked(inner, shown.get(name), known.get(name), f"{path}.{name}")
            for name, inner in new.items()
        }
    if isinstance(new, list):
        same = isinstance(masked, list) and len(masked) == len(new)
        pairs = zip(masked, whole, strict=True) if same else ((None, None) for _ in new)
        return [
            _unmasked(inner, *pair, f"{path}[{index}]")
            for index, (inner, pair) in enumerate(zip(new, pairs, strict=True))
        ]
    if isinstance(new, str) and MASK in new:
        raise UsageError(
            f"{path.lstrip('.')} has {MASK}, which hides a secret: write the whole new value, or "
            "use natsctl edit"
        )
    return new


def _faults(schemas: Iterable[KindSchema], key: str, value: bytes) -> list[str]:
    """Return what the published schema of the key says against a value, apart from its status."""
    chosen: KindSchema | None = None
    for schema in schemas:
        if schema.describes(key) and (chosen is None or schema.outranks(chosen)):
            chosen = schema
    if chosen is None:
        return []
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - takes 0.1 s

    found = Draft202012Validator(chosen.schema).iter_errors(documents.parse(value))
    lines = (
        f"{fault.json_path.removeprefix('$.')}: {fault.message}"
        for fault in found
        if next(iter(fault.absolute_path), None) not in ("status", "metadata")
    )
    return [line for line, _ in zip(lines, range(FAULTS_MAX), strict=False)]
