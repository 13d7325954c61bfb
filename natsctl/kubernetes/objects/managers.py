"""Reads `managedFields` and transfers fields from one field manager to another.

Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from collections.abc import Sequence

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.model.documents import Document
from natsctl.model.managed_fields import FieldManager, ManagedFields, same_family, union

JSON_PATCH = "application/json-patch+json"

_APPLY = "Apply"


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
        return self.operation == _APPLY and not self.subresource

    @property
    def fields(self) -> Document:
        return _fields.decode(self.fields_v1)


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    managed_fields: tuple[_Entry, ...] = ()


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


_fields = msgspec.json.Decoder(dict[str, object])
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
    entries = [*kept, _merge(base, merged, manager)]
    return [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
    ]


def _merge(base: _Entry, entries: Sequence[_Entry], manager: str) -> _Entry:
    fields = msgspec.Raw(msgspec.json.encode(union(entry.fields for entry in entries)))
    return msgspec.structs.replace(base, manager=manager, fields_v1=fields)
