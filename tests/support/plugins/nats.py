"""Fixtures for tests that need NATS. Each test gets its own real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.plugins.server_location import new_nats_server
from tests.support.servers.nats_server import NatsCluster, NatsServer
from tests.support.servers.tcp_proxy import CutProxy


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with new_nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def nats_cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    async with NatsCluster(tmp_path / "nats") as cluster:
        yield cluster


@pytest.fixture
async def cut_proxy(nats_server: NatsServer) -> AsyncIterator[CutProxy]:
    async with CutProxy(nats_server.url) as proxy:
        yield proxy
