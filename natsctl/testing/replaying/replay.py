"""Replays a recorded sync: calls the handler in memory, with the recorded reads and clock."""

import asyncio
import random
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
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
from natsctl.core.tape import EXTERNAL, OutsideStep, RecordedError, StoreStep
from natsctl.errors import DECODE_ERRORS, NotRecordedError, UsageError
from natsctl.managed.controller import ManagedController
from natsctl.model import exact_json
from natsctl.telemetry.hiding import TRACEBACK_MAX, hidden
from natsctl.testing.replaying.outside import noting, refusing
from natsctl.testing.replaying.tape import ReplayStores, ReplayTape
from natsctl.testing.reproducible import reproducible, silent
from natsctl.testing.time import VirtualTimeLoop
from natsctl.watchers import InformerController


class Verdict(Enum):
    """The end of a replay."""

    SUCCEEDED = "the sync succeeds"
    AS_RECORDED = "the sync fails as recorded"
    OTHERWISE = "the sync fails in another way"
    NOT_RECORDED = "the sync makes a read that was not recorded"


class ReplayedSync(msgspec.Struct, frozen=True, kw_only=True):
    """The replay of a recorded sync.

    Attributes:
        verdict: how the replay ended.
        missing: what the handler read that wasn't recorded.
        variables: the environment variables that it read; their values are those of this process.
        assumed: objects that were written, and aren't in the recording; they counted as missing.
        writes: the writes of the replay, such as `create kv/routes shop`.
        other_writes: the differences between its writes and the recorded ones.
        error: the exception that the handler raised in the replay.
    """

    controller: str
    key: str
    verdict: Verdict
    recorded: RecordedOutcome
    replayed: RecordedOutcome
    missing: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    other_writes: tuple[str, ...] = ()
    error: BaseException | None = None

    def __str__(self) -> str:
        lines = [
            f"{self.key} of {self.controller}: {self.verdict.value}",
            f"  recorded  {self.recorded}",
            f"  replayed  {self.replayed}",
        ]
        fields = {
            "missing": self.missing,
            "variables": self.variables,
            "assumed": [f"{name} does not exist" for name in self.assumed],
            "writes": self.writes,
            "differs": self.other_writes,
        }
        for name, texts in fields.items():
            lines += [f"  {'' if n else name:<10}{text}" for n, text in enumerate(texts)]
        return "\n".join(lines)

    @property
    def traceback(self) -> TracebackType | None:
        return None if self.error is None else self.error.__traceback__


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
    plan = PlanRecord() if tape.recording.planning else None
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
    if tape.missing:
        verdict = Verdict.NOT_RECORDED
    elif replayed.error is None:
        verdict = Verdict.SUCCEEDED
    else:
        same = recorded.outcome.error is not None and (
            (recorded.outcome.error.type, recorded.outcome.error.message)
            == (replayed.error.type, replayed.error.message)
        )
        verdict = Verdict.AS_RECORDED if same else Verdict.OTHERWISE
    writes = [step for step in tape if isinstance(step, StoreStep) and step.writes]
    before, now = Counter(_recorded_writes(recorded)), Counter(map(_write_of, writes))
    return ReplayedSync(
        controller=recorded.controller,
        key=recorded.key,
        verdict=verdict,
        recorded=recorded.outcome,
        replayed=replayed,
        variables=tuple(dict.fromkeys(tape.variables)),
        missing=tuple(dict.fromkeys(tape.missing)),
        assumed=tuple(dict.fromkeys(tape.assumed)),
        writes=tuple(f"{step.verb} {step.place} {step.key}" for step in writes),
        other_writes=(
            *(f"only recorded: {' '.join(write[:3])}" for write in before - now),
            *(f"only replayed: {' '.join(write[:3])}" for write in now - before),
        ),
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


_Write = tuple[str, str, str, bytes]  # the verb, the place, the key and the value
_EXTERNAL_WRITES = {"create", "update", "delete"}
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")  # RFC 3339


def _recorded_writes(recording: Recording) -> Iterable[_Write]:
    """Yield the writes of stores and of external systems."""
    for step in recording.steps:
        match step:
            case StoreStep(writes=True):
                yield _write_of(step)
            case OutsideStep(name=name) if name.startswith(f"{EXTERNAL} "):
                verb = name.removeprefix(f"{EXTERNAL} ")
                if verb in _EXTERNAL_WRITES:
                    yield verb, EXTERNAL, recording.key, b""


def _write_of(step: StoreStep) -> _Write:
    """Return a write so that equal JSON values are equal texts, but for times and its uid."""
    text = b""
    if bytes(step.value):
        try:
            document: Any = exact_json.decode(step.value)
            metadata = document.get("metadata") if isinstance(document, dict) else None
            if metadata:
                document = {**document, "metadata": {**metadata, "uid": ""}}
            text = _TIME.sub(b"", exact_json.encode_sorted(document))
        except DECODE_ERRORS:
            pass  # a recording has no other values
    return step.verb, step.place, step.key, text
