"""Notes the calls of a reconciler in the history of its program, and makes a recorded one again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from msgspec import convert, to_builtins

from natsctl.core.dependencies.watches import DependencyWatch, DependencyWatches
from natsctl.core.insight.program import ProgramHistory
from natsctl.core.objects.sync import Sync, current_sync, current_tape
from natsctl.core.objects.tape import DependencyRead
from natsctl.core.recording.noted_stores import place_of
from natsctl.core.recording.recordings import ReconcilerCall
from natsctl.core.recording.redelivery import Redelivery
from natsctl.core.workqueue import WorkQueue
from natsctl.dynamic.identifier import ObjectIdentifier
from natsctl.dynamic.parts import Parts, identifier_of, kind_of
from natsctl.errors import NatsctlError

DYNAMIC = "dynamic"
OPERATION = "reconcile"

Watches = DependencyWatches[ObjectIdentifier]


class NotedCalls(msgspec.Struct, frozen=True, eq=False):
    """The calls of the reconciler of one dynamic watcher."""

    history: ProgramHistory
    name: str  # of the dynamic watcher in its program
    watches: Watches

    @property
    def _handler(self) -> str:
        return "" if self.name == DYNAMIC else self.name

    def begin(self, watcher: ObjectIdentifier) -> Sync:
        """Return a new call, whose reads and writes are noted within `with run:`."""
        watched = sorted(self.watches.dependencies_of(watcher), key=str)
        identifiers = [to_builtins(identifier_of(dependency)) for dependency in watched]
        call = ReconcilerCall(self.name, to_builtins(watcher), identifiers, kind_of(watcher))
        return self._run(watcher, call)

    async def failed(
        self,
        watcher: ObjectIdentifier,
        run: Sync,
        error: Exception,
        queue: WorkQueue[ObjectIdentifier],
    ) -> None:
        """Note a failed call, and continue the count of failures of an earlier process."""
        await self.history.recall(watcher.key, error, queue, watcher, self._handler)
        self.history.failed(run, error, _now(), failures=queue.failures(watcher) + 1)

    def succeeded(self, run: Sync, after_s: float | None, *, failed: bool) -> None:
        """Note a successful call; *failed* if the one before has failed."""
        self.history.succeeded(run, _now(), failed=failed, after_s=after_s)

    async def redeliver(
        self,
        redelivery: Redelivery,
        parts: Parts,
        reconcile: Callable[[ObjectIdentifier], Awaitable[float | None]],
    ) -> None:
        """Make the recorded call, if it is of this dynamic watcher."""
        call = redelivery.delivery
        if not isinstance(call, ReconcilerCall) or call.part != self.name:
            return
        watcher = convert(call.watcher, ObjectIdentifier)
        for fields in call.watched:
            with suppress(NatsctlError):  # the watch may have failed in the recorded call too
                watched = await parts.dependency_on(convert(fields, ObjectIdentifier))
                await self.watches.depend(watcher, watched)
        run = self._run(watcher, call)
        redelivery.begin(self.history.informers)
        try:
            with run:
                after_s = await reconcile(watcher)
        except Exception as error:  # noqa: BLE001 - every error is an outcome of the call
            redelivery.end(None, error)
        else:
            redelivery.end(after_s, None)

    def _run(self, watcher: ObjectIdentifier, call: ReconcilerCall) -> Sync:
        return self.history.begin(
            watcher.key, OPERATION, None, handler=self._handler, delivery=call
        )


def note_read(watch: DependencyWatch[ObjectIdentifier], *, cached: bool = False) -> None:
    """Note that the current call of a reconciler has read the objects of a watch.

    If it read them only from the *cache*, a replay has to watch them before the call.
    """
    tape, run = current_tape(), current_sync.get()
    if tape is None:
        return
    dependency = watch.dependency
    with suppress(NatsctlError):  # the reader gets the error of an invalid object
        states = tuple(watch.objects())
        tape.append(DependencyRead(str(dependency), place_of(dependency.kind), states))
    if cached and isinstance(run, Sync) and isinstance(run.delivery, ReconcilerCall):
        identifier = to_builtins(identifier_of(dependency))
        if identifier not in run.delivery.watched:
            run.delivery.watched.append(identifier)


def _now() -> float:
    return asyncio.get_running_loop().time()
