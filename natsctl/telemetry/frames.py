"""Finds the frames of a stack that belong to the user's own code."""

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

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
    return user_frames_of(traceback.StackSummary.extract(iter(frames)))


def user_frames_of(stack: traceback.StackSummary) -> traceback.StackSummary:
    """Return the frames of a stack that belong to the user's own code, see `user_frames`."""
    files = [frame.filename for frame in stack]
    called = stack[files.index(_PROGRAM) + 1 :] if _PROGRAM in files else stack
    program_frames = [frame for frame in called if not _is_python_or_natsctl(frame.filename)]
    users = [frame for frame in program_frames if not _INSTALLED.search(frame.filename)]
    return traceback.StackSummary.from_list(users or program_frames)


@cache
def _python() -> tuple[str, ...]:
    """Return the folders of Python's own modules; the first call takes 10 ms and 600 kB."""
    return tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))


def in_natsctl(file_name: str) -> bool:
    """Return whether a file belongs to natsctl."""
    return file_name.startswith(_NATSCTL)


def _is_python_or_natsctl(file_name: str) -> bool:
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
    frames = "".join([*user_frames_of(exception.stack).format(), *lines]).rstrip()
    return f"{last.rstrip()}\n{frames}".rstrip()
