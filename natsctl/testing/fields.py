"""Which fields a document says."""

from collections.abc import Iterable, Iterator

from natsctl.model.documents import Document

Path = tuple[str, ...]

SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "deletionTimestamp")
"""What metadata the server alone decides."""

_IDENTITY = {
    ("apiVersion",),
    ("kind",),
    *(("metadata", name) for name in ("name", "namespace", *SERVERS_OWN)),
}


def leaves(document: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Return every field that the document says, but those that say what it is and where."""
    if isinstance(document, dict) and (document or not path):
        for name, value in document.items():
            if (*path, name) not in _IDENTITY:
                yield from leaves(value, (*path, name))
    else:
        yield path, document


def without(document: Document, paths: set[Path]) -> Document:
    """Return the document as if it did not say these fields."""
    for path in paths:
        document = _pruned(document, path)
    return document


def fields_v1(paths: Iterable[Path]) -> Document:
    """Return the fields as a `FieldsV1`."""
    result: Document = {}
    for path in paths:
        below = result
        for name in path:
            below = below.setdefault(f"f:{name}", {})  # type: ignore[assignment]  # all are dicts
    return result


def _pruned(document: Document, path: Path) -> Document:
    name, *rest = path
    below = document.get(name)
    if rest and isinstance(below, dict):
        return {**document, name: _pruned(below, tuple(rest))}
    return {k: v for k, v in document.items() if k != name}
