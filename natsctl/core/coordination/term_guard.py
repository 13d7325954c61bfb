"""Stops the syncs and the writes of a term that is over.

A server cannot check the epoch of a write. JetStream compares a write with the last revision of one
subject of the same stream, and cannot read a lease in another stream. A kube-apiserver cannot read
it either. Therefore this process checks its own term before it sends a write. Compare-and-set
rejects a write that was sent in time and arrives after another process began to lead, unless the
object has not changed since.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from natsctl.core.coordination.installation import INSTALLATION
from natsctl.core.coordination.term import Leadership
from natsctl.model.kinds import Kind
from natsctl.model.write_guard import WriteGuard

T = TypeVar("T")


class GuardedSteps(Generic[T]):
    """Awaits *awaitable*, and calls *may_run* before each step but the first.

    If *may_run* returns False, the step is cancelled: only its `except` and `finally` blocks run,
    even if this process was stopped for a while. Tasks that the awaitable has created go on.

    *Assumes* that the caller has checked the condition immediately before.
    """

    def __init__(self, awaitable: Awaitable[T], may_run: Callable[[], bool]) -> None:
        self._awaitable = awaitable
        self._may_run = may_run

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the steps."""
        steps: Any = self._awaitable.__await__()
        step = partial(steps.send, None)
        while True:
            try:
                future = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                value = yield future
            except BaseException as error:  # noqa: BLE001 - the awaitable handles it
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, value)
            if not self._may_run():
                step = partial(steps.throw, asyncio.CancelledError())


class TermGuard(WriteGuard):
    """Permits writes while no other process can be leading.

    A write that waits when the term ends, for its turn or before a retry, is cancelled instead of
    sent, in whichever task it runs. The id of the installation may always be written: the first
    process creates it, and it never changes.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def check(self, kind: Kind[Any] | None) -> None:
        """Raise `NotLeadingError` if another process may be leading."""
        if kind is not INSTALLATION:
            self._leadership.check()

    async def send(self, kind: Kind[Any] | None, write: Callable[[], Awaitable[T]]) -> T:
        """See `WriteGuard.send`."""
        self.check(kind)
        return await GuardedSteps(write(), lambda: self._leadership.leads)

    def may_record(self, key: str) -> bool:
        """Return whether the key belongs to this process, so that no other process records it."""
        return self._leadership.has(key)
