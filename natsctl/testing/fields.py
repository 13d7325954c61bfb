"""The fields of a document, as paths, and as `FieldsV1` of field managers."""

from collections.abc import Iterable, Iterator

from natsctl.model import documents
from natsctl.model.documents import Document

Path = tuple[str, ...]

SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "deletionTimestamp")
"""The metadata fields that only the server sets."""

_IDENTITY = {
    ("apiVersion",),
    ("kind",),
    *(("metadata", name) for name in ("name", "namespace", *SERVERS_OWN)),
}


def leaves(document: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield the path and the value of every field, except those of the object's identity."""
    if isinstance(document, dict) and (document or not path):
        for name, value in document.items():
            if (*path, name) not in _IDENTITY:
                yield from leaves(value, (*path, name))
    else:
        yield path, document


def without(document: Document, paths: set[Path]) -> Document:
    """Return the document without these fields."""
    for path in paths:
        document = _pruned(document, path)
    return document


def fields_v1(paths: Iterable[Path]) -> Document:
    """Return the paths as a `FieldsV1`."""
    result: Document = {}
    for path in paths:
        below = result
        for name in path:
            below = below.setdefault(f"f:{name}", {})  # type: ignore[assignment]  # all are dicts
    return result


def _pruned(document: Document, path: Path) -> Document:
    name, *inner_path = path
    below = document.get(name)
    if inner_path and isinstance(below, dict):
        return {**document, name: _pruned(below, tuple(inner_path))}
    return documents.without(document, name)
