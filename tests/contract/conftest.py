"""Every test here runs on each backend: what passes on the fake must pass on the real one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from backends import Backend, MemoryBackend, NatsBackend
from servers import NatsServer

import natsctl
from natsctl.model.store import Store


@pytest.fixture(params=["memory", "nats"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    if request.param == "memory":
        yield MemoryBackend()
        return
    async with NatsServer(tmp_path / "nats") as server, natsctl.connect(server.url) as nats:
        yield NatsBackend(nats)


@pytest.fixture
async def store(backend: Backend) -> Store:
    return await backend.stores.open(backend.kind())
