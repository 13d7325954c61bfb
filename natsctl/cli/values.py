"""Combines the value that a user wants to store with the stored one."""

import base64
import binascii
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from natsctl.cli.parsing import documents as parsed_documents
from natsctl.cli.parsing import fault, parsed_or_none
from natsctl.cli.terminal import write_notice
from natsctl.core.compare_and_set import Rewritten
from natsctl.errors import InvalidKeyError, InvalidObjectError, UsageError
from natsctl.jetstream.bucket import stream_of
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document, annotations_of
from natsctl.model.keys import check_key
from natsctl.model.kinds import Kind
from natsctl.model.objects import STORED_VERSION, Object
from natsctl.model.schemas.versions import stated
from natsctl.model.store import Stored
from natsctl.operate.desired import with_reserved
from natsctl.operate.entries import BASE64, ENVELOPE, VALUE, is_object, object_in

YAML_SUFFIXES = (".yaml", ".yml")

_objects = Kind(Object, "object")

_OBJECT_BEGIN = re.compile(rb"""\s*(---\s)?\s*\{?\s*["']?(spec|metadata)["']?\s*:""")


class RawValue(msgspec.Struct, frozen=True):
    """A value that is stored as it is."""

    value: bytes


class DesiredObject(msgspec.Struct, frozen=True):
    """An object without natsctl's bookkeeping."""

    document: Document


NewValue = RawValue | DesiredObject


def read_bytes(file: str) -> bytes:
    """Return the content of a file, or of standard input for `-`; raises `UsageError`."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def parse_value(data: bytes, *, file: str = "") -> NewValue:
    """Return the object in *data* if it is JSON or YAML with a spec or metadata, else the value.

    Other YAML is stored as text, unless the file's name ends with a YAML suffix: then it is stored
    as JSON. Raises `UsageError` if *data* begins like an object and is neither JSON nor YAML.
    """
    parsed = parsed_or_none(data)
    if parsed is None and _OBJECT_BEGIN.match(data):
        raise UsageError(
            f"the value begins like an object but is neither JSON nor YAML: {fault(data)}; "
            "correct it, or store it as it is with --raw"
        )
    if isinstance(parsed, dict) and is_object(parsed):
        if {"bucket", "key"} <= parsed.keys():
            raise UsageError("the document names its own bucket and key: use natsctl apply -f")
        return DesiredObject(_as_json(parsed))
    if file.endswith(YAML_SUFFIXES) and parsed is not None:
        return RawValue(documents.render(parsed))
    return RawValue(data)


def value_of_document(document: Document) -> NewValue:
    """Return the value that a document describes in the fields that `described` writes."""
    fields = documents.without(document, *ENVELOPE)
    if fields.keys() == {VALUE}:
        value = fields[VALUE]
        return RawValue(value.encode() if isinstance(value, str) else documents.render(value))
    if fields.keys() == {BASE64}:
        try:
            return RawValue(base64.b64decode(str(fields[BASE64]), validate=True))
        except binascii.Error as error:
            raise UsageError(f"its field base64 is invalid: {error}") from error
    if is_object(fields):
        return DesiredObject(_as_json(fields))
    raise UsageError("it has no spec, and no value either")


def replace(current: Stored | None, new: NewValue) -> bytes:
    """Return the value to store so that *new* replaces the desired state.

    Generation, uid, finalizers, deletion timestamp and status of an object are maintained. Raises
    `UsageError` if a value that is not an object would replace an object.
    """
    before = _object_of(current)
    if isinstance(new, RawValue):
        return _replace_raw(current, before, new.value)
    return _stamped(current, before, new.document)


def keep_reserved(current: Stored | None, new: NewValue) -> NewValue:
    """Return *new* with the stored reserved annotations that *new* does not set."""
    if isinstance(new, RawValue):
        return new
    return DesiredObject(with_reserved(new.document, _object_of(current)))


def with_version(current: Stored | None, new: NewValue, version: int | None) -> NewValue:
    """Return *new* with the annotation of its *version*.

    The annotation of the stored object is removed if the version of *new* is unknown. An annotation
    that *new* has stays then. A value without fields beside metadata and status has no version.
    """
    if isinstance(new, RawValue) or not new.document.keys() - {"metadata", "status"}:
        return new
    if version is not None and version > 1:
        return DesiredObject(stated(new.document, version))
    stored = annotations_of(_object_of(current) or {})
    if STORED_VERSION not in stored or STORED_VERSION in annotations_of(new.document):
        return new
    annotations = {**annotations_of(new.document), STORED_VERSION: None}
    return DesiredObject(documents.with_annotations(new.document, annotations))


def apply(current: Stored | None, new: NewValue) -> bytes:
    """Return the value to store so that the fields of *new* are set and other fields stay.

    Labels and annotations are merged; null removes one.
    """
    before = _object_of(current)
    if isinstance(new, RawValue):
        return _replace_raw(current, before, new.value)
    metadata = documents.merge_patch(
        documents.metadata_of(before or {}), documents.metadata_of(new.document)
    )
    return _stamped(current, before, {**(before or {}), **new.document, "metadata": metadata})


def ignored_fields(current: Stored | None, new: NewValue) -> list[str]:
    """Return the fields of *new* that are not stored: those that natsctl and controllers set.

    A field that equals the stored field is left out.
    """
    if isinstance(new, RawValue):
        return []
    before = _object_of(current) or {}
    metadata, stored = documents.metadata_of(new.document), documents.metadata_of(before)
    ignored = [
        f"metadata.{name}"
        for name in ("finalizers", "deletionTimestamp")
        if metadata.get(name) and not documents.same(metadata[name], stored.get(name))
    ]
    status = new.document.get("status")
    if status and not documents.same(status, before.get("status")):
        ignored.append("status")
    return ignored


def write_ignored_notice(name: str, fields: Sequence[str]) -> None:
    """Write a notice that names the ignored fields of an object, if there are any."""
    if fields:
        write_notice(
            f"{name}: {' and '.join(fields)} not stored: "
            "natsctl put --raw stores a value exactly as given"
        )


def outcome(rewritten: Rewritten) -> str:
    """Return the result of a write as a phrase."""
    match rewritten.base:
        case None:
            return f"unchanged at revision {rewritten.stored.revision}"
        case 0:
            return f"created at revision {rewritten.stored.revision}"
        case _:
            return f"configured at revision {rewritten.stored.revision}"


def _object_of(current: Stored | None) -> Document | None:
    return None if current is None else object_in(current.value)


def _replace_raw(current: Stored | None, before: Document | None, value: bytes) -> bytes:
    if before is not None and current is not None:
        raise UsageError(
            f"{current.key} is an object, whose status and bookkeeping would be lost: "
            "give the value a spec, or replace the object with natsctl put --raw"
        )
    if current is not None and _same_json(current.value, value):
        return current.value
    return value


def _same_json(first_value: bytes, second_value: bytes) -> bool:
    """Return whether two values are the same bytes, or JSON objects or arrays with one meaning."""
    try:
        before, after = exact_json.decode(first_value), exact_json.decode(second_value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return first_value == second_value
    return isinstance(before, dict | list) and documents.same(before, after)


def _stamped(current: Stored | None, before: Document | None, new: Document) -> bytes:
    stamped = documents.stamp(before, new)
    if current is not None and documents.same(stamped, before):
        return current.value
    value = documents.render(stamped)
    try:
        _objects.metadata(value)
    except InvalidObjectError as error:
        raise UsageError(f"the object would not be valid: {error}") from error
    return value


def _as_json(document: Document) -> Document:
    """Return the document with values of JSON only; YAML also has dates and keys of other types."""
    return documents.parse(documents.render(document))


# ---- files of documents

SUFFIXES = (".yaml", ".yml", ".json")


class KeyDocument(msgspec.Struct, frozen=True):
    """A document: the new value of a key in a bucket."""

    bucket: str
    key: str
    new: NewValue


def read_documents(files: Sequence[str]) -> list[KeyDocument]:
    """Return the documents of all files, in order.

    A file contains YAML, JSON or lines of JSON: any number of documents, or lists of documents, as
    `natsctl get` and `natsctl get -w` write them. `-` is standard input, and a folder stands for
    its YAML and JSON files. Raises `UsageError` that names the file and the number of an invalid
    document.
    """
    return [_named(file, number, document) for file, number, document in _numbered_documents(files)]


def read_mappings(files: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the documents of all files as they are, see `read_documents`."""
    mappings: list[Mapping[str, Any]] = []
    for file, place, document in _numbered_documents(files):
        if not isinstance(document, dict):
            raise UsageError(f"{file}, document {place}: it is not a mapping")
        mappings.append(document)
    return mappings


def _numbered_documents(files: Sequence[str]) -> list[tuple[str, int, object]]:
    """Return every document with the name of its file and its number there."""
    numbered = [
        (_file_name(file), number, document)
        for file in _files_of(files)
        for number, document in enumerate(_parsed(read_bytes(file), _file_name(file)), start=1)
    ]
    if not numbered:
        raise UsageError(f"there is no document in {', '.join(map(_file_name, files))}")
    return numbered


def _files_of(files: Sequence[str]) -> Iterator[str]:
    """Yield the files, with the YAML and JSON files of a folder in its place."""
    for file in files:
        if Path(file).is_dir():
            inside = (path for path in Path(file).iterdir() if path.suffix in SUFFIXES)
            yield from map(str, sorted(inside))
        else:
            yield file


def _file_name(file: str) -> str:
    return "standard input" if file == "-" else file


def _named(file: str, number: int, document: object) -> KeyDocument:
    try:
        return _checked(document)
    except (UsageError, InvalidKeyError) as error:
        raise UsageError(f"{file}, document {number}: {error}") from error


def _parsed(data: bytes, name: str) -> Iterator[object]:
    try:
        for document in parsed_documents(data):
            if isinstance(document, list):
                yield from document
            elif document is not None:
                yield document
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}"
        ) from error


_EXAMPLES = {"bucket": "greetings", "key": "shop"}  # of the fields that each document has


def _checked(document: object) -> KeyDocument:
    if not isinstance(document, dict):
        raise UsageError("it is not a mapping with bucket, key and spec")
    for name, example in _EXAMPLES.items():
        if not isinstance(document.get(name), str):
            raise UsageError(f'it has no {name}: add a line such as "{name}: {example}"')
    bucket, key = document["bucket"], check_key(document["key"])
    stream_of(bucket)
    return KeyDocument(bucket, key, value_of_document(document))
