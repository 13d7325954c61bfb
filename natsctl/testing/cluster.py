"""Keeps the objects of a cluster in memory by the rules of a kube-apiserver.

Writes are applies, with preconditions and finalizers. Lists are one value here, where a real server
merges some of them by the names of their items. Nothing is defaulted, and every kind exists and
has a status.
"""

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from natsctl.errors import (
    ConflictError,
    FieldConflictError,
    ImmutableFieldError,
    InvalidObjectError,
    NotFoundError,
    StoreMissingError,
    UsageError,
)
from natsctl.kubernetes.names import guessed, well_known
from natsctl.model import documents
from natsctl.model.documents import Document, metadata_of
from natsctl.model.kinds import Kind
from natsctl.model.managed_fields import FieldManager, ManagedFields, same_family
from natsctl.model.manifests import KubeKind, joined, split
from natsctl.model.store import (
    UNGUARDED,
    Applied,
    Deleted,
    Guarded,
    Listed,
    Listing,
    Stored,
    WatchEvent,
    WriteGuard,
)
from natsctl.model.times import time_text
from natsctl.testing.watched import MemoryRecorder, WatchedObjects, WatchedStore

Path = tuple[str, ...]
ObjectChange = tuple[Document | None, Document, int]  # before, after (or last), revision

MANAGER = "natsctl"  # the field manager of writes that replace a whole object
SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "deletionTimestamp")
"""The metadata fields that only the server sets."""

_IDENTITY = {
    ("apiVersion",),
    ("kind",),
    *(("metadata", name) for name in ("name", "namespace", *SERVERS_OWN)),
}


class MemoryResource(msgspec.Struct, frozen=True):
    """The resource of a kind; a `ResourceType`."""

    plural: str
    namespaced: bool = True
    verbs: frozenset[str] = frozenset({"get", "list", "watch", "create", "update", "delete"})


class MemoryKinds:
    """The resources of all kinds.

    By default, every kind exists, has its well-known or regular plural, and is namespaced unless it
    is a well-known cluster-scoped kind. `define` and `remove` change that for one kind.
    """

    def __init__(self) -> None:
        self.lookups = 0
        self._defined: dict[tuple[str, str], MemoryResource | None] = {}

    def define(self, api_version: str, kind: str, resource: MemoryResource) -> None:
        self._defined[api_version, kind] = resource

    def remove(self, api_version: str, kind: str) -> None:
        """Remove a kind until it is defined again."""
        self._defined[api_version, kind] = None

    def resource(self, api_version: str, kind: str) -> MemoryResource:
        """Return the resource of a kind; raises `StoreMissingError` if the kind was removed."""
        self.lookups += 1
        name = well_known(api_version, kind) or guessed(api_version, kind, "")
        regular = MemoryResource(name.plural, name.namespaced is not False)
        resource = self._defined.get((api_version, kind), regular)
        if resource is None:
            raise StoreMissingError(f"there is no kind {kind} in {api_version}")
        return resource


class MemoryCluster(Guarded):
    """Stores in memory, one per kind; a `ManifestStores`. `kinds` has their names and scopes."""

    def __init__(self, events: MemoryRecorder) -> None:
        self.events = events
        self.kinds = MemoryKinds()
        self._kinds: dict[tuple[str, str], _Objects] = {}

    async def open(self, kind: Kind[Any]) -> "MemoryManifestStore":
        if not isinstance(kind, KubeKind):
            raise UsageError(f"{kind.name} is not a Kubernetes kind")
        return self.store(kind)

    def store(self, kind: KubeKind[Any]) -> "MemoryManifestStore":
        named = kind.api_version, kind.kind
        if named not in self._kinds:
            self._kinds[named] = _Objects()
        return MemoryManifestStore(kind, self._kinds[named], self.kinds, guard=self.guard)

    @property
    def delivered(self) -> bool:
        """True if every open watch has yielded every change."""
        return all(objects.delivered for objects in self._kinds.values())

    async def resource(self, api_version: str, kind: str) -> MemoryResource:
        await asyncio.sleep(0)
        return self.kinds.resource(api_version, kind)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[MemoryRecorder]:  # noqa: ARG002 - one recorder serves all
        yield self.events.guarded(self.guard)


class MemoryManifestStore(WatchedStore[KubeKind[Any], ObjectChange]):
    """Keeps the objects of one kind of a cluster in this process; a `ManifestStore`.

    Tests inject faults: `break_watches` is a lost connection, `fail` a server that rejects every
    request.
    """

    def __init__(
        self,
        kind: KubeKind[Any],
        objects: "_Objects",
        kinds: MemoryKinds,
        *,
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        super().__init__(kind, objects, guard)
        self._objects = objects
        self._kinds = kinds

    async def get(self, key: str) -> Stored:
        await self._pass()
        return self._stored(self._objects, self._existing(self._objects, key))

    async def create(self, key: str, value: bytes) -> Stored:
        objects = await self._writable()
        split(key)
        if key in objects.by_key:
            raise ConflictError(f"{self.kind.name} {key} exists")
        created = self._named(key, documents.parse(value))
        objects.take_over(key, {}, created)
        return self._stored(objects, objects.put(key, created))

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        objects = await self._writable()
        before = self._expect(objects, key, revision)
        after = self._named(key, {**documents.parse(value), "status": before.get("status")})
        self._check_immutable(before, after)
        objects.take_over(key, before, after)
        return self._stored(objects, objects.put(key, after))

    async def delete(
        self,
        key: str,
        *,
        revision: int | None = None,
        uid: str = "",
        purge: bool = False,  # noqa: ARG002 - there is no history
    ) -> int:
        """See `Store.delete`; the last finalizer removes an object that has finalizers."""
        objects = await self._writable()
        before = self._existing(objects, key)
        if revision is not None:
            self._expect(objects, key, revision)
        if uid and uid != metadata_of(before)["uid"]:
            raise ConflictError(f"{key} of {self.kind.name} is a different object now")
        if documents.finalizers_of(before):
            marked = {"deletionTimestamp": _now(), **metadata_of(before)}
            objects.put(key, {**before, "metadata": marked})
        else:
            objects.remove(key)
        newest = int(str(metadata_of(before)["resourceVersion"]))
        return newest if objects.by_key.get(key) is not before else newest - 1

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`; a cluster keeps only the newest state."""
        await self._pass()
        document = self._objects.by_key.get(key)
        return [] if document is None else [self._stored(self._objects, document)]

    async def locate(self, manifest: Document) -> str:
        metadata = metadata_of(manifest)
        namespace = str(metadata.get("namespace") or self.kind.namespace or "")
        namespaced = self._kinds.resource(self.kind.api_version, self.kind.kind).namespaced
        if namespaced != bool(namespace):
            mismatch = "a namespace and the manifest none" if namespaced else "no namespace"
            raise InvalidObjectError(f"a {self.kind.name} has {mismatch}: {metadata.get('name')}")
        return joined(namespace, str(metadata["name"]))

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        objects = await self._writable()
        return await self._apply(objects, manifest, manager, uid=uid, force=force)

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        await self._pass(writes=not self._guard.dry_run)
        await self._apply(self._objects.copied(), manifest, manager)

    async def managed(self, key: str) -> ManagedFields:
        await self._pass()
        revision = int(str(metadata_of(self._existing(self._objects, key))["resourceVersion"]))
        managers = self._objects.managers.get(key, {}).items()
        entries = (
            FieldManager(name, name != MANAGER, _fields_v1(paths)) for name, paths in managers
        )
        return ManagedFields(revision, tuple(entries))

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        objects = await self._writable()
        before = self._existing(objects, key)
        if revision is not None:
            self._expect(objects, key, revision)
        return self._stored(objects, objects.put(key, documents.with_status(before, patch)))

    def keys(self) -> list[str]:
        """Return the keys of the objects that the kind selects, in order."""
        return sorted(
            key for key, document in self._objects.by_key.items() if self._shows(document)
        )

    def stored(self) -> list[Stored]:
        """Return the objects that the kind selects, in the order of their keys."""
        return [self._stored(self._objects, self._objects.by_key[key]) for key in self.keys()]

    def document(self, key: str) -> Document:
        """Return the stored object; raises `NotFoundError` if it doesn't exist."""
        return self._existing(self._objects, key)

    @property
    def applies(self) -> int:
        """The number of applies, including those that changed nothing."""
        return self._objects.applies

    def mutate(self, change: Callable[[Document], Document] | None) -> None:
        """Store what *change* returns for each written object, until this is called with None.

        A mutating webhook, and the normal forms of a server, change objects in this way.
        """
        self._objects.mutation = change

    def restore(self, objects: Iterable[Stored]) -> None:
        """Add objects with their revisions, as from a recording; watches don't show them."""
        for stored in objects:
            self._objects.by_key[stored.key] = documents.parse(stored.value)
            self._objects.revision = max(self._objects.revision, stored.revision)

    async def _writable(self) -> "_Objects":
        """Yield to other tasks, and return what to write: a copy if a guard permits no more."""
        await self._pass(writes=not self._guard.dry_run)
        return self._objects.copied() if self._guard.dry_run else self._objects

    async def _apply(
        self,
        objects: "_Objects",
        manifest: Document,
        manager: str,
        *,
        uid: str = "",
        force: bool = False,
    ) -> Stored:
        key = await self.locate(manifest)
        before = objects.by_key.get(key)
        if (before is None) != (not uid) or (before and metadata_of(before)["uid"] != uid):
            raise ConflictError(f"{key} of {self.kind.name} is a different object now, or deleted")
        objects.applies += 1
        before = before or {}
        manifest = documents.without(manifest, "status")
        wanted, stored = dict(leaves(manifest)), dict(leaves(before))
        changed = {path for path, value in wanted.items() if stored.get(path, value) != value}
        managers = objects.managers.setdefault(key, {})
        if not force:
            self._check_fields(key, changed, managers, manager)
        former = [name for name in managers if name != manager and same_family(manager, name)]
        applied = managers.get(manager, set()).union(*(managers[name] for name in former))
        other_managers = {
            name: paths - changed
            for name, paths in managers.items()
            if name not in (manager, *former)
        }
        removed = applied - wanted.keys() - set().union(*other_managers.values())
        for path in removed:
            before = pruned(before, path)
        after = documents.merge_patch(before, manifest)
        self._check_immutable(objects.by_key.get(key) or {}, after)
        objects.managers[key] = {**other_managers, manager: set(wanted)}
        return self._stored(objects, objects.put(key, after))

    def _check_fields(
        self, key: str, changed: set[Path], managers: dict[str, set[Path]], manager: str
    ) -> None:
        conflicts = {
            (name, f".{'.'.join(path)}"): None
            for name, paths in managers.items()
            for path in sorted(paths & changed)
            if name != manager
        }
        if conflicts and not all(same_family(manager, name) for name, _ in conflicts):
            text = ", ".join(f"{name} manages {field}" for name, field in conflicts)
            other_managers, fields = (
                tuple(dict.fromkeys(parts)) for parts in zip(*conflicts, strict=True)
            )
            raise FieldConflictError(f"{self.kind.name} {key}: {text}", other_managers, fields)

    def _check_immutable(self, before: Document, after: Document) -> None:
        """Reject a change of an immutable ConfigMap or Secret, as a kube-apiserver does."""
        if before.get("immutable") is True and self.kind.kind in ("ConfigMap", "Secret"):
            names = ("immutable", "data", "binaryData", "type")
            fields = tuple(name for name in names if before.get(name) != after.get(name))
            if fields:
                text = ", ".join(f"{name}: field is immutable" for name in fields)
                raise ImmutableFieldError(f"{self.kind.name}: {text}", fields)

    def _existing(self, objects: "_Objects", key: str) -> Document:
        split(key)
        document = objects.by_key.get(key)
        if document is None:
            raise NotFoundError(f"there is no {self.kind.name} {key}")
        return document

    def _expect(self, objects: "_Objects", key: str, revision: int) -> Document:
        document = objects.by_key.get(key)
        if document is None or metadata_of(document)["resourceVersion"] != str(revision):
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        return document

    def _named(self, key: str, document: Document) -> Document:
        namespace, name = split(key)
        place = {"name": name, **({"namespace": namespace} if namespace else {})}
        settable = documents.without(metadata_of(document), *SERVERS_OWN)
        own = {"apiVersion": self.kind.api_version, "kind": self.kind.kind}
        named = {**document, **own, "metadata": {**settable, **place}}
        return {name: value for name, value in named.items() if value is not None}

    def _stored(self, objects: "_Objects", document: Document) -> Stored:
        metadata = metadata_of(document)
        shown = document
        key = joined(str(metadata.get("namespace", "")), str(metadata["name"]))
        if self.kind.metadata_only:
            shown = {k: v for k, v in document.items() if k in {"apiVersion", "kind", "metadata"}}
        if self.kind.managed_fields:
            managed = [
                {"manager": name, "operation": "Apply", "fields": sorted(map(".".join, paths))}
                for name, paths in sorted(objects.managers.get(key, {}).items())
            ]
            shown = {**shown, "metadata": {**metadata, "managedFields": managed}}
        return Stored(key, int(str(metadata["resourceVersion"])), documents.render(shown))

    def _shows(self, document: Document | None) -> bool:
        if document is None:
            return False
        metadata = self.kind.metadata(documents.render(document))
        inside = self.kind.holds(joined(metadata.namespace, metadata.name))
        return inside and self.kind.selector.matches(metadata.labels)

    def _listing(self) -> Iterator[WatchEvent]:
        yield Listing("memory")
        for _, document in sorted(self._objects.by_key.items()):
            if self._shows(document):
                yield Applied(self._stored(self._objects, document))
        yield Listed(self._objects.revision)

    def _event(self, change: ObjectChange) -> WatchEvent | None:
        before, after, revision = change
        metadata = metadata_of(after)
        if "resourceVersion" in metadata and self._shows(after):
            return Applied(self._stored(self._objects, after))
        if not self._shows(before):
            return None
        key = joined(str(metadata.get("namespace", "")), str(metadata["name"]))
        return Deleted(key, revision)


class _Objects(WatchedObjects[ObjectChange]):
    """The objects of one kind, their field managers, and the open watches."""

    def __init__(self) -> None:
        super().__init__()
        self.by_key: dict[str, Document] = {}
        self.managers: dict[str, dict[str, set[Path]]] = {}  # fields, by key and manager
        self.mutation: Callable[[Document], Document] | None = None
        self.applies = 0

    def copied(self) -> "_Objects":
        """Return a copy without watches, for a write that is not stored."""
        copied = copy.copy(self)
        copied.by_key = dict(self.by_key)
        copied.managers = copy.deepcopy(self.managers)
        copied.watches = {}
        return copied

    def put(self, key: str, document: Document) -> Document:
        """Store the object; remove it if it is marked deleted and has no finalizer."""
        before = self.by_key.get(key)
        if self.mutation is not None:
            document = self.mutation(document)
        metadata = {**metadata_of(document), **self._own(before, document)}
        after = {**document, "metadata": metadata}
        if before == after:
            return before
        if metadata.get("deletionTimestamp") and not documents.finalizers_of(after):
            self.by_key[key] = after
            return self.remove(key)
        self.revision += 1
        self.writes += 1
        metadata["resourceVersion"] = str(self.revision)
        self.by_key[key] = after
        self.notify((before, after, self.revision))
        return after

    def remove(self, key: str) -> Document:
        self.revision += 1
        self.writes += 1
        last = self.by_key.pop(key)
        self.managers.pop(key, None)
        metadata = documents.without(metadata_of(last), "resourceVersion")
        self.notify((last, {**last, "metadata": metadata}, self.revision))
        return last

    def take_over(self, key: str, before: Document, after: Document) -> None:
        """Transfer the ownership of the fields that a whole write changes to `MANAGER`."""
        old, new = dict(leaves(before)), dict(leaves(after))
        changed = {path for path in new if path not in old or old[path] != new[path]}
        managers = self.managers.setdefault(key, {})
        for name in managers:
            managers[name] -= changed | (old.keys() - new.keys())
        managers.setdefault(MANAGER, set()).update(changed)

    def _own(self, before: Document | None, after: Document) -> Document:
        """Return the metadata that only the server sets."""
        if before is None:
            return {"uid": str(uuid.uuid4()), "creationTimestamp": _now(), "generation": 1}
        metadata = metadata_of(before)
        known = {name: metadata[name] for name in SERVERS_OWN if name in metadata}
        if marked := metadata_of(after).get("deletionTimestamp"):
            known["deletionTimestamp"] = marked
        changed = any(
            before.get(name) != after.get(name)
            for name in (before.keys() | after.keys()) - {"metadata", "status"}
        )
        return {**known, "generation": int(str(known["generation"])) + changed}


def _now() -> str:
    return time_text(datetime.now(UTC))


def leaves(document: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield the path and the value of every field, except those of the object's identity."""
    if isinstance(document, dict) and (document or not path):
        for name, value in document.items():
            if (*path, name) not in _IDENTITY:
                yield from leaves(value, (*path, name))
    else:
        yield path, document


def _fields_v1(paths: Iterable[Path]) -> Document:
    result: Document = {}
    for path in paths:
        below = result
        for name in path:
            below = below.setdefault(f"f:{name}", {})  # type: ignore[assignment]  # all are dicts
    return result


def pruned(document: Document, path: Path) -> Document:
    """Return the document without the field at this path, if it has one."""
    name, *inner_path = path
    if not inner_path:
        return documents.without(document, name)
    below = document.get(name)
    if not isinstance(below, dict):
        return document
    return {**document, name: pruned(below, tuple(inner_path))}
