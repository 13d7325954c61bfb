"""Reads and rewrites `managedFields`: which manager set which fields of an object.

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


def managed(body: bytes) -> ManagedFields:
    """Return the managers of the object in *body*; raises `StoreError` if there is none."""
    try:
        metadata = _object.decode(body).metadata
        managers = [
            FieldManager(at.manager, at.applied, at.fields) for at in metadata.managed_fields
        ]
        return ManagedFields(int(metadata.resource_version), tuple(managers))
    except (ValueError, *DECODE_ERRORS) as error:
        raise StoreError(f"the server sent no metadata of an object: {error!r}") from error


def takeover(body: bytes, manager: str) -> list[Document]:
    """Return the JSON patch that gives *manager* all that others of its family applied.

    It is empty if there is none, and refused if the object in *body* has changed since, as that
    of client-go's package `csaupgrade`. Only entries of one version can be put together.
    """
    metadata = _object.decode(body).metadata
    family = [
        at for at in metadata.managed_fields if at.applied and same_family(manager, at.manager)
    ]
    own = next((at for at in family if at.manager == manager), None)
    former = [at for at in family if at is not own]
    if not former:
        return []
    base = own or former[0]
    together = [at for at in family if at.api_version == base.api_version]
    if together == [own]:
        return []
    kept = [at for at in metadata.managed_fields if at not in together]
    entries = [*kept, _together(base, together, manager)]
    return [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {
            "op": "replace",
            "path": "/metadata/resourceVersion",
            "value": metadata.resource_version,
        },
    ]


def _together(base: _Entry, entries: Sequence[_Entry], manager: str) -> _Entry:
    fields = msgspec.Raw(msgspec.json.encode(union(at.fields for at in entries)))
    return msgspec.structs.replace(base, manager=manager, fields_v1=fields)
