"""Replays a recorded sync: calls the handler in memory, with the recorded reads and clock."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.owners import OwnerNames
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots import only_primary
from natsctl.core.environment import within
from natsctl.core.installation import INSTALLATION, KEY, Installation
from natsctl.core.plan.record import PlanRecord
from natsctl.core.readers import Primary
from natsctl.core.record.document import RecordedOutcome, Recording, read_recording
from natsctl.core.record.recordings import Recordings, frames_of, traceback_text
from natsctl.core.sync import current_key
from natsctl.core.tape import RecordedError
from natsctl.errors import NotRecordedError, UsageError
from natsctl.managed.controller import ManagedController
from natsctl.telemetry.hiding import TRACEBACK_MAX, hidden
from natsctl.testing.replaying.outcome import (
    ReplayedSync,
    Verdict,
    other_writes,
    verdict_of,
    writes_of,
)
from natsctl.testing.replaying.outside import noting, refusing
from natsctl.testing.replaying.tape import ReplayStores, ReplayTape
from natsctl.testing.reproducible import reproducible, silent
from natsctl.testing.time import VirtualTimeLoop
from natsctl.watchers.controller import InformerController

CLASSES: Mapping[str, type[Any]] = {
    "controller": Controller,
    "managed": ManagedController,
    "watchers": InformerController,
}
"""The class of the controllers of each surface that has one."""


class ReplayError(AssertionError):
    """Raised by `replay` if the sync doesn't succeed; `replayed` describes the replay."""

    def __init__(self, replayed: ReplayedSync) -> None:
        super().__init__(f"\n{replayed}")
        self.replayed = replayed


def replay(path: str | Path, controller: type[object]) -> ReplayedSync:
    """Replay the recording in a file, and return the replay if the sync succeeds.

    The *controller* is the class of a `Controller`, a `ManagedController` or an
    `InformerController`. A new one runs in memory and in virtual time. It reads what the recorded
    sync has read, and nothing else. Its clock begins at the time of the recorded sync, and its
    randomness depends on the recording.

    Raises `ReplayError` if the handler fails, or reads what wasn't recorded. Raises
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
    module, tape = sys.modules[controller.__module__], ReplayTape(recorded)
    with refusing(tape.missing.append), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        begin = recorded.started.timestamp() - runner.get_loop().time()
        with reproducible(runner.get_loop(), (module,), begin=begin), silent():
            random.seed(recorded.seed)
            return runner.run(_replayed(tape, controller))


async def _replayed(tape: ReplayTape, controller: type[object]) -> ReplayedSync:
    """Call the handler once, and compare the result with the recording."""
    after_s, error = None, None
    plan = PlanRecord(current_key) if tape.recording.planning else None
    try:
        with within(recordings=Recordings(0, tape=lambda: tape)):
            async with _opened(controller, tape) as handle:
                with ExitStack() as handling:
                    handling.enter_context(within(plan=plan))
                    try:
                        after_s = await handle(handling)
                    except Exception as raised:
                        if not tape.began:
                            raise
                        error = raised
    except NotRecordedError as missed:  # in `start` or `clean`
        after_s, error = None, missed
    recorded, replayed = tape.recording, _outcome(after_s, error)
    return ReplayedSync(
        controller=recorded.controller,
        key=recorded.key,
        verdict=verdict_of(recorded.outcome, replayed, missing=tape.missing),
        recorded=recorded.outcome,
        replayed=replayed,
        variables=tuple(dict.fromkeys(tape.variables)),
        missing=tuple(dict.fromkeys(tape.missing)),
        assumed=tuple(dict.fromkeys(tape.assumed)),
        writes=writes_of(tape.stores),
        other_writes=other_writes(recorded, tape.stores),
        error=error,
    )


@asynccontextmanager
async def _opened(
    controller: type[object], tape: ReplayTape
) -> AsyncIterator[Callable[[ExitStack], Awaitable[float | None]]]:
    """Make the controller of a recording, open its stores, and call `start` and `clean`.

    Yields a function that calls the handler once, as in the recorded sync; it returns the delay, or
    raises the error. Raises `UsageError` if the controller is of another kind than the recorded
    one.
    """
    recorded = tape.recording
    wanted = CLASSES[recorded.surface]
    if not issubclass(controller, wanted):
        raise UsageError(
            f"{controller.__name__} isn't a subclass of {wanted.__name__}, and the recording "
            f"of {recorded.controller} needs one"
        )
    stores, settings = ReplayStores(tape), recorded.settings
    if settings.get("installation"):
        installed = msgspec.convert(settings["installation"], Installation)
        await (await stores.open(INSTALLATION)).create(KEY, msgspec.json.encode(installed))
    instance: Any = controller()
    hosted: ControllerRuntime | ManagedController[Any] | InformerController = instance
    if isinstance(instance, Controller):
        names = msgspec.convert(settings.get("owner_names", {}), OwnerNames)
        hosted = ControllerRuntime(instance, nats=stores, kube=stores.kube, owner_names=names)
    else:
        instance.use(nats=stores, kube=stores.kube)
    async with hosted.opened():
        await hosted.complete()
        call = _call_of(hosted, tape)

        async def handle(handling: ExitStack) -> float | None:
            tape.begin(hosted.host.informers)
            random.seed(recorded.seed)
            handling.enter_context(noting(tape.variables.append))
            return await call()

        await instance.start()
        try:
            yield handle
        finally:
            await instance.clean()


def _call_of(
    hosted: ControllerRuntime | ManagedController[Any] | InformerController, tape: ReplayTape
) -> Callable[[], Awaitable[float | None]]:
    """Return the recorded call of a handler; raises `UsageError` if it is of another part."""
    recorded = tape.recording
    match hosted:
        case ControllerRuntime():
            slot = only_primary(type(hosted.controller)).name
            if slot not in recorded.slots:
                raise UsageError(f"the recording of {recorded.controller} has no slot {slot}")
            if tape.last is not None:
                primary: Primary[Any] = vars(hosted.controller)[slot]
                primary.queue.note(recorded.key).last = tape.last
            return partial(hosted.sync, recorded.key)
        case ManagedController():
            return partial(hosted.sync, recorded.key, last=tape.last)
        case InformerController():
            if tape.delivery is None:
                raise UsageError(f"the recording of {recorded.controller} has no change")
            hosted.registration(tape.delivery)  # raises if it's gone
            return partial(hosted.deliver, recorded.key, tape.delivery)


def _outcome(after_s: float | None, error: Exception | None) -> RecordedOutcome:
    if error is None:
        return RecordedOutcome(after_s=after_s)
    recorded = RecordedError.of(error)
    message = hidden(recorded.message, limit=max(1, len(recorded.message)))
    return RecordedOutcome(
        error=msgspec.structs.replace(recorded, message=message),
        traceback=hidden(traceback_text(frames_of(error.__traceback__)), limit=TRACEBACK_MAX),
    )
