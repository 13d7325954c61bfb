"""Runs `natsctl` as a process, as users do."""

import asyncio
import json
import os
import pty
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import takewhile
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
    def rows(self) -> list[list[str]]:
        """The cells of the printed table without its headings, up to an empty line."""
        return [line.split() for line in takewhile(str.strip, self.out.splitlines()[1:])]

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
            is_written = self.log.count(text) >= times
            assert is_written or self.process.returncode is None, self.log
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
        self._logs = 0

    async def __call__(self, *words: str, stdin: str = "") -> Result:
        if self.fresh:
            return await self._fresh(*words, stdin=stdin)
        pipes = [os.pipe(), os.pipe()]
        with tempfile.TemporaryFile() as stdin_file:
            stdin_file.write(stdin.encode())
            stdin_file.seek(0)
            ends = [writer for _, writer in pipes]
            process = await self._fork(*words, stdin=stdin_file.fileno(), files=ends)
        for writer in ends:
            os.close(writer)
        async with asyncio.timeout(LIMIT_S):
            out, err = await asyncio.gather(*(read_to_end(reader) for reader, _ in pipes))
            return Result(await process.wait(), out.decode(), err.decode())

    async def _fresh(self, *words: str, stdin: str) -> Result:
        process = await asyncio.create_subprocess_exec(
            *self._program(*words),
            cwd=self.folder,
            env=self.environ,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return Result(process.returncode, out.decode(), err.decode())

    async def _fork(self, *words: str, stdin: int, files: Sequence[int]) -> ForkedProcess:
        out, err = files
        return await FORKS.start(
            words, folder=self.folder, environ=self.environ, stdin=stdin, stdout=out, stderr=err
        )

    async def done(self, *words: str, stdin: str = "") -> str:
        """Run a command that succeeds; return its output."""
        result = await self(*words, stdin=stdin)
        assert result.status == 0, result
        return result.out

    @asynccontextmanager
    async def running(self, *words: str) -> AsyncIterator[Running]:
        """Run a command during the context, and kill it at the end if it still runs."""
        self._logs += 1
        file = self.folder / f"running-{self._logs}.log"
        process: Process | ForkedProcess
        with file.open("wb") as log, tempfile.TemporaryFile() as empty_file:
            if self.fresh:
                process = await asyncio.create_subprocess_exec(
                    *self._program(*words),
                    cwd=self.folder,
                    env=self.environ,
                    stdin=empty_file,
                    stdout=log,
                    stderr=log,
                )
            else:
                files = [log.fileno(), log.fileno()]
                process = await self._fork(*words, stdin=empty_file.fileno(), files=files)
        try:
            yield Running(process, file)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def drawn(self, *words: str) -> Result:
        """Run a command with a terminal as standard error, and return both outputs."""
        own_end, other_end = pty.openpty()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as empty_file:
            ends = [out.fileno(), other_end]
            process = await self._fork(*words, stdin=empty_file.fileno(), files=ends)
            os.close(other_end)
            async with asyncio.timeout(LIMIT_S):
                drawn = await asyncio.to_thread(_read_terminal, own_end)
                status = await process.wait()
            out.seek(0)
            return Result(status, out.read().decode(), drawn.decode())

    @staticmethod
    def _program(*words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "natsctl", *words)


def _read_terminal(source: int) -> bytes:
    """Read what a command draws until it ends, and close the descriptor."""
    parts = []
    with os.fdopen(source, "rb", buffering=0) as terminal, suppress(OSError):  # EIO is the end
        while part := terminal.read(65_536):
            parts.append(part)
    return b"".join(parts)
