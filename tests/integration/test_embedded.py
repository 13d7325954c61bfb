"""An embedded server starts and ends with its context, even after kills and cancellation."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from natsctl.daemon.development import private_server
from natsctl.errors import ConnectError, UsageError
from natsctl.jetstream import embedded
from natsctl.jetstream.embedded import EmbeddedServer, find_server
from tests.support.clients.nats import connect
from tests.support.eventually import eventually
from tests.support.servers.ports import free_port

CHILD = """
import asyncio, pathlib, sys
from natsctl.jetstream.embedded import EmbeddedServer

async def main():
    store = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
    async with EmbeddedServer(store) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def processes(words: str) -> list[int]:
    """Return the running processes whose command line contains these words."""
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [int(folder.name) for folder in folders if words in command(int(folder.name))]


def command(pid: int) -> str:
    """Return the command line of a process, or "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def server_of(folder: Path) -> int | None:
    """Return the nats-server that keeps its data in *folder*."""
    pids = [pid for pid in processes(f"-sd {folder}") if "/bin/sh" not in command(pid)]
    return pids[0] if pids else None


def only(folder: Path) -> Path:
    """Return the only entry of the folder."""
    (entry,) = folder.iterdir()
    return entry


def empty(folder: Path) -> bool:
    return not list(folder.iterdir())


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


async def spawn(*arguments: str) -> asyncio.subprocess.Process:
    """Start a process with an embedded server, and wait until the server is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, *arguments), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"nats://127.0.0.1:")
    return process


async def test_an_embedded_server_serves_jetstream_and_leaves_nothing_behind(
    own_temporary_folder: Path,
) -> None:
    async with EmbeddedServer() as server:
        assert server.running
        async with connect(server.url) as connection:
            assert "limits" in await connection.api("INFO")
        assert not empty(own_temporary_folder)
    assert not server.running
    await eventually(lambda: not processes(str(own_temporary_folder)))
    assert empty(own_temporary_folder)


async def test_an_embedded_server_ends_with_its_process(own_temporary_folder: Path) -> None:
    for signal_number in (signal.SIGKILL, signal.SIGTERM):
        process = await spawn()
        assert processes(str(own_temporary_folder))
        process.send_signal(signal_number)
        await process.wait()
        await eventually(lambda: not processes(str(own_temporary_folder)))
        await eventually(lambda: empty(own_temporary_folder))


async def test_a_folder_is_free_again_after_its_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_S", 60.0)
    process = await spawn(str(tmp_path / "data"))
    process.kill()
    await process.wait()
    async with EmbeddedServer(tmp_path / "data") as server:
        assert server.running


async def test_a_folder_is_used_by_one_server_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_S", 0.1)
    folder = tmp_path / "new" / "data"
    async with EmbeddedServer(folder):
        with pytest.raises(UsageError, match="is in use by another private nats-server"):
            await EmbeddedServer(folder).__aenter__()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="cannot keep its data in"):
        await EmbeddedServer(file / "data").__aenter__()


async def test_failed_returns_when_the_server_or_its_supervisor_dies(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        failing = asyncio.create_task(server.failed())
        pid = server_of(tmp_path)
        assert pid
        os.kill(pid, signal.SIGKILL)
        failure = str(await failing)
        assert not server.running
    assert "ended by itself (Killed); its log ends with:" in failure
    assert "Server is ready" in failure
    async with EmbeddedServer(tmp_path) as server:
        pid = server_of(tmp_path)
        assert pid
        os.kill(parent(pid), signal.SIGKILL)
        await server.failed()
    await eventually(lambda: not server_of(tmp_path))


async def test_a_failed_start_reports_the_reason(tmp_path: Path) -> None:
    port = free_port()
    async with EmbeddedServer(tmp_path / "one", port=port):
        with pytest.raises(ConnectError, match=r"did not start[^$]*address already in use"):
            await EmbeddedServer(tmp_path / "two", port=port).__aenter__()
    await eventually(lambda: not processes(str(tmp_path)))


async def test_a_cancelled_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nats-server"
    program.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")  # never ready
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    starting = asyncio.create_task(EmbeddedServer(tmp_path / "data").__aenter__())
    await eventually(lambda: server_of(tmp_path / "data"))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await eventually(lambda: not processes(str(tmp_path)))


def test_the_program_comes_from_the_path_or_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server().name == "nats-server"
    own = tmp_path / "nats-server"
    own.touch(mode=0o755)
    assert find_server() == own


def test_a_missing_nats_server_program_is_an_error_with_the_install_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pip install 'natsctl\[embedded\]'"):
        find_server([tmp_path / "nats-server", tmp_path])


async def test_servers_that_start_at_once_get_a_port_each() -> None:
    async def start(stack: AsyncExitStack) -> int:
        server = await stack.enter_async_context(private_server(None, None))
        return server.port

    async with AsyncExitStack() as stack:
        ports = await asyncio.gather(*(start(stack) for _ in range(3)))
    assert len(set(ports)) == 3
