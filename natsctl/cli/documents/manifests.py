"""Files that say what should be in which bucket under which key."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import yaml

from natsctl.cli.documents.parsing import yaml_documents
from natsctl.cli.documents.values import Given, of_document, read_bytes
from natsctl.errors import InvalidKeyError, UsageError
from natsctl.jetstream.bucket.codec import stream_of
from natsctl.model.keys import check_key

SUFFIXES = (".yaml", ".yml", ".json")


class Manifest(msgspec.Struct, frozen=True):
    """One document: what a key of a bucket should hold."""

    bucket: str
    key: str
    given: Given


def read_manifests(files: Sequence[str]) -> list[Manifest]:
    """Return what all files say, in order.

    A file holds YAML or JSON, any number of documents or lists of them; `-` is standard input; a
    folder stands for its YAML and JSON files. Raises `UsageError` naming file and document where
    one is wrong.
    """
    found = [manifest for file in _files(files) for manifest in _read(file)]
    if not found:
        raise UsageError(f"there is no document in {', '.join(map(_shown, files))}")
    return found


def _files(named: Sequence[str]) -> Iterator[str]:
    for name in named:
        if Path(name).is_dir():
            inside = (path for path in Path(name).iterdir() if path.suffix in SUFFIXES)
            yield from map(str, sorted(inside))
        else:
            yield name


def _shown(file: str) -> str:
    return "standard input" if file == "-" else file


def _read(file: str) -> Iterator[Manifest]:
    shown = _shown(file)
    for number, document in enumerate(_documents(read_bytes(file), shown), start=1):
        try:
            yield _manifest(document)
        except (UsageError, InvalidKeyError) as error:
            raise UsageError(f"{shown}, document {number}: {error}") from error


def _documents(data: bytes, shown: str) -> Iterator[object]:
    try:
        for document in yaml_documents(data):
            if isinstance(document, list):
                yield from document
            elif document is not None:
                yield document
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{shown} is neither YAML nor JSON: {' '.join(str(error).split())}"
        ) from error


def _manifest(document: object) -> Manifest:
    if not isinstance(document, dict):
        raise UsageError("it is no mapping with bucket, key and spec")
    for name in ("bucket", "key"):
        if not isinstance(document.get(name), str):
            raise UsageError(f"it has no {name}")
    bucket, key = document["bucket"], check_key(document["key"])
    stream_of(bucket)
    return Manifest(bucket, key, of_document(document))
