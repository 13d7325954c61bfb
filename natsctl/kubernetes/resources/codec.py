"""What a server's JSON becomes before it is handed on: whole documents, most without managedFields.

Only the outermost fields are taken apart; what is in them is copied as it came.
"""

from typing import Any

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.store import Stored

PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"

_Fields = dict[str, msgspec.Raw]

_fields = msgspec.json.Decoder(_Fields)
_text = msgspec.json.Decoder(str)
_NOTHING = msgspec.Raw(b'""')


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What a list says about itself; `next_page` is empty on its last page."""

    resource_version: str = ""
    next_page: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, frozen=True):
    """A page of a list."""

    metadata: ListMetadata
    items: list[msgspec.Raw] | None = None


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A line of a watch."""

    type: str
    object: msgspec.Raw


class BookmarkMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """How far a watch has come."""

    resource_version: str = ""
    annotations: dict[str, str] = {}


class Bookmark(msgspec.Struct, frozen=True):
    """A watch's note of how far it has come."""

    metadata: BookmarkMetadata


class ObjectDecoder:
    """Makes stored objects of one kind from what the server sends."""

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
        """What to ask for to get an object of this kind, or a watch of it."""
        return PARTIAL.format("") if self._metadata_only else "application/json"

    @property
    def accept_list(self) -> str:
        """What to ask for to get a list."""
        return PARTIAL.format("List") if self._metadata_only else "application/json"

    def stored(self, document: bytes | msgspec.Raw) -> Stored:
        """Return the object in *document*; raises `StoreError` where there is none."""
        try:
            fields = _fields.decode(document)
            metadata = _fields.decode(fields["metadata"])
            if not self._managed_fields:
                metadata.pop("managedFields", None)
            namespace = _text.decode(metadata.get("namespace", _NOTHING))
            key = joined(namespace, _text.decode(metadata["name"]))
            revision = int(_text.decode(metadata["resourceVersion"]))
        except (KeyError, ValueError, *DECODE_ERRORS) as error:
            raise StoreError(f"the server sent what is no {self._name}: {error!r}") from error
        return Stored(key, revision, self._whole(fields, metadata))

    def _whole(self, fields: _Fields, metadata: _Fields) -> bytes:
        rest: dict[str, object] = {} if self._metadata_only else dict(fields)
        for name in self._type:
            rest.pop(name, None)
        rest["metadata"] = metadata
        return msgspec.json.encode({**self._type, **rest})


def selection(kind: KubeKind[Any]) -> dict[str, str]:
    """Return what to ask of a server so that it selects the objects that the kind means."""
    selected = {}
    if kind.selector.requirements:
        selected["labelSelector"] = str(kind.selector)
    if kind.object_name is not None:
        selected["fieldSelector"] = f"metadata.name={kind.object_name}"
    return selected


def revision_of(resource_version: str) -> int:
    """Return a `resourceVersion` as a number; raises `StoreError` where it is none."""
    if not resource_version.isdecimal():
        raise StoreError(f"resourceVersion {resource_version!r} is no number")
    return int(resource_version)
