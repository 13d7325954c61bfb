"""Calls the handler of a sync loop for a key, and returns the outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeAlias, TypeVar

from natsctl.core.coordination.term import Leadership
from natsctl.core.coordination.term_guard import GuardedSteps
from natsctl.core.pausing.claims import ClaimedKey
from natsctl.core.sync.calls import Unfinished, failure_of
from natsctl.core.sync.steps import Rest, first_step
from natsctl.core.workqueue import SYNCED, Failed, Outcome, Synced, WorkQueue

K = TypeVar("K", bound=Hashable)

SyncCoroutine: TypeAlias = Callable[[K], Awaitable[float | None]]
"""Returns an awaitable that syncs the key, see `SyncHandler`."""


class Attempts(Generic[K]):
    """Syncs keys of a queue with one handler, in the terms of *leadership* if there is one.

    The *claim* notes each key before its sync. The caller releases it.

    *Guarantees.* An exception of the handler is an outcome. If the worker is cancelled, the key is
    given back to the queue untouched, and `CancelledError` is raised.
    """

    def __init__(
        self,
        handler: SyncCoroutine[K],
        queue: WorkQueue[K],
        leadership: Leadership | None,
        claim: ClaimedKey | None = None,
    ) -> None:
        self._handler = handler
        self._queue = queue
        self._leadership = leadership
        self._claim = claim

    def start(self, key: K) -> Outcome | Unfinished[Outcome]:
        """Sync the key; return the outcome, or the rest of a sync that waits."""
        if self._claim is not None:
            self._claim.hold(str(key))
        leadership = self._leadership
        try:
            if leadership is None:
                step = first_step(self._handler(key))
            else:
                step = self._begin_in_term(leadership, key)
        except BaseException as error:  # noqa: BLE001 - raised again, unless it is the handler's
            return self._failed(key, error)
        if isinstance(step, Rest):
            return Unfinished(self._finish(key, step))
        return SYNCED if step is None else Synced(step)

    def _begin_in_term(self, leadership: Leadership, key: K) -> "float | Rest[float | None] | None":
        """Call the handler, and hold the key until the sync ends; return as `first_step` does."""
        if not leadership.leads:
            raise asyncio.CancelledError
        leadership.hold(key)
        try:
            step = first_step(self._handler(key))
        except BaseException:
            leadership.release(key)
            raise
        if isinstance(step, Rest):
            return first_step(_in_term(leadership, key, step))
        leadership.release(key)
        return step

    async def _finish(self, key: K, rest: Rest[float | None]) -> Outcome:
        try:
            after_s = await rest
        except BaseException as error:  # noqa: BLE001 - raised again, unless it is the handler's
            return self._failed(key, error)
        return SYNCED if after_s is None else Synced(after_s)

    def _failed(self, key: K, error: BaseException) -> Failed:
        """Return the failure of the handler; raise the error if the worker was cancelled."""
        failure = failure_of(error, asyncio.current_task())
        if failure is None:
            self._queue.give_back(key, untouched=True)  # the next worker syncs it
            raise error
        return Failed(failure)


async def _in_term(leadership: Leadership, key: Hashable, rest: Rest[float | None]) -> float | None:
    """Do the rest of a sync step by step while the term lasts; the key is not given away."""
    try:
        return await GuardedSteps(rest, lambda: leadership.leads)
    finally:
        leadership.release(key)
