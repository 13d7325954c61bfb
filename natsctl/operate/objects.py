"""An object as people name it, see it, and want it: names, tables, documents, desired state."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidObjectError, UsageError
from natsctl.jetstream.bucket import Message
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document, annotations_of, same
from natsctl.model.keys import check_key
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.objects import PAUSED, STORED_VERSION, Object, is_bookkeeping, is_reserved
from natsctl.model.plans import differences
from natsctl.model.readiness import ready
from natsctl.model.schemas.field_paths import Columns
from natsctl.model.schemas.versions import version_of
from natsctl.model.store import Stored
from natsctl.telemetry.hiding import abbreviated

ENVELOPE = ("bucket", "key", "revision", "event")
"""The fields of a described entry that are not part of the stored value."""

VALUE, BASE64 = "value", "base64"
PREVIEW_MAX = 60
NONE = "-"
"""A table cell without a value."""

NO_COLUMNS: Columns = MappingProxyType({})
_FORMS = "write BUCKET/KEY, or BUCKET KEY"
_BOOKKEEPING = ("generation", "finalizers", "uid", "resourceVersion", "managedFields")


class Name(msgspec.Struct, frozen=True):
    """An object as a person names it: a key, and the bucket or the kind that has it."""

    bucket: str
    key: str

    def within(self, bucket: str, kind: str) -> bool:
        """Return whether the name is one of that bucket, of that kind, or of the kind's type."""
        return self.bucket in {bucket, kind, kind.partition(".")[0]}

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"


def parse_names(words: Sequence[str], *, otherwise: str = "") -> list[Name]:
    """Return the objects that the words of a command name, each once.

    A slash in the first word means that every word is BUCKET/KEY. Without one, the first word is
    the bucket of the others. *otherwise* ends the error about a bucket without a key. Raises
    `UsageError`, and `InvalidKeyError` for a key that isn't legal.
    """
    if not words:
        raise UsageError(f"no object is named: {_FORMS}{otherwise}")
    first, *rest = words
    if "/" in first:
        for odd in rest:
            if "/" not in odd:
                raise UsageError(
                    f"{odd!r} isn't BUCKET/KEY: after {first} every object needs its bucket"
                )
        names = [Name(*word.split("/", 1)) for word in words]
    elif not rest:
        raise UsageError(f"{first!r} alone names no object: {_FORMS}{otherwise}")
    else:
        names = [Name(first, key) for key in rest]
    for name in names:
        if not name.bucket:
            raise UsageError(f"{str(name)!r} has no bucket: {_FORMS}")
        check_key(name.key)
    return list(dict.fromkeys(names))


def parse_name(words: Sequence[str]) -> Name:
    """Return the only object that the words name; raises as `parse_names` does."""
    name, *others = parse_names(words)
    if others:
        raise UsageError(f"{name} and {others[0]} are several objects: name one")
    return name


def own_keys(kinds: Sequence[Kind[Any]], names: Sequence[Name]) -> list[str]:
    """Return the keys of objects of these kinds; raises `UsageError` for any other object."""
    places = {kind.name: kind.bucket if isinstance(kind, KvKind) else "" for kind in kinds}
    for name in names:
        if not any(name.within(bucket, kind) for kind, bucket in places.items()):
            expected = ", ".join(bucket or kind for kind, bucket in places.items())
            raise UsageError(f"the controller's primaries are in {expected}: it can't have {name}")
    return [name.key for name in names]


# ---- values


def object_in(value: bytes) -> Document | None:
    """Return the object in a value: JSON with a spec or metadata. Return None for other values.

    JSON that is nested too deeply to be parsed is not an object.
    """
    try:
        document = exact_json.decode_object(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document if is_object(document) else None


def is_object(document: Mapping[str, object]) -> bool:
    """Return whether a JSON object has a spec or metadata, as natsctl's objects have."""
    return "spec" in document or isinstance(document.get("metadata"), dict)


def labels_of(document: Document | None) -> dict[str, str]:
    """Return the labels of an object; empty if *document* is None."""
    labels = documents.metadata_of(document or {}).get("labels")
    known = labels.items() if isinstance(labels, dict) else ()
    return {name: text for name, text in known if isinstance(text, str)}


def described(bucket: str, message: Message, event: str = "") -> dict[str, object]:
    """Return an entry as fields that `natsctl apply` reads.

    The fields of an object are added to `bucket`, `key` and `revision`. Another value is in the
    field `value`: a JSON object or array as it is, and other text as a string. Bytes that are not
    text are in the field `base64`. A delete marker has no value. No number is rounded.
    """
    fields: dict[str, object] = {"bucket": bucket, "key": message.key, "revision": message.revision}
    if not message.marker:
        document = object_in(message.value)
        if document is None or document.keys() & {*ENVELOPE, VALUE, BASE64}:
            try:
                shown: object = message.value.decode()
                parsed = exact_json.decode(message.value)
                document = {VALUE: parsed if isinstance(parsed, dict | list) else shown}
            except UnicodeDecodeError:
                document = {BASE64: base64.b64encode(message.value).decode()}
            except (msgspec.DecodeError, RecursionError):
                document = {VALUE: shown}
        fields |= document
    return {**fields, "event": event} if event else fields


def headings_of(
    messages: Sequence[Message], *, wide: bool = False, declared: Columns = NO_COLUMNS
) -> list[str]:
    """Return the headings of a table of entries, with the *declared* columns of their kinds.

    VERSION is shown if an object states the version that it is stored as.
    """
    objects = [object_in(message.value) for message in messages]
    before, after = ["KEY", "REVISION"], ["AGE"]
    if any(objects) or not objects:
        before += ["GENERATION", "READY"]
    if any(version_of(document or {}) > 1 for document in objects):
        before += ["VERSION"]
    after += ["LABELS", "FINALIZERS", "UID"] if wide else []
    before, after = ([one for one in part if one not in declared] for part in (before, after))
    return [*before, *declared, *after, *(["VALUE"] if None in objects else [])]


def cells_of(
    message: Message, headings: Sequence[str], now: datetime, *, declared: Columns = NO_COLUMNS
) -> list[str]:
    """Return the cells of an entry under the headings, of which some are *declared*."""
    document = object_in(message.value)
    metadata = documents.metadata_of(document or {})
    generation, uid = metadata.get("generation"), metadata.get("uid")
    cells = {
        "KEY": message.key,
        "REVISION": str(message.revision),
        "GENERATION": NONE if generation is None else str(generation),
        "READY": abbreviated(ready(document), PREVIEW_MAX),
        "AGE": age(message.created, now),
        "LABELS": ",".join(f"{name}={text}" for name, text in labels_of(document).items()) or NONE,
        "FINALIZERS": ",".join(map(str, documents.finalizers_of(document or {}))) or NONE,
        "UID": NONE if uid is None else str(uid) or NONE,
        "VALUE": NONE if document is not None else preview(message.value),
        "VERSION": NONE if document is None else str(version_of(document)),
    }
    cells |= {heading: path.text_in(document) for heading, path in declared.items()}
    return [cells[heading] for heading in headings]


def age(created: str, now: datetime) -> str:
    """Return the time since *created* (RFC 3339), as `short_time` returns it; `-` for no time."""
    try:
        elapsed = now - datetime.fromisoformat(created).astimezone(UTC)
    except (ValueError, OverflowError):
        return NONE
    return short_time(elapsed.total_seconds())


def short_time(elapsed_s: float) -> str:
    """Return a time such as 45s, 3m20s, 2h5m, 3d4h or 80d; a negative one as 0s."""
    minutes, seconds = divmod(int(max(0.0, elapsed_s)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    (largest, unit), (smaller, below) = parts[0], (*parts, (0, ""))[1]
    # two digits are precise enough without a second unit
    return f"{largest}{unit}" + (f"{smaller}{below}" if smaller and largest < 10 else "")  # noqa: PLR2004


def preview(value: bytes) -> str:
    """Return the beginning of a value on one line."""
    try:
        return abbreviated(" ".join(value.decode().split()), PREVIEW_MAX)
    except UnicodeDecodeError:
        return f"({len(value)} bytes)"


# ---- the desired state, without status and natsctl's bookkeeping


def desired(document: Document, *, restorable: bool = False) -> Document:
    """Return the object without its status and natsctl's bookkeeping.

    A *restorable* one is also without deletion timestamp and reserved annotations.
    """
    left_out, deleted = (is_reserved, "deletionTimestamp") if restorable else (is_bookkeeping, "")
    kept = documents.without(documents.metadata_of(document), *_BOOKKEEPING, deleted)
    kept["annotations"] = {
        name: text for name, text in annotations_of(document).items() if not left_out(name)
    }
    other_fields = documents.without(document, "metadata", "status")
    return {**other_fields, "metadata": {name: field for name, field in kept.items() if field}}


def with_reserved(new: Document, current: Document | None) -> Document:
    """Return *new* with the reserved annotations of *current* that *new* does not set.

    A reserved annotation that *new* sets to null is removed.
    """
    stated = annotations_of(new)
    kept = {name: text for name, text in annotations_of(current or {}).items() if is_reserved(name)}
    removed = [name for name, text in stated.items() if text is None and is_reserved(name)]
    if not kept and not removed:
        return new
    return documents.with_annotations(new, documents.without({**kept, **stated}, *removed))


def desired_changes(messages: list[Message]) -> list[tuple[Message, str]]:
    """Return the first message and those that changed the desired state, with what they changed.

    The text names the fields that changed, such as `spec.text` or `labels.tier`, or `paused` and
    `resumed`. It is empty for a message that created or deleted the object.
    """
    changes: list[tuple[Message, str]] = []
    previous: object = None
    for message in messages:
        current = None if message.marker else _desired_in(message.value)
        if not changes or not same(current, previous):
            exist = previous is not None and current is not None
            changes.append((message, ", ".join(_changed(previous, current)) if exist else ""))
        previous = current
    return changes


def _changed(before: object, after: object) -> Iterator[str]:
    for difference in differences(before, after):
        path = difference.path.removeprefix("metadata.")
        if path == f'annotations["{PAUSED}"]':
            yield "resumed" if difference.after is None else "paused"
        elif path == "deletionTimestamp":
            yield "marked deleted"
        else:
            yield path or "value"


def _desired_in(value: bytes) -> object:
    document = object_in(value)
    return value if document is None else desired(document)


# ---- new values

NewValue = bytes | Document
"""A document, the desired state of an object without natsctl's bookkeeping; or exact bytes."""

_objects = Kind(Object, "object")


def stored_object(current: Stored | None) -> Document | None:
    """Return the object that is stored, None if there is none."""
    return None if current is None else object_in(current.value)


def replaced(current: Stored | None, new: NewValue) -> bytes:
    """Return the value to store so that *new* replaces the desired state.

    Generation, uid, finalizers, deletion timestamp and status of an object are maintained. Raises
    `UsageError` if a value that is not an object would replace an object.
    """
    if isinstance(new, dict):
        return stamped(current, new)
    if current is None:
        return new
    if stored_object(current) is not None:
        raise UsageError(
            f"{current.key} is an object, whose status and bookkeeping would be lost: "
            "give the value a spec, or replace the object with natsctl put --raw"
        )
    with suppress(*DECODE_ERRORS, RecursionError):  # JSON objects or arrays with one meaning
        old, given = exact_json.decode(current.value), exact_json.decode(new)
        if isinstance(old, dict | list) and documents.same(old, given):
            return current.value
    return new


def stamped(current: Stored | None, new: Document) -> bytes:
    """Return the value of an object with natsctl's bookkeeping; empty maps in its metadata go.

    It's the stored value if nothing else differs. Raises `UsageError` for invalid metadata.
    """
    before = stored_object(current)
    document = documents.stamp(before, new)
    fields = documents.metadata_of(document)
    metadata = {name: field for name, field in fields.items() if field != {}}
    document = {**document, "metadata": metadata}
    if current is not None and same(document, before):
        return current.value
    value = documents.render(document)
    try:
        _objects.metadata(value)
    except InvalidObjectError as error:
        raise UsageError(f"the object would not be valid: {error}") from error
    return value


def restored_value(name: Name, current: Stored | None, message: Message) -> bytes:
    """Return the value that restores a revision; raises `UsageError` if there is none.

    Spec, labels and annotations are those of the revision; status, bookkeeping and reserved
    annotations stay as they are.
    """
    revision = message.revision
    if message.marker:
        raise UsageError(
            f"revision {revision} of {name} is a deletion, which cannot be restored: use natsctl "
            f"delete {name}"
        )
    before = stored_object(current)
    earlier = object_in(message.value)
    if earlier is None and before is not None:
        raise UsageError(
            f"revision {revision} of {name} is not a valid object: it is not JSON with a spec or "
            "metadata"
        )
    new: NewValue = message.value
    if earlier is not None:
        new = desired(earlier, restorable=True)
        version = annotations_of(earlier).get(STORED_VERSION)
        if version is not None or STORED_VERSION in annotations_of(before or {}):
            # it states the version that it was stored as, not that of the present object
            stated = {**annotations_of(new), STORED_VERSION: version}
            new = documents.with_annotations(new, stated)
        new = with_reserved(new, before)
    value = replaced(current, new)
    if current is not None and same(_desired_in(value), _desired_in(current.value)):
        raise UsageError(
            f"revision {revision} has the desired state that {name} has now, at revision "
            f"{current.revision}: there is nothing to restore"
        )
    return value
