"""Finds what a handler reads from outside of its recording: files, sockets and subprocesses.

An audit hook of Python reports these. A hook cannot be removed, so there is one, which is active
while a handler is replayed. Connections and subprocesses are refused.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from natsctl.errors import NotRecordedError

Found = Callable[[str], None]

_REFUSED = {
    "socket.connect": "a connection to {1}",
    "socket.getaddrinfo": "the address of {0}",
    "socket.sendto": "a message to {1}",
    "subprocess.Popen": "the subprocess {0}",
    "os.system": "the command {0}",
    "os.exec": "the program {0}",
    "os.posix_spawn": "the program {0}",
}
_NOTED = {
    "open": "the file {0}",
    "os.listdir": "the folder {0}",
    "os.scandir": "the folder {0}",
    "sqlite3.connect": "the database {0}",
}
_LOADERS = ("importlib", "linecache.py", "tokenize.py", "traceback.py", "zipimport", "inspect.py")

_found: Found | None = None
_installed = False


@contextmanager
def finding(found: Found) -> Iterator[None]:
    """Call *found* with each thing that the code in the context reads from outside.

    A connection or a subprocess raises `NotRecordedError`.
    """
    global _found, _installed  # noqa: PLW0603 - a process has one hook for its whole life
    if not _installed:
        sys.addaudithook(_audit)
        _installed = True
    _found = found
    try:
        yield
    finally:
        _found = None


def _audit(event: str, args: tuple[Any, ...]) -> None:
    global _found  # noqa: PLW0603 - see above
    if _found is None or (event not in _REFUSED and event not in _NOTED):
        return
    found, _found = _found, None  # the hook itself may open files
    try:
        if _loads_code():
            return
        text = (_REFUSED.get(event) or _NOTED[event]).format(*args)
        found(text)
        if event in _REFUSED:
            raise NotRecordedError(f"the recording does not have {text}")
    finally:
        _found = found


def _loads_code() -> bool:
    """Return whether Python itself reads a module or a line of source."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the only way to the frames here
    while frame is not None:
        if any(loader in frame.f_code.co_filename for loader in _LOADERS):
            return True
        frame = frame.f_back
    return False
