"""The fixtures of integration tests."""

from collections.abc import AsyncIterator

import pytest

import natsctl
from tests.support.clients.nats import Nats
from tests.support.patience import wait_patiently
from tests.support.servers.nats_server import NatsServer


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for servers, which remove no consumer that natsctl has forgotten."""
    wait_patiently(monkeypatch)
    monkeypatch.setattr("natsctl.jetstream.bucket.UNUSED_S", 3600.0)


@pytest.fixture
async def nats(nats_server: NatsServer) -> AsyncIterator[Nats]:
    async with natsctl.connect(nats_server.url) as nats:
        yield nats
