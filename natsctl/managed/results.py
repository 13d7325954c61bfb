"""Stores annotations that must not be lost: results of creations and external names."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from natsctl.core.retry import backoff
from natsctl.errors import NotFoundError, StoreError
from natsctl.managed.links import (
    AnnotationNames,
    Links,
    Memory,
    OtherCreationError,
    annotated,
)
from natsctl.managed.objects import Managed
from natsctl.model.objects import Metadata
from natsctl.model.store import Store

WITHIN_S = 20.0
BACKOFF_S, BACKOFF_MAX_S = 0.05, 2.0


@runtime_checkable
class CriticalAnnotationUpdater(Protocol):
    """Stores annotations before a reconciliation continues."""

    async def update_critical_annotations(self, managed: Managed[Any]) -> None:
        """Store the object's annotations, and reset the object to its stored state."""
        ...


CriticalAnnotationUpdateFn: TypeAlias = Callable[[Managed[Any]], Awaitable[None]]


class RetryingCriticalAnnotationUpdater:
    """Stores annotations, and retries for a limited time while the store fails.

    *Guarantees.* The updater merges the changed annotations into the newest state of the object by
    compare-and-set, and retries for *within_s* seconds. It drops other pending changes of the
    object. It never overwrites another creation or another object with the same key.

    Raises `OtherCreationError` (a `ConflictError`) for another creation, `NotFoundError` if the
    object is gone, and the last `StoreError` when the time is over.

    Seed: krateo provider-runtime, `RetryingCriticalAnnotationUpdater`.
    """

    def __init__(
        self, store: Store, *, names: AnnotationNames | None = None, within_s: float = WITHIN_S
    ) -> None:
        self._store = store
        self._names = AnnotationNames() if names is None else names
        self._within_s = within_s

    async def update_critical_annotations(self, managed: Managed[Any]) -> None:
        await retry_store_errors(lambda: self._update(managed), within_s=self._within_s)

    async def _update(self, managed: Managed[Any]) -> None:
        newest = await self._store.get(managed.key)
        if self._creation(managed.metadata) != self._creation(managed.kind.metadata(newest.value)):
            raise OtherCreationError(f"{managed.key} was replaced, or another creation has begun")
        value = annotated(newest.value, managed.changed_annotations)
        if value != newest.value:
            newest = await self._store.update(newest.key, value, revision=newest.revision)
        managed.reset(newest)

    def _creation(self, metadata: Metadata) -> tuple[str, str]:
        link = self._names.link(metadata.annotations)
        return metadata.uid, link.get(self._names.create_pending, "")


async def retry_store_errors(
    attempt: Callable[[], Awaitable[None]], *, within_s: float = WITHIN_S
) -> None:
    """Call *attempt* until it succeeds, for at most *within_s* seconds.

    Raises `NotFoundError` and `OtherCreationError` at once, because a retry would not help, and the
    last `StoreError` when the time is over.
    """
    clock = asyncio.get_running_loop().time
    deadline, failures = clock() + within_s, 0
    while True:
        last = clock() >= deadline
        try:
            return await attempt()
        except (NotFoundError, OtherCreationError):
            raise
        except StoreError:
            if last:
                raise
        failures += 1
        pause_s = backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S)
        await asyncio.sleep(min(pause_s, max(0.0, deadline - clock())))


async def store_result(
    managed: Managed[Any],
    memory: Memory,
    links: Links | None,
    updater: CriticalAnnotationUpdater | CriticalAnnotationUpdateFn | None,
) -> None:
    """Store the result of a creation, which the object's annotations have.

    With *links*, it's stored in the record first, and in the object with its next write. With an
    *updater*, it's stored in the object at once. It's no longer pending then.
    """
    if links is not None:
        await retry_store_errors(lambda: links.write(managed.key, managed.link, memory))
        managed.keep_only()
    if isinstance(updater, CriticalAnnotationUpdater):
        await updater.update_critical_annotations(managed)
    elif updater is not None:
        await updater(managed)
    memory.result = None
