"""Changes one object by compare-and-set, and retries after a conflict.

An object with finalizers is marked deleted, and removed with its last finalizer.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

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
    raise _too_many_conflicts(store, key)


def _too_many_conflicts(store: Store, key: str) -> ConflictError:
    return ConflictError(f"{key} of {store.kind.name} is written by others all the time: try later")


async def _retried(
    store: Store, key: str, change: Callable[[Stored], Awaitable[Written]]
) -> Written:
    for _ in range(ATTEMPTS):
        with suppress(ConflictError):
            return await change(await store.get(key))
    raise _too_many_conflicts(store, key)


async def delete(store: Store, key: str) -> Written:
    """Delete the object, or mark it deleted if it has finalizers.

    Raises `NotFoundError` if the object does not exist, and `ConflictError` after ten conflicts in
    a row.
    """

    async def delete_or_mark(current: Stored) -> Written:
        metadata = Metadata() if store.kind.plain else store.kind.metadata(current.value)
        if not metadata.finalizers:
            return Written(await store.delete(key, revision=current.revision), None)
        if metadata.deletion_timestamp is None:
            marked = documents.render(documents.marked_deleted(documents.parse(current.value)))
            current = await store.update(key, marked, revision=current.revision)
        return Written(current.revision, current)

    return await _retried(store, key, delete_or_mark)


def with_finalizer(current: Stored, name: str) -> bytes:
    """Return the object's value with the finalizer *name* added, unless it has it already."""
    document = documents.parse(current.value)
    finalizers = documents.finalizers_of(document)
    if name in finalizers:
        return current.value
    return documents.render(documents.with_finalizers(document, (*finalizers, name)))


async def release(store: Store, key: str, *names: str) -> Written | None:
    """Remove these finalizers; an object that is marked deleted is removed with its last one.

    The finalizers go first, so that the history has both states. A cluster then deletes the object
    itself. Returns None if the object does not exist. Raises `ConflictError` after ten conflicts in
    a row.
    """

    async def remove(current: Stored) -> Written:
        document = documents.parse(current.value)
        finalizers = documents.finalizers_of(document)
        remaining = tuple(finalizer for finalizer in finalizers if finalizer not in names)
        if remaining != finalizers:
            value = documents.render(documents.with_finalizers(document, remaining))
            current = await store.update(key, value, revision=current.revision)
        if remaining or not documents.metadata_of(document).get("deletionTimestamp"):
            return Written(current.revision, current)
        try:
            return Written(await store.delete(key, revision=current.revision), None)
        except NotFoundError:
            return Written(current.revision, None)

    try:
        return await _retried(store, key, remove)
    except NotFoundError:
        return None
