"""Tells what an exception means: its class, and the frames of your own code that raised it."""

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from natsctl.errors import InvalidKeyError, NatsctlError, PermanentError, RetryAfter


class ErrorClass(Enum):
    """What follows a sync that an exception ends."""

    DELAY = auto()
    """The handler requested a delay. This isn't a failure, and the backoff doesn't change."""
    PERMANENT = auto()
    """The sync failed and isn't retried until the object changes."""
    EXPECTED = auto()
    """The sync failed, and the message explains the failure: no traceback is logged."""
    UNEXPECTED = auto()
    """The sync failed because of an error in the code: the traceback is logged."""
    CANCELLED = auto()
    """The sync was cancelled: its key returns to the queue unchanged."""

    @property
    def failed(self) -> bool:
        return self not in {ErrorClass.DELAY, ErrorClass.CANCELLED}

    @property
    def retried(self) -> bool:
        return self in {ErrorClass.EXPECTED, ErrorClass.UNEXPECTED}


def classify(error: BaseException) -> ErrorClass:
    """Return the class of an exception that ends a sync.

    Queue, metrics, history, events, logs and traces all ask this. An `Exception` is a failure or a
    requested delay; any other exception cancelled the sync.
    """
    match error:
        case RetryAfter():
            return ErrorClass.DELAY
        case PermanentError() | InvalidKeyError():
            return ErrorClass.PERMANENT
        case NatsctlError():
            return ErrorClass.EXPECTED
        case TimeoutError() if error.args:  # without a message it explains nothing
            return ErrorClass.EXPECTED
        case Exception():
            return ErrorClass.UNEXPECTED
        case _:
            return ErrorClass.CANCELLED


_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_NATSCTL = f"{Path(__file__).parents[1]}/"
_PROGRAM = str(Path(__file__).parents[2] / "natsctl_main.py")  # only the shell calls it

Frames = Iterable[tuple[FrameType, int]]
"""Frames, each with its current line number."""


def user_frames(frames: Frames) -> traceback.StackSummary:
    """Return the frames of the user's own code; empty if there are none.

    That's code in files outside of Python, natsctl and installed packages. If there's none,
    installed packages count, because your controller may be one.
    """
    return _users(traceback.StackSummary.extract(iter(frames)))


def _users(stack: traceback.StackSummary) -> traceback.StackSummary:
    files = [frame.filename for frame in stack]
    called = stack[files.index(_PROGRAM) + 1 :] if _PROGRAM in files else stack
    program_frames = [frame for frame in called if not _is_tool(frame.filename)]
    users = [frame for frame in program_frames if not _INSTALLED.search(frame.filename)]
    return traceback.StackSummary.from_list(users or program_frames)


@cache
def _python() -> tuple[str, ...]:
    """Return the folders of Python's own modules; the first call takes 10 ms and 600 kB."""
    return tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))


def in_natsctl(file_name: str) -> bool:
    """Return whether natsctl has this file."""
    return file_name.startswith(_NATSCTL)


def _is_tool(file_name: str) -> bool:
    in_python = file_name.startswith(_python()) and not _INSTALLED.search(file_name)
    return in_python or file_name.startswith("<frozen ") or in_natsctl(file_name)


def coroutine_frames(work: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a suspended coroutine, generator or async generator, outermost first."""
    while work is not None:
        prefixes = ("cr", "gi", "ag")
        frame = next((f for p in prefixes if (f := getattr(work, f"{p}_frame", None))), None)
        if frame is not None:
            yield frame, frame.f_lineno
        names = ("cr_await", "gi_yieldfrom", "ag_await")
        work = next((inner for name in names if (inner := getattr(work, name, None))), None)


def thread_frames(ident: int) -> Frames:
    """Return the current frames of a thread, outermost first."""
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - the only access to another thread
    return reversed(list(traceback.walk_stack(frame))) if frame is not None else ()


def user_frames_text(frames: Frames) -> str:
    """Return the frames of the user's own code as Python prints them; empty if there are none."""
    return "".join(user_frames(frames).format()).rstrip()


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception from the first frame outside of natsctl.

    The traceback is whole if all frames are natsctl's.
    """
    frame = error.__traceback__
    while frame is not None and in_natsctl(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame or error.__traceback__


def explained_error(error: BaseException) -> str:
    """Return an exception in one line, followed by the user's own frames that raised it."""
    exception = traceback.TracebackException.from_exception(error)
    *lines, last = exception.format_exception_only()
    frames = "".join([*_users(exception.stack).format(), *lines]).rstrip()
    return f"{last.rstrip()}\n{frames}".rstrip()
