"""Changes one object by compare-and-set, and retries after a conflict.

An object with finalizers is marked deleted, and removed with its last finalizer.
"""

from collections.abc import Callable

import msgspec

from natsctl.errors import ConflictError, NotFoundError
from natsctl.model import documents
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stored

ATTEMPTS = 10


class Rewritten(msgspec.Struct, frozen=True):
    """The stored state after a `rewrite`.

    `base` is the revision that was replaced, 0 if the object was created, None if nothing was
    written.
    """

    stored: Stored
    base: int | None


class Written(msgspec.Struct, frozen=True):
    """The state of a key after a write of this process; `stored` is None after a deletion.

    The revision of a deletion is that of the delete marker, or of the deleted object.
    """

    revision: int
    stored: Stored | None


async def read(store: Store, key: str) -> Stored | None:
    """Return the object as the store's leader has it, None if it does not exist."""
    try:
        return await store.get(key)
    except NotFoundError:
        return None


async def deleted_at(store: Store, key: str) -> int | None:
    """Return the revision of the delete marker that proves that the object was deleted.

    Returns None if the object exists, or was lost without a marker.
    """
    try:
        await store.get(key)
    except NotFoundError as error:
        return error.deleted_at
    return None


async def rewrite(
    store: Store, key: str, change: Callable[[Stored | None], bytes], *, seen: Stored | None = None
) -> Rewritten:
    """Store the value that *change* returns for the current state of the object.

    The first attempt uses the state *seen*; after a conflict, the store's leader is read. Nothing
    is written if *change* returns the current value. Raises what *change* raises, and
    `ConflictError` after ten conflicts in a row.
    """
    current = seen
    for _ in range(ATTEMPTS):
        value = change(current)
        if current is not None and value == current.value:
            return Rewritten(current, None)
        try:
            if current is None:
                return Rewritten(await store.create(key, value), 0)
            stored = await store.update(key, value, revision=current.revision)
            return Rewritten(stored, current.revision)
        except ConflictError:
            current = await read(store, key)
    raise too_many_conflicts(store, key)


def too_many_conflicts(store: Store, key: str) -> ConflictError:
    """Return the error for a key that others keep changing."""
    return ConflictError(f"{key} of {store.kind.name} is written by others all the time: try later")


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
