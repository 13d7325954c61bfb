"""Change one object by compare-and-set, again and again until nobody was faster."""

from collections.abc import Callable

import msgspec

from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Store, Stored

ATTEMPTS = 10


class Rewritten(msgspec.Struct, frozen=True):
    """What stands now, and the revision it was written upon: 0 for a creation, None unwritten."""

    stored: Stored
    base: int | None


class Written(msgspec.Struct, frozen=True):
    """What stands at a key after our write; None after a deletion.

    Of a deletion, the revision is that of the deletion or of what was deleted.
    """

    revision: int
    stored: Stored | None


async def read(store: Store, key: str) -> Stored | None:
    """Return the object as the store's leader has it, None where it does not exist."""
    try:
        return await store.get(key)
    except NotFoundError:
        return None


async def rewrite(
    store: Store, key: str, change: Callable[[Stored | None], bytes], *, seen: Stored | None = None
) -> Rewritten:
    """Store what *change* makes of the object, first of *seen*, then of what the leader has.

    Nothing is written where *change* returns the value it was given. What *change* raises passes.
    Raises `ConflictError` when others were faster ten times in a row.
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
    raise ConflictError(f"{key} of {store.kind.name} is written by others all the time: try later")
