"""The pages of the documentation: what they tell to type works, and answers what they show."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from acceptance.commands import LIMIT_S, ROOT
from acceptance.pages import Shown, commands
from servers import NatsServer, eventually

PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if commands(page)]
LOOK_S = 30.0
LISTENS = re.compile(r"a private nats-server listens on (nats://[\d.:]+)")


class Reader:
    """Somebody who types what a page says, in one folder, in as many terminals as it takes.

    Commands that go on have one each. Where one brings a server of its own, the others speak to
    that: port 4222 may be somebody else's.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
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

    async def types(self, shown: Shown) -> None:
        """Type a command, and find what the page shows."""
        if shown.looking:
            await eventually(lambda: self._answered(shown), within_s=LOOK_S, every_s=0.1)
        else:
            await self._answered(shown)

    async def _answered(self, shown: Shown) -> bool:
        status, output, errors = await self._run(shown.command)
        answered = shown.answered_by(output) or shown.answered_by(errors + output)
        assert (answered, status) == (True, 0), f"{shown}\n{output}{errors}"
        return True

    @asynccontextmanager
    async def terminal(self, shown: Shown) -> AsyncIterator[None]:
        """Type a command that goes on, and find what the page shows; end it as a person does."""
        self._logs += 1
        file = self._folder.parent / f"terminal-{self._logs}.log"
        with file.open("wb") as log:
            process = await asyncio.create_subprocess_shell(
                f"exec {shown.command}", cwd=self._folder, env=self._environ, stdout=log, stderr=log
            )
        try:
            await eventually(lambda: shown.begun_by(said(file, process)), within_s=LIMIT_S)
            found = LISTENS.search(file.read_text())
            if found is not None:
                self._environ["NATSCTL_SERVER"] = found[1]
            yield
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(LIMIT_S):
                assert await process.wait() == 0, file.read_text()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

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


def said(log: Path, process: asyncio.subprocess.Process) -> str:
    """Return what a command has written so far; it must not have ended."""
    text = log.read_text()
    if process.returncode is not None:
        raise RuntimeError(f"it ended with {process.returncode}:\n{text}")
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_what_a_page_tells_to_type_answers_what_it_shows(
    page: Path, folder: Path, nats_server: NatsServer
) -> None:
    reader = Reader(folder, nats_server.url)
    async with AsyncExitStack() as terminals:
        for shown in commands(page):
            if shown.lasting:
                await terminals.enter_async_context(reader.terminal(shown))
            else:
                await reader.types(shown)


def test_the_page_for_beginners_is_among_them() -> None:
    assert "first-controller" in [page.stem for page in PAGES]
    assert len(commands(ROOT / "docs" / "first-controller.md")) > 10


def page(tmp_path: Path, text: str) -> list[Shown]:
    file = tmp_path / "page.md"
    file.write_text(text)
    return commands(file)


def test_a_page_s_commands_and_their_output_are_told_apart(tmp_path: Path) -> None:
    text = "Type:\n\n```console\n$ one\na\n\nb\n$ two\n```\n\n```\n$ three\n```\n"
    more = "```console\n$ four\nc\n```\n"
    assert page(tmp_path, text + more) == [
        Shown(4, "one", "a\n\nb"),
        Shown(8, "two", ""),
        Shown(15, "four", "c"),
    ]


@pytest.mark.parametrize(
    ("shown", "output", "answered"),
    [
        ("", "", True),
        ("", "something", False),
        ("a", "a\n", True),
        ("a", "a\nb\n", False),
        ("a … c", "a b c\n", True),
        ("a … c", "a b d\n", False),
        ("a\n…", "a\nb\nc\n", True),
        ("a\n…", "a\n", True),
        ("…\nc", "a\nb\nc", True),
        ("…\nc", "c", True),
        ("…\nc", "a\ncd", False),
        ("a\n…\nc\n…", "a\nb\nc\nd\n", True),
        ("a.b", "axb", False),
    ],
)
def test_what_is_shown_is_what_is_answered(shown: str, output: str, *, answered: bool) -> None:
    assert Shown(1, "natsctl", shown).answered_by(output) is answered


def test_a_command_that_goes_on_has_said_what_is_shown_in_that_order() -> None:
    shown = Shown(1, "natsctl run", "… one\ntwo …")
    assert shown.begun_by("12:00 one\nbetween\ntwo 3\nafter\n")
    assert not shown.begun_by("two 3\n12:00 one\n")


def test_only_what_looks_is_typed_again() -> None:
    for command, looking in (("natsctl list a", True), ("natsctl apply -f a", False)):
        assert Shown(1, command, "").looking is looking


def test_what_runs_until_told_to_stop_has_a_terminal_of_its_own() -> None:
    for command, lasting in (("natsctl run -c a:B", True), ("natsctl resync", False)):
        assert Shown(1, command, "").lasting is lasting
