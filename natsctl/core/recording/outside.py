"""Notes the results of calls outside of the stores, or answers them from a recording."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from natsctl.core.objects.sync import current_tape
from natsctl.core.objects.tape import OutsideCall, Playback, RecordedError, RecordedValue

T = TypeVar("T")

EXTERNAL = "external"
"""The place of external resources, and the first word of the names of calls there."""


async def outside(name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Make a call whose result the tape of the current sync notes.

    In a replay, the call is not made: returns the recorded result, or raises the recorded error. A
    call that made other such calls is made, because these have recorded results.
    """
    tape = current_tape()
    if tape is None:
        return await call()
    if isinstance(tape, Playback):
        answer: T = await tape.answer(name, call)
        return answer
    clock = asyncio.get_running_loop().time
    begun, failure, before = clock(), None, _calls(tape)
    try:
        result = await call()
    except BaseException as error:
        failure = RecordedError.of(error)
        raise
    finally:
        recorded = None if failure is not None else RecordedValue.of(result)
        inner = _calls(tape) - before
        tape.append(OutsideCall(name, recorded, failure, clock() - begun, inner))
    return result


async def remembered(name: str, memory: Callable[[], T], restore: Callable[[T], None]) -> None:
    """Note what this process remembers of earlier syncs of the key, as *memory* returns it.

    In a replay, calls *restore* with the recorded memory.
    """
    tape = current_tape()
    if isinstance(tape, Playback):
        if tape.has(name):
            restore(await tape.answer(name, _no_call))
    elif tape is not None:
        tape.append(OutsideCall(name, RecordedValue.of(memory()), None, 0.0))


def _calls(tape: object) -> int:
    """Return how many calls outside of the stores the tape has."""
    notes = tape if isinstance(tape, list) else ()
    return sum(isinstance(note, OutsideCall) for note in notes)


async def _no_call() -> Any:
    raise AssertionError("a memory has no calls")
