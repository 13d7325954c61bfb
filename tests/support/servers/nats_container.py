"""A NATS server in a container, which tests can kill, stop and pause."""

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.servers.nats_server import POLL_S, START_S, NatsServer

IMAGE = "nats:2.12-alpine"
CONFIG = "/etc/nats/tests.conf"  # in the container
PORT = 4222  # in the container
STOP_S = 60


class ContainedNatsServer(NatsServer):
    """A `NatsServer` that testcontainers runs.

    Its data is in the container and is deleted with it, so the folder stays empty. A killed test
    process leaves the container behind if Ryuk does not run.
    """

    def __init__(self, folder: Path, *, config: str = "") -> None:
        super().__init__(folder, config=config)
        self._host = "127.0.0.1"
        self._container: Any = None
        self._starts = 0

    async def __aexit__(self, *_: object) -> None:
        if self._container is not None:
            await asyncio.to_thread(self._container.stop)

    @property
    def url(self) -> str:
        return f"nats://{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server on the machine of the engine."""
        return int(self._state()["Pid"])

    @property
    def running(self) -> bool:
        return self._container is not None and bool(self._state()["Running"])

    async def start(self) -> None:
        assert not self.running
        await asyncio.to_thread(self._start)
        self._starts += 1
        await eventually(self._has_begun, within_s=START_S, every_s=POLL_S)

    def kill(self) -> None:
        if self.running:
            with self._wrapped() as container:
                container.kill()
                container.wait()

    async def stop(self) -> None:
        with self._wrapped() as container:
            await asyncio.to_thread(container.stop, timeout=STOP_S)

    def pause(self) -> None:
        """Suspend the process: connections stay open, and no request is answered."""
        with self._wrapped() as container:
            container.pause()

    def resume(self) -> None:
        with self._wrapped() as container:
            container.unpause()

    def log(self) -> str:
        with self._wrapped() as container:
            return str(container.logs().decode())

    def _configuration(self) -> str:
        return (
            f"server_name: {self.name}\nlisten: 0.0.0.0:{PORT}\n"
            f'jetstream {{ store_dir: "/data" }}\n{self.config}\n'
        )

    def _start(self) -> None:
        config = self._configuration().encode()
        if self._container is None:
            self._container = self._new(config)
            self._host = self._container.get_container_host_ip()
        else:
            with self._wrapped() as container:
                self._container.copy_into_container(config, CONFIG)
                container.start()

    def _new(self, config: bytes) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from testcontainers.community.nats import NatsContainer  # noqa: PLC0415 - needs Docker

            container = NatsContainer(IMAGE)
            container.with_bind_ports(PORT, self.port)
            container.with_copy_into_container(config, CONFIG)
            container.with_command(["-c", CONFIG])
            try:
                return container.start()
            except BaseException:
                container.stop()
                raise

    def _has_begun(self) -> bool:
        log = self.log()
        assert self.running, f"nats-server did not start:\n{log[-2000:]}"
        return log.count("Server is ready") == self._starts

    @contextmanager
    def _wrapped(self) -> Iterator[Any]:
        """Yield the container, and close the connection to the engine at the end."""
        container = self._container.get_wrapped_container()
        try:
            yield container
        finally:
            container.client.close()

    def _state(self) -> dict[str, Any]:
        with self._wrapped() as container:
            container.reload()
            return dict(container.attrs["State"])
