"""What a person wants stored, and what becomes of what is stored already."""

import base64
import binascii
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from natsctl.cli.documents.desired import with_reserved
from natsctl.cli.documents.parsing import fault, parsed_or_none
from natsctl.cli.output.entries import BASE64, ENVELOPE, VALUE, is_object, object_in
from natsctl.cli.output.terminal import say
from natsctl.core.objects.compare_and_set import Rewritten
from natsctl.errors import DECODE_ERRORS, InvalidObjectError, UsageError
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.objects import Object
from natsctl.model.store import Stored

YAML_SUFFIXES = (".yaml", ".yml")
_objects = Kind(Object, "object")
_BEGUN = re.compile(rb"""\s*(---\s)?\s*\{?\s*["']?(spec|metadata)["']?\s*:""")


class Whole(msgspec.Struct, frozen=True):
    """A value that is stored as it is."""

    value: bytes


class Desired(msgspec.Struct, frozen=True):
    """An object: what is desired, without the bookkeeping."""

    document: Document


Given = Whole | Desired


def read_bytes(file: str) -> bytes:
    """Return what is in a file, or `-` for standard input."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def given(data: bytes, *, file: str = "") -> Given:
    """Return what *data* means: JSON or YAML of an object, or a value that is stored as it is.

    YAML that is no object is a text, unless a file says by its name that it is YAML: then it
    becomes JSON. Raises `UsageError` where it begins as an object does and does not end so.
    """
    parsed = parsed_or_none(data)
    if parsed is None and _BEGUN.match(data):
        raise UsageError(
            f"the value begins as an object does, and is neither JSON nor YAML: {fault(data)}; "
            "--raw stores it all the same"
        )
    if isinstance(parsed, dict) and is_object(parsed):
        if {"bucket", "key"} <= parsed.keys():
            raise UsageError("the document names its own bucket and key: natsctl apply -f reads it")
        return Desired(_json(parsed))
    if file.endswith(YAML_SUFFIXES) and parsed is not None:
        return Whole(documents.render(parsed))
    return Whole(data)


def of_document(document: Document) -> Given:
    """Return what a document of a manifest says beside its bucket and key; see `described`."""
    rest = {name: field for name, field in document.items() if name not in ENVELOPE}
    if rest.keys() == {VALUE}:
        value = rest[VALUE]
        return Whole(value.encode() if isinstance(value, str) else documents.render(value))
    if rest.keys() == {BASE64}:
        try:
            return Whole(base64.b64decode(str(rest[BASE64]), validate=True))
        except binascii.Error as error:
            raise UsageError(f"its base64 is none: {error}") from error
    if is_object(rest):
        return Desired(_json(rest))
    raise UsageError("it has no spec, and no value either")


def replaced(current: Stored | None, new: Given) -> bytes:
    """Return the value to store so that *new* is all that is desired.

    Of an object, generation, uid, finalizers, the deletion mark and the status are kept right.
    Raises `UsageError` where something that is no object would replace one.
    """
    before = None if current is None else object_in(current.value)
    if isinstance(new, Whole):
        return _instead(current, before, new.value)
    return _stamped(current, before, new.document)


def keeping_reserved(current: Stored | None, new: Given) -> Given:
    """Return *new* with the reserved annotations that are stored and that it does not give."""
    if isinstance(new, Whole):
        return new
    before = None if current is None else object_in(current.value)
    return Desired(with_reserved(new.document, before))


def applied(current: Stored | None, new: Given) -> bytes:
    """Return the value to store so that everything that *new* says is so, and the rest stays.

    Labels and annotations are added to those there are; null removes one.
    """
    before = None if current is None else object_in(current.value)
    if isinstance(new, Whole):
        return _instead(current, before, new.value)
    metadata = documents.merge_patch(
        documents.metadata_of(before or {}), documents.metadata_of(new.document)
    )
    return _stamped(current, before, {**(before or {}), **new.document, "metadata": metadata})


def dropped(current: Stored | None, new: Given) -> list[str]:
    """Return the fields of *new* that are not stored, because natsctl and controllers set them.

    A field that says what is stored already is not one of them.
    """
    if isinstance(new, Whole):
        return []
    before = (None if current is None else object_in(current.value)) or {}
    metadata, stored = documents.metadata_of(new.document), documents.metadata_of(before)
    found = [
        f"metadata.{name}"
        for name in ("finalizers", "deletionTimestamp")
        if metadata.get(name) and not documents.same(metadata[name], stored.get(name))
    ]
    status = new.document.get("status")
    if status and not documents.same(status, before.get("status")):
        found.append("status")
    return found


def say_dropped(name: str, fields: Sequence[str]) -> None:
    """Name the fields of an object that were given and not stored, if there are any."""
    if fields:
        given_fields = " and ".join(fields)
        say(f"{name}: {given_fields} not stored: natsctl put --raw stores a value exactly as given")


def outcome(done: Rewritten) -> str:
    """Return what became of a write, for people."""
    match done.base:
        case None:
            return f"unchanged at revision {done.stored.revision}"
        case 0:
            return f"created at revision {done.stored.revision}"
        case _:
            return f"configured at revision {done.stored.revision}"


def _instead(current: Stored | None, before: Document | None, value: bytes) -> bytes:
    if before is not None and current is not None:
        raise UsageError(
            f"{current.key} is an object, with bookkeeping that would be lost: give it a spec, "
            "or --raw to replace it all the same"
        )
    if current is not None and _says_the_same(current.value, value):
        return current.value
    return value


def _says_the_same(one: bytes, other: bytes) -> bool:
    try:
        before, after = exact_json.decode(one), exact_json.decode(other)
    except DECODE_ERRORS:
        return one == other
    return isinstance(before, dict | list) and documents.same(before, after)


def _stamped(current: Stored | None, before: Document | None, wanted: Document) -> bytes:
    stamped = documents.stamp(before, wanted)
    if current is not None and documents.same(stamped, before):
        return current.value
    value = documents.render(stamped)
    try:
        _objects.metadata(value)
    except InvalidObjectError as error:
        raise UsageError(f"the object would not be valid: {error}") from error
    return value


def _json(document: Document) -> Document:
    """Return the document as JSON keeps it: YAML knows dates, and keys that are no text."""
    return documents.parse(documents.render(document))
