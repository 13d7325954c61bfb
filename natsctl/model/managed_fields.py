"""Finds in `managedFields` which field manager set which fields of an object in a cluster.

Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management, and
`FieldsV1` in the API reference.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from natsctl.model import documents
from natsctl.model.documents import Document

_ABSENT: Any = object()  # the object doesn't have the field
_UNKNOWN: Any = object()  # this part of the object wasn't read

_Path = tuple[str, ...]  # names of a FieldsV1, such as `f:spec` or `k:{"name":"web"}`


class FieldManager(msgspec.Struct, frozen=True):
    """A field manager, and the fields that it applied or updated, as a `FieldsV1`."""

    name: str
    applied: bool
    fields: Document


class ManagedFields(msgspec.Struct, frozen=True):
    """The field managers of an object at one revision."""

    revision: int
    managers: tuple[FieldManager, ...] = ()


class LostField(msgspec.Struct, frozen=True):
    """A field such as `.spec.replicas` and its new owners; none if the field was removed."""

    path: str
    managers: tuple[str, ...]


def lost_fields(
    manifest: Document,
    stored: Document,
    managers: Sequence[FieldManager],
    manager: str,
    *,
    metadata_only: bool = False,
) -> list[LostField]:
    """Return the fields of *manifest* that differ in *stored* because somebody changed them.

    If a server stores an applied value in another form, the manager still owns the field. If
    another manager changes or removes the field, the manager doesn't own it any more. A number that
    differs is lost even if the manager owns it.
    """
    applied = [entry for entry in managers if entry.applied and entry.name == manager]
    owned = applied[0].fields if applied else None
    other_managers = [entry for entry in managers if entry not in applied]
    live = {**dict.fromkeys(manifest, _UNKNOWN), **stored} if metadata_only else stored
    lost = _lost_in_object(manifest, live, owned, ())
    return [LostField(_text(path), _owners(path, other_managers)) for path in lost]


def same_family(manager: str, other_manager: str) -> bool:
    """Return whether two names are equal up to a slash, as in `natsctl/new` and `natsctl/old`."""
    family, slash, _ = manager.partition("/")
    return bool(slash) and other_manager.startswith(f"{family}/")


def union(fields: Iterable[Document]) -> Document:
    """Return a `FieldsV1` with the fields of all these."""
    result: Document = {}
    for field_set in fields:
        for name, nested in field_set.items():
            existing = result.get(name)
            if isinstance(existing, dict) and isinstance(nested, dict):
                result[name] = union((existing, nested))
            else:
                result[name] = nested
    return result


def _lost_paths(wanted: Any, stored: Any, owned: Any, path: _Path) -> Iterator[_Path]:
    has_value = stored is not _ABSENT and stored is not _UNKNOWN
    if has_value and documents.view(wanted, stored) == wanted:
        return
    if isinstance(wanted, dict) and (
        _has_any(owned, "f:") or (owned is None and wanted and isinstance(stored, dict))
    ):
        yield from _lost_in_object(wanted, stored, owned, path)
    elif isinstance(wanted, list) and _has_any(owned, "k:", "v:"):
        yield from _lost_in_list(wanted, stored, owned, path)
    elif owned is None or (isinstance(wanted, int | float) and isinstance(stored, int | float)):
        # Kubernetes 1.20 doesn't record who scaled an object; else it's owned as a whole
        yield path


def _has_any(owned: Any, *prefixes: str) -> bool:
    return owned is not None and any(name.startswith(prefixes) for name in owned)


def _lost_in_object(wanted: Document, stored: Any, owned: Any, path: _Path) -> Iterator[_Path]:
    default = _UNKNOWN if stored is _UNKNOWN else _ABSENT
    for name, value in wanted.items():
        stored_value = stored.get(name, default) if isinstance(stored, dict) else default
        empty = value is None or value in ({}, [])
        if not (empty and (stored_value is _ABSENT or stored_value is _UNKNOWN)):
            owned_value = None if owned is None else owned.get(f"f:{name}")
            yield from _lost_paths(value, stored_value, owned_value, (*path, f"f:{name}"))


def _lost_in_list(
    wanted: list[Any], stored: Any, owned: dict[str, Any], path: _Path
) -> Iterator[_Path]:
    items = stored if isinstance(stored, list) else []
    for item in wanted:
        name = _item_name(item, owned)
        if isinstance(item, dict):
            stored_item = _UNKNOWN if stored is _UNKNOWN else _find_item(items, name, item)
            item_path = (*path, name or _invented_name(item))
            yield from _lost_paths(item, stored_item, owned.get(name or ""), item_path)
        elif name is None and item not in items:
            yield (*path, f"v:{documents.render(item).decode()}")


def _item_name(item: Any, owned: dict[str, Any]) -> str | None:
    for name in owned:
        prefix, text = name[:2], name[2:]
        if prefix == "v:" and msgspec.json.decode(text) == item:
            return name
        if prefix == "k:" and isinstance(item, dict) and _has_keys(item, msgspec.json.decode(text)):
            return name
    return None


def _has_keys(item: dict[str, Any], keys: dict[str, Any]) -> bool:
    """Return whether the item has these keys; a manifest may leave out those with a default."""
    present = [name for name in keys if name in item]
    return bool(present) and all(item[name] == keys[name] for name in present)


def _find_item(items: list[Any], name: str | None, wanted: dict[str, Any]) -> Any:
    keys = wanted if name is None else msgspec.json.decode(name[2:])
    matching = (item for item in items if isinstance(item, dict) and _has_keys(item, keys))
    return next(matching, _ABSENT)


def _invented_name(item: dict[str, Any]) -> str:
    scalars = {name: value for name, value in item.items() if isinstance(value, str | int)}
    return f"k:{documents.render(dict(list(scalars.items())[:1])).decode()}"


def _owners(path: _Path, managers: Sequence[FieldManager]) -> tuple[str, ...]:
    """Return the managers of the field, or of its list if no manager owns the list item."""
    while path:
        owners = dict.fromkeys(entry.name for entry in managers if _owns(entry.fields, path))
        if owners or path[-1].startswith("f:"):
            return tuple(owners)
        path = path[:-1]
    return ()


def _owns(fields: Any, path: _Path) -> bool:
    for name in path:
        if name not in fields:
            return False
        fields = fields[name]
        if not fields:  # the field is owned as a whole
            return True
    return True


def _text(path: _Path) -> str:
    """Return the path as a server writes it: `.spec.containers[name="web"].image`."""
    texts = []
    for name in path:
        prefix, text = name[:2], name[2:]
        if prefix == "f:":
            texts.append(f".{text}")
        elif prefix == "k:":
            keys = msgspec.json.decode(text).items()
            texts.append(f"[{','.join(f'{k}={documents.render(v).decode()}' for k, v in keys)}]")
        else:
            texts.append(f"[={text}]")
    return "".join(texts) or "."
