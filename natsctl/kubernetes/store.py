"""The store of one Kubernetes kind: every write names the revision or the object it changes."""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import msgspec

from natsctl.errors import (
    ConflictError,
    FieldConflictError,
    InvalidKeyError,
    InvalidObjectError,
    NotFoundError,
    StoreError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.kubernetes.api_errors import KindMissingError
from natsctl.kubernetes.codec import PARTIAL, ObjectDecoder, read_managed_fields, takeover
from natsctl.kubernetes.discovery import ApiResource, Discovery
from natsctl.kubernetes.transport import MERGE_PATCH, READS, Reply, Transport
from natsctl.kubernetes.watch import TIMEOUT_S, Incarnation, KubeWatch
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.managed_fields import ManagedFields, same_family
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.store import UNGUARDED, Deleted, Stored, WatchEvent, WriteGuard

MANAGER = "natsctl"  # the field manager of statuses, creates and updates
DELETE_ATTEMPTS = 5  # attempts while other clients write the object
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is valid YAML
NO_REVISION = "1"  # the revision of an empty etcd, which no object has
REVISION_REJECTED = "resourceVersion should not be set"  # some kinds reject NO_REVISION with this
_NOT_APPLIED = ("resourceVersion", "uid", "managedFields")


class KubeStore:
    """The `ManifestStore` of one Kubernetes kind. `Kube.open` makes it.

    Every call asks *discovery* for the kind, so a kind that was defined since, or defined again
    with another plural, scope or status, is found. Every write asks *guard* first; if that permits
    only dry runs, the server checks each write, and stores nothing.

    A creation by an apply takes one request, whose patch has a revision that no object has. If the
    object doesn't exist, the server creates it and assigns a revision. If it does, that's a
    conflict.

    The requests don't set `fieldValidation`. For built-in kinds the server rejects an apply with
    unknown fields anyway; for custom resources it drops such fields and sends a warning.
    """

    def __init__(
        self,
        transport: Transport,
        discovery: Discovery,
        kind: KubeKind[Any],
        incarnation: Incarnation,
        *,
        guard: WriteGuard = UNGUARDED,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.kind: KubeKind[Any] = kind
        self._transport = transport
        self._discovery = discovery
        self._guard = guard
        self._decoder = ObjectDecoder(kind)
        self._creates_with_revision = True  # until the server rejects it for this kind
        self._watch = KubeWatch(
            transport,
            kind,
            self._decoder,
            incarnation,
            path=self._watch_path,
            forget=self._forget,
            timeout_s=timeout_s,
        )

    async def get(self, key: str) -> Stored:
        return await self._read(await self._path(key))

    async def create(self, key: str, value: bytes) -> Stored:
        """See `Store.create`. The key sets the name, whatever name the value has."""
        resource = await self._resource()
        document = self._document(resource, key, value)
        collection = resource.all(resource.parts(key)[0])
        return await self._write("POST", collection, resource.one(key), document)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """See `Store.update`. A status subresource is unchanged: only `patch_status` writes it."""
        if self.kind.metadata_only:
            raise UsageError(f"cannot update {self.kind.name}: only its metadata is read")
        resource = await self._resource()
        path = resource.one(self._checked(key))
        document = self._document(resource, key, value, resourceVersion=str(revision))
        try:
            if "uid" not in documents.metadata_of(document):
                # for some kinds an update without a uid would create a missing object
                stored = await self._read(path)
                document = _with_metadata(document, uid=self.kind.metadata(stored.value).uid)
            return await self._write("PUT", path, path, document)
        except NotFoundError as error:
            raise ConflictError(f"{key} of {self.kind.name} was deleted in the meantime") from error

    async def delete(
        self,
        key: str,
        *,
        revision: int | None = None,
        uid: str = "",
        purge: bool = False,  # noqa: ARG002 - a cluster keeps no history
    ) -> int:
        """See `Store.delete`. Returns the revision of the deleted object.

        An object with finalizers is only marked as deleted. The kind's propagation policy decides
        about its dependents.
        """
        path = await self._path(key)
        for attempt in range(1, DELETE_ATTEMPTS + 1):
            newest = (await self._read(path)).revision if revision is None else revision
            try:
                return await self._delete(path, key, newest, uid)
            except ConflictError:
                if revision is not None or attempt == DELETE_ATTEMPTS:
                    raise
        raise AssertionError

    async def history(self, key: str) -> list[Stored | Deleted]:
        try:
            return [await self.get(key)]
        except NotFoundError:
            return []

    def watch(
        self,
        shown: Collection[str] | None = None,  # noqa: ARG002 - it compares no keys
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        return self._watch()

    async def locate(self, manifest: Document) -> str:
        key, _ = await self._located(manifest)
        return key

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        _, path = await self._located(manifest)
        metadata = documents.metadata_of(manifest)
        applied = {name: value for name, value in metadata.items() if name not in _NOT_APPLIED}
        document: Document = {**manifest, "metadata": applied}
        if uid:
            return await self._change(path, _with_metadata(document, uid=uid), manager, force=force)
        try:
            return await self._create(path, document, manager)
        except StoreTimeoutError as unknown:
            return await self._read_back(path, document, unknown)

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        """See `ManifestStore.check_create`. Unlike an apply, it needs no permission to patch."""
        resource = await self._resource()
        path = resource.all(resource.parts(self.kind.key_of(manifest))[0])
        await self._send("POST", path, manifest, manager, dryRun="All", safe=True)

    async def managed(self, key: str) -> ManagedFields:
        return read_managed_fields(await self._read_metadata(await self._path(key)))

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        """See `ManifestStore.patch_status`. Works with and without a status subresource."""
        resource = await self._resource()
        subresource = "status" if resource.has_status else ""
        path = resource.one(self._checked(key), subresource)
        body: Document = {"status": patch}
        if revision is not None:
            body["metadata"] = {"resourceVersion": str(revision)}
        return self._decoder.sent(
            await self._send("PATCH", path, body, MANAGER, MERGE_PATCH, safe=revision is None)
        )

    # ---- places

    async def _resource(self) -> ApiResource:
        find = self._discovery.find_optional if self.kind.optional else self._discovery.find
        resource = await find(self.kind.api_version, self.kind.kind)
        if self.kind.namespace is not None and not resource.namespaced:
            raise UsageError(
                f"{self.kind.name} is cluster-scoped: declare it without namespace "
                f"{self.kind.namespace!r}"
            )
        return resource

    async def _located(self, manifest: Document) -> tuple[str, str]:
        key = self.kind.key_of(manifest)
        try:
            return key, await self._path(key)
        except InvalidKeyError as error:
            raise InvalidObjectError(f"invalid manifest of {self.kind.name}: {error}") from error

    async def _path(self, key: str) -> str:
        return (await self._resource()).one(self._checked(key))

    async def _watch_path(self) -> str:
        return (await self._resource()).all(self.kind.namespace or "")

    def _checked(self, key: str) -> str:
        if not self.kind.holds(key):
            pattern = joined(self.kind.namespace or "", self.kind.object_name or "*")
            raise InvalidKeyError(f"key {key!r} of {self.kind.name} does not match {pattern}")
        return key

    def _document(self, resource: ApiResource, key: str, value: bytes, **metadata: str) -> Document:
        document = documents.parse(value)
        namespace, name = resource.parts(self._checked(key))
        kept = dict(documents.metadata_of(document))
        for replaced in ("resourceVersion", "managedFields", "namespace"):
            kept.pop(replaced, None)
        place = {"namespace": namespace} if namespace else {}
        return {
            **document,
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "metadata": {**kept, "name": name, **place, **metadata},
        }

    def _forget(self) -> None:
        self._discovery.forget(self.kind.api_version)

    # ---- requests

    async def _call(self, method: str, path: str, **options: Any) -> Reply:
        if self._guard.dry_run and method not in READS:
            if method == "DELETE":
                # a deletion has its options in its body; the server then ignores those in the query
                body = msgspec.json.decode(options["body"], type=dict[str, object])
                options["body"] = msgspec.json.encode({**body, "dryRun": ["All"]})
            else:
                options["query"] = {**options["query"], "dryRun": "All"}
        call = partial(self._transport.call, method, path, **options)
        try:
            return await (call() if method in READS else self._guard.send(self.kind, call))
        except KindMissingError:
            self._forget()
            raise

    async def _read(self, path: str) -> Stored:
        reply = await self._call("GET", path, accept=self._decoder.accept)
        return self._decoder.stored(reply.body)

    async def _read_metadata(self, path: str) -> bytes:
        return (await self._call("GET", path, accept=PARTIAL.format(""))).body

    async def _existing(self, path: str) -> Stored | None:
        try:
            return await self._read(path)
        except NotFoundError:
            return None

    async def _read_back(self, path: str, document: Document, unknown: StoreTimeoutError) -> Stored:
        """Return the object at *path* if it has the fields of *document*; else raise *unknown*."""
        stored = await self._existing(path)
        desired = {name: value for name, value in document.items() if name != "status"}
        written = documents.without_metadata(desired, documents.SERVERS_OWN)
        if stored is None or documents.view(written, documents.parse(stored.value)) != written:
            raise unknown
        return stored

    async def _send(
        self,
        method: str,
        path: str,
        document: object,
        manager: str,
        content_type: str = "application/json",
        *,
        safe: bool = False,
        **query: str,
    ) -> bytes:
        reply = await self._call(
            method,
            path,
            query={"fieldManager": manager, **query},
            body=documents.render(document),
            content_type=content_type,
            accept=self._decoder.accept,
            safe=safe,
        )
        return reply.body

    async def _write(self, method: str, path: str, object_path: str, document: Document) -> Stored:
        try:
            return self._decoder.sent(await self._send(method, path, document, MANAGER))
        except StoreTimeoutError as unknown:
            return await self._read_back(object_path, document, unknown)

    async def _delete(self, path: str, key: str, revision: int, uid: str) -> int:
        preconditions = {"resourceVersion": str(revision), **({"uid": uid} if uid else {})}
        options: Document = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": self.kind.propagation,
        }
        try:
            reply = await self._call("DELETE", path, body=documents.render(options))
        except NotFoundError as error:
            raise ConflictError(f"{key} of {self.kind.name} was deleted in the meantime") from error
        except StoreTimeoutError:
            stored = await self._existing(path)
            if stored is not None and not self.kind.metadata(stored.value).deletion_timestamp:
                raise
            return revision
        # an object that was marked as deleted before, and has finalizers, keeps its revision
        metadata = documents.metadata_of(documents.parse(reply.body))
        waits = metadata.get("finalizers") and metadata.get("resourceVersion") == str(revision)
        return revision - 1 if waits else revision

    # ---- server-side apply

    async def _create(self, path: str, document: Document, manager: str) -> Stored:
        if self._creates_with_revision:
            marked = _with_metadata(document, resourceVersion=NO_REVISION)
            try:
                # without force, a conflict of fields would hide the conflict of the revision
                return self._decoder.sent(await self._patch(path, marked, manager, force=True))
            except ConflictError:
                pass  # it exists, unless it was deleted since
            except StoreError as rejected:
                if REVISION_REJECTED not in str(rejected):
                    raise
                self._creates_with_revision = False
        if await self._existing(path) is not None:
            raise ConflictError(f"{path} exists")
        return self._decoder.sent(await self._patch(path, document, manager))

    async def _change(self, path: str, document: Document, manager: str, *, force: bool) -> Stored:
        try:
            return await self._update(path, document, manager, force=force)
        except InvalidObjectError as invalid:
            uid = documents.metadata_of(document)["uid"]
            stored = await self._existing(path)
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
            response = await self._read_metadata(path)
        if patch := takeover(response, manager):
            await self._send("PATCH", path, patch, manager, JSON_PATCH)
            response = await self._patch(path, document, manager, force=force, safe=True)
        return self._decoder.sent(response)

    async def _patch(
        self,
        path: str,
        document: Document,
        manager: str,
        *,
        force: bool = False,
        safe: bool = False,
    ) -> bytes:
        query = {"force": "true"} if force else {}
        return await self._send("PATCH", path, document, manager, APPLY_PATCH, safe=safe, **query)


def _with_metadata(document: Document, **metadata: str) -> Document:
    return {**document, "metadata": {**documents.metadata_of(document), **metadata}}


def _with_allocated_address(document: Document, live: Document) -> Document | None:
    """Return a Service's manifest with the live address instead of an empty `clusterIP`.

    Returns None for any other manifest. At a creation, an empty `clusterIP` makes the server
    allocate an address. Older servers reject it in later applies, because an address can't be
    unset.
    """
    spec, live_spec = document.get("spec"), live.get("spec")
    if not (document.get("kind") == "Service" and isinstance(spec, dict)):
        return None
    address = live_spec.get("clusterIP") if isinstance(live_spec, dict) else None
    if spec.get("clusterIP") != "" or not address:
        return None
    return {**document, "spec": {**spec, "clusterIP": address}}
