"""Stores annotations that must not be lost: the results of creations, and external names."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from natsctl.core.queue.retry import backoff
from natsctl.errors import NotFoundError, StoreError
from natsctl.managed.creation.creation import OtherCreationError
from natsctl.managed.names import AnnotationNames
from natsctl.managed.objects import Managed
from natsctl.model import documents
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stored

WITHIN_S = 20.0
BACKOFF_S, BACKOFF_MAX_S = 0.05, 2.0


@runtime_checkable
class CriticalAnnotationUpdater(Protocol):
    """Stores annotations that must be stored before a reconciliation may go on."""

    async def update_critical_annotations(self, managed: Managed[Any]) -> None:
        """Store the object's annotations, and let it become what is stored then."""
        ...


CriticalAnnotationUpdateFn: TypeAlias = Callable[[Managed[Any]], Awaitable[None]]


class RetryingCriticalAnnotationUpdater:
    """Stores annotations whatever the store answers, for a while.

    *Guarantees.* The changed annotations are merged into the newest state of the object by
    compare-and-set. While the store fails, this is repeated for *within_s* seconds. Other pending
    changes of the object are dropped. Nothing is stored over another creation, nor on another
    object with the same key: `OtherCreationError`, a `ConflictError`. Raises the last `StoreError`
    when the time is over, and `NotFoundError` if the object is gone.

    Seed: krateo provider-runtime, `RetryingCriticalAnnotationUpdater`.
    """

    def __init__(
        self, store: Store, *, names: AnnotationNames | None = None, within_s: float = WITHIN_S
    ) -> None:
        self._store = store
        self._names = AnnotationNames() if names is None else names
        self._within_s = within_s

    async def update_critical_annotations(self, managed: Managed[Any]) -> None:
        """See `CriticalAnnotationUpdater`."""
        await insist(lambda: self._update(managed), within_s=self._within_s)

    async def _update(self, managed: Managed[Any]) -> None:
        newest = await self._store.get(managed.key)
        if self._creation(managed.metadata) != self._creation(managed.kind.metadata(newest.value)):
            raise OtherCreationError(
                f"{managed.key} is another by now, or another creation was begun"
            )
        managed.reset(await self._write(managed, newest))

    async def _write(self, managed: Managed[Any], newest: Stored) -> Stored:
        value = annotated(newest.value, managed.changed_annotations)
        if value == newest.value:
            return newest
        return await self._store.update(newest.key, value, revision=newest.revision)

    def _creation(self, metadata: Metadata) -> tuple[str, str]:
        link = self._names.link(metadata.annotations)
        return metadata.uid, link.get(self._names.create_pending, "")


async def insist(attempt: Callable[[], Awaitable[None]], *, within_s: float = WITHIN_S) -> None:
    """Call *attempt* until it succeeds, for a while, as long as its store fails.

    Raises the last `StoreError` when the time is over, and at once `NotFoundError` and
    `OtherCreationError`, which another attempt would not change.
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


def annotated(value: bytes, changes: dict[str, str | None]) -> bytes:
    """Return a stored value with these annotations; None takes one away."""
    if not changes:
        return value
    document = documents.parse(value)
    changed = documents.merge_patch(documents.metadata_of(document), {"annotations": dict(changes)})
    return documents.render({**document, "metadata": changed})


async def updated_by(
    updater: CriticalAnnotationUpdater | CriticalAnnotationUpdateFn, managed: Managed[Any]
) -> None:
    """Store the object's annotations by an updater, or by a plain function."""
    if isinstance(updater, CriticalAnnotationUpdater):
        await updater.update_critical_annotations(managed)
    else:
        await updater(managed)
