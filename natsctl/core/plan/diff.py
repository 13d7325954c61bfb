"""Describes a planned write as actions with field differences, without secrets."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UnsetType

from natsctl.errors import DECODE_ERRORS
from natsctl.model import exact_json
from natsctl.model.documents import SERVERS_OWN, Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.plans import Action, Difference, MergeKeys, Path, differences
from natsctl.telemetry.hiding import MASK, hidden

_OWN_NAMES = ("owner-kind", "owner-key", "applied", "installation")
_SECRET_FIELDS = ("data", "stringData")


def actions_of(
    kind: Kind[Any], key: str, before: bytes | None, after: bytes | None, reason: str | UnsetType
) -> Iterator[Action]:
    """Yield the actions that change the object from *before* to *after*; None does not exist."""
    if before == after:
        return
    if after is None:
        yield Action(action="delete", kind=kind.name, key=key, reason=reason)
        return
    differences = value_differences(kind, before, after)
    if before is None:
        yield Action(action="create", kind=kind.name, key=key, diff=differences)
        return
    status = tuple(diff for diff in differences if not kind.plain and _in_status(diff))
    desired_differences = tuple(diff for diff in differences if diff not in status)
    if desired_differences:
        yield Action(action="update", kind=kind.name, key=key, diff=desired_differences)
    if status:
        yield Action(action="status", kind=kind.name, key=key, diff=status)


def value_differences(
    kind: Kind[Any], before: bytes | None, after: bytes | None
) -> tuple[Difference, ...]:
    """Return the differing fields of two values of a kind, without secrets.

    The fields that the server sets are left out. Labels and annotations of natsctl are left out
    unless nothing else differs, and of an object that is created.
    """
    old, new = _value(kind, before), _value(kind, after)
    compared = differences(old, new, merge_keys=merge_keys_of(kind))
    visible = [diff for diff in compared if not _is_own(diff.path)]
    if not visible and before is not None:
        visible = compared
    return tuple(_masked(kind, diff) for diff in visible)


def shown_values(
    kind: Kind[Any], before: bytes | None, after: bytes | None
) -> tuple[object, object]:
    """Return both values as JSON values without secrets and fields that the server sets."""
    old, new = _value(kind, before), _value(kind, after)
    if not _is_secret(kind):
        return _mask_pair(old, new, secret=False)
    shown = [
        _mask_pair(_part(old, secret=secret), _part(new, secret=secret), secret=secret)
        for secret in (False, True)
    ]
    joined = [{**_fields(shown[0][side]), **_fields(shown[1][side])} for side in (0, 1)]
    return None if old is None else joined[0], None if new is None else joined[1]


def _part(value: object, *, secret: bool) -> Document:
    """Return the fields of a Kubernetes Secret that are secret, or the others."""
    names = _fields(value).items()
    return {name: field for name, field in names if (name in _SECRET_FIELDS) is secret}


def _value(kind: Kind[Any], value: bytes | None) -> object:
    if value is None:
        return None
    try:
        parsed = exact_json.decode(value)
    except DECODE_ERRORS:
        return value.decode(errors="backslashreplace")
    if not isinstance(parsed, dict):
        return parsed
    untyped = kind.type is bytes and isinstance(parsed.get("metadata"), dict)
    if kind.plain and not untyped:
        return parsed
    return _without_servers_fields(parsed)


def _without_servers_fields(document: Document) -> Document:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return document
    kept = {name: value for name, value in metadata.items() if name not in SERVERS_OWN}
    other_fields = {name: value for name, value in document.items() if name != "metadata"}
    return {**other_fields, "metadata": kept} if kept else other_fields


def _in_status(difference: Difference) -> bool:
    return difference.path == "status" or difference.path.startswith(("status.", "status["))


def _is_own(path: str) -> bool:
    """Return whether natsctl alone writes the field: a label or an annotation of a secondary."""
    if not path.startswith(('metadata.labels["', 'metadata.annotations["')):
        return False
    return path.endswith(tuple(f'/{name}"]' for name in _OWN_NAMES))


def _masked(kind: Kind[Any], difference: Difference) -> Difference:
    secret = _is_secret(kind) and difference.path.startswith(_SECRET_FIELDS)
    before, after = _mask_pair(difference.before, difference.after, secret=secret)
    return Difference(difference.path, before, after)


def _is_secret(kind: Kind[Any]) -> bool:
    return isinstance(kind, KubeKind) and kind.kind == "Secret"


def _mask_pair(before: object, after: object, *, secret: bool) -> tuple[object, object]:
    """Return both values without secrets; texts that differ only in a secret stay different."""
    if isinstance(before, dict) or isinstance(after, dict):
        old, new = _fields(before), _fields(after)
        pairs = {
            name: _mask_pair(old.get(name), new.get(name), secret=secret)
            for name in (*old, *(name for name in new if name not in old))
        }
        return (
            {name: pairs[name][0] for name in old} if isinstance(before, dict) else before,
            {name: pairs[name][1] for name in new} if isinstance(after, dict) else after,
        )
    masked = _mask(before, secret=secret), _mask(after, secret=secret)
    if before != after and masked[0] == masked[1] and before is not None and after is not None:
        return f"{masked[0]} (before)", f"{masked[1]} (after)"
    return masked


def _fields(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _mask(value: object, *, secret: bool) -> object:
    match value:
        case None:
            return None
        case _ if secret:
            return MASK
        case str():
            return hidden(value)
        case list():
            return [_mask_pair(item, None, secret=False)[0] for item in value]
        case _:
            return value


# ---- the fields that identify the items of a list: its merge keys

# The JSON Schema of a kind names them: the published one, or that of the kind's type. The lists of
# the built-in Kubernetes kinds have a fixed table.

LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
TYPES_MAX = 256  # whose schemas are kept
_REF = "#/$defs/"
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")

_KUBE_MERGE_KEYS: dict[str, Sequence[str]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ownerReferences": ("uid",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
_KUBE_PORT_KEYS: Sequence[Sequence[str]] = (("containerPort", "protocol"), ("port", "protocol"))


def merge_keys_of(kind: Kind[Any]) -> MergeKeys:
    """Return the merge keys of the kind's lists; the kind's schema outranks the fixed table."""
    fixed = _kube_merge_keys if isinstance(kind, KubeKind) else _object_merge_keys
    declared: type = kind.type

    def merge_keys(path: Path) -> Sequence[str]:
        known = kind.schema if isinstance(kind, KvKind) else None
        schema = schema_of(declared) if known is None else known
        return declared_merge_keys(schema, path) or fixed(path)

    return merge_keys


def declared_merge_keys(schema: Document, path: Path) -> Sequence[str]:
    """Return the merge keys that a JSON Schema names for the list at *path*."""
    nodes = list(_alternatives(schema, schema))
    for name in path:
        inner = [field for node in nodes for field in _fields_of(schema, node, name)]
        nodes = [node for field in inner for node in _alternatives(schema, field)]
    for node in nodes:
        if isinstance(keys := node.get(LIST_MAP_KEYS), list):
            return [key for key in keys if isinstance(key, str)]
    return ()


@lru_cache(TYPES_MAX)
def schema_of(declared: type) -> Document:
    """Return the JSON Schema of a type; empty if the type has none, or names no merge keys."""
    try:
        encoded = msgspec.json.encode(msgspec.json.schema(declared, schema_hook=_any_value))
    except (TypeError, ValueError):
        return {}
    return msgspec.json.decode(encoded, type=Document) if LIST_MAP_KEYS.encode() in encoded else {}


def _any_value(_unknown: type) -> Document:
    return {"$comment": "any value"}


def _alternatives(schema: Document, node: object) -> Iterator[Document]:
    """Yield the schemas that a value may have, without references."""
    if not isinstance(node, dict):
        return
    yield node
    reference, definitions = node.get("$ref"), schema.get("$defs")
    if isinstance(reference, str) and isinstance(definitions, dict):
        yield from _alternatives(schema, definitions.get(reference.removeprefix(_REF)))
    for word in _ALTERNATIVES:
        for alternative in node.get(word, ()):
            yield from _alternatives(schema, alternative)


def _fields_of(schema: Document, node: Document, name: str) -> Iterator[object]:
    """Yield the schemas of a field of a map, or of the items of a list of maps."""
    for item in _alternatives(schema, node.get("items")):
        yield from _fields_of(schema, item, name)
    fields = node.get("properties")
    if isinstance(fields, dict) and name in fields:
        yield fields[name]
    else:
        yield node.get("additionalProperties")


def _kube_merge_keys(path: Path) -> Sequence[str]:
    if path and path[-1] == "ports":
        return _KUBE_PORT_KEYS[0] if "containers" in path[-2:] else _KUBE_PORT_KEYS[1]
    return _KUBE_MERGE_KEYS.get(path[-1], ()) if path else ()


def _object_merge_keys(path: Path) -> Sequence[str]:
    return ("type",) if path == ("status", "conditions") else ()
