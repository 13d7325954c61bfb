"""Deletes objects with finalizers: an object is removed with its last finalizer."""

from natsctl.core.objects.compare_and_set import ATTEMPTS, Written, too_many_conflicts
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model import documents
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stored


async def delete(store: Store, key: str) -> Written:
    """Delete the object, or mark it deleted if it has finalizers.

    Raises `NotFoundError` if the object does not exist, and `ConflictError` after ten conflicts in
    a row.
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
    raise too_many_conflicts(store, key)


def with_finalizer(current: Stored, name: str) -> bytes:
    """Return the object's value with the finalizer *name* added, unless it has it already."""
    document = documents.parse(current.value)
    finalizers = documents.finalizers_of(document)
    if name in finalizers:
        return current.value
    return documents.render(documents.with_finalizers(document, (*finalizers, name)))


async def release(store: Store, key: str, *names: str) -> Written | None:
    """Remove these finalizers; an object that is marked deleted is removed with its last one.

    Returns None if the object does not exist. Raises `ConflictError` after ten conflicts in a row.
    """
    for _ in range(ATTEMPTS):
        try:
            return await _release(store, await store.get(key), names)
        except ConflictError:
            continue
        except NotFoundError:
            return None
    raise too_many_conflicts(store, key)


async def _release(store: Store, current: Stored, names: tuple[str, ...]) -> Written:
    """Remove the finalizers first and delete afterwards, so that the history has both states.

    A cluster deletes the object when its last finalizer is removed; the delete then raises
    `NotFoundError`.
    """
    document = documents.parse(current.value)
    finalizers = documents.finalizers_of(document)
    remaining = tuple(finalizer for finalizer in finalizers if finalizer not in names)
    if remaining != finalizers:
        value = documents.render(documents.with_finalizers(document, remaining))
        current = await store.update(current.key, value, revision=current.revision)
    if not remaining and documents.metadata_of(document).get("deletionTimestamp"):
        try:
            return Written(await store.delete(current.key, revision=current.revision), None)
        except NotFoundError:
            return Written(current.revision, None)
    return Written(current.revision, current)
