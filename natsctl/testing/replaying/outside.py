"""Refuses what a replay would change outside of its recording, and notes what the handler reads.

Python reports files, sockets, processes and more to audit hooks. A hook cannot be removed, so there
is one, which judges the threads of the replay: the one that runs it, and those that it starts. What
changes anything is refused, whoever asks for it. Some functions report nothing; they are replaced
while the replay runs. Environment variables are noted by a method of `os.environ`.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from natsctl.errors import NotRecordedError

Report = Callable[[str], None]

_EFFECTS = frozenset(
    {
        *("os", "pty", "shutil", "subprocess", "tempfile", "signal", "fcntl", "resource", "syslog"),
        *("socket", "http", "urllib", "ftplib", "imaplib", "nntplib", "poplib", "smtplib"),
        *("telnetlib", "webbrowser", "sqlite3", "termios", "_thread"),
    }
)
"""The modules whose events are refused, except those of `_HARMLESS` and `_READS`."""
_HARMLESS = frozenset(
    {
        *("os.fwalk", "os.walk", "os.getxattr", "os.listxattr", "sqlite3.connect/handle"),
        *("socket.__new__", "socket.getservbyname", "socket.getservbyport"),
        *("shutil.get_archive_formats", "fcntl.fcntl"),
    }
)
_READS = {
    "open": "the file {0}",
    "socket.gethostname": "the name of this host",
    "os.listdir": "the folder {0}",
    "os.scandir": "the folder {0}",
}
_TEXTS = {
    "os.remove": "the removal of the file {0}",
    "os.rename": "the renaming of the file {0}",
    "os.mkdir": "the creation of the folder {0}",
    "os.rmdir": "the removal of the folder {0}",
    "os.chmod": "a change of the permissions of {0}",
    "os.utime": "a change of the times of {0}",
    "os.kill": "a signal to the process {0}",
    "os.fork": "another process",
    "os.system": "the command {0}",
    "shutil.rmtree": "the removal of the folder {0}",
    "socket.bind": "a server at {1}",
    "socket.connect": "a connection to {1}",
    "socket.getaddrinfo": "the address of {0}",
    "sqlite3.connect": "the database {0}",
    "subprocess.Popen": "the subprocess {0}",
    "tempfile.mkstemp": "the creation of the file {0}",
}
_SILENT: dict[str, tuple[str, ...]] = {
    "os": ("mkfifo", "mknod", "abort", "_exit", "nice", "setpriority", "setsid", "setuid"),
    "signal": ("signal", "alarm", "setitimer", "raise_signal", "siginterrupt"),
    "_posixsubprocess": ("fork_exec",),
}
"""Functions with effects that report nothing, by module."""
_SIGNALS = frozenset({"asyncio.runners", "asyncio.unix_events"})
"""The modules whose handlers of signals the loop of a replay needs."""
_PLUMBING = frozenset(
    {
        *("collections.abc", "codecs", "contextlib", "genericpath", "io", "os", "pathlib"),
        *("pathlib._abc", "pathlib._local", "posixpath", "zipfile", "zipfile._path", __name__),
    }
)
"""Modules that read for others."""
_READERS = frozenset(
    {
        *("importlib._bootstrap", "importlib._bootstrap_external", "zipimport"),
        *("linecache", "tokenize", "traceback", "inspect"),
    }
)
_READER_PACKAGES = frozenset({"importlib", "opentelemetry"})
"""Modules and packages that read source for Python, or settings of a tracer."""
_IDLE = frozenset({"threading", "queue", "concurrent.futures.thread"})
_POOL = "natsctl-virtual"
"""The threads of a virtual time loop, which waits for what they run."""


class _Replay:
    """The replay that runs; `notes` says whether reads are reported, too."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.notes = False
        self.bystanders = {thread.ident for thread in threading.enumerate()}
        self.bystanders.discard(threading.get_ident())

    def refuse(self, text: str) -> None:
        self.report(text)
        raise NotRecordedError(f"the recording does not have {text}")


_replay: _Replay | None = None
_escaped: dict[int | None, threading.Thread] = {}  # threads that outlived their replay
_inside = threading.local()
_installed = False


@contextmanager
def refusing(report: Report) -> Iterator[None]:
    """Refuse everything that has effects outside of this process.

    Each effect is reported and raises `NotRecordedError`, also in a thread that outlives the
    context. Modules are not compiled to files.
    """
    global _replay, _installed  # noqa: PLW0603 - a process has one hook for its whole life
    if not _installed:
        sys.addaudithook(_audit)
        _installed = True
    replay = _Replay(report)
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with ExitStack() as replaced:
            _replace_silent(replaced, replay)
            _replay = replay
            yield
    finally:
        _replay, sys.dont_write_bytecode = None, writes_bytecode


@contextmanager
def noting(variable: Report) -> Iterator[None]:
    """Report what the code in the context reads from outside, within `refusing`.

    Calls *variable* with the name of each environment variable that the code reads. A thread that
    still runs at the end of the context is reported.
    """
    replay = _replay
    assert replay is not None  # noqa: S101 - the caller is within `refusing`
    before = set(threading.enumerate())
    replay.notes = True
    environ: Any = type(os.environ)
    read = environ.__getitem__

    def noted(variables: Any, name: Any) -> Any:
        if not _is_reader(sys._getframe(1)):  # noqa: SLF001 - the only way to the frames here
            variable(os.fsdecode(name) if isinstance(name, bytes) else name)
        return read(variables, name)

    environ.__getitem__ = noted
    try:
        yield
    finally:
        environ.__getitem__ = read
        replay.notes = False
        for thread in set(threading.enumerate()) - before:
            if not thread.name.startswith(_POOL) and _runs(thread):
                _escaped[thread.ident] = thread
                replay.report(f"the thread {thread.name}, which outlives the call")


def _replace_silent(replaced: ExitStack, replay: _Replay) -> None:
    """Replace the functions that report nothing, under every name that a module has for them."""
    refusing_by_id: dict[int, tuple[Any, Any]] = {}
    for module_name, names in _SILENT.items():
        for name in names:
            function = getattr(sys.modules.get(module_name), name, None)
            if function is not None:
                refused = _refused(function, f"{module_name}.{name}()", replay)
                refusing_by_id[id(function)] = function, refused
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            function, refused = refusing_by_id.get(id(value), (None, None))
            if function is value is not None:
                setattr(module, name, refused)
                replaced.callback(setattr, module, name, function)


def _refused(function: Any, text: str, replay: _Replay) -> Any:
    def refused(*args: Any, **options: Any) -> Any:
        caller = _caller(sys._getframe(1))  # noqa: SLF001 - the only way to the frames here
        if _judged() is replay and not (text.startswith("signal.") and caller in _SIGNALS):
            replay.refuse(text)
        return function(*args, **options)

    return refused


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if (_replay is None and not _escaped) or getattr(_inside, "hook", False):
        return
    if event not in _READS and (event.partition(".")[0] not in _EFFECTS or event in _HARMLESS):
        return
    _inside.hook = True  # the hook itself may open files
    try:
        replay = _judged()
        if replay is not None:
            _judge(replay, event, args)
    finally:
        _inside.hook = False


def _judged() -> _Replay | None:
    """Return the replay that this thread belongs to, or None."""
    ident = threading.get_ident()
    escaped = _escaped.get(ident)
    if escaped is not None:
        if escaped.is_alive() and escaped.ident == ident:
            return _Replay(lambda _: None)
        del _escaped[ident]  # another thread has the number now
    replay = _replay
    return None if replay is None or ident in replay.bystanders else replay


def _judge(replay: _Replay, event: str, args: tuple[Any, ...]) -> None:
    frame = sys._getframe(2)  # noqa: SLF001 - the code that asks
    if event == "open" and _writes(args):
        replay.refuse(f"a change of the file {args[0]}")
    elif event in _READS:
        is_open = event == "open" and isinstance(args[0], int)  # a file with this number
        if replay.notes and not is_open and not _is_reader(frame):
            replay.report(_READS[event].format(*args))
    elif event == "sqlite3.connect" and args[0] in (":memory:", b":memory:"):
        return
    elif not event.startswith("_thread.") or _caller(frame) != "threading":
        text = _TEXTS.get(event)
        replay.refuse(f"{event}()" if text is None else text.format(*args))


def _writes(args: tuple[Any, ...]) -> bool:
    """Return whether a file that is opened with these arguments may be changed."""
    path, flags = args[0], args[2]
    if path in (os.devnull, 0, 1, 2):  # the standard streams too
        return False
    changes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    return isinstance(flags, int) and bool(flags & changes)


def _caller(frame: FrameType) -> str:
    """Return the name of the module in which a frame runs; empty if its name isn't its own."""
    name = frame.f_globals.get("__name__", "")
    module = sys.modules.get("_collections_abc" if name == "collections.abc" else name)
    return name if module is not None and vars(module) is frame.f_globals else ""


def _is_reader(frame: FrameType) -> bool:
    """Return whether Python reads a module or a line of source, or a tracer reads its settings."""
    asking: FrameType | None = frame
    while asking is not None and _caller(asking) in _PLUMBING:
        asking = asking.f_back
    name = "" if asking is None else _caller(asking)
    return name in _READERS or name.partition(".")[0] in _READER_PACKAGES


def _runs(thread: threading.Thread) -> bool:
    """Return whether a thread runs anything; one of a pool may wait for work."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the only way to a thread's frames
    while frame is not None:
        if _caller(frame) not in _IDLE:
            return True
        frame = frame.f_back
    return False
