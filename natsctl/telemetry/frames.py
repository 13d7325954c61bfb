"""Finds the frames of a stack that are the user's own code."""

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")
_OURS = f"{Path(__file__).parents[1]}/"
_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))

Frames = Iterable[tuple[FrameType, int]]
"""Frames, each with the number of the line that it is at."""


def user_frames(frames: Frames) -> traceback.StackSummary:
    """Return the frames of the user's own code; empty if there are none.

    Those are in files outside of Python, natsctl and installed packages. If there are none, the
    controller may be an installed package itself, and frames of packages count.
    """
    return user_frames_of(traceback.StackSummary.extract(iter(frames)))


def user_frames_of(stack: traceback.StackSummary) -> traceback.StackSummary:
    """Return the frames of a stack that are the user's own code, see `own`."""
    others = [frame for frame in stack if not _is_machinery(frame.filename)]
    users = [frame for frame in others if not _PACKAGES.search(frame.filename)]
    return traceback.StackSummary.from_list(users or others)


def _is_machinery(file_name: str) -> bool:
    """Return whether the file belongs to natsctl or to Python."""
    in_python = file_name.startswith(_PYTHON) and not _PACKAGES.search(file_name)
    return in_python or file_name.startswith((_OURS, "<frozen "))


def coroutine_frames(work: Any) -> Iterator[tuple[FrameType, int]]:
    """Return the frames in which a coroutine waits, the outermost first."""
    while work is not None:
        kinds = ("cr", "gi", "ag")
        frame = next((f for k in kinds if (f := getattr(work, f"{k}_frame", None))), None)
        if frame is not None:
            yield frame, frame.f_lineno
        names = ("cr_await", "gi_yieldfrom", "ag_await")
        work = next((inner for name in names if (inner := getattr(work, name, None))), None)


def thread_frames(ident: int) -> Frames:
    """Return the frames that a thread is in, the outermost first."""
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - the only way to see another thread
    return reversed(list(traceback.walk_stack(frame))) if frame is not None else ()


def user_frames_text(frames: Frames) -> str:
    """Return the user's own frames as Python prints them; empty if there are none."""
    return "".join(user_frames(frames).format()).rstrip()


def explained_error(error: BaseException) -> str:
    """Return an exception in one line, then the frames of the user's own code in which it arose."""
    shown = traceback.TracebackException.from_exception(error)
    *lines, last = shown.format_exception_only()
    frames = "".join([*user_frames_of(shown.stack).format(), *lines]).rstrip()
    return f"{last.rstrip()}\n{frames}".rstrip()
