"""Clean up before an object may go: the finalizer protocol, as one function."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from natsctl.core.objects.primary import Primary

T = TypeVar("T")
Step = Callable[[str, T], Awaitable[float | None]]


async def finalized(
    primary: Primary[T], key: str, name: str, *, apply: Step[T], cleanup: Step[T]
) -> float | None:
    """Run *apply* while the object is wanted, and *cleanup* before it goes.

    Guarantees: the finalizer *name* is stored before *apply* first runs, and is dropped only after
    *cleanup* succeeded, so what *apply* began is always cleaned up. Finalizers of others are left
    alone. An object that was deleted past its finalizers (`nats kv del`) is cleaned up with its
    last state, from the cache or the store's history. One that was lost without a delete marker
    (a recreated bucket, a purged stream) is not: nothing proves that it should go.

    Returns what *apply* returned: seconds until the next visit, or None.
    """
    obj = primary.get(key)
    if obj is None:
        await _clean_up_late(primary, key, name, cleanup)
        return None
    metadata = primary.kind.metadata_of(obj)
    held = name in metadata.finalizers
    if metadata.deletion_timestamp is None:
        if not held:
            await primary.add_finalizer(key, name)
        return await apply(key, obj)
    if held:
        await cleanup(key, obj)
    await primary.remove_finalizer(key, name)  # also where the last one was taken off by hand
    return None


async def _clean_up_late(primary: Primary[T], key: str, name: str, cleanup: Step[T]) -> None:
    last = await primary.last(key)
    if last is None or name not in primary.kind.metadata_of(last).finalizers:
        return
    if await primary.deleted_at(key) is not None:
        await cleanup(key, last)
        await primary.forget(key)
