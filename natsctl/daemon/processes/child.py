"""Runs one process of a supervisor, from its start to its end."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from natsctl.core.task_group import together
from natsctl.daemon.observe.log_relay import LogRelay, whole_lines
from natsctl.daemon.processes.child_options import (
    ChildFailed,
    ChildOptions,
    OnReport,
    PeerEnded,
    Report,
)
from natsctl.errors import DECODE_ERRORS
from natsctl.start_process import start_process
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import happens

log = get_logger(__name__)

REST_S = 1.0  # for the last lines of a process that has ended: its own children may keep pipes open

Command = Callable[[ChildOptions], Sequence[str]]
"""Returns the command line of a process with these options."""


class ChildExit(msgspec.Struct, frozen=True):
    """The end of a process: its exit status, negative for a signal, and its error if it has one."""

    status: int
    failed: ChildFailed | None = None


class Child:
    """A process that runs."""

    def __init__(self, socket: Path, process: asyncio.subprocess.Process) -> None:
        self.socket = socket  # on which it serves probes and metrics
        self.pid = process.pid
        self.reports_ended = asyncio.Event()
        self._process = process
        self._failed: ChildFailed | None = None

    async def ended(self) -> ChildExit:
        """Wait until the process has ended, and its last report was received."""
        status = await self._process.wait()
        await happens(self.reports_ended, within_s=REST_S)
        return ChildExit(status, self._failed)

    async def stop(self, *, limit_s: float) -> ChildExit:
        """Stop the process in order; kill it if that takes longer than *limit_s*."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(limit_s):
                return await self.ended()
        except TimeoutError:
            log.warning("killing a process that did not stop in time", pid=self.pid)
            return await self.kill()

    async def kill(self) -> ChildExit:
        """End the process at once."""
        with suppress(ProcessLookupError):
            self._process.kill()
        return await self.ended()

    def send(self, message: PeerEnded) -> None:
        """Send a message to the process; a process that has ended gets none."""
        stdin = self._process.stdin
        if stdin is not None and self._process.returncode is None and not stdin.is_closing():
            stdin.write(msgspec.json.encode(message) + b"\n")

    def receive(self, on_report: OnReport, line: bytes) -> None:
        """Take over a report of the process, and pass it on."""
        try:
            report: Report = msgspec.json.decode(line, type=Report)
        except DECODE_ERRORS:
            log.warning("invalid report of a process", pid=self.pid)
            return
        if isinstance(report, ChildFailed):
            self._failed = report
        on_report(report)


@asynccontextmanager
async def started(
    number: int,
    identity: str,
    peers: tuple[str, ...],
    on_report: OnReport,
    *,
    folder: Path,
    command: Command,
    relay: LogRelay,
    private: bool,
    serves: bool,
) -> AsyncIterator[Child]:
    """Start the process with this number, and pass on its lines and reports in the context.

    If *serves*, it serves probes and metrics on a Unix socket in *folder*.

    The process gets a new session, so that a terminal interrupts only the supervisor. Its
    standard input is a pipe for messages, which ends with the supervisor. A process that still runs
    at the end of the context is killed.
    """
    reports, descriptor = os.pipe()
    socket = folder / f"{number}.sock"
    socket.unlink(missing_ok=True)
    served = str(socket) if serves else ""
    options = ChildOptions(number, served, descriptor, private, identity, peers)
    try:
        process = await _spawned(command(options), descriptor)
    except BaseException:
        os.close(reports)
        raise
    finally:
        os.close(descriptor)
    child = Child(socket, process)
    async with together() as group, _reader(reports) as reader:
        receivers = (
            (reader, partial(child.receive, on_report)),
            (process.stderr, partial(relay.log, number)),
            (process.stdout, relay.output),
        )
        reads = [
            group.create_task(whole_lines(stream, receive), name="lines of a process")
            for stream, receive in receivers
            if stream is not None
        ]
        reads[0].add_done_callback(lambda _: child.reports_ended.set())
        try:
            yield child
        finally:
            await child.kill()
            await asyncio.wait(reads, timeout=REST_S)
            for read in reads:
                read.cancel()


async def _spawned(words: Sequence[str], descriptor: int) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await start_process(*words, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=(descriptor,))


@asynccontextmanager
async def _reader(descriptor: int) -> AsyncIterator[asyncio.StreamReader]:
    """Read a pipe while the context lasts."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        yield reader
    finally:
        transport.close()
