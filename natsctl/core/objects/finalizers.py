"""Deleting an object that others may hold: it goes when the last finalizer is gone."""

from natsctl.core.objects.compare_and_set import ATTEMPTS, Written
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model import documents
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stored


async def delete(store: Store, key: str) -> Written:
    """Delete the object, or mark it deleted while finalizers hold it, and return what stands.

    Raises `NotFoundError` where it does not exist, and
    `ConflictError` when others were faster ten times in a row.
    """
    for _ in range(ATTEMPTS):
        current = await store.get(key)
        metadata = Metadata() if store.kind.plain else store.kind.metadata(current.value)
        try:
            if not metadata.finalizers:
                return Written(await store.delete(key, revision=current.revision), None)
            if metadata.deletion_timestamp is None:
                marked = documents.marked_deleted(documents.parse(current.value))
                value = documents.render(marked)
                current = await store.update(key, value, revision=current.revision)
        except ConflictError:
            continue
        return Written(current.revision, current)
    raise _crowded(store, key)


def held(current: Stored, name: str) -> bytes:
    """Return the object's value with the finalizer *name* on it, next to those of others."""
    document = documents.parse(current.value)
    finalizers = documents.finalizers_of(document)
    if name in finalizers:
        return current.value
    return documents.render(documents.with_finalizers(document, (*finalizers, name)))


async def release(store: Store, key: str, *names: str) -> Written | None:
    """Take these finalizers off; an object marked deleted goes with its last one.

    Returns what stands, None where the object is gone already and needs no release. Raises
    `ConflictError` when others were faster ten times in a row.
    """
    for _ in range(ATTEMPTS):
        try:
            return await _release(store, await store.get(key), names)
        except ConflictError:
            continue
        except NotFoundError:
            return None
    raise _crowded(store, key)


async def _release(store: Store, current: Stored, names: tuple[str, ...]) -> Written:
    """Take the finalizers off, and only then delete: the last state tells who had let go.

    A cluster deletes by itself.
    """
    document = documents.parse(current.value)
    finalizers = documents.finalizers_of(document)
    rest = tuple(other for other in finalizers if other not in names)
    if rest != finalizers:
        value = documents.render(documents.with_finalizers(document, rest))
        current = await store.update(current.key, value, revision=current.revision)
    if not rest and documents.metadata_of(document).get("deletionTimestamp"):
        try:
            return Written(await store.delete(current.key, revision=current.revision), None)
        except NotFoundError:
            return Written(current.revision, None)
    return Written(current.revision, current)


def _crowded(store: Store, key: str) -> ConflictError:
    return ConflictError(f"{key} of {store.kind.name} is written by others all the time: try later")
