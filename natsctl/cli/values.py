"""Reads what users write, and combines it with the stored value.

A new value is a document, the desired state of an object without natsctl's bookkeeping, or bytes
that are stored as they are.
"""

import base64
import binascii
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from yaml.constructor import ConstructorError

from natsctl.cli.terminal import write_notice
from natsctl.errors import InvalidKeyError, InvalidObjectError, UsageError
from natsctl.jetstream.bucket import stream_of
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document, annotations_of
from natsctl.model.exact_json import number
from natsctl.model.keys import check_key
from natsctl.model.kinds import Kind
from natsctl.model.objects import STORED_VERSION, Object
from natsctl.model.schemas.versions import stated
from natsctl.model.store import Stored
from natsctl.operate.objects import BASE64, ENVELOPE, VALUE, is_object, object_in, with_reserved

T = TypeVar("T")
NewValue = bytes | Document

# ---- JSON and YAML, up to a maximum depth and without repeated fields

NESTED_MAX = 100  # levels in YAML; a deeper document would exhaust the stack of libyaml

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Strict:
    """Makes a loader reject a mapping with a repeated field, and text that is not Unicode."""

    def construct_document(self, node: yaml.Node) -> object:
        _check_fields(node, set())
        return super().construct_document(node)  # type: ignore[misc]  # that of the loader

    def construct_scalar(self, node: Any) -> Any:
        if _SURROGATE.search(node.value):
            problem = "found half of a surrogate pair, which is not a character"
            raise ConstructorError(None, None, problem, node.start_mark)
        return super().construct_scalar(node)  # type: ignore[misc]  # that of the loader


class _PreciseErrorLoader(_Strict, yaml.SafeLoader):
    """Loads one document. Its errors name the line in which a fault begins."""


class _FastLoader(_Strict, _Loader):  # type: ignore[misc]  # PyYAML may be built without libyaml
    """Loads many documents."""


def _number(loader: Any, node: Any) -> Any:
    """Return the number of a node, as an exact number if a double cannot hold it."""
    exact = _JSON_NUMBER.fullmatch(node.value)
    return number(node.value) if exact else loader.construct_yaml_float(node)


for _class in (_PreciseErrorLoader, _FastLoader):
    _class.add_constructor("tag:yaml.org,2002:float", _number)


class RepeatedFieldError(yaml.YAMLError):
    """A JSON object has a field twice."""


def parsed(data: bytes) -> tuple[object, str]:
    """Return the value of JSON or YAML, or None and why *data* is neither, with the line."""
    with suppress(*_NO_JSON, RepeatedFieldError):
        return _parsed_json(data), ""
    try:
        return parsed_yaml(data), ""
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it is not text"
        nested = type(error) is yaml.YAMLError
        return None, str(
            error
        ) if nested else f"{problem} in line {mark.line + 1}" if mark else problem


def parsed_yaml(data: bytes | str) -> object:
    """Return the value of one YAML document, None if *data* is empty.

    Raises `yaml.YAMLError`, also for a second document, and `UnicodeDecodeError`.
    """
    _check_nesting(data)
    return yaml.load(data, Loader=_PreciseErrorLoader)  # noqa: S506 - it is a safe loader


def _documents(data: bytes) -> Iterable[object]:
    with suppress(*_NO_JSON):
        return [_parsed_json(data)]
    with suppress(*_NO_JSON):
        lines = exact_json.decode_lines(data)
        for line in data.splitlines():
            _check_json_fields(line)
        return lines
    _check_nesting(data)
    all_documents: Iterator[object] = yaml.load_all(data, Loader=_FastLoader)
    return all_documents


def _parsed_json(data: bytes) -> object:
    value = exact_json.decode(data)
    _check_json_fields(data)
    return value


def _check_json_fields(data: bytes) -> None:
    """Raise `RepeatedFieldError` if an object in valid JSON has a field twice."""

    def check(fields: list[tuple[str, object]]) -> None:
        names = set[str]()
        for name, _ in fields:
            if name in names:
                raise RepeatedFieldError(f"found the field {name!r} twice")
            names.add(name)

    if data.strip():
        json.loads(data, object_pairs_hook=check, parse_int=str, parse_float=str)


def _check_fields(node: yaml.Node, checked: set[int]) -> None:
    """Raise `ConstructorError` if a mapping in the node has a field twice."""
    if id(node) in checked or isinstance(node, yaml.ScalarNode):
        return
    checked.add(id(node))
    names = set[tuple[str, str]]()
    for child in node.value:
        name, value = child if isinstance(node, yaml.MappingNode) else (None, child)
        if isinstance(name, yaml.ScalarNode):
            if (name.tag, name.value) in names:
                problem = f"found the field {name.value!r} twice"
                raise ConstructorError(None, None, problem, name.start_mark)
            names.add((name.tag, name.value))
        _check_fields(value, checked)


def _check_nesting(data: bytes | str) -> None:
    def change(event: yaml.Event) -> int:
        ends = isinstance(event, yaml.CollectionEndEvent)
        return 1 if isinstance(event, yaml.CollectionStartEvent) else -ends

    try:
        depths = accumulate(map(change, yaml.parse(data, Loader=_Loader)))
        nested = any(depth > NESTED_MAX for depth in depths)
    except yaml.YAMLError:
        return  # loading the document raises the same error
    if nested:
        raise yaml.YAMLError(f"it is nested more than {NESTED_MAX} levels deep")


# ---- new values

YAML_SUFFIXES = (".yaml", ".yml")
_OBJECT_BEGIN = re.compile(rb"""\s*(---\s)?\s*\{?\s*["']?(spec|metadata)["']?\s*:""")
_objects = Kind(Object, "object")


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
    value, fault = parsed(data)
    if value is None and _OBJECT_BEGIN.match(data):
        raise UsageError(
            f"the value begins like an object but is neither JSON nor YAML: {fault}; "
            "correct it, or store it as it is with --raw"
        )
    if isinstance(value, dict) and is_object(value):
        if {"bucket", "key"} <= value.keys():
            raise UsageError("the document names its own bucket and key: use natsctl apply -f")
        return _as_json(value)
    if file.endswith(YAML_SUFFIXES) and value is not None:
        return documents.render(value)
    return data


def value_of_document(document: Document) -> NewValue:
    """Return the value that a document describes in the fields that `described` writes."""
    fields = documents.without(document, *ENVELOPE)
    if fields.keys() == {VALUE}:
        value = fields[VALUE]
        return value.encode() if isinstance(value, str) else documents.render(value)
    if fields.keys() == {BASE64}:
        try:
            return base64.b64decode(str(fields[BASE64]), validate=True)
        except binascii.Error as error:
            raise UsageError(f"its field base64 is invalid: {error}") from error
    if is_object(fields):
        return _as_json(fields)
    raise UsageError("it has no spec, and no value either")


def _as_json(document: Document) -> Document:
    """Return the document with values of JSON only; YAML also has dates and keys of other types."""
    return documents.parse(documents.render(document))


def replace(current: Stored | None, new: NewValue) -> bytes:
    """Return the value to store so that *new* replaces the desired state.

    Generation, uid, finalizers, deletion timestamp and status of an object are maintained. Raises
    `UsageError` if a value that is not an object would replace an object.
    """
    before = _object_of(current)
    if isinstance(new, dict):
        return _stamped(current, before, new)
    if current is None:
        return new
    if before is not None:
        raise UsageError(
            f"{current.key} is an object, whose status and bookkeeping would be lost: "
            "give the value a spec, or replace the object with natsctl put --raw"
        )
    return current.value if _same_json(current.value, new) else new


def apply(current: Stored | None, new: NewValue) -> bytes:
    """Return the value to store so that the fields of *new* are set and other fields stay.

    Labels and annotations are merged; null removes one.
    """
    if not isinstance(new, dict):
        return replace(current, new)
    before = _object_of(current)
    old = before or {}
    metadata = documents.merge_patch(documents.metadata_of(old), documents.metadata_of(new))
    return _stamped(current, before, {**old, **new, "metadata": metadata})


def keep_reserved(current: Stored | None, new: NewValue) -> NewValue:
    """Return *new* with the stored reserved annotations that *new* does not set."""
    return with_reserved(new, _object_of(current)) if isinstance(new, dict) else new


def with_version(current: Stored | None, new: NewValue, version: int | None) -> NewValue:
    """Return *new* with the annotation of its *version*.

    The annotation of the stored object is removed if the version of *new* is unknown. An annotation
    that *new* has stays then. A value without fields beside metadata and status has no version.
    """
    if not isinstance(new, dict) or not new.keys() - {"metadata", "status"}:
        return new
    if version is not None and version > 1:
        return stated(new, version)
    annotations = annotations_of(new)
    if (
        STORED_VERSION not in annotations_of(_object_of(current) or {})
        or STORED_VERSION in annotations
    ):
        return new
    return documents.with_annotations(new, {**annotations, STORED_VERSION: None})


def write_ignored(name: str, current: Stored | None, new: NewValue) -> None:
    """Write a notice of the fields of *new* that natsctl and controllers set, and that differ."""
    if not isinstance(new, dict):
        return
    before = _object_of(current) or {}
    metadata, stored = documents.metadata_of(new), documents.metadata_of(before)
    ignored = [
        f"metadata.{field}"
        for field in ("finalizers", "deletionTimestamp")
        if metadata.get(field) and not documents.same(metadata[field], stored.get(field))
    ]
    status = new.get("status")
    if status and not documents.same(status, before.get("status")):
        ignored.append("status")
    if ignored:
        write_notice(
            f"{name}: {' and '.join(ignored)} not stored: "
            "natsctl put --raw stores a value exactly as given"
        )


def _object_of(current: Stored | None) -> Document | None:
    return None if current is None else object_in(current.value)


def _same_json(first_value: bytes, second_value: bytes) -> bool:
    """Return whether two values are the same bytes, or JSON objects or arrays with one meaning."""
    try:
        before, after = exact_json.decode(first_value), exact_json.decode(second_value)
    except _NO_JSON:
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


# ---- files of documents

SUFFIXES = (*YAML_SUFFIXES, ".json")
_EXAMPLES = {"bucket": "greetings", "key": "shop"}  # of the fields that each document has


class KeyDocument(msgspec.Struct, frozen=True):
    """A document: the new value of a key in a bucket."""

    bucket: str
    key: str
    new: NewValue

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"


def read_documents(files: Sequence[str]) -> list[KeyDocument]:
    """Return the documents of all files, in order.

    A file contains YAML, JSON or lines of JSON: any number of documents, or lists of documents, as
    `natsctl get` and `natsctl get -w` write them. `-` is standard input, and a folder stands for
    its YAML and JSON files. Raises `UsageError` that names the file and the number of an invalid
    document.
    """

    def named(document: object) -> KeyDocument:
        if not isinstance(document, dict):
            raise UsageError("it is not a mapping with bucket, key and spec")
        for name, example in _EXAMPLES.items():
            if not isinstance(document.get(name), str):
                raise UsageError(f'it has no {name}: add a line such as "{name}: {example}"')
        bucket, key = document["bucket"], check_key(document["key"])
        stream_of(bucket)
        return KeyDocument(bucket, key, value_of_document(document))

    return _read(files, named)


def read_mappings(files: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the documents of all files as they are, see `read_documents`."""

    def mapping(document: object) -> Mapping[str, Any]:
        if not isinstance(document, dict):
            raise UsageError("it is not a mapping")
        return document

    return _read(files, mapping)


def _read(files: Sequence[str], converted: Callable[[object], T]) -> list[T]:
    read: list[T] = []
    for given in files:
        inside = Path(given).iterdir() if Path(given).is_dir() else None
        for file in [given] if inside is None else sorted(map(str, inside)):
            if inside is not None and Path(file).suffix not in SUFFIXES:
                continue
            name = _file_name(file)
            for number_, document in enumerate(_parts(read_bytes(file), name), 1):
                try:
                    read.append(converted(document))
                except (UsageError, InvalidKeyError) as error:
                    raise UsageError(f"{name}, document {number_}: {error}") from error
    if not read:
        raise UsageError(f"there is no document in {', '.join(map(_file_name, files))}")
    return read


def _parts(data: bytes, name: str) -> Iterator[object]:
    try:
        for document in _documents(data):
            if isinstance(document, list):
                yield from document
            elif document is not None:
                yield document
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} is neither YAML nor JSON: {reason}") from error


def _file_name(file: str) -> str:
    return "standard input" if file == "-" else file
