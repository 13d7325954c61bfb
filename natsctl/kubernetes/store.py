"""The store of one Kubernetes kind: every write names the revision or the object it changes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any

from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    InvalidObjectError,
    NotFoundError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.kubernetes.apply import Exchange, read_managed_fields, with_metadata
from natsctl.kubernetes.codec import ObjectDecoder
from natsctl.kubernetes.discovery import ApiResource, Paths, paths_of
from natsctl.kubernetes.transport import MERGE_PATCH, Wire
from natsctl.kubernetes.watch import TIMEOUT_S, Incarnation, KubeWatch
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.store import Deleted, Stored, WatchEvent

MANAGER = "natsctl"  # the field manager of statuses, creates and updates
DELETE_ATTEMPTS = 5  # attempts while other clients write the object

Find = Callable[[str, str], Awaitable[ApiResource]]


class KubeStore:
    """The `ManifestStore` of one Kubernetes kind. `Kube.open` makes it.

    The constructor sends no request. Every call looks the kind up with *find*, so a kind that was
    defined since is found.
    """

    def __init__(
        self,
        wire: Wire,
        kind: KubeKind[Any],
        find: Find,
        incarnation: Incarnation,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.kind: KubeKind[Any] = kind
        self._wire = wire
        self._find = find
        self._decoder = ObjectDecoder(kind)
        self._exchange = Exchange(wire, self._decoder)
        self._watch = KubeWatch(
            wire, kind, self._decoder, self._watch_path, incarnation, timeout_s=timeout_s
        )

    async def get(self, key: str) -> Stored:
        """See `Store.get`. The server keeps no trace of a deleted object."""
        return await self._exchange.read(await self._path(key))

    async def create(self, key: str, value: bytes) -> Stored:
        """See `Store.create`. The key sets the name, whatever name the value has."""
        paths = await self._paths()
        document = self._document(paths, key, value)
        return await self._write("POST", paths.collection(key), paths.one(key), document)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """See `Store.update`. A status subresource is unchanged: only `patch_status` writes it."""
        if self.kind.metadata_only:
            raise UsageError(f"cannot update {self.kind.name}: only its metadata is read")
        paths = await self._paths()
        path = paths.one(self._checked(key))
        document = self._document(paths, key, value, resourceVersion=str(revision))
        try:
            if "uid" not in documents.metadata_of(document):
                # for some kinds an update without a uid would create a missing object
                stored = await self._exchange.read(path)
                document = with_metadata(document, uid=self.kind.metadata(stored.value).uid)
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
        if revision is not None:
            return await self._delete(path, key, revision, uid)
        for _ in range(DELETE_ATTEMPTS - 1):
            newest = (await self._exchange.read(path)).revision
            try:
                return await self._delete(path, key, newest, uid)
            except ConflictError:
                continue  # another client changed it
        return await self._delete(path, key, (await self._exchange.read(path)).revision, uid)

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`; a cluster keeps only the newest state."""
        try:
            return [await self.get(key)]
        except NotFoundError:
            return []

    def watch(
        self,
        shown: Collection[str] | None = None,  # noqa: ARG002 - it compares no keys
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """See `Store.watch` and `KubeWatch`."""
        return self._watch()

    async def locate(self, manifest: Document) -> str:
        key, _ = await self._located(manifest)
        return key

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        """See `ManifestStore.apply`, and `Exchange`."""
        _, path = await self._located(manifest)
        return await self._exchange.apply(path, manifest, manager=manager, uid=uid, force=force)

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        """See `ManifestStore.check_create`. Unlike an apply, it needs no permission to patch."""
        paths = await self._paths()
        await self._exchange.send(
            "POST",
            paths.collection(self.kind.key_of(manifest)),
            manifest,
            manager=manager,
            dry_run=True,
            safe=True,
        )

    async def managed(self, key: str) -> ManagedFields:
        return read_managed_fields(await self._exchange.read_metadata(await self._path(key)))

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        """See `ManifestStore.patch_status`. Works with and without a status subresource."""
        resource = await self._resource()
        subresource = "status" if resource.has_status else ""
        path = paths_of(resource, self.kind).one(self._checked(key), subresource)
        body: Document = {"status": patch}
        if revision is not None:
            body["metadata"] = {"resourceVersion": str(revision)}
        response = await self._exchange.send(
            "PATCH",
            path,
            body,
            manager=MANAGER,
            content_type=MERGE_PATCH,
            safe=revision is None,
        )
        return self._decoder.sent(response)

    async def _resource(self) -> ApiResource:
        return await self._find(self.kind.api_version, self.kind.kind)

    async def _located(self, manifest: Document) -> tuple[str, str]:
        key = self.kind.key_of(manifest)
        try:
            return key, await self._path(key)
        except InvalidKeyError as error:
            raise InvalidObjectError(f"invalid manifest of {self.kind.name}: {error}") from error

    async def _paths(self) -> Paths:
        return paths_of(await self._resource(), self.kind)

    async def _path(self, key: str) -> str:
        return (await self._paths()).one(self._checked(key))

    async def _watch_path(self) -> str:
        return (await self._paths()).all(self.kind.namespace or "")

    def _checked(self, key: str) -> str:
        if not self.kind.holds(key):
            pattern = joined(self.kind.namespace or "", self.kind.object_name or "*")
            raise InvalidKeyError(f"key {key!r} of {self.kind.name} does not match {pattern}")
        return key

    def _document(self, paths: Paths, key: str, value: bytes, **metadata: str) -> Document:
        """Return *value* as a document with the type, the name and the namespace of this key."""
        document = documents.parse(value)
        namespace, name = paths.parts(self._checked(key))
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

    async def _write(self, method: str, path: str, object_path: str, document: Document) -> Stored:
        """Send the document to *path*; read a lost response back from *object_path*."""
        try:
            response = await self._exchange.send(method, path, document, manager=MANAGER)
        except StoreTimeoutError as unknown:
            return await self._exchange.read_back(object_path, document, unknown)
        return self._decoder.sent(response)

    async def _delete(self, path: str, key: str, revision: int, uid: str) -> int:
        preconditions = {"resourceVersion": str(revision), **({"uid": uid} if uid else {})}
        options: Document = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": self.kind.propagation,
        }
        try:
            reply = await self._wire.call("DELETE", path, body=documents.render(options))
        except NotFoundError as error:
            raise ConflictError(f"{key} of {self.kind.name} was deleted in the meantime") from error
        except StoreTimeoutError:
            stored = await self._exchange.find(path)
            if stored is not None and not self.kind.metadata(stored.value).deletion_timestamp:
                raise
            return revision
        # an object that was marked as deleted before, and has finalizers, keeps its revision
        metadata = documents.metadata_of(documents.parse(reply.body))
        waits = metadata.get("finalizers") and metadata.get("resourceVersion") == str(revision)
        return revision - 1 if waits else revision
