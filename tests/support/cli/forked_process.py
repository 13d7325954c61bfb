"""Processes that the fork server starts, with the interface of `asyncio.subprocess.Process`."""

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.support.servers.process import dying_with_parent

PROGRAM = Path(__file__).with_name("fork_server.py")
ROOT = Path(__file__).parents[3]


class ForkServer:
    """A running fork server, which belongs to this process.

    `address` is the name of an abstract Unix socket, without the leading zero byte.
    """

    def __init__(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("")  # Linux chooses a free address
            listener.listen()
            self.address = listener.getsockname()[1:].decode()
            self._process = subprocess.Popen(
                dying_with_parent(sys.executable, str(PROGRAM), str(listener.fileno())),
                pass_fds=(listener.fileno(),),
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
            )

    def stop(self) -> None:
        """Kill the server and its commands."""
        self._process.kill()
        self._process.wait()


class Forks:
    """The connection of this process to a fork server."""

    def __init__(self) -> None:
        self._address: str | None = None
        self._control: socket.socket | None = None

    def share(self, address: str) -> None:
        """Connect to the server with this address, with the first command."""
        self._address = address

    async def start(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environ: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> "ForkedProcess":
        """Start `natsctl` with these descriptors as standard input, output and error."""
        request = {
            "arguments": ["natsctl", *arguments],
            "folder": str(folder),
            "environ": dict(environ),
        }
        own_end, other_end = socket.socketpair()
        with other_end:
            files = [stdin, stdout, stderr, other_end.fileno()]
            socket.send_fds(self.control, [json.dumps(request).encode()], files)
        own_end.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=own_end)
        pid = int(await reader.readline())
        return ForkedProcess(pid, reader, writer)

    @property
    def address(self) -> str:
        """The address of the server; the first use starts one, unless `share` named another."""
        if self._address is None:
            server = ForkServer()
            atexit.register(server.stop)
            self._address = server.address
        return self._address

    @property
    def control(self) -> socket.socket:
        """The socket for requests."""
        if self._control is None:
            self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.connect(f"\0{self.address}")
            atexit.register(self._control.close)
        return self._control


class ForkedProcess:
    """A running command.

    The command is not a child of this process, so the fork server reports its end.
    """

    def __init__(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._waiting = asyncio.create_task(self._wait(reader, writer))

    async def wait(self) -> int:
        """Wait until the command has ended, and return its status."""
        return await asyncio.shield(self._waiting)

    def send_signal(self, sent: signal.Signals) -> None:
        """Send a signal to the command, unless it has ended.

        The fork server may have waited for the command, and this process not have read that.
        """
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sent)

    def kill(self) -> None:
        """Kill the command, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    async def _wait(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        try:
            self.returncode = os.waitstatus_to_exitcode(int(await reader.readline()))
        finally:
            writer.close()
        return self.returncode


FORKS = Forks()


async def forked(
    *arguments: str, log: IO[bytes], folder: Path = ROOT, environ: Mapping[str, str] | None = None
) -> ForkedProcess:
    """Start `natsctl` with these arguments. Standard output and error go to *log*.

    *environ* is added to the environment of this process.
    """
    with tempfile.TemporaryFile() as empty_file:
        return await FORKS.start(
            arguments,
            folder=folder,
            environ={**os.environ, **(environ or {})},
            stdin=empty_file.fileno(),
            stdout=log.fileno(),
            stderr=log.fileno(),
        )


async def read_to_end(source: int) -> bytes:
    """Read from a pipe until its other end is closed, and close the descriptor."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb")
    )
    try:
        return await reader.read()
    finally:
        transport.close()
