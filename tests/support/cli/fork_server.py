"""A process that has natsctl imported, and forks for each command.

    python tests/support/cli/fork_server.py SOCKET

reads requests from the inherited socket SOCKET (`SOCK_SEQPACKET`): a JSON object with `arguments`,
`folder` and `environ`, and four file descriptors: standard input, output and error, and a socket.
The command's process id and, when the command has ended, its wait status are sent to that socket as
two lines. Importing natsctl takes half a second of processor time, and forking some milliseconds.

A command ends as a new interpreter ends, but without freeing every object, which would copy the
memory that it shares with this process: threads are joined, exit functions run and output is
flushed.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
from contextlib import suppress

from typer.main import get_command

from tests.support.servers import process

REQUEST_BYTES_MAX = 200_000
PRELOADED = (
    "nats",
    "aiohttp",
    "yaml",
    "natsctl.daemon.http.metrics",
    "natsctl.jetstream.stores",
)


def preload() -> None:
    """Import what most commands need."""
    cli = importlib.import_module("natsctl.cli")
    commands = [module.name for module in pkgutil.walk_packages(cli.__path__, "natsctl.cli.")]
    for name in (*PRELOADED, *commands):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    program = importlib.import_module("natsctl.cli.main").app
    get_command(program).make_context("natsctl", [], resilient_parsing=True)  # loads pydantic
    gc.collect()
    gc.freeze()


class Commands:
    """The running commands, and the sockets to which their ends are reported."""

    def __init__(self) -> None:
        self._reports: dict[int, int] = {}  # a process id, and the descriptor of a socket
        self._ends, self._wakeup = os.pipe()  # readable if a command has ended
        os.set_blocking(self._wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a command has ended."""
        return self._ends

    def start(self, request: dict[str, object], files: list[int], control: socket.socket) -> None:
        """Start a command in another process, and send its process id to the last of the files."""
        report = files.pop()
        pid = os.fork()
        if pid == 0:
            process.die_with_parent()
            control.close()
            self._forget(report)
            _become(request, files)
            return
        for file in files:
            os.close(file)
        self._reports[pid] = report
        _send(report, pid)

    def report_ends(self) -> None:
        """Send the wait status of each command that has ended to its socket."""
        os.read(self._ends, REQUEST_BYTES_MAX)
        while self._reports:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            report = self._reports.pop(pid)
            _send(report, status)
            os.close(report)

    def _forget(self, report: int) -> None:
        """Release in the process of a command what belongs to the fork server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for file in (report, self._ends, self._wakeup, *self._reports.values()):
            os.close(file)


def serve(control: socket.socket) -> None:
    """Fork for each request, until the other end of the socket is closed."""
    preload()
    commands = Commands()
    sources: list[socket.socket | Commands] = [control, commands]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if commands in readable:
            commands.report_ends()
        if control in readable:
            data, files, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 4)
            if not data:
                return
            commands.start(json.loads(data), files, control)


def _send(report: int, number: int) -> None:
    with suppress(OSError):  # the test has ended
        os.write(report, b"%d\n" % number)


def _become(request: dict[str, object], files: list[int]) -> None:
    """Run the command line in this process, as a new interpreter would."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    folder = str(request["folder"])
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]  # it is JSON
    sys.path[0] = folder
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", 1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    sys.argv = ["natsctl", *request["arguments"]]  # type: ignore[misc]  # it is JSON
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules.pop("natsctl.__main__", None)
    try:
        runpy.run_module("natsctl", run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        _end(ending.code)
    _end(0)


def _end(status: object) -> None:
    """End this process as the interpreter does, but free no objects."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public one
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public one
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else status is not None)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
