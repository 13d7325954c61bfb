"""A folder to work in, a real nats-server, and `natsctl` as a user of both."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import InProcess, Natsctl, Running
from tests.support.clients.plain_client import plain_jetstream
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    return work_dir


@pytest.fixture
def namespace(kube_server: KubeCluster, kube_namespace: str) -> Namespace:
    return Namespace(kube_server, kube_namespace)


@pytest.fixture
def natsctl(folder: Path, nats_server: NatsServer) -> Natsctl:
    return Natsctl(folder, nats_server.url)


@pytest.fixture
def in_process(
    nats_server: NatsServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> InProcess:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no context of the machine
    monkeypatch.setenv("NATSCTL_SERVER", nats_server.url)
    return InProcess(capsys)


@pytest.fixture
async def jetstream(nats_server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """A plain NATS client that does not use natsctl."""
    async with plain_jetstream(nats_server.url) as connected:
        yield connected


@pytest.fixture
async def daemon(natsctl: Natsctl) -> AsyncIterator[Callable[..., Awaitable[Running]]]:
    """Start `natsctl run` with these controllers, and wait until every controller syncs."""
    async with AsyncExitStack() as stack:

        async def start(*controllers: str, options: tuple[str, ...] = ()) -> Running:
            words = [word for path in controllers for word in ("--controller", path)]
            started = await stack.enter_async_context(natsctl.running("run", *words, *options))
            await started.logged("primaries listed, syncing", times=len(controllers))
            return started

        yield start
