"""A process that has natsctl imported, and forks for each command.

    python tests/support/cli/fork_server.py SOCKET

listens on the inherited socket SOCKET (`SOCK_SEQPACKET`). The workers of a run of tests connect to
it, and share one server. A request is a JSON object with `arguments`, of which the first is
`natsctl` or a Python file, `folder` and `environ`, and four file descriptors: standard input,
output and error, and a socket. The command's process id and,
when the command has ended, its wait status are sent to that socket as two lines. The commands of a
connection are killed when the connection is closed. Importing natsctl, with the first connection,
takes a second of processor time, and forking some milliseconds.

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
from typing import Any, NamedTuple, NoReturn

from tests.support.servers import process

REQUEST_BYTES_MAX = 200_000
PRELOADED = (
    "nats",
    "aiohttp",
    "jsonschema",
    "kubernetes.config",
    "yaml",
    "natsctl.daemon.metrics",
    "natsctl.dynamic",
    "natsctl.jetstream.embedded",
    "natsctl.jetstream.store",
    "natsctl.kubernetes.cluster",
    "natsctl.kubernetes.recorder",
    "natsctl.resource",
)


def preload() -> None:
    """Import what most commands need, and make the commands."""
    cli = importlib.import_module("natsctl.cli")
    commands = [module.name for module in pkgutil.walk_packages(cli.__path__, "natsctl.cli.")]
    for name in (*PRELOADED, *commands):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    main = importlib.import_module("natsctl.cli.main")
    program = main.program()
    context = program.make_context("natsctl", [], resilient_parsing=True)
    for command in (program, *(program.get_command(context, name) for name in main.COMMANDS)):
        for parameter in command.params:
            if hasattr(parameter, "get_runtime_param"):  # takes a third of a short command
                parameter.get_runtime_param()
    client: Any = importlib.import_module("natsctl.daemon.client")
    client.FIND_S = 10.0  # a busy machine may stop a daemon for seconds
    gc.collect()
    gc.freeze()


class Command(NamedTuple):
    """A running command: the socket for its wait status, and the connection that requested it."""

    report: int
    connection: socket.socket


class Server:
    """Runs commands for all connections, until it is killed."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connections: list[socket.socket] = []
        self._commands: dict[int, Command] = {}  # by process id
        self._ends, self._wakeup = os.pipe()  # readable if a command has ended
        os.set_blocking(self._wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Fork for each request."""
        self._accept()
        preload()
        while True:
            sources: list[socket.socket | int]
            sources = [self._ends, self._listener, *self._connections]
            readable, _, _ = select.select(sources, [], [])
            for source in readable:
                if isinstance(source, int):
                    self._report_ends()
                elif source is self._listener:
                    self._accept()
                else:
                    self._receive(source)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._connections.append(connection)

    def _receive(self, connection: socket.socket) -> None:
        data, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 4)
        if data:
            self._start(json.loads(data), files, connection)
            return
        for pid, command in self._commands.items():
            if command.connection is connection:
                os.kill(pid, signal.SIGKILL)
        self._connections.remove(connection)
        connection.close()

    def _start(
        self, request: dict[str, object], files: list[int], connection: socket.socket
    ) -> None:
        report = files.pop()
        pid = os.fork()
        if pid == 0:
            process.die_with_parent()
            self._leave(report)
            _become(request, files)
        for file in files:
            os.close(file)
        self._commands[pid] = Command(report, connection)
        _send(report, pid)

    def _report_ends(self) -> None:
        os.read(self._ends, REQUEST_BYTES_MAX)
        while self._commands:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            report = self._commands.pop(pid).report
            _send(report, status)
            os.close(report)

    def _leave(self, report: int) -> None:
        """Release in the process of a command what belongs to this server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        reports = (command.report for command in self._commands.values())
        for file in (report, self._ends, self._wakeup, *reports):
            os.close(file)
        for opened in (self._listener, *self._connections):
            opened.close()


def _send(report: int, number: int) -> None:
    with suppress(OSError):  # the test has ended
        os.write(report, b"%d\n" % number)


def _become(request: dict[str, object], files: list[int]) -> NoReturn:
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
    sys.argv = list(request["arguments"])  # type: ignore[call-overload]  # it is JSON
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules.pop("natsctl.__main__", None)
    try:
        if sys.argv[0] == "natsctl":
            runpy.run_module("natsctl", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ending:
        _end(ending.code)
    _end(0)


def _end(status: object) -> NoReturn:
    """End this process as the interpreter does, but free no objects."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public one
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public one
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else status is not None)


if __name__ == "__main__":
    Server(socket.socket(fileno=int(sys.argv[1]))).serve()
