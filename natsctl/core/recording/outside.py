"""Notes the results of calls outside of the stores, or answers them from a recording."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from natsctl.core.objects.read_your_writes import current_tape
from natsctl.core.objects.tape import OutsideCall, Playback, RecordedError, RecordedValue

T = TypeVar("T")


async def outside(name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Make a call whose result the tape of the current sync notes.

    In a replay, the call is not made: returns the recorded result, or raises the recorded error.
    """
    tape = current_tape()
    if tape is None:
        return await call()
    if isinstance(tape, Playback):
        answer: T = await tape.answer(name)
        return answer
    clock = asyncio.get_running_loop().time
    begun, failure = clock(), None
    try:
        result = await call()
    except BaseException as error:
        failure = RecordedError.of(error)
        raise
    finally:
        recorded = None if failure is not None else RecordedValue.of(result)
        tape.append(OutsideCall(name, recorded, failure, clock() - begun))
    return result
