"""Somebody who does what a page of the documentation says, in one folder."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.cli.doc_page import Saved, Shown, Step
from tests.support.cli.natsctl_command import LIMIT_S, ROOT
from tests.support.eventually import eventually

LOOK_S = 30.0
LISTENS = re.compile(r"private nats-server listens  url=(nats://[\d.:]+)")


class Terminal:
    """Where a command goes on until somebody ends it."""

    def __init__(self, command: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.command = command
        self._process = process
        self._log = log

    def said(self) -> str:
        """Return what the command has written so far; it must not have failed."""
        text = self._log.read_text()
        if self._process.returncode:
            raise RuntimeError(f"it ended with {self._process.returncode}:\n{text}")
        return text

    async def ends(self) -> None:
        """End the command as a person does, and find that all was well."""
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(LIMIT_S):
            assert await self._process.wait() == 0, self._log.read_text()

    async def is_closed(self) -> None:
        """Leave nothing of it."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Reader:
    """Types commands and saves files, in as many terminals as it takes.

    Commands that go on have one each. Where one brings a server of its own, the others speak to
    that: port 4222 may be somebody else's. So may others, in whose place are those of *ports*.
    """

    def __init__(self, folder: Path, url: str, ports: Mapping[str, int]) -> None:
        self._folder = folder
        self._ports = ports
        self._terminals: list[Terminal] = []
        self._logs = 0
        theirs = ("NATS", "KUBE")
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith(theirs)} | {
            "EDITOR": "sed -i s/hello/goodbye/",
            "HOME": str(folder),
            "NATSCTL_SERVER": url,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failed: object, *_: object) -> None:
        try:
            while self._terminals and failed is None:
                await self._terminals[-1].ends()
                self._terminals.pop()
        finally:
            for terminal in self._terminals:
                await terminal.is_closed()

    async def does(self, step: Step) -> None:
        """Do what the page says, and find what it shows."""
        match step:
            case Saved(name=name, text=text):
                (self._folder / name).write_text(self._here(text))
            case Shown() as shown:
                await self._types(
                    shown._replace(
                        command=self._here(shown.command), output=self._here(shown.output)
                    )
                )

    def _here(self, text: str) -> str:
        """Return a text with the ports that are free here."""
        for shown, free in self._ports.items():
            text = text.replace(f":{shown}", f":{free}")
        return text

    async def _types(self, shown: Shown) -> None:
        if shown.ending:
            await self._ends(shown)
        elif shown.lasting:
            await self._starts(shown)
        elif shown.looking:
            await eventually(lambda: self._answered(shown), within_s=LOOK_S, every_s=0.1)
        else:
            await self._answered(shown)

    async def _answered(self, shown: Shown) -> bool:
        status, output, errors = await self._run(shown.command)
        answered = any(map(shown.answered_by, (output, errors + output, output + errors)))
        assert (answered, status) == (True, 0), f"{shown}\n{output}{errors}"
        return True

    async def _starts(self, shown: Shown) -> None:
        self._logs += 1
        file = self._folder.parent / f"terminal-{self._logs}.log"
        command = shown.command.replace("natsctl", "exec natsctl", 1)
        environ = dict(self._environ)
        if "--embedded" in command:  # a reader has no other server in mind then
            environ.pop("NATSCTL_SERVER", None)
        with file.open("wb") as log:
            process = await asyncio.create_subprocess_shell(
                command, cwd=self._folder, env=environ, stdout=log, stderr=log
            )
        terminal = Terminal(shown.command, process, file)
        self._terminals.append(terminal)
        await eventually(lambda: shown.begun_by(terminal.said()), within_s=LIMIT_S)
        found = LISTENS.search(terminal.said())
        if found is not None:
            self._environ["NATSCTL_SERVER"] = found[1]

    async def _ends(self, shown: Shown) -> None:
        """End a command, the one that runs for the longest of those that were typed so."""
        terminal = next(each for each in self._terminals if each.command == shown.command)
        await terminal.ends()
        self._terminals.remove(terminal)
        assert shown.begun_by(terminal.said()), f"{shown}\n{terminal.said()}"

    async def _run(self, command: str) -> tuple[int | None, str, str]:
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
                os.killpg(process.pid, signal.SIGKILL)  # the shell, and what it has started
                await process.communicate()
        return process.returncode, output.decode(), errors.decode()
