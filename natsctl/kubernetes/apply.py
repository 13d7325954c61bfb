"""Applies manifests with server-side apply, each to exactly the object that it's meant for.

Field managers: https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

import msgspec

from natsctl.errors import (
    DECODE_ERRORS,
    ConflictError,
    FieldConflictError,
    InvalidObjectError,
    NotFoundError,
    StoreError,
    StoreTimeoutError,
)
from natsctl.kubernetes.codec import PARTIAL, ObjectDecoder
from natsctl.kubernetes.transport import Wire
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.managed_fields import FieldManager, ManagedFields, same_family, union
from natsctl.model.store import Stored

JSON_PATCH = "application/json-patch+json"

APPLY_PATCH = "application/apply-patch+yaml"  # JSON is valid YAML
NO_REVISION = "1"  # the revision of an empty etcd, which no object has
REVISION_REJECTED = "resourceVersion should not be set"  # some kinds reject NO_REVISION with this
_NOT_APPLIED = ("resourceVersion", "uid", "managedFields")


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
    fields = msgspec.Raw(msgspec.json.encode(union(entry.fields for entry in merged)))
    entries = [*kept, msgspec.structs.replace(base, manager=manager, fields_v1=fields)]
    return [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
    ]


class Exchange:
    """Reads and writes the objects of one kind, and applies manifests to them.

    A creation takes one request, whose patch has a revision that no object has. If the object
    doesn't exist, the server creates it and assigns a revision. If it does, that's a conflict.

    The requests don't set `fieldValidation`. For built-in kinds the server rejects an apply with
    unknown fields anyway; for custom resources it drops such fields and sends a warning.
    """

    def __init__(self, wire: Wire, decoder: ObjectDecoder) -> None:
        self._wire = wire
        self._decoder = decoder
        self._creates_with_revision = True  # until the server rejects it for this kind

    async def read(self, path: str) -> Stored:
        """Return the object at *path*; raises `NotFoundError`."""
        reply = await self._wire.call("GET", path, accept=self._decoder.accept)
        return self._decoder.stored(reply.body)

    async def read_metadata(self, path: str) -> bytes:
        """Return the metadata of the object at *path*, including `managedFields`, as JSON."""
        return (await self._wire.call("GET", path, accept=PARTIAL.format(""))).body

    async def find(self, path: str) -> Stored | None:
        try:
            return await self.read(path)
        except NotFoundError:
            return None

    async def send(
        self,
        method: str,
        path: str,
        document: object,
        *,
        manager: str,
        content_type: str = "application/json",
        force: bool = False,
        dry_run: bool = False,
        safe: bool = False,
    ) -> bytes:
        """Send *document* and return the response body; *safe* permits retries."""
        query = {"fieldManager": manager}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        reply = await self._wire.call(
            method,
            path,
            query=query,
            body=documents.render(document),
            content_type=content_type,
            accept=self._decoder.accept,
            safe=safe,
        )
        return reply.body

    async def read_back(self, path: str, document: Document, unknown: StoreTimeoutError) -> Stored:
        """Return the object at *path* if it has the fields of *document*; else raise *unknown*."""
        stored = await self.find(path)
        desired = {name: value for name, value in document.items() if name != "status"}
        written = documents.without_metadata(desired, documents.SERVERS_OWN)
        if stored is None or documents.view(written, documents.parse(stored.value)) != written:
            raise unknown
        return stored

    async def apply(
        self, path: str, manifest: Document, *, manager: str, uid: str, force: bool
    ) -> Stored:
        """See `ManifestStore.apply`; *path* is the path of the object."""
        metadata = documents.metadata_of(manifest)
        applied = {name: value for name, value in metadata.items() if name not in _NOT_APPLIED}
        document: Document = {**manifest, "metadata": applied}
        if uid:
            return await self._change(path, with_metadata(document, uid=uid), manager, force=force)
        try:
            return await self._create(path, document, manager)
        except StoreTimeoutError as unknown:
            return await self.read_back(path, document, unknown)

    async def _change(self, path: str, document: Document, manager: str, *, force: bool) -> Stored:
        """Apply to the object with the document's uid, and to no other object."""
        try:
            return await self._update(path, document, manager, force=force)
        except InvalidObjectError as invalid:
            uid = documents.metadata_of(document)["uid"]
            stored = await self.find(path)
            live = None if stored is None else documents.parse(stored.value)
            if live is None or documents.metadata_of(live).get("uid") != uid:
                # the server reports another uid as an invalid change of an immutable field
                raise ConflictError(f"{path} is another object than {uid}") from invalid
            with_address = _with_allocated_address(document, live)
            if with_address is None:
                raise
            return await self._update(path, with_address, manager, force=force)

    async def _update(self, path: str, document: Document, manager: str, *, force: bool) -> Stored:
        """Apply, take over the fields of former managers of the same family, and apply again."""
        try:
            response = await self._patch(path, document, manager, force=force, safe=True)
        except FieldConflictError as conflict:
            if not all(same_family(manager, other_manager) for other_manager in conflict.managers):
                raise
            response = await self.read_metadata(path)
        patch = takeover(response, manager)
        if patch:
            await self.send("PATCH", path, patch, manager=manager, content_type=JSON_PATCH)
            response = await self._patch(path, document, manager, force=force, safe=True)
        return self._decoder.sent(response)

    async def _create(self, path: str, document: Document, manager: str) -> Stored:
        """Create the object; raises `ConflictError` if it exists."""
        if self._creates_with_revision:
            marked = with_metadata(document, resourceVersion=NO_REVISION)
            try:
                # without force, a conflict of fields would hide the conflict of the revision
                return self._decoder.sent(await self._patch(path, marked, manager, force=True))
            except ConflictError:
                pass  # it exists, unless it was deleted since
            except StoreError as rejected:
                if REVISION_REJECTED not in str(rejected):
                    raise
                self._creates_with_revision = False
        if await self.find(path) is not None:
            raise ConflictError(f"{path} exists")
        return self._decoder.sent(await self._patch(path, document, manager))

    async def _patch(
        self,
        path: str,
        document: Document,
        manager: str,
        *,
        force: bool = False,
        safe: bool = False,
    ) -> bytes:
        """Send the apply and return the response body, which includes `managedFields`."""
        return await self.send(
            "PATCH",
            path,
            document,
            manager=manager,
            content_type=APPLY_PATCH,
            force=force,
            safe=safe,
        )


def with_metadata(document: Document, **metadata: str) -> Document:
    """Return the document with these fields added to its metadata."""
    return {**document, "metadata": {**documents.metadata_of(document), **metadata}}


def _with_allocated_address(document: Document, live: Document) -> Document | None:
    """Return a Service's manifest with the live address instead of an empty `clusterIP`.

    Returns None for any other manifest. At a creation, an empty `clusterIP` makes the server
    allocate an address. Older servers reject it in later applies, because an address can't be
    unset.
    """
    manifest_spec, spec = document.get("spec"), live.get("spec")
    if document.get("kind") != "Service" or not isinstance(manifest_spec, dict):
        return None
    if (
        manifest_spec.get("clusterIP") != ""
        or not isinstance(spec, dict)
        or not spec.get("clusterIP")
    ):
        return None
    return {**document, "spec": {**manifest_spec, "clusterIP": spec["clusterIP"]}}
