"""Real NATS servers that tests can kill, stop and pause.

This module does not use natsctl. A server never outlives the process that started it.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.eventually import eventually
from tests.support.servers.ports import free_port
from tests.support.servers.process import dying_with_parent
from tests.support.servers.streams import opened

POLL_S = 0.005
START_S = 60.0
PATIENCE = "authorization { timeout: 60 }\n"  # seconds until a slow client is refused


def program() -> str:
    """Return the path of nats-server in the virtual environment or on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    path = str(beside) if beside.exists() else shutil.which("nats-server")
    assert path, "there is no nats-server: install the dev dependencies"
    return path


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

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start the server with its data and port, and wait until it is ready."""
        assert not self.running
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.conf"
        file.write_text(self._configuration())
        self._spawn(file)
        await eventually(self._ready, within_s=START_S, every_s=POLL_S)

    def kill(self) -> None:
        """Kill the server (-9), if it runs."""
        self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the server (TERM), and wait until it has ended."""
        await asyncio.to_thread(self._end, signal.SIGTERM)

    def pause(self) -> None:
        """Suspend the process, and wait until all its threads have stopped.

        Connections stay open, and no request is answered.
        """
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return the log of all starts."""
        return (self.folder / "server.log").read_text()

    def _configuration(self) -> str:
        store = f'jetstream {{ store_dir: "{self.folder}" }}\n' if self.jetstream else ""
        return (
            f"server_name: {self.name}\nlisten: 127.0.0.1:{self.port}\n{PATIENCE}{store}"
            f"{self.config}\n"
        )

    def _spawn(self, file: Path) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._logged = log.tell()
            self._process = subprocess.Popen(
                dying_with_parent(program(), "-c", str(file)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is not None:
            if self.running:
                self._process.send_signal(signal_number)
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(timeout=60)

    def _ready(self) -> bool:
        log = (self.folder / "server.log").read_bytes()[self._logged :]
        if not self.running:
            raise RuntimeError(f"nats-server did not start:\n{log[-2000:].decode()}")
        return b"Server is ready" in log


class NatsCluster:
    """A cluster of three servers: `nodes`, named n1, n2 and n3, which tests can kill and pause."""

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

    async def __aexit__(self, *_: object) -> None:
        self._kill()

    def __getitem__(self, name: str) -> NatsServer:
        return {node.name: node for node in self.nodes}[name]

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    async def settled(self) -> None:
        """Wait until JetStream has a leader and every node is current and healthy."""
        await eventually(self._settled, within_s=START_S)

    async def _settled(self) -> bool:
        metas = {}
        for name, port in self._monitors.items():
            if (await _get(port, "/healthz")).get("status") != "ok":
                return False
            metas[name] = (await _get(port, "/jsz")).get("meta_cluster", {})
        leader = metas.get(metas["n1"].get("leader"), {})
        peers = leader.get("replicas") or []
        return len(peers) == len(self.nodes) - 1 and all(peer["current"] for peer in peers)

    def _kill(self) -> None:
        for node in self.nodes:
            node.kill()


async def _get(port: int, path: str) -> dict[str, Any]:
    """Return the JSON of a monitoring endpoint, an empty object if it does not answer."""
    with suppress(OSError, ValueError):
        async with opened("127.0.0.1", port) as (reader, writer):
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        response = json.loads(body)
        return response if isinstance(response, dict) else {}
    return {}
