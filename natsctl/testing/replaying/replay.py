"""Replays a recorded sync: calls the handler in memory, with the recorded reads and clock."""

import asyncio
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from natsctl.core.informer import Informer
from natsctl.core.planning.record import PlanRecord, current_plan
from natsctl.core.recording.document import RecordedOutcome, Recording, read_recording
from natsctl.core.recording.recordings import KeptSync, frames_of, recording
from natsctl.core.recording.writing import traceback_text
from natsctl.core.sync import current_key
from natsctl.core.tape import RecordedError
from natsctl.errors import NotRecordedError, UsageError
from natsctl.telemetry.hiding import TRACEBACK_MAX, hidden
from natsctl.testing.replaying.handlers import Handle, opened
from natsctl.testing.replaying.outcome import (
    ReplayedSync,
    Verdict,
    other_writes,
    verdict_of,
    writes_of,
)
from natsctl.testing.replaying.outside import noting, refusing
from natsctl.testing.replaying.tape import ReplayTape
from natsctl.testing.replaying.world import World
from natsctl.testing.reproducible import reproducible, silent
from natsctl.testing.time import VirtualTimeLoop


class ReplayError(AssertionError):
    """Raised by `replay` if the sync does not succeed; `replayed` describes the replay."""

    def __init__(self, replayed: ReplayedSync) -> None:
        super().__init__(f"\n{replayed}")
        self.replayed = replayed


def replay(path: str | Path, controller: type[object]) -> ReplayedSync:
    """Replay the recording in a file, and return the replay if the sync succeeds.

    The *controller* is the class of a `Controller`, a `ManagedController` or an
    `InformerController`, or a class around a `Resource` or a `DynamicWatcher` that `natsctl run`
    runs. The handler of a new one runs in memory and in virtual time. It reads what the recorded
    sync has read, and nothing else. Its clock begins at the time of the recorded sync, and its
    randomness depends on the recording.

    Raises `ReplayError` if the handler fails, or makes a read that was not recorded. Raises
    `InvalidInputError` if the file has no recording, and `UsageError` if the recording is of
    another controller.
    """
    replayed = replay_recording(read_recording(Path(path)), controller)
    if replayed.verdict is not Verdict.SUCCEEDED:
        raise ReplayError(replayed) from replayed.error
    return replayed


def replay_recording(recorded: Recording, controller: type[object]) -> ReplayedSync:
    """Replay a recording, and return the replay; see `replay`."""
    if not recorded.complete:
        raise UsageError(
            f"the recording of {recorded.key} has no reads: the sync read too much; "
            "set controllers.recordings_max_bytes to a larger number"
        )
    module = sys.modules[controller.__module__]
    replayed = _Replay(recorded, controller)
    with replayed.refusing(), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        begin = recorded.started.timestamp() - runner.get_loop().time()
        with reproducible(runner.get_loop(), (module,), begin=begin), silent():
            random.seed(recorded.seed)
            return runner.run(replayed.run())


class _Replay:
    """One replay; keeps the recording of the sync that it makes; a `SyncRecorder`."""

    successes = True

    def __init__(self, recorded: Recording, controller: type[object]) -> None:
        self._recorded = recorded
        self._world = World(recorded)
        self._controller = controller
        self._tape = ReplayTape(self._world)

    def tape(self) -> ReplayTape:
        """See `SyncRecorder.tape`."""
        return self._tape

    def wants(self, controller: str, key: str) -> bool:  # noqa: ARG002 - the protocol's signature
        """See `SyncRecorder.wants`."""
        return False

    def keep(self, recorded: KeptSync) -> None:
        """See `SyncRecorder.keep`; the replay keeps nothing."""

    def refusing(self) -> AbstractContextManager[None]:
        """Refuse effects outside of this process."""
        return refusing(self._world.found)

    async def run(self) -> ReplayedSync:
        """Call the handler once, and compare the result with the recording."""
        try:
            with recording(self):
                async with opened(self._controller, self._recorded, self._world) as handle:
                    return await self._sync(handle)
        except NotRecordedError as error:  # in `start` or `clean`
            return self._result(_outcome(None, error), error)

    async def _sync(self, handle: Handle) -> ReplayedSync:
        after_s, error = None, None
        with ExitStack() as handling, _planning(self._recorded.planning):

            def begin(informers: Mapping[str, Informer[Any]]) -> None:
                self._tape.begin(informers)
                random.seed(self._recorded.seed)
                handling.enter_context(noting(self._world.variable))

            try:
                after_s = await handle(begin)
            except Exception as raised:
                if not self._world.began:
                    raise
                error = raised
        return self._result(_outcome(after_s, error), error)

    def _result(self, replayed: RecordedOutcome, error: Exception | None) -> ReplayedSync:
        recorded, world, calls = self._recorded, self._world, self._tape.calls
        return ReplayedSync(
            controller=recorded.controller,
            key=recorded.key,
            verdict=verdict_of(recorded.outcome, replayed, missing=world.missing),
            recorded=recorded.outcome,
            replayed=replayed,
            variables=tuple(world.variables),
            missing=tuple(dict.fromkeys(world.missing)),
            assumed=tuple(dict.fromkeys(self._tape.assumed)),
            writes=writes_of(calls),
            other_writes=other_writes(recorded, calls),
            error=error,
        )


def _outcome(after_s: float | None, error: Exception | None) -> RecordedOutcome:
    if error is None:
        return RecordedOutcome(after_s=after_s)
    recorded = RecordedError.of(error)
    message = hidden(recorded.message, limit=max(1, len(recorded.message)))
    return RecordedOutcome(
        error=msgspec.structs.replace(recorded, message=message),
        traceback=hidden(traceback_text(frames_of(error.__traceback__)), limit=TRACEBACK_MAX),
    )


@contextmanager
def _planning(planning: bool) -> Iterator[None]:  # noqa: FBT001 - the recorded value
    """Let `natsctl.planning()` return the same as in the recorded sync."""
    token = current_plan.set(PlanRecord(current_key) if planning else None)
    try:
        yield
    finally:
        current_plan.reset(token)
