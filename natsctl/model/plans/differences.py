"""Compares two documents field by field."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

Path = tuple[str, ...]

MergeKeys = Callable[[Path], Sequence[str]]
"""Returns the fields that identify the items of the list at a path; empty if none do."""

_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


class Difference(msgspec.Struct, frozen=True):
    """A field whose value differs between two documents.

    `path` names the field, such as `spec.containers[name=app].image`. `before` and `after` are JSON
    values, None if the field doesn't exist.
    """

    path: str
    before: Any
    after: Any


def no_merge_keys(path: Path) -> Sequence[str]:  # noqa: ARG001 - no list has merge keys
    """Treat every list as a sequence."""
    return ()


def differences(
    before: object, after: object, *, merge_keys: MergeKeys = no_merge_keys
) -> list[Difference]:
    """Return the fields that differ, in the order of their paths in *after*.

    Maps are unordered. Items of a list with merge keys are compared with the item of equal keys, in
    any order. Another list is compared item by item if only items changed, else as one value.
    """
    return list(_compared((), before, after, merge_keys))


def _compared(
    path: Path, before: object, after: object, merge_keys: MergeKeys
) -> Iterator[Difference]:
    if before == after and type(before) is type(after):
        return
    old_fields, new_fields = _fields(before), _fields(after)
    if old_fields is not None and new_fields is not None and (old_fields or new_fields):
        for name in dict.fromkeys((*new_fields, *old_fields)):
            inner = (*path, name)
            yield from _compared(inner, old_fields.get(name), new_fields.get(name), merge_keys)
        return
    items = _items(before, after, merge_keys(_names(path)))
    if items is None:
        yield Difference(path_text(path), before, after)
        return
    for label, old, new in items:
        yield from _compared((*path, label), old, new, merge_keys)


def _fields(value: object) -> Mapping[str, object] | None:
    """Return the fields of a map; a missing value has none."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _items(
    before: object, after: object, keys: Sequence[str]
) -> list[tuple[str, object, object]] | None:
    """Return the labels of the items with their values, or None to compare the lists as a whole."""
    old, new = _list(before), _list(after)
    if old is None or new is None or not (old or new):
        return None
    if keys:
        old_items, new_items = _by_label(old, keys), _by_label(new, keys)
        if old_items is not None and new_items is not None:
            labels = dict.fromkeys((*new_items, *old_items))
            return [(label, old_items.get(label), new_items.get(label)) for label in labels]
    if len(old) != len(new) or not all(isinstance(item, dict) for item in (*old, *new)):
        return None
    pairs = zip(old, new, strict=True)
    return [
        (f"[{number}]", old_item, new_item) for number, (old_item, new_item) in enumerate(pairs)
    ]


def _list(value: object) -> list[object] | None:
    if value is None:
        return []
    return value if isinstance(value, list) else None


def _by_label(items: Sequence[object], keys: Sequence[str]) -> dict[str, object] | None:
    """Return the items by the label of their keys; None if a label is missing or not unique."""
    labelled: dict[str, object] = {}
    for item in items:
        if not isinstance(item, dict):
            return None
        label = ",".join(f"{key}={item[key]}" for key in keys if key in item)
        if not label or label in labelled:
            return None
        labelled[label] = item
    return {f"[{label}]": item for label, item in labelled.items()}


def _names(path: Path) -> Path:
    """Return the path without the labels of items."""
    return tuple(name for name in path if not name.startswith("["))


def path_text(path: Path) -> str:
    """Return the path as text; a name with other characters than a word's is quoted."""
    text = ""
    for name in path:
        if name.startswith("["):
            text += name
        elif _PLAIN.fullmatch(name):
            text += f".{name}" if text else name
        else:
            text += f'["{name}"]'
    return text
