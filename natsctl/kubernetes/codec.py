"""Decodes the JSON of objects in a cluster into stored objects, and reads their field managers.

The bytes of an object are kept, apart from its type and its `managedFields`. If it isn't written
as a kube-apiserver writes it, it's encoded again.
"""

from typing import Any

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.model.documents import Document
from natsctl.model.managed_fields import FieldManager, ManagedFields, same_family, union
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.store import Stored

# with "List" in its braces, the media type of a list
PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"

REMEMBERED_MAX = 64  # objects that are remembered until the server sends them again
REMEMBERED_BYTES = 16 * 1024  # a larger object is not remembered

_Fields = dict[str, msgspec.Raw]

_fields = msgspec.json.Decoder(_Fields)
_METADATA = b'{"metadata":'  # the start of an object without a type, as in a list
_MANAGED = b'"managedFields":'


class _Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    resource_version: str
    namespace: str = ""
    managed_fields: msgspec.Raw = msgspec.Raw()


class _Head(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    metadata: _Metadata
    api_version: msgspec.Raw = msgspec.Raw()
    kind: msgspec.Raw = msgspec.Raw()


_head = msgspec.json.Decoder(_Head)


class ObjectDecoder:
    """Decodes the objects of one kind, without `managedFields` unless the kind keeps them."""

    def __init__(self, kind: KubeKind[Any]) -> None:
        self.accept = self.accept_list = "application/json"  # the media types of objects and lists
        if kind.metadata_only:
            self.accept, self.accept_list = PARTIAL.format(""), PARTIAL.format("List")
        self._name = kind.name
        self._metadata_only = kind.metadata_only
        self._managed_fields = kind.managed_fields
        version, name = msgspec.json.encode(kind.api_version), msgspec.json.encode(kind.kind)
        self._type = {"apiVersion": msgspec.Raw(version), "kind": msgspec.Raw(name)}
        self._start = b'{"apiVersion":%s,"kind":%s,' % (version, name)
        self._served_start = b'{"kind":%s,"apiVersion":%s,"metadata":' % (name, version)
        self._first: dict[bytes, Stored] = {}

    def sent(self, document: bytes) -> Stored:
        """Return the object in a response or an event of a watch, as `stored` does.

        The server sends the result of a write as both, with the same bytes, so the second one is
        not decoded.
        """
        document = document.rstrip()
        first = self._first.pop(document, None)
        if first is not None:
            return first
        stored = self.stored(document)
        if len(document) <= REMEMBERED_BYTES:
            self._first[document] = stored
            if len(self._first) > REMEMBERED_MAX:
                del self._first[next(iter(self._first))]
        return stored

    def stored(self, document: bytes | msgspec.Raw) -> Stored:
        try:
            head = _head.decode(document)
            metadata = head.metadata
            key, revision = (
                joined(metadata.namespace, metadata.name),
                int(metadata.resource_version),
            )
            value = self._without_managed_fields(bytes(document), head) or self._encoded(document)
        except (ValueError, *DECODE_ERRORS) as error:
            raise StoreError(f"the server sent an invalid {self._name}: {error!r}") from error
        return Stored(key, revision, value)

    def _without_managed_fields(self, document: bytes, head: _Head) -> bytes:
        """Return the document with our type and without `managedFields`.

        Returns no bytes if the document isn't written as a server writes objects.
        """
        if self._metadata_only:
            return b""
        if document.startswith(self._served_start):
            start = len(self._served_start) - len(_METADATA) + 1
        elif document.startswith(_METADATA) and not head.kind and not head.api_version:
            start = 1
        else:
            return b""
        document = document.rstrip()
        managed = bytes(head.metadata.managed_fields)
        if self._managed_fields or not managed:
            return self._start + document[start:]
        field = _MANAGED + managed
        if document.count(field) != 1:
            return b""
        end = document.index(field) + len(field)
        if document[end - len(field) - 1 : end - len(field)] != b",":
            return b""
        return self._start + document[start : end - len(field) - 1] + document[end:]

    def _encoded(self, document: bytes | msgspec.Raw) -> bytes:
        fields = _fields.decode(document)
        metadata = _fields.decode(fields["metadata"])
        if not self._managed_fields:
            metadata.pop("managedFields", None)
        kept_fields: dict[str, object] = {} if self._metadata_only else dict(fields)
        for name in self._type:
            kept_fields.pop(name, None)
        kept_fields["metadata"] = metadata
        return msgspec.json.encode({**self._type, **kept_fields})


def revision_of(resource_version: str) -> int:
    """Return a `resourceVersion` as a number; raises `StoreError` if it isn't one."""
    if not resource_version.isdecimal():
        raise StoreError(f"resourceVersion {resource_version!r} is not a number")
    return int(resource_version)


class _Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: str | None = None
    fields_type: str = ""
    fields_v1: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="fieldsV1")
    subresource: str = ""

    @property
    def applied(self) -> bool:
        return self.operation == "Apply" and not self.subresource

    @property
    def fields(self) -> Document:
        return _field_set.decode(self.fields_v1)


class _Managed(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    managed_fields: tuple[_Entry, ...] = ()


class _Object(msgspec.Struct, frozen=True):
    metadata: _Managed = _Managed()


_field_set = msgspec.json.Decoder(dict[str, object])
_object = msgspec.json.Decoder(_Object)


def read_managed_fields(body: bytes) -> ManagedFields:
    """Return the field managers of the object in *body*; raises `StoreError` if it is invalid."""
    try:
        metadata = _object.decode(body).metadata
        managers = [
            FieldManager(entry.manager, entry.applied, entry.fields)
            for entry in metadata.managed_fields
        ]
        return ManagedFields(int(metadata.resource_version), tuple(managers))
    except (ValueError, *DECODE_ERRORS) as error:
        raise StoreError(f"the server sent invalid object metadata: {error!r}") from error


def takeover(body: bytes, manager: str) -> list[Document]:
    """Return the JSON patch that gives *manager* every field that its family applied.

    The patch is empty if there are no such fields. The server rejects the patch if the object has
    changed since *body*, as for the patch of client-go's package `csaupgrade`. Only entries of the
    same API version can be merged.
    """
    metadata = _object.decode(body).metadata
    family = [
        entry
        for entry in metadata.managed_fields
        if entry.applied and same_family(manager, entry.manager)
    ]
    own_entry = next((entry for entry in family if entry.manager == manager), None)
    former = [entry for entry in family if entry is not own_entry]
    if not former:
        return []
    base = own_entry or former[0]
    merged = [entry for entry in family if entry.api_version == base.api_version]
    if merged == [own_entry]:
        return []
    kept = [entry for entry in metadata.managed_fields if entry not in merged]
    fields = msgspec.Raw(msgspec.json.encode(union(entry.fields for entry in merged)))
    entries = [*kept, msgspec.structs.replace(base, manager=manager, fields_v1=fields)]
    return [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
    ]
