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
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from yaml.constructor import ConstructorError
from yaml.error import MarkedYAMLError

from natsctl.cli.terminal import write_notice
from natsctl.errors import InvalidKeyError, UsageError
from natsctl.jetstream.bucket import stream_of
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document, annotations_of
from natsctl.model.exact_json import number
from natsctl.model.keys import check_key
from natsctl.model.objects import STORED_VERSION
from natsctl.model.schemas.versions import stated
from natsctl.model.store import Stored
from natsctl.operate.objects import (
    BASE64,
    ENVELOPE,
    VALUE,
    Name,
    NewValue,
    is_object,
    replaced,
    stamped,
    stored_object,
    with_reserved,
)

T = TypeVar("T")

# ---- JSON and YAML, up to a maximum depth and without repeated fields

NESTED_MAX = 100  # levels in YAML; a deeper document would exhaust the stack of libyaml

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may lack libyaml


class _Loader(_FastLoader):  # type: ignore[misc]  # it is one of two classes
    """Loads documents with exact numbers."""


def _number(loader: Any, node: Any) -> Any:
    exact = _JSON_NUMBER.fullmatch(node.value)
    return number(node.value) if exact else loader.construct_yaml_float(node)


def _time(loader: Any, node: Any) -> Any:
    try:
        return loader.construct_yaml_timestamp(node)
    except ValueError:  # such as 2026-02-30: it is a text
        return node.value


_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _time)


class RepeatedFieldError(yaml.YAMLError):
    """A JSON object has a field twice."""


def parsed(data: bytes) -> tuple[object, str]:
    """Return the value of JSON or YAML, or None and why *data* is neither, with the line."""
    with suppress(*_NO_JSON, RepeatedFieldError):
        return _parsed_json(data), ""
    try:
        return parsed_yaml(data), ""
    except MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        return None, f"{error.problem}{line}"
    except yaml.YAMLError as error:
        return None, str(error) if type(error) is yaml.YAMLError else "it is not text"
    except UnicodeDecodeError:
        return None, "it is not text"


def parsed_yaml(data: bytes | str) -> object:
    """Return the value of one YAML document, None if *data* is empty.

    Raises `yaml.YAMLError`, also for a second document, and `UnicodeDecodeError`.
    """
    _check_yaml(data, yaml.SafeLoader)  # whose errors name the line in which a fault begins
    return yaml.load(data, Loader=_Loader)  # noqa: S506 - it is a safe loader


def _documents(data: bytes) -> Iterable[object]:
    with suppress(*_NO_JSON):
        return [_parsed_json(data)]
    with suppress(*_NO_JSON):
        lines = exact_json.decode_lines(data)
        for line in data.splitlines():
            _check_json_fields(line)
        return lines
    _check_yaml(data, _FastLoader)
    all_documents: Iterator[object] = yaml.load_all(data, Loader=_Loader)
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


def _check_yaml(data: bytes | str, loader: Any) -> None:  # noqa: C901 - one straight line
    """Raise `yaml.YAMLError` for a repeated field, deep nesting, and text that is not Unicode."""
    names: list[set[str]] = []  # of the fields of each open mapping or list
    name_next: list[bool] = []  # whether the name of a field comes next
    for event in yaml.parse(data, Loader=loader):
        if isinstance(event, yaml.CollectionEndEvent):
            names.pop()
            name_next.pop()
        elif isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent | yaml.AliasEvent):
            is_name = bool(name_next) and name_next[-1]
            if names and (is_name or names[-1]):
                name_next[-1] = not is_name
            if isinstance(event, yaml.ScalarEvent):
                fault = ""
                if _SURROGATE.search(event.value):
                    fault = "found half of a surrogate pair, which is not a character"
                elif is_name and event.value in names[-1]:
                    fault = f"found the field {event.value!r} twice"
                if fault:
                    mark: Any = event.start_mark
                    raise ConstructorError(None, None, fault, mark)
            if is_name:
                names[-1].add(getattr(event, "value", ""))
            if isinstance(event, yaml.CollectionStartEvent):
                if len(names) == NESTED_MAX:
                    raise yaml.YAMLError(f"it is nested more than {NESTED_MAX} levels deep")
                names.append(set())
                name_next.append(isinstance(event, yaml.MappingStartEvent))


# ---- new values

YAML_SUFFIXES = (".yaml", ".yml")
_OBJECT_BEGIN = re.compile(rb"""\s*(---\s)?\s*\{?\s*["']?(spec|metadata)["']?\s*:""")


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


def apply(current: Stored | None, new: NewValue) -> bytes:
    """Return the value to store so that the fields of *new* are set and other fields stay.

    Labels and annotations are merged; null removes one, and with the last one the whole map.
    """
    if not isinstance(new, dict):
        return replaced(current, new)
    old = stored_object(current) or {}
    metadata = documents.merge_patch(documents.metadata_of(old), documents.metadata_of(new))
    return stamped(current, {**old, **new, "metadata": metadata})


def keep_reserved(current: Stored | None, new: NewValue) -> NewValue:
    """Return *new* with the stored reserved annotations that *new* does not set."""
    return with_reserved(new, stored_object(current)) if isinstance(new, dict) else new


def with_version(current: Stored | None, new: NewValue, version: int | None) -> NewValue:
    """Return *new* with the annotation of its *version*.

    The annotation of the stored object is removed if the version of *new* is unknown. An annotation
    that *new* has stays then. A value without fields beside metadata and status has no version.
    """
    if not isinstance(new, dict) or not new.keys() - {"metadata", "status"}:
        return new
    if version is not None and version > 1:
        return stated(new, version)
    annotations, stored = annotations_of(new), annotations_of(stored_object(current) or {})
    if STORED_VERSION in annotations or STORED_VERSION not in stored:
        return new
    return documents.with_annotations(new, {**annotations, STORED_VERSION: None})


def write_ignored(name: str, current: Stored | None, new: NewValue) -> None:
    """Write a notice of the fields of *new* that natsctl and controllers set, and that differ."""
    if not isinstance(new, dict):
        return
    before = stored_object(current) or {}
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


# ---- files of documents

SUFFIXES = (*YAML_SUFFIXES, ".json")
_EXAMPLES = {"bucket": "greetings", "key": "shop"}  # of the fields that each document has


def read_documents(files: Sequence[str]) -> list[tuple[Name, NewValue]]:
    """Return the objects that the documents of all files name, and their new values, in order.

    A file contains YAML, JSON or lines of JSON: any number of documents, or lists of documents, as
    `natsctl get` and `natsctl get -w` write them. `-` is standard input, and a folder stands for
    its YAML and JSON files. Raises `UsageError` that names the file and the number of an invalid
    document.
    """

    def named(found: object) -> tuple[Name, NewValue]:
        document = _mapping(found, " with bucket, key and spec")
        for field, example in _EXAMPLES.items():
            if not isinstance(document.get(field), str):
                raise UsageError(f'it has no {field}: add a line such as "{field}: {example}"')
        name = Name(document["bucket"], check_key(document["key"]))
        stream_of(name.bucket)
        return name, value_of_document(document)

    return _read(files, named)


def read_mappings(files: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the documents of all files as they are, see `read_documents`."""
    return _read(files, _mapping)


def _mapping(document: object, fields: str = "") -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UsageError(f"it is not a mapping{fields}")
    return document


def _read(files: Sequence[str], converted: Callable[[object], T]) -> list[T]:
    read: list[T] = []
    for given in files:
        inside = sorted(map(str, Path(given).iterdir())) if Path(given).is_dir() else None
        for file in [given] if inside is None else inside:
            if inside is not None and Path(file).suffix not in SUFFIXES:
                continue
            name, before, data = _file_name(file), len(read), read_bytes(file)
            try:
                for part in _documents(data):
                    found = part if isinstance(part, list) else [] if part is None else [part]
                    read.extend(map(converted, found))
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                reason = " ".join(str(error).split())
                raise UsageError(f"{name} is neither YAML nor JSON: {reason}") from error
            except (UsageError, InvalidKeyError) as error:
                raise UsageError(f"{name}, document {len(read) - before + 1}: {error}") from error
    if not read:
        raise UsageError(f"there is no document in {', '.join(map(_file_name, files))}")
    return read


def _file_name(file: str) -> str:
    return "standard input" if file == "-" else file
