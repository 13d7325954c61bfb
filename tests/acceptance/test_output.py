"""A command that cannot write its output or is interrupted ends with one line and a status."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig

from tests.support.cli.natsctl_command import ROOT, Natsctl

INTERRUPTING = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
PROGRAM = "from natsctl_main import main; main()"


@pytest.fixture(autouse=True)
def _interrupts_are_not_ignored() -> Iterator[None]:
    """Restore the default SIGINT handler, which background jobs of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def program(
    *words: str, stdout: str | None = None, path: Path = ROOT, closed: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the program as its console script does, with output to the file *stdout*."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("NATS")}
    environ["PYTHONPATH"] = f"{path}:{ROOT}"
    redirected = ">&-" if closed else f"> {stdout or '/dev/stdout'}"
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirected}', "sh", sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        env=environ,
        cwd=path,
        check=False,
    )


@pytest.mark.parametrize("words", [["--help"], ["config"], ["run", "--help"], ["--version"]])
def test_a_full_disk_gives_one_line_and_status_1(words: list[str]) -> None:
    done = program(*words, stdout="/dev/full")
    assert done.returncode == 1
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1


def test_a_closed_standard_output_is_not_an_error() -> None:
    done = program("config", closed=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_output_is_utf8_in_a_locale_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = program("config", "--kube-context", "Käse", stdout=str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Käse" in (tmp_path / "out").read_text("utf-8")


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("words", [["--help"], ["config"], ["new", "--example", "greetings"]])
async def test_a_closed_pipe_gives_the_status_of_sigpipe_and_no_error(
    natsctl: Natsctl, words: list[str], closed_pipe: int
) -> None:
    result = await natsctl(*words, stdout=closed_pipe)
    assert (result.status, result.err) == (141, "")


@pytest.fixture
def full_disk() -> Iterator[IO[str]]:
    with Path("/dev/full").open("w") as opened:
        yield opened


async def test_a_list_that_cannot_be_written_gives_one_line_and_status_1(
    natsctl: Natsctl, jetstream: JetStreamContext, full_disk: IO[str]
) -> None:
    await jetstream.create_key_value(KeyValueConfig(bucket="apps"))
    await natsctl.done("put", "apps", "a", "x")
    result = await natsctl("get", "apps", stdout=full_disk)
    assert (result.status, result.err) == (
        1,
        "natsctl: error: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("store", ["file/data", "/proc/data"])
async def test_a_store_dir_that_cannot_be_created_gives_one_line_and_status_2(
    folder: Path, store: str
) -> None:
    (folder / "file").write_text("in the way")
    words = ("run", "--embedded", "-c", "controllers.greetings:Greetings", "--store-dir", store)
    result = await Natsctl(folder)(*words)
    assert result.status == 2
    assert "the private nats-server cannot keep its data in" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("module", ["natsctl/__init__.py", "typer.py", "msgspec.py"])
def test_an_interrupt_during_imports_ends_the_program_without_output(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).write_text(INTERRUPTING)
    done = program("get", "apps", path=tmp_path)
    assert done.stderr == ""
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT)


async def test_an_interrupt_of_a_command_gives_one_line_and_status_130(
    natsctl: Natsctl, jetstream: JetStreamContext
) -> None:
    await jetstream.create_key_value(KeyValueConfig(bucket="apps"))
    async with natsctl.running("get", "-w", "apps") as watching:
        await watching.logged("nothing in bucket apps matches so far")
        assert await watching.ends(signal.SIGINT) == 130
        assert watching.log.splitlines()[-1] == "natsctl: interrupted"
        assert "Traceback" not in watching.log
