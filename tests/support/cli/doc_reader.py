"""Runs the steps of a documentation page in one folder."""

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.cli import forked_command
from tests.support.cli.doc_page import RunCommand, SaveFile, Step
from tests.support.cli.forked_process import FORKS
from tests.support.cli.natsctl_command import LIMIT_S, ROOT
from tests.support.eventually import eventually

SERVER_URL = re.compile(r"private nats-server listens  url=(nats://[\d.:]+)")


class Terminal:
    """A command that runs until it is interrupted."""

    def __init__(self, command: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.command = command
        self._process = process
        self._log = log

    def output(self) -> str:
        """Return the output so far; raises `RuntimeError` if the command failed."""
        text = self._log.read_text()
        if self._process.returncode:
            raise RuntimeError(f"{self.command} exited with {self._process.returncode}:\n{text}")
        return text

    async def interrupt(self) -> str:
        """Interrupt the command, and return its output.

        Its status is 0, or 130 if it only shows changes.
        """
        expected = 130 if " -w" in self.command else 0
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(LIMIT_S):
            assert await self._process.wait() == expected, self._log.read_text()
        return self._log.read_text()

    async def close(self) -> None:
        """Kill the command if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Reader:
    """Saves files and runs commands, each daemon in a separate terminal.

    If a daemon starts a private server, the next commands use that server. *ports* maps the ports
    of the page to free ports. `natsctl` is forked from a process that has it imported; with *fresh*
    it starts a new interpreter.
    """

    def __init__(
        self, folder: Path, url: str, ports: Mapping[str, int], *, fresh: bool = False
    ) -> None:
        self._folder = folder
        self._ports = ports
        self._terminals: list[Terminal] = []
        self._logs = 0
        inherited = ("NATS", "KUBE")
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith(inherited)} | {
            "EDITOR": "sed -i s/hello/goodbye/",
            "HOME": str(folder),
            "NATSCTL_SERVER": url,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }
        if not fresh:
            self._fork_commands(folder.parent / "bin")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failed: object, *_: object) -> None:
        try:
            while self._terminals and failed is None:
                await self._terminals[-1].interrupt()
                self._terminals.pop()
        finally:
            for terminal in self._terminals:
                await terminal.close()

    def _fork_commands(self, programs: Path) -> None:
        """Put a `natsctl` on the PATH that asks the fork server to run the command."""
        programs.mkdir(exist_ok=True)
        program = programs / "natsctl"
        words = (sys.executable, "-IS", str(forked_command.__file__))
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
        self._environ[forked_command.VARIABLE] = FORKS.address
        self._environ["PATH"] = f"{programs}:{self._environ['PATH']}"

    async def run(self, step: Step) -> None:
        """Run a step, and compare its output with the page."""
        match step:
            case SaveFile(name=name, text=text):
                (self._folder / name).write_text(self._with_free_ports(text))
            case RunCommand(line, command, output):
                command, output = map(self._with_free_ports, (command, output))
                await self._run_command(RunCommand(line, command, output))

    def _with_free_ports(self, text: str) -> str:
        for port, free in self._ports.items():
            for before in (":", "--port "):
                text = text.replace(f"{before}{port}", f"{before}{free}")
        return text

    async def _run_command(self, step: RunCommand) -> None:
        if step.is_interrupt:
            await self._interrupt(step)
        elif step.is_daemon:
            await self._start(step)
        elif step.is_read_only:
            await eventually(lambda: self._compare(step), within_s=LIMIT_S, every_s=0.1)
        else:
            await self._compare(step)

    async def _compare(self, step: RunCommand) -> bool:
        status, output, errors = await self._execute(step.command)
        matches = any(map(step.matches, (output, errors + output, output + errors)))
        assert (matches, status) == (True, 0), f"{step}\n{output}{errors}"
        return True

    async def _start(self, step: RunCommand) -> None:
        self._logs += 1
        file = self._folder.parent / f"terminal-{self._logs}.log"
        command = re.sub(r"\b(natsctl|nats-server)\b", r"exec \1", step.command, count=1)
        environ = dict(self._environ)
        if "--embedded" in command:  # it refuses another server
            environ.pop("NATSCTL_SERVER", None)
        with file.open("wb") as log:
            process = await asyncio.create_subprocess_shell(
                command,
                cwd=self._folder,
                env=environ,
                stdout=log,
                stderr=log,
            )
        terminal = Terminal(step.command, process, file)
        self._terminals.append(terminal)
        await eventually(lambda: step.is_part_of(terminal.output()), within_s=LIMIT_S)
        if server := SERVER_URL.search(terminal.output()):
            self._environ["NATSCTL_SERVER"] = server[1]

    async def _interrupt(self, step: RunCommand) -> None:
        """Interrupt the oldest terminal with this command."""
        terminal = next(running for running in self._terminals if running.command == step.command)
        output = await terminal.interrupt()
        self._terminals.remove(terminal)
        assert step.is_part_of(output), f"{step}\n{output}"

    async def _execute(self, command: str) -> tuple[int | None, str, str]:
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=self._folder,
            env=self._environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # the shell and its children
                await process.communicate()
        return process.returncode, output.decode(), errors.decode()
