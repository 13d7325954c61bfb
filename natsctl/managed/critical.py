"""Storing annotations that must not be lost: the results of creations, and external names."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from natsctl.core.retry import backoff
from natsctl.errors import ConflictError, NotFoundError, StoreError
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

    *Guarantees.* What was changed of the annotations is laid over the newest state of the object,
    by compare-and-set, again and again while the store fails, for *within_s* seconds. Other
    pending changes of the object are dropped. Nothing is stored over another creation than the
    one that the object knows, nor on another object of the same key: then, `ConflictError`.
    Raises the last `StoreError` when the time is over, and `NotFoundError` where the object is
    gone.

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
        clock = asyncio.get_running_loop().time
        deadline, failures = clock() + self._within_s, 0
        while not await self._updated(managed, last=clock() >= deadline):
            failures += 1
            pause_s = backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S)
            await asyncio.sleep(min(pause_s, max(0.0, deadline - clock())))

    async def _updated(self, managed: Managed[Any], *, last: bool) -> bool:
        """Say whether it was stored; what the *last* try meets is raised."""
        try:
            newest = await self._store.get(managed.key)
            same = self._creation(managed.metadata) == self._creation(
                managed.kind.metadata(newest.value)
            )
            if same:
                managed.reset(await self._write(managed, newest))
        except NotFoundError:
            raise
        except StoreError:
            if last:
                raise
            return False
        if not same:
            raise ConflictError(f"{managed.key} is another by now, or another creation was begun")
        return True

    async def _write(self, managed: Managed[Any], newest: Stored) -> Stored:
        value = annotated(newest.value, managed.changed_annotations)
        if value == newest.value:
            return newest
        return await self._store.update(newest.key, value, revision=newest.revision)

    def _creation(self, metadata: Metadata) -> tuple[str, str]:
        return metadata.uid, metadata.annotations.get(self._names.create_pending, "")


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
