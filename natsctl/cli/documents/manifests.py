"""Reads documents from files, each with the bucket and the key of its object."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from natsctl.cli.documents.parsing import documents
from natsctl.cli.documents.values import NewValue, read_bytes, value_of_document
from natsctl.errors import InvalidKeyError, UsageError
from natsctl.jetstream.bucket import stream_of
from natsctl.model.keys import check_key

SUFFIXES = (".yaml", ".yml", ".json")


class KeyDocument(msgspec.Struct, frozen=True):
    """A document: the new value of a key in a bucket."""

    bucket: str
    key: str
    new: NewValue


def read_documents(files: Sequence[str]) -> list[KeyDocument]:
    """Return the documents of all files, in order.

    A file contains YAML, JSON or lines of JSON: any number of documents, or lists of documents, as
    `natsctl list` and `natsctl watch` write them. `-` is standard input, and a folder stands for
    its YAML and JSON files. Raises `UsageError` that names the file and the number of an invalid
    document.
    """
    return [_named(file, number, document) for file, number, document in _numbered_documents(files)]


def read_mappings(files: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the documents of all files as they are, see `read_documents`."""
    mappings: list[Mapping[str, Any]] = []
    for file, number, document in _numbered_documents(files):
        if not isinstance(document, dict):
            raise UsageError(f"{file}, document {number}: it is not a mapping")
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
        for document in documents(data):
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
