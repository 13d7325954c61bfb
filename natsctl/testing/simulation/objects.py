"""Reads the objects of a simulation, and writes them to the stores of a run as a user does."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import yaml

from natsctl.core.compare_and_set import delete
from natsctl.errors import ConflictError, InvalidObjectError, NotFoundError, UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.keys import check_key
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind, joined, kube
from natsctl.model.objects import Object, is_bookkeeping
from natsctl.testing.cluster import MemoryManifestStore
from natsctl.testing.memory import MemoryStore, MemoryStores

T = TypeVar("T")

POLLS_MAX = 3600  # of an object that is marked deleted, until it must be gone
POLL_S = 1.0

Objects: TypeAlias = str | Path | Sequence[Mapping[str, Any]]
"""A YAML or JSON file, or documents: `{"bucket": "shops", "key": "a", "spec": {}}`."""


class Desired(msgspec.Struct, frozen=True):
    """The desired state of one object: a document without bucket and key."""

    kind: Kind[Any]
    key: str
    document: Document
    declared: bool = True
    """Whether the controller declares the kind, so that an edited object can be checked."""

    @property
    def name(self) -> tuple[str, str]:
        return self.kind.name, self.key


class StoredObjects:
    """The stored objects of all kinds at one moment."""

    def __init__(self, stores: MemoryStores) -> None:
        self._stores = stores

    def items(self, kind: Kind[T]) -> dict[str, T]:
        """Return the valid objects of a kind by key, such as `items(Shops.services.kind)`."""
        values = self.values(kind)
        return {key: kind.decode(value) for key, value in values.items() if kind.valid(value)}

    def values(self, kind: Kind[Any]) -> dict[str, bytes]:
        return {stored.key: stored.value for stored in store_of(self._stores, kind).stored()}


def load(file: str | Path) -> list[Document]:
    """Return the documents of a YAML or JSON file; raises `UsageError`."""
    try:
        loaded = list(yaml.safe_load_all(Path(file).read_bytes()))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: no text, or no day such as 02-30
        raise UsageError(f"{file} is neither YAML nor JSON: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{file} is nested too deeply") from error
    return list(_flat(loaded))


def _flat(loaded: Iterable[Any]) -> Iterator[Document]:
    for document in loaded:
        if isinstance(document, list):
            yield from _flat(document)
        elif isinstance(document, dict):
            yield document
        elif document is not None:
            raise UsageError("a document is not a mapping with bucket, key and spec")


def desired_objects(
    objects: Objects, kinds: Sequence[Kind[Any]], *, primaries: int = 1
) -> list[Desired]:
    """Return the objects, in order; a document without a bucket is of the first kind.

    The first kinds, as many as *primaries*, are those that are synced. Raises `UsageError` that
    names the number of an invalid document.
    """
    loaded = load(objects) if isinstance(objects, str | Path) else objects
    desired = []
    for number, document in enumerate(loaded, start=1):
        try:
            desired.append(_desired(document, kinds))
        except (UsageError, InvalidObjectError) as error:
            raise UsageError(f"document {number}: {error}") from error
    synced = kinds[:primaries]
    if not any(wish.kind in synced for wish in desired):
        names = " or ".join(kind.name for kind in synced)
        raise UsageError(f"there is no object of {names}, so nothing would be synced")
    return desired


def _desired(document: Mapping[str, Any], kinds: Sequence[Kind[Any]]) -> Desired:
    if "apiVersion" in document:
        version, kind_name = str(document["apiVersion"]), str(document.get("kind"))
        known = [kind for kind in kinds if isinstance(kind, KubeKind)]
        same = [kind for kind in known if (kind.api_version, kind.kind) == (version, kind_name)]
        manifest_kind = same[0] if same else kube(version, kind_name)
        metadata = document.get("metadata") or {}
        namespace = metadata.get("namespace") or manifest_kind.namespace or ""
        name = joined(namespace, str(metadata.get("name")))
        return Desired(manifest_kind, name, dict(document), declared=bool(same))
    bucket = document.get("bucket", getattr(kinds[0], "bucket", ""))
    buckets = [kind for kind in kinds if isinstance(kind, KvKind) and kind.bucket == bucket]
    # an undeclared one may be read by other means: through self.reads, or by an open store
    plain = "value" in document and "spec" not in document
    kind = buckets[0] if buckets else KvKind(dict if plain else Object, bucket=str(bucket))
    key = document.get("key")
    if not isinstance(key, str):
        raise UsageError('it has no key: add a line such as "key: shop"')
    fields = documents.without(document, "bucket", "key")
    desired = Desired(kind, check_key(key), fields, declared=bool(buckets))
    if buckets:
        kind.decode(stored_form(desired, None))
    return desired


async def put(stores: MemoryStores, wanted: Desired) -> None:
    """Store the desired state; wait until an object that is marked deleted is gone."""
    kind = wanted.kind
    store = store_of(stores, kind)
    polls = 0
    while True:
        try:
            current = await store.get(wanted.key)
        except NotFoundError:
            current = None
        value = stored_form(wanted, None if current is None else current.value)
        if (
            current is not None
            and not kind.plain
            and kind.metadata(current.value).deletion_timestamp is not None
            and polls < POLLS_MAX
        ):
            polls += 1
            await asyncio.sleep(POLL_S)
            continue
        try:
            if current is None:
                await store.create(wanted.key, value)
            elif current.value != value:
                await store.update(wanted.key, value, revision=current.revision)
        except ConflictError:
            continue
        return


async def remove(stores: MemoryStores, kind: Kind[Any], key: str) -> None:
    """Delete the object as a user does, if it exists: finalizers delay that."""
    store = store_of(stores, kind)
    with suppress(NotFoundError):
        if isinstance(kind, KubeKind):
            await store.delete(key)  # the cluster marks it
        else:
            await delete(store, key)


def stored_form(wanted: Desired, current: bytes | None) -> bytes:
    """Return the value that stores the desired state over the current value.

    In a bucket that replaces what natsctl noted in annotations. In a cluster it stays, as with
    `kubectl apply`: nothing else has it there, so `kubectl replace` may lose a resource.
    """
    document = wanted.document
    if wanted.kind.plain:
        return documents.render(document.get("value", document))
    before = None if current is None else documents.parse(current)
    if before is not None and isinstance(wanted.kind, KubeKind):
        present = documents.annotations_of(before)
        noted = {name: text for name, text in present.items() if is_bookkeeping(name)}
        if noted:
            annotations = {**noted, **documents.annotations_of(document)}
            document = documents.with_annotations(document, annotations)
    return documents.render(documents.stamp(before, document))


def store_of(stores: MemoryStores, kind: Kind[Any]) -> MemoryStore | MemoryManifestStore:
    """Return the store of a kind in NATS or in a cluster."""
    return stores.kube.store(kind) if isinstance(kind, KubeKind) else stores.store(kind)
