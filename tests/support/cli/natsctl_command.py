"""Runs `natsctl` as a process, as users do."""

import asyncio
import json
import os
import pty
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from natsctl.cli.main import run
from tests.support.cli.forked_process import FORKS, ForkedProcess, read_to_end
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[3]
LIMIT_S = 240.0


class Result(NamedTuple):
    """The exit status and the outputs of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The parsed output; a command without output failed, and `eventually` runs it again."""
        assert self.out, self
        return json.loads(self.out)


class Running:
    """A command that runs until it gets a signal."""

    def __init__(self, process: Process | ForkedProcess, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """Both outputs of the command so far."""
        return self._log.read_text()

    async def logged(self, text: str, *, times: int = 1) -> None:
        """Wait until the command has written *text* so many times."""

        def has_written() -> bool:
            is_over = self.process.returncode is not None
            is_written = self.log.count(text) >= times
            if is_over and not is_written:
                pytest.fail(self.log)  # at once, because nothing more comes
            return is_written

        await eventually(has_written, within_s=LIMIT_S)

    async def ends(self, sent: signal.Signals | None = None) -> int:
        """Send the signal, if any; wait until the command ends, and return its status."""
        if sent is not None:
            self.process.send_signal(sent)
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()


class InProcess:
    """Runs commands in this process, for tests of their output.

    Each command runs in a thread, because it starts an event loop.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, *words: str) -> Result:
        status = await asyncio.to_thread(run, list(words))
        return Result(status, *self._capsys.readouterr())

    async def done(self, *words: str) -> str:
        """Run a command that succeeds; return its output."""
        result = await self(*words)
        assert result.status == 0, result
        return result.out


class Natsctl:
    """Runs commands in a folder with an environment that names the server `url`.

    *kubeconfig* names the cluster, if any, and *environ* extends the environment. A
    command is forked from a process that has natsctl imported; with *fresh* it starts a new
    interpreter.
    """

    def __init__(
        self,
        folder: Path,
        url: str | None = None,
        *,
        kubeconfig: Path | None = None,
        environ: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        self.folder = folder
        self.fresh = fresh
        prefixes = ("NATS", "KUBE")
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
        self.environ |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "HOME": str(folder)}
        self.environ |= {"TERM": "xterm"}
        if url is not None:
            self.environ["NATSCTL_SERVER"] = url
        if kubeconfig is not None:
            self.environ["KUBECONFIG"] = str(kubeconfig)
        self.environ |= environ or {}

    async def __call__(self, *words: str, stdin: str = "") -> Result:
        return await self.typed("natsctl", *words, stdin=stdin)

    async def typed(self, *program: str, stdin: str = "") -> Result:
        """Run `natsctl` or another program, and return its outputs when all have ended."""
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        with tempfile.TemporaryFile() as stdin_file:
            stdin_file.write(stdin.encode())
            stdin_file.seek(0)
            process = await self._start(program, stdin_file.fileno(), out_end, err_end)
        os.close(out_end)
        os.close(err_end)
        try:
            async with asyncio.timeout(LIMIT_S):
                texts = await asyncio.gather(read_to_end(out), read_to_end(err))
                status = await process.wait()
        finally:
            await _kill(process)
        return Result(status, *(text.decode() for text in texts))

    async def _start(
        self, program: Sequence[str], stdin: int, out: int, err: int
    ) -> Process | ForkedProcess:
        if program[0] == "natsctl" and not self.fresh:
            return await FORKS.start(
                program[1:],
                folder=self.folder,
                environ=self.environ,
                stdin=stdin,
                stdout=out,
                stderr=err,
            )
        if program[0] == "natsctl":
            program = (sys.executable, "-m", *program)
        return await asyncio.create_subprocess_exec(
            *program,
            cwd=self.folder,
            env=self.environ,
            stdin=stdin,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    async def done(self, *words: str, stdin: str = "") -> str:
        """Run a command that succeeds; return its output."""
        result = await self(*words, stdin=stdin)
        assert result.status == 0, result
        return result.out

    @asynccontextmanager
    async def running(self, *words: str) -> AsyncIterator[Running]:
        """Run a command during the context, and kill it at the end if it still runs."""
        async with self.started("natsctl", *words) as running:
            yield running

    @asynccontextmanager
    async def started(self, *program: str) -> AsyncIterator[Running]:
        """Run `natsctl` or another program during the context, as `running` does."""
        number, file = tempfile.mkstemp(".log", f"{self.folder.name}-", self.folder.parent)
        try:
            with tempfile.TemporaryFile() as empty_file:
                process = await self._start(program, empty_file.fileno(), number, number)
        finally:
            os.close(number)
        try:
            yield Running(process, Path(file))
        finally:
            await _kill(process)

    async def drawn(self, *words: str) -> Result:
        """Run a command with a terminal as standard error, and return both outputs."""
        own_end, other_end = pty.openpty()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as empty_file:
            program = ("natsctl", *words)
            process = await self._start(program, empty_file.fileno(), out.fileno(), other_end)
            os.close(other_end)
            async with asyncio.timeout(LIMIT_S):
                drawn = await asyncio.to_thread(_read_terminal, own_end)
                status = await process.wait()
            out.seek(0)
            return Result(status, out.read().decode(), drawn.decode())


async def _kill(process: Process | ForkedProcess) -> None:
    """Kill a program with its children, or `natsctl`, unless it has ended."""
    if process.returncode is None:
        if isinstance(process, Process):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        await process.wait()


def _read_terminal(source: int) -> bytes:
    """Read what a command draws until it ends, and close the descriptor."""
    parts = []
    with os.fdopen(source, "rb", buffering=0) as terminal, suppress(OSError):  # EIO is the end
        while part := terminal.read(65_536):
            parts.append(part)
    return b"".join(parts)
