"""Runs the finalizer protocol: cleans up before an object is removed."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from natsctl.core.readers import Primary

T = TypeVar("T")
Step = Callable[[str, T], Awaitable[float | None]]


async def finalized(
    primary: Primary[T], key: str, name: str, *, apply: Step[T], cleanup: Step[T]
) -> float | None:
    """Run *apply* while the object exists, and *cleanup* once it is marked deleted.

    *Guarantees.* The finalizer *name* is stored before *apply* first runs, and is removed only
    after *cleanup* succeeded, so whatever *apply* did is cleaned up. Finalizers of others stay. If
    somebody deletes the object past its finalizers (`nats kv del`), *cleanup* gets its last state
    from the cache or the store's history. An object that was lost without a delete marker (a
    recreated bucket, a purged stream) isn't cleaned up: nothing proves that anybody deleted it.

    Returns the result of *apply*: seconds until the next sync, or None.
    """
    obj = primary.get(key)
    if obj is None:
        await _clean_up_deleted(primary, key, name, cleanup)
        return None
    metadata = primary.kind.metadata_of(obj)
    held = name in metadata.finalizers
    if metadata.deletion_timestamp is None:
        if not held:
            await primary.add_finalizer(key, name)
        return await apply(key, obj)
    if held:
        await cleanup(key, obj)
    await primary.remove_finalizer(key, name)  # also if a person removed ours
    return None


async def _clean_up_deleted(primary: Primary[T], key: str, name: str, cleanup: Step[T]) -> None:
    last = await primary.last(key)
    if last is None or name not in primary.kind.metadata_of(last).finalizers:
        return
    if await primary.deleted_at(key) is not None:
        await cleanup(key, last)
        await primary.forget(key)
