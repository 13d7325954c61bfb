"""Runs a class around a resource or a dynamic watcher, which gets the recorded event only."""

import asyncio
from contextlib import suppress

from natsctl.core.insight.program import ProgramHistory, current_history
from natsctl.core.recording.document import Recording
from natsctl.core.recording.recordings import Delivery, ReconcilerCall, current_recordings
from natsctl.core.recording.redelivery import Begin, Redelivery, current_redelivery
from natsctl.daemon.operator import Guest
from natsctl.errors import HandlerError, UsageError
from natsctl.testing.replaying.world import World

LIMIT_S = 86_400.0  # of virtual time, for the start of the program and for the event


class ReplayedProgram:
    """A program in a replay.

    Args:
        program: an instance of the class, with replaying stores.
        recorded: the recording.
        world: its content.
    """

    def __init__(self, program: Guest, recorded: Recording, world: World) -> None:
        self._program = program
        self._recorded = recorded
        self._world = world

    async def handle(self, begin: Begin) -> float | None:
        """Let the program handle the recorded event; see `Handle`."""
        recorded = self._recorded
        redelivery = Redelivery(recorded.key, recorded.operation, self._delivery(), begin)
        running = asyncio.create_task(self._run(redelivery))
        try:
            await asyncio.wait(
                (running, redelivery.outcome),
                timeout=LIMIT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not redelivery.outcome.done():
                raise self._unfinished(running)
            return redelivery.outcome.result()
        finally:
            redelivery.outcome.cancel()
            running.cancel()
            with suppress(asyncio.CancelledError, Exception):  # its outcome is known
                await running

    async def _run(self, redelivery: Redelivery) -> None:
        history = ProgramHistory(self._recorded.controller)
        history.recorder = current_recordings.get()
        current_history.set(history)  # of this task, and of those that it makes
        current_redelivery.set(redelivery)
        await self._program.run()

    def _unfinished(self, running: "asyncio.Task[None]") -> Exception:
        name = type(self._program).__name__
        if not running.done():
            ending = f"within {LIMIT_S:g} s"
        else:
            ending = f"before its run() ended: {running.exception() or 'without an error'}"
        if self._world.began:
            return HandlerError(f"{name} did not mark the event done {ending}")
        return UsageError(
            f"{name} did not take the recorded event {ending}; the recording of "
            f"{self._recorded.controller} is of its {self._recorded.part}"
        )

    def _delivery(self) -> Delivery | ReconcilerCall:
        call, delivery = self._recorded.reconciliation, self._world.delivery
        if call is not None:
            return ReconcilerCall(call.part, call.watcher, list(call.watched))
        if delivery is None:
            raise UsageError(f"the recording of {self._recorded.controller} has no event")
        return delivery
