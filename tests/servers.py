"""Real NATS servers for tests, which can be killed, stopped, paused and cut off.

Nothing here uses natsctl. No server outlives the process that started it, however that ends.
"""

import asyncio
import ctypes
import inspect
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from urllib.parse import urlsplit

T = TypeVar("T")

POLL_S = 0.005
START_S = 60.0
PORTS = 500  # that a process has for itself
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]], *, within_s: float = ..., every_s: float = ...
) -> T: ...
@overload
async def eventually(
    condition: Callable[[], T], *, within_s: float = ..., every_s: float = ...
) -> T: ...
async def eventually(
    condition: Callable[[], Any], *, within_s: float = 60.0, every_s: float = 0.01
) -> Any:
    """Wait until *condition*, awaited where it can be, is true; return what it was.

    An AssertionError in it means not yet, and is what a time-out shows.
    """
    failure: AssertionError | None = None
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    while clock() < deadline:
        try:
            value = condition()
            result = await value if inspect.isawaitable(value) else value
        except AssertionError as error:
            failure = error
        else:
            if result:
                return result
        await asyncio.sleep(every_s)
    raise failure or AssertionError(f"not within {within_s:g} s: {inspect.getsource(condition)}")


_claims: list[socket.socket] = []


def _claimed() -> range:
    """Return ports that no other process of tests uses, not even while nobody listens on them.

    They are below those that the kernel gives to clients: a client that dials a client's port on
    which nobody listens may be answered by itself.
    """
    for first in range(12_000, 32_000, PORTS):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0natsctl tests: ports from {first}")  # nobody else can, while we live
        except OSError:
            claim.close()
        else:
            _claims.append(claim)
            return range(first, first + PORTS)
    raise AssertionError("too many tests are run at the same time")


def _candidates() -> Iterator[int]:
    yield from itertools.cycle(_claimed())


_ports = _candidates()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


def program() -> str:
    """Return the path of nats-server: the virtual environment's own, or that on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "there is no nats-server: install the dev dependencies"
    return found


class NatsServer:
    """One server with JetStream, whose data, log and configuration are in a folder.

    `config` is added to its configuration file. The port stays the same over restarts.
    """

    def __init__(
        self, folder: Path, *, config: str = "", name: str = "server", jetstream: bool = True
    ) -> None:
        self.folder = folder
        self.name = name
        self.config = config
        self.jetstream = jetstream
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._logged = 0  # bytes, before it was last started

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Where it listens, or would."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The running server's process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended since."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it, or again with the same data and port, and wait until it is ready."""
        assert not self.running
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.conf"
        file.write_text(self._configuration())
        self._spawn(file)
        await eventually(self._ready, within_s=START_S, every_s=POLL_S)

    def kill(self) -> None:
        """Kill it (-9), where it runs."""
        self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Ask it to stop (TERM), and wait until it has."""
        await asyncio.to_thread(self._end, signal.SIGTERM)

    def pause(self) -> None:
        """Stop its clock: connections stand, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return what it logged, over all its starts."""
        return (self.folder / "server.log").read_text()

    def _configuration(self) -> str:
        store = f'jetstream {{ store_dir: "{self.folder}" }}\n' if self.jetstream else ""
        return f"server_name: {self.name}\nlisten: 127.0.0.1:{self.port}\n{store}{self.config}\n"

    def _spawn(self, file: Path) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._logged = log.tell()
            self._process = subprocess.Popen(
                [program(), "-c", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it takes no lock
            )

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            if self.running:
                self._process.send_signal(how)
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(timeout=60)

    def _ready(self) -> bool:
        log = (self.folder / "server.log").read_bytes()[self._logged :]
        if not self.running:
            raise RuntimeError(f"nats-server did not start:\n{log[-2000:].decode()}")
        return b"Server is ready" in log


class NatsCluster:
    """Three servers that replicate: `nodes`, named n1, n2 and n3, each to be killed or paused."""

    def __init__(self, folder: Path) -> None:
        self._monitors = {f"n{number}": free_port() for number in (1, 2, 3)}
        routes = {name: free_port() for name in self._monitors}
        listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes.values())
        self.nodes = [
            NatsServer(
                folder / name,
                name=name,
                config=f"http: 127.0.0.1:{self._monitors[name]}\n"
                f"cluster {{ name: tests, listen: 127.0.0.1:{port}, routes: [{listed}] }}",
            )
            for name, port in routes.items()
        ]

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(node.start() for node in self.nodes))
            await self.settled()
        except BaseException:
            self._kill()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill()

    def __getitem__(self, name: str) -> NatsServer:
        return next(node for node in self.nodes if node.name == name)

    @property
    def url(self) -> str:
        """All nodes' URLs, comma-separated."""
        return ",".join(node.url for node in self.nodes)

    async def settled(self) -> None:
        """Wait until JetStream has a leader, all nodes are current, and each says it is well."""
        await eventually(self._settled, within_s=START_S)

    async def leader(self) -> str:
        """Return the node that leads JetStream, nothing while there is none."""
        meta = (await _get(self._monitors["n1"], "/jsz")).get("meta_cluster", {})
        return str(meta.get("leader", ""))

    async def _settled(self) -> bool:
        for port in self._monitors.values():
            if (await _get(port, "/healthz")).get("status") != "ok":
                return False
        name = await self.leader()
        if name not in self._monitors:
            return False
        leader = (await _get(self._monitors[name], "/jsz"))["meta_cluster"]
        peers = leader.get("replicas") or []
        return len(peers) == len(self.nodes) - 1 and all(peer["current"] for peer in peers)

    def _kill(self) -> None:
        for node in self.nodes:
            node.kill()


class CutProxy:
    """A way to a server that can be cut or frozen; used as `async with CutProxy(url) as proxy`."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._port = free_port()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.heal()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def url(self) -> str:
        """Where it listens; credentials go before the host as with any URL."""
        return f"nats://127.0.0.1:{self._port}"

    def cut(self) -> None:
        """Drop every connection, and refuse new ones."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        self._listener = None
        for task in self._tasks:
            task.cancel()

    async def heal(self) -> None:
        """Let connections through again after a cut."""
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self._port), backlog=100)
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)
            self._listener = listener

    def freeze(self) -> None:
        """Forward nothing any more, and let new connections wait: a network that swallows all."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward what waits, and everything from now on."""
        self._flowing.set()

    def _accept(self, listener: socket.socket) -> None:
        # not asyncio's server: closing that one leaks a connection that comes in just then
        with suppress(BlockingIOError):
            accepted, _ = listener.accept()
            task = asyncio.create_task(self._serve(accepted))
            task.add_done_callback(lambda _: accepted.close())
            self._keep(task)

    async def _serve(self, accepted: socket.socket) -> None:
        with suppress(OSError):
            async with _opened(sock=accepted) as (reader, writer):
                await self._flowing.wait()
                host, port = self._target.hostname, self._target.port
                async with _opened(host, port) as (target_reader, target_writer):
                    there = asyncio.create_task(self._forward(reader, target_writer))
                    back = asyncio.create_task(self._forward(target_reader, writer))
                    self._keep(there, back)
                    await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                    there.cancel()
                    back.cancel()

    def _keep(self, *tasks: asyncio.Task[None]) -> None:
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def _opened(*where: Any, **how: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A connection that is aborted at the end."""
    reader, writer = await asyncio.open_connection(*where, **how)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def die_with_parent() -> None:
    """Let the kernel kill this process, one just forked, when the thread that forked it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


async def _get(port: int, path: str) -> dict[str, Any]:
    """Return the JSON at a monitoring address; nothing where it does not answer."""
    with suppress(OSError, ValueError):
        async with _opened("127.0.0.1", port) as (reader, writer):
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        answer = json.loads(body)
        return answer if isinstance(answer, dict) else {}
    return {}
