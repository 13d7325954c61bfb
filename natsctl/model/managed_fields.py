"""Answers from `managedFields` which manager set which fields of an object in a cluster.

Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management, and
`FieldsV1` in the API reference.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from natsctl.model import documents
from natsctl.model.documents import Document

_ABSENT: Any = object()  # the object does not have the field
_UNKNOWN: Any = object()  # this part of the object was not read

_Path = tuple[str, ...]  # names in a FieldsV1: `f:spec`, `k:{"name":"web"}`


class FieldManager(msgspec.Struct, frozen=True):
    """A manager, and the fields that it applied or updated, as a `FieldsV1`."""

    name: str
    applied: bool
    fields: Document


class ManagedFields(msgspec.Struct, frozen=True):
    """The managers of an object at one revision."""

    revision: int
    managers: tuple[FieldManager, ...] = ()


class LostField(msgspec.Struct, frozen=True):
    """A field, as in `.spec.replicas`, and the managers that took it; none if it was removed."""

    path: str
    managers: tuple[str, ...]


def lost_fields(
    manifest: Document,
    found: Document,
    managers: Sequence[FieldManager],
    manager: str,
    *,
    metadata_only: bool = False,
) -> list[LostField]:
    """Return the fields of *manifest* that *found* has otherwise and *manager* no longer owns.

    A server may keep an applied value in another form. The field stays its manager's then; if
    another manager sets it to another value or removes it, it does not.
    """
    own = next((at.fields for at in managers if at.applied and at.name == manager), None)
    others = [at for at in managers if not (at.applied and at.name == manager)]
    live = {**dict.fromkeys(manifest, _UNKNOWN), **found} if metadata_only else found
    lost = _lost_in_object(manifest, live, own, ())
    return [LostField(_text(path), _owners(path, others)) for path in lost]


def same_family(manager: str, other: str) -> bool:
    """Say whether two managers are named alike up to a slash: `natsctl/new` and `natsctl/old`."""
    family, slash, _ = manager.partition("/")
    return bool(slash) and other.startswith(f"{family}/")


def union(fields: Iterable[Document]) -> Document:
    """Return a `FieldsV1` with all fields of these."""
    result: Document = {}
    for each in fields:
        for name, below in each.items():
            known = result.get(name)
            if isinstance(known, dict) and isinstance(below, dict):
                result[name] = union((known, below))
            else:
                result[name] = below
    return result


def _lost(wanted: Any, found: Any, own: Any, path: _Path) -> Iterator[_Path]:
    known = found is not _ABSENT and found is not _UNKNOWN
    if known and documents.view(wanted, found) == wanted:
        return
    if isinstance(wanted, dict) and (
        _has_any(own, "f:") or (own is None and wanted and isinstance(found, dict))
    ):
        yield from _lost_in_object(wanted, found, own, path)
    elif isinstance(wanted, list) and _has_any(own, "k:", "v:"):
        yield from _lost_in_list(wanted, found, own, path)
    elif own is None:
        yield path  # else it is owned as a whole


def _has_any(own: Any, *kinds: str) -> bool:
    return own is not None and any(name.startswith(kinds) for name in own)


def _lost_in_object(wanted: Document, found: Any, own: Any, path: _Path) -> Iterator[_Path]:
    unread = _UNKNOWN if found is _UNKNOWN else _ABSENT
    for name, value in wanted.items():
        below = found.get(name, unread) if isinstance(found, dict) else unread
        empty = value is None or value in ({}, [])
        if not (empty and (below is _ABSENT or below is _UNKNOWN)):
            owned = None if own is None else own.get(f"f:{name}")
            yield from _lost(value, below, owned, (*path, f"f:{name}"))


def _lost_in_list(
    wanted: list[Any], found: Any, own: dict[str, Any], path: _Path
) -> Iterator[_Path]:
    items = found if isinstance(found, list) else []
    for item in wanted:
        name = _item_name(item, own)
        if isinstance(item, dict):
            below = _UNKNOWN if found is _UNKNOWN else _item(items, name, item)
            yield from _lost(item, below, own.get(name or ""), (*path, name or _made_up(item)))
        elif name is None and item not in items:
            yield (*path, f"v:{documents.render(item).decode()}")


def _item_name(item: Any, own: dict[str, Any]) -> str | None:
    """Return the name of a list's item in a `FieldsV1`: its value, or the keys that identify it."""
    for name in own:
        kind, text = name[:2], name[2:]
        if kind == "v:" and msgspec.json.decode(text) == item:
            return name
        if kind == "k:" and isinstance(item, dict) and _has(item, msgspec.json.decode(text)):
            return name
    return None


def _has(item: dict[str, Any], keys: dict[str, Any]) -> bool:
    """Say whether the keys are the item's, as far as a manifest gives them: some have defaults."""
    given = [name for name in keys if name in item]
    return bool(given) and all(item[name] == keys[name] for name in given)


def _item(items: list[Any], name: str | None, item: dict[str, Any]) -> Any:
    """Return the object's item with the same keys."""
    keys = item if name is None else msgspec.json.decode(name[2:])
    return next((at for at in items if isinstance(at, dict) and _has(at, keys)), _ABSENT)


def _made_up(item: dict[str, Any]) -> str:
    scalars = {name: at for name, at in item.items() if isinstance(at, str | int)}
    return f"k:{documents.render(dict(list(scalars.items())[:1])).decode()}"


def _owners(path: _Path, managers: Sequence[FieldManager]) -> tuple[str, ...]:
    """Return the managers that own the field, or else another item of the list that it is in."""
    while path:
        owners = dict.fromkeys(at.name for at in managers if _reaches(at.fields, path))
        if owners or path[-1].startswith("f:"):
            return tuple(owners)
        path = path[:-1]
    return ()


def _reaches(fields: Any, path: _Path) -> bool:
    for name in path:
        if name not in fields:
            return False
        fields = fields[name]
        if not fields:  # a field that is owned as a whole
            return True
    return True


def _text(path: _Path) -> str:
    """Return the path as a server writes it: `.spec.containers[name="web"].image`."""
    texts = []
    for name in path:
        kind, text = name[:2], name[2:]
        if kind == "f:":
            texts.append(f".{text}")
        elif kind == "k:":
            keys = msgspec.json.decode(text).items()
            texts.append(f"[{','.join(f'{k}={documents.render(v).decode()}' for k, v in keys)}]")
        else:
            texts.append(f"[={text}]")
    return "".join(texts) or "."
