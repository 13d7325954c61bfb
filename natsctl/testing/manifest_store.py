"""Keeps the objects of a kind in memory by the rules of a kube-apiserver.

Writes are applies, with preconditions and finalizers. Lists are one value here, where a real server
merges some of them by the names of their items. Nothing is defaulted, and every kind exists and
has a status.
"""

import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar, cast

from natsctl.errors import (
    ConflictError,
    FieldConflictError,
    ImmutableFieldError,
    InvalidObjectError,
    NotFoundError,
)
from natsctl.model import documents
from natsctl.model.documents import Document, metadata_of
from natsctl.model.managed_fields import FieldManager, ManagedFields, same_family
from natsctl.model.manifests import KubeKind, joined, split
from natsctl.model.store import (
    UNGUARDED,
    Applied,
    Deleted,
    Listed,
    Listing,
    Stored,
    WatchEvent,
    WriteGuard,
)
from natsctl.testing.cluster_objects import MANAGER, ClusterObjects, ObjectChange, now
from natsctl.testing.fields import SERVERS_OWN, Path, fields_v1, leaves, without
from natsctl.testing.kinds import MemoryKinds
from natsctl.testing.watched import WatchedStore

W = TypeVar("W", bound=Callable[..., Coroutine[Any, Any, object]])


def _rehearsed(write: W) -> W:
    """Let a write work on a copy of the objects if the store's guard permits only dry runs."""

    @functools.wraps(write)
    async def send(self: "MemoryManifestStore", *args: Any, **options: Any) -> object:
        return await write(self.rehearsal() if self.rehearses else self, *args, **options)

    return cast("W", send)


class MemoryManifestStore(WatchedStore[KubeKind[Any], ObjectChange]):
    """Keeps the objects of one kind of a cluster in this process; a `ManifestStore`.

    Tests inject faults: `break_watches` is a lost connection, `fail` a server that rejects every
    request.
    """

    def __init__(
        self,
        kind: KubeKind[Any],
        objects: ClusterObjects,
        kinds: MemoryKinds,
        *,
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        super().__init__(kind, objects, guard)
        self._objects = objects
        self._kinds = kinds

    async def get(self, key: str) -> Stored:
        await self._pass()
        return self._stored(self._existing(key))

    @_rehearsed
    async def create(self, key: str, value: bytes) -> Stored:
        await self._pass(writes=True)
        self._expect_none(key)
        created = self._named(key, documents.parse(value))
        self._objects.take_over(key, {}, created)
        return self._stored(self._objects.put(key, created))

    @_rehearsed
    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        await self._pass(writes=True)
        before = self._expect(key, revision)
        after = self._named(key, {**documents.parse(value), "status": before.get("status")})
        self._check_immutable(before, after)
        self._objects.take_over(key, before, after)
        return self._stored(self._objects.put(key, after))

    @_rehearsed
    async def delete(
        self,
        key: str,
        *,
        revision: int | None = None,
        uid: str = "",
        purge: bool = False,  # noqa: ARG002 - there is no history
    ) -> int:
        """See `Store.delete`; the last finalizer removes an object that has finalizers."""
        await self._pass(writes=True)
        before = self._existing(key)
        if revision is not None:
            self._expect(key, revision)
        if uid and uid != metadata_of(before)["uid"]:
            raise ConflictError(f"{key} of {self.kind.name} is a different object now")
        if documents.finalizers_of(before):
            marked = {"deletionTimestamp": now(), **metadata_of(before)}
            self._objects.put(key, {**before, "metadata": marked})
        else:
            self._objects.remove(key)
        newest = int(str(metadata_of(before)["resourceVersion"]))
        return newest if self._objects.by_key.get(key) is not before else newest - 1

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`; a cluster keeps only the newest state."""
        await self._pass()
        stored = self._objects.by_key.get(key)
        return [] if stored is None else [self._stored(stored)]

    async def locate(self, manifest: Document) -> str:
        metadata = metadata_of(manifest)
        namespace = str(metadata.get("namespace") or self.kind.namespace or "")
        namespaced = self._kinds.resource(self.kind.api_version, self.kind.kind).namespaced
        if namespaced != bool(namespace):
            mismatch = "a namespace and the manifest none" if namespaced else "no namespace"
            raise InvalidObjectError(f"a {self.kind.name} has {mismatch}: {metadata.get('name')}")
        return joined(namespace, str(metadata["name"]))

    @_rehearsed
    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        await self._pass(writes=True)
        key = await self.locate(manifest)
        before = self._objects.by_key.get(key)
        if (before is None) != (not uid) or (before and metadata_of(before)["uid"] != uid):
            raise ConflictError(f"{key} of {self.kind.name} is a different object now, or deleted")
        self._objects.applies += 1
        manifest = documents.without(manifest, "status")
        wanted = dict(leaves(manifest))
        if not force:
            self._check_fields(key, before or {}, wanted, manager)
        managers = self._objects.managers.setdefault(key, {})
        former = [name for name in managers if name != manager and same_family(manager, name)]
        applied = managers.get(manager, set()).union(*(managers[name] for name in former))
        changed = _changed(before or {}, wanted)
        other_managers = {
            name: paths - changed
            for name, paths in managers.items()
            if name not in (manager, *former)
        }
        removed = applied - wanted.keys() - set().union(*other_managers.values())
        after = documents.merge_patch(without(before or {}, removed), manifest)
        self._check_immutable(before or {}, after)
        self._objects.managers[key] = {**other_managers, manager: set(wanted)}
        return self._stored(self._objects.put(key, after))

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        await self._pass(writes=not self.rehearses)
        await self.rehearsal().apply(manifest, manager=manager, uid="")

    async def managed(self, key: str) -> ManagedFields:
        await self._pass()
        revision = int(str(metadata_of(self._existing(key))["resourceVersion"]))
        managers = self._objects.managers.get(key, {}).items()
        entries = (
            FieldManager(name, name != MANAGER, fields_v1(paths)) for name, paths in managers
        )
        return ManagedFields(revision, tuple(entries))

    @_rehearsed
    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        await self._pass(writes=True)
        before = self._existing(key) if revision is None else self._expect(key, revision)
        return self._stored(self._objects.put(key, documents.with_status(before, patch)))

    @property
    def rehearses(self) -> bool:
        """True if writes are only checked, as with `dryRun=All`."""
        return self._guard.dry_run

    def rehearsal(self) -> "MemoryManifestStore":
        """Return a store of a copy of the objects."""
        return MemoryManifestStore(self.kind, self._objects.copied(), self._kinds)

    def keys(self) -> list[str]:
        """Return the keys of the objects that the kind selects, in order."""
        return sorted(
            key for key, document in self._objects.by_key.items() if self._shows(document)
        )

    def stored(self) -> list[Stored]:
        """Return the objects that the kind selects, in the order of their keys."""
        shown = (self._objects.by_key[key] for key in self.keys())
        return [self._stored(document) for document in shown]

    def document(self, key: str) -> Document:
        """Return the stored object; raises `NotFoundError` if it doesn't exist."""
        return self._existing(key)

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

    def _existing(self, key: str) -> Document:
        split(key)
        stored = self._objects.by_key.get(key)
        if stored is None:
            raise NotFoundError(f"there is no {self.kind.name} {key}")
        return stored

    def _expect(self, key: str, revision: int) -> Document:
        stored = self._objects.by_key.get(key)
        if stored is None or metadata_of(stored)["resourceVersion"] != str(revision):
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        return stored

    def _expect_none(self, key: str) -> None:
        split(key)
        if key in self._objects.by_key:
            raise ConflictError(f"{self.kind.name} {key} exists")

    def _named(self, key: str, document: Document) -> Document:
        namespace, name = split(key)
        place = {"name": name, **({"namespace": namespace} if namespace else {})}
        settable = documents.without(metadata_of(document), *SERVERS_OWN)
        own = {"apiVersion": self.kind.api_version, "kind": self.kind.kind}
        named = {**document, **own, "metadata": {**settable, **place}}
        return {name: value for name, value in named.items() if value is not None}

    def _stored(self, document: Document) -> Stored:
        metadata = metadata_of(document)
        key = joined(str(metadata.get("namespace", "")), str(metadata["name"]))
        shown = document
        if self.kind.metadata_only:
            shown = {k: v for k, v in document.items() if k in {"apiVersion", "kind", "metadata"}}
        if self.kind.managed_fields:
            managed = self._objects.managed_fields(key)
            shown = {**shown, "metadata": {**metadata, "managedFields": managed}}
        return Stored(key, int(str(metadata["resourceVersion"])), documents.render(shown))

    def _shows(self, document: Document | None) -> bool:
        if document is None:
            return False
        metadata = self.kind.metadata(documents.render(document))
        inside = self.kind.holds(joined(metadata.namespace, metadata.name))
        return inside and self.kind.selector.matches(metadata.labels)

    def _check_fields(
        self, key: str, before: Document, wanted: dict[Path, object], manager: str
    ) -> None:
        differing = _changed(before, wanted)
        managers = self._objects.managers.get(key, {})
        owned = {
            name: sorted(paths & differing) for name, paths in managers.items() if name != manager
        }
        conflicts = {
            (name, f".{'.'.join(path)}"): None for name, paths in owned.items() for path in paths
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

    def _listing(self) -> Iterator[WatchEvent]:
        yield Listing("memory")
        for _, document in sorted(self._objects.by_key.items()):
            if self._shows(document):
                yield Applied(self._stored(document))
        yield Listed(self._objects.revision)

    def _event(self, change: ObjectChange) -> WatchEvent | None:
        before, after, revision = change
        removed = "resourceVersion" not in metadata_of(after)
        if not removed and self._shows(after):
            return Applied(self._stored(after))
        if not self._shows(before):
            return None
        metadata = metadata_of(after)
        key = joined(str(metadata.get("namespace", "")), str(metadata["name"]))
        return Deleted(key, revision)


def _changed(before: Document, wanted: dict[Path, object]) -> set[Path]:
    """Return the fields of the object that *wanted* gives another value."""
    now = dict(leaves(before))
    return {path for path, value in wanted.items() if now.get(path, value) != value}
