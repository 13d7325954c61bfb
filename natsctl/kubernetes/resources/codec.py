"""Decodes the JSON of objects in a cluster into stored objects.

Only the fields of the object and of its metadata are decoded; their values are copied as bytes.
"""

from typing import Any

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.store import Stored

# with "List" in its braces, the media type of a list
PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"

_Fields = dict[str, msgspec.Raw]

_fields = msgspec.json.Decoder(_Fields)
_text = msgspec.json.Decoder(str)
_NOTHING = msgspec.Raw(b'""')


class ObjectDecoder:
    """Decodes the objects of one kind, without `managedFields` unless the kind keeps them."""

    def __init__(self, kind: KubeKind[Any]) -> None:
        self._name = kind.name
        self._metadata_only = kind.metadata_only
        self._managed_fields = kind.managed_fields
        self._type = {
            "apiVersion": msgspec.Raw(msgspec.json.encode(kind.api_version)),
            "kind": msgspec.Raw(msgspec.json.encode(kind.kind)),
        }

    @property
    def accept(self) -> str:
        """The media type for reading or watching objects of this kind."""
        return PARTIAL.format("") if self._metadata_only else "application/json"

    @property
    def accept_list(self) -> str:
        """The media type for listing objects of this kind."""
        return PARTIAL.format("List") if self._metadata_only else "application/json"

    def stored(self, document: bytes | msgspec.Raw) -> Stored:
        """Return the object in *document*; raises `StoreError` if it is invalid."""
        try:
            fields = _fields.decode(document)
            metadata = _fields.decode(fields["metadata"])
            if not self._managed_fields:
                metadata.pop("managedFields", None)
            namespace = _text.decode(metadata.get("namespace", _NOTHING))
            key = joined(namespace, _text.decode(metadata["name"]))
            revision = int(_text.decode(metadata["resourceVersion"]))
        except (KeyError, ValueError, *DECODE_ERRORS) as error:
            raise StoreError(f"the server sent an invalid {self._name}: {error!r}") from error
        return Stored(key, revision, self._encode(fields, metadata))

    def _encode(self, fields: _Fields, metadata: _Fields) -> bytes:
        rest: dict[str, object] = {} if self._metadata_only else dict(fields)
        for name in self._type:
            rest.pop(name, None)
        rest["metadata"] = metadata
        return msgspec.json.encode({**self._type, **rest})


def revision_of(resource_version: str) -> int:
    """Return a `resourceVersion` as a number; raises `StoreError` if it is not a number."""
    if not resource_version.isdecimal():
        raise StoreError(f"resourceVersion {resource_version!r} is not a number")
    return int(resource_version)
