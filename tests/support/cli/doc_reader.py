"""Runs the steps of a documentation page in one folder."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.cli import forked_command
from tests.support.cli.doc_page import RunCommand, SaveFile, Step
from tests.support.cli.forked_process import FORKS
from tests.support.cli.natsctl_command import LIMIT_S, Natsctl, Result, Running
from tests.support.eventually import eventually

SERVER_URL = re.compile(r"private nats-server listens  url=(nats://[\d.:]+)")
SHOW_STATUS = '; echo "exit code $?"'
WITHOUT_SHELL = re.compile(  # a command with nothing that a shell would expand
    r"""(?:2>&1 )?natsctl(?: |'[^']*'|"[^"$`\\!]*"|[\w./:=,@%+-])*"""
)


class Terminal(NamedTuple):
    """A command that runs until it is interrupted."""

    command: str
    running: Running

    def output(self) -> str:
        """Return the output so far; raises `RuntimeError` if the command failed."""
        if self.running.process.returncode:
            status = self.running.process.returncode
            raise RuntimeError(f"{self.command} exited with {status}:\n{self.running.log}")
        return self.running.log

    async def interrupt(self) -> str:
        """Interrupt the command, and return its output.

        Its status is 0, or 130 if it only shows changes.
        """
        expected = 130 if " -w" in self.command else 0
        assert await self.running.ends(signal.SIGINT) == expected, self.running.log
        return self.running.log


class Reader:
    """Saves files and runs commands, each daemon in a separate terminal.

    If a daemon starts a private server, the next commands use that server. *ports* maps the ports
    of the page to free ports. `natsctl` is forked from a process that has it imported; with *fresh*
    a shell starts the installed program up to the first command that changes something. pytest has
    only natsctl's plugin.
    """

    def __init__(
        self, folder: Path, url: str, ports: Mapping[str, int], *, fresh: bool = False
    ) -> None:
        environ = {
            "EDITOR": "sed -i s/hello/goodbye/",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "natsctl.testing.pytest_plugin",
            "PYTHONWARNINGS": "ignore",
        }
        self._natsctl = Natsctl(folder, url, environ=environ)
        self._fresh = fresh
        self._ports = ports
        self._terminals: list[Terminal] = []
        self._started = AsyncExitStack()
        if not fresh:
            self._fork_commands(folder.parent / "bin")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failed: object, *_: object) -> None:
        async with self._started:
            while self._terminals and failed is None:
                await self._terminals.pop().interrupt()

    def _fork_commands(self, programs: Path) -> None:
        """Put a `natsctl` and a `python` on the PATH that ask the fork server to run commands."""
        programs.mkdir(exist_ok=True)
        forked = shlex.join([sys.executable, "-IS", str(forked_command.__file__)])
        in_file = f'case $1 in *.py) exec {forked} "$@" ;; esac'
        for name, script in {
            "natsctl": f'exec {forked} natsctl "$@"',
            "python": f'{in_file}\nexec {shlex.quote(sys.executable)} "$@"',
        }.items():
            program = programs / name
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        environ = self._natsctl.environ
        environ[forked_command.VARIABLE] = FORKS.address
        environ["PATH"] = f"{programs}:{environ['PATH']}"

    async def run(self, step: Step) -> None:
        """Run a step, and compare its output with the page."""
        match step:
            case SaveFile(name=name, text=text):
                (self._natsctl.folder / name).write_text(self._with_free_ports(text))
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
        status, output, errors = await self._execute(step)
        matches = any(map(step.matches, (output, errors + output, output + errors)))
        assert (matches, status) == (True, 0), f"{step}\n{output}{errors}"
        return True

    async def _execute(self, step: RunCommand) -> Result:
        shown = step.command.removesuffix(SHOW_STATUS)
        result = await self._natsctl.typed(*self._program(step, shown))
        self._fresh = self._fresh and step.is_read_only
        if shown == step.command or not WITHOUT_SHELL.fullmatch(shown):
            return result
        return Result(0, f"{result.out}exit code {result.status}\n", result.err)

    def _program(self, step: RunCommand, command: str) -> Sequence[str]:
        """Return the words of a command, or a shell that runs it, if it needs one."""
        if WITHOUT_SHELL.fullmatch(command) and (step.is_read_only or not self._fresh):
            return shlex.split(command.removeprefix("2>&1 "))
        first = re.sub(r"\b(natsctl|nats-server)\b", r"exec \1", step.command, count=1)
        return ("sh", "-c", first if step.is_daemon else step.command)

    async def _start(self, step: RunCommand) -> None:
        environ = self._natsctl.environ
        url = environ.get("NATSCTL_SERVER")
        if "--embedded" in step.command:  # it refuses another server
            environ.pop("NATSCTL_SERVER", None)
        started = self._natsctl.started(*self._program(step, step.command))
        terminal = Terminal(step.command, await self._started.enter_async_context(started))
        self._terminals.append(terminal)
        await eventually(lambda: step.is_part_of(terminal.output()), within_s=LIMIT_S)
        server = SERVER_URL.search(terminal.output())
        if server or url:
            environ["NATSCTL_SERVER"] = server[1] if server else str(url)

    async def _interrupt(self, step: RunCommand) -> None:
        """Interrupt the oldest terminal with this command."""
        terminal = next(running for running in self._terminals if running.command == step.command)
        output = await terminal.interrupt()
        self._terminals.remove(terminal)
        assert step.is_part_of(output), f"{step}\n{output}"
