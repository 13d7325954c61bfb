"""Deleting an object that others may hold: it goes when the last finalizer is gone."""

from natsctl.core.write import ATTEMPTS
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model import documents
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stored


async def delete(store: Store, key: str) -> bool:
    """Delete the object, or mark it deleted while finalizers hold it.

    Returns whether it is gone already. Raises `NotFoundError` where it does not exist, and
    `ConflictError` when others were faster ten times in a row.
    """
    for _ in range(ATTEMPTS):
        current = await store.get(key)
        metadata = Metadata() if store.kind.plain else store.kind.metadata(current.value)
        try:
            if not metadata.finalizers:
                await store.delete(key, revision=current.revision)
                return True
            if metadata.deletion_timestamp is None:
                marked = documents.marked_deleted(documents.parse(current.value))
                await store.update(key, documents.render(marked), revision=current.revision)
        except ConflictError:
            continue
        return False
    raise _crowded(store, key)


def held(current: Stored, name: str) -> bytes:
    """Return the object's value with the finalizer *name* on it, next to those of others."""
    document = documents.parse(current.value)
    finalizers = documents.finalizers_of(document)
    if name in finalizers:
        return current.value
    return documents.render(documents.with_finalizers(document, (*finalizers, name)))


async def release(store: Store, key: str, name: str) -> None:
    """Take the finalizer *name* off; an object marked deleted goes with its last one.

    An object that is gone already needs no release. Raises `ConflictError` when others were
    faster ten times in a row.
    """
    for _ in range(ATTEMPTS):
        try:
            current = await store.get(key)
            await _release(store, current, name)
        except ConflictError:
            continue
        except NotFoundError:
            return
        return
    raise _crowded(store, key)


async def _release(store: Store, current: Stored, name: str) -> None:
    document = documents.parse(current.value)
    finalizers = documents.finalizers_of(document)
    rest = tuple(other for other in finalizers if other != name)
    if not rest and documents.metadata_of(document).get("deletionTimestamp"):
        await store.delete(current.key, revision=current.revision)
    elif rest != finalizers:
        value = documents.render(documents.with_finalizers(document, rest))
        await store.update(current.key, value, revision=current.revision)


def _crowded(store: Store, key: str) -> ConflictError:
    return ConflictError(f"{key} of {store.kind.name} is written by others all the time: try later")
