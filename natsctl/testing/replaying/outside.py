"""Finds what a handler reads and changes outside of its recording.

An audit hook of Python reports files, sockets and subprocesses. A hook cannot be removed, so there
is one, which is active while a handler is replayed. Connections, subprocesses and changes of files
are refused. Reads of environment variables are noted by a method of `os.environ`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from natsctl.errors import NotRecordedError

Report = Callable[[str], None]

_REFUSED = {
    "os.remove": "the removal of the file {0}",
    "os.rename": "the renaming of the file {0}",
    "os.mkdir": "the creation of the folder {0}",
    "os.rmdir": "the removal of the folder {0}",
    "os.truncate": "a change of the file {0}",
    "os.link": "a link to the file {0}",
    "os.symlink": "a link to the file {0}",
    "shutil.rmtree": "the removal of the folder {0}",
    "socket.gethostbyname": "the address of {0}",
    "socket.sendmsg": "a message to {1}",
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
    "socket.gethostname": "the name of this host",
    "os.listdir": "the folder {0}",
    "os.scandir": "the folder {0}",
    "sqlite3.connect": "the database {0}",
}
_NOT_HANDLERS = (
    *("importlib", "linecache.py", "tokenize.py", "traceback.py", "zipimport", "inspect.py"),
    "opentelemetry",
)

_report: Report | None = None
_installed = False


@contextmanager
def finding(report: Report, variable: Report) -> Iterator[None]:
    """Call *report* with each thing that the code in the context reads from outside.

    Calls *variable* with the name of each environment variable that the code reads. A connection, a
    subprocess or a change of a file raises `NotRecordedError`.
    """
    global _report, _installed  # noqa: PLW0603 - a process has one hook for its whole life
    if not _installed:
        sys.addaudithook(_audit)
        _installed = True
    _report = report
    try:
        with _noting_variables(variable):
            yield
    finally:
        _report = None


@contextmanager
def _noting_variables(variable: Report) -> Iterator[None]:
    kind: Any = type(os.environ)
    read = kind.__getitem__

    def noted(environ: Any, name: Any) -> Any:
        if not _is_no_handler():
            variable(os.fsdecode(name) if isinstance(name, bytes) else name)
        return read(environ, name)

    kind.__getitem__ = noted
    try:
        yield
    finally:
        kind.__getitem__ = read


def _audit(event: str, args: tuple[Any, ...]) -> None:
    global _report  # noqa: PLW0603 - see above
    if _report is None or (event not in _REFUSED and event not in _NOTED):
        return
    report, _report = _report, None  # the hook itself may open files
    try:
        if _is_no_handler():
            return
        text = (_REFUSED.get(event) or _NOTED[event]).format(*args)
        writes = event == "open" and _writes(args[2])
        text = f"a change of {text}" if writes else text
        report(text)
        if event in _REFUSED or writes:
            raise NotRecordedError(f"the recording does not have {text}")
    finally:
        _report = report


def _writes(flags: Any) -> bool:
    """Return whether a file that is opened with these flags may be changed."""
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _is_no_handler() -> bool:
    """Return whether Python reads a module or a line of source, or a tracer reads its settings."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the only way to the frames here
    while frame is not None:
        if any(reader in frame.f_code.co_filename for reader in _NOT_HANDLERS):
            return True
        frame = frame.f_back
    return False
