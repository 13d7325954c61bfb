"""Names the fields that identify the items of a list: its merge keys.

The JSON Schema of a kind names them as `x-kubernetes-list-map-keys`: the published one, or that of
the kind's type. The lists of the built-in Kubernetes kinds have a fixed table.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.plans.differences import MergeKeys, Path

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
        inner = [field for node in nodes for field in _fields(schema, node, name)]
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


def _fields(schema: Document, node: Document, name: str) -> Iterator[object]:
    """Yield the schemas of a field of a map, or of the items of a list of maps."""
    for item in _alternatives(schema, node.get("items")):
        yield from _fields(schema, item, name)
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
