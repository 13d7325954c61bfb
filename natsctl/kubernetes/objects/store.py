"""Objects in a cluster: every write names the state, or the object, that it is meant for."""

from collections.abc import AsyncIterator, Awaitable, Callable
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
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.objects.apply import Applier
from natsctl.kubernetes.objects.exchange import Exchange, with_metadata
from natsctl.kubernetes.objects.managers import managed
from natsctl.kubernetes.resources.codec import ObjectDecoder
from natsctl.kubernetes.resources.discovery import ApiResource
from natsctl.kubernetes.resources.paths import Paths, paths_of
from natsctl.kubernetes.watch.listing import Incarnation
from natsctl.kubernetes.watch.stream import TIMEOUT_S
from natsctl.kubernetes.watch.watch import KubeWatch
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.store import Deleted, Stored, WatchEvent

MERGE_PATCH = "application/merge-patch+json"
MANAGER = "natsctl"  # of statuses, and of what is created and updated without an apply
DELETE_TRIES = 5  # to delete an object that others write meanwhile

Find = Callable[[str, str], Awaitable[ApiResource]]


class KubeStore:
    """The `ManifestStore` of one Kubernetes kind; made by `Kube.open`.

    Nothing is asked of the server before the first call, and every call finds a kind that came
    meanwhile; `find` tells what the server calls it.
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
        self._kind = kind
        self._wire = wire
        self._find = find
        self._exchange = Exchange(wire, ObjectDecoder(kind))
        self._applier = Applier(self._exchange)
        self._watch = KubeWatch(wire, kind, self._watched, incarnation, timeout_s=timeout_s)

    async def get(self, key: str) -> Stored:
        """See `Store.get`: of what was deleted the server keeps no trace."""
        return await self._exchange.read(await self._path(key))

    async def create(self, key: str, value: bytes) -> Stored:
        """See `Store.create`: the key says how the object is called, whatever the value says."""
        paths = await self._paths()
        document = self._document(paths, key, value)
        return await self._write("POST", paths.beside(key), paths.one(key), document)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """See `Store.update`: a status that only `patch_status` can change stays as it is."""
        if self._kind.metadata_only:
            raise UsageError(f"of {self.kind.name} only metadata is read: it cannot be replaced")
        paths = await self._paths()
        path = paths.one(self._own(key))
        document = self._document(paths, key, value, resourceVersion=str(revision))
        try:
            if "uid" not in documents.metadata_of(document):
                # of some kinds, a server creates what it is to replace, unless it is told which
                document = with_metadata(document, uid=await self._uid(path))
            return await self._write("PUT", path, path, document)
        except NotFoundError as gone:
            raise ConflictError(f"{key} of {self.kind.name} was deleted meanwhile") from gone

    async def delete(
        self,
        key: str,
        *,
        revision: int | None = None,
        uid: str = "",
        purge: bool = False,  # noqa: ARG002 - a cluster keeps no history to forget
    ) -> int:
        """See `Store.delete`: returns the revision that was deleted.

        An object with finalizers is only marked, and what depends on it goes as the kind says.
        """
        path = await self._path(key)
        if revision is not None:
            return await self._delete(path, key, revision, uid)
        for _ in range(DELETE_TRIES - 1):
            newest = (await self._exchange.read(path)).revision
            try:
                return await self._delete(path, key, newest, uid)
            except ConflictError:
                continue  # it was written, or deleted, meanwhile
        return await self._delete(path, key, (await self._exchange.read(path)).revision, uid)

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`: the newest state, where the object exists."""
        try:
            return [await self.get(key)]
        except NotFoundError:
            return []

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """See `Store.watch` and `KubeWatch`."""
        return self._watch()

    async def locate(self, manifest: Document) -> str:
        """See `ManifestStore.locate`."""
        key, _ = await self._located(manifest)
        return key

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        """See `ManifestStore.apply`, and `Applier`."""
        _, path = await self._located(manifest)
        return await self._applier.apply(path, manifest, manager=manager, uid=uid, force=force)

    async def managed(self, key: str) -> ManagedFields:
        """See `ManifestStore.managed`."""
        return managed(await self._exchange.managed(await self._path(key)))

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        """See `ManifestStore.patch_status`; kinds without that subresource have it within."""
        resource = await self._resource()
        path = paths_of(resource, self._kind).one(
            self._own(key), "status" if resource.has_status else ""
        )
        body: Document = {"status": patch}
        if revision is not None:
            body["metadata"] = {"resourceVersion": str(revision)}
        return await self._exchange.send(
            "PATCH",
            path,
            body,
            manager=MANAGER,
            content_type=MERGE_PATCH,
            safe=revision is None,
        )

    async def _resource(self) -> ApiResource:
        return await self._find(self._kind.api_version, self._kind.kind)

    async def _located(self, manifest: Document) -> tuple[str, str]:
        """Return the key and the path of the object that the manifest describes."""
        metadata = documents.metadata_of(manifest)
        namespace = metadata.get("namespace") or self._kind.namespace or ""
        key = joined(str(namespace), str(metadata.get("name") or ""))
        try:
            return key, (await self._paths()).one(self._own(key))
        except InvalidKeyError as error:
            raise InvalidObjectError(f"a manifest of {self.kind.name} says: {error}") from error

    async def _paths(self) -> Paths:
        return paths_of(await self._resource(), self._kind)

    async def _path(self, key: str) -> str:
        return (await self._paths()).one(self._own(key))

    async def _watched(self) -> str:
        return (await self._paths()).all(self._kind.namespace or "")

    def _own(self, key: str) -> str:
        if not self._kind.holds(key):
            part = joined(self._kind.namespace or "", self._kind.object_name or "*")
            raise InvalidKeyError(f"key {key!r} is none of {self.kind.name}: {part}")
        return key

    def _document(self, paths: Paths, key: str, value: bytes, **metadata: str) -> Document:
        """Return *value* as the document of the object with this key."""
        document = documents.parse(value)
        namespace, name = paths.parts(self._own(key))
        given = dict(documents.metadata_of(document))
        for ours in ("resourceVersion", "managedFields", "namespace"):
            given.pop(ours, None)
        place = {"namespace": namespace} if namespace else {}
        return {
            **document,
            "apiVersion": self._kind.api_version,
            "kind": self._kind.kind,
            "metadata": {**given, "name": name, **place, **metadata},
        }

    async def _write(self, method: str, path: str, at: str, document: Document) -> Stored:
        """Send the object that is to be found *at* a path then."""
        try:
            return await self._exchange.send(method, path, document, manager=MANAGER)
        except StoreTimeoutError as unknown:
            return await self._exchange.written(at, document, unknown)

    async def _delete(self, path: str, key: str, revision: int, uid: str) -> int:
        only = {"resourceVersion": str(revision), **({"uid": uid} if uid else {})}
        options: Document = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": only,
            "propagationPolicy": self._kind.propagation,
        }
        try:
            reply = await self._wire.call("DELETE", path, body=documents.render(options))
        except NotFoundError as gone:
            raise ConflictError(f"{key} of {self.kind.name} was deleted meanwhile") from gone
        except StoreTimeoutError:
            if await self._stands(path):
                raise
            return revision
        return _left_behind(documents.parse(reply.body), revision)

    async def _uid(self, path: str) -> str:
        """Return which object is at *path*; raises `NotFoundError`."""
        return self._kind.metadata((await self._exchange.read(path)).value).uid

    async def _stands(self, path: str) -> bool:
        """Say whether the object is there, and not about to go."""
        stored = await self._exchange.find(path)
        return stored is not None and not self._kind.metadata(stored.value).deletion_timestamp


def _left_behind(answer: Document, revision: int) -> int:
    """Return the revision that nobody sees any more after a deletion that was answered so.

    An object that was marked before, and waits for its finalizers, stays as it is.
    """
    metadata = documents.metadata_of(answer)
    waits = metadata.get("finalizers") and metadata.get("resourceVersion") == str(revision)
    return revision - 1 if waits else revision
