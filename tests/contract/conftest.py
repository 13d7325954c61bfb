"""Fixtures that run every contract test on each backend: in memory, on NATS, on Kubernetes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import natsctl
from natsctl.model.store import Store
from tests.support.plugins.server_location import new_nats_server
from tests.support.stores.backends import (
    BUCKETS,
    Backend,
    KubeBackend,
    ManifestBackend,
    MemoryBackend,
    MemoryClusterBackend,
    NatsBackend,
    PlanningBackend,
)
from tests.support.stores.custom_resources import cluster


@pytest.fixture(autouse=True)
def _no_consumer_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server removes no consumer that natsctl has forgotten."""
    monkeypatch.setattr("natsctl.jetstream.bucket.UNUSED_S", 3600.0)


@pytest.fixture(params=[*BUCKETS, "plan", "kube"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    match request.param:
        case "memory":
            yield MemoryBackend()
        case "plan":
            yield PlanningBackend()
        case "nats":
            async with (
                new_nats_server(tmp_path / "nats") as server,
                natsctl.connect(server.url) as nats,
            ):
                yield NatsBackend(nats)
        case "kube":
            async with cluster(request.getfixturevalue("kube_server")) as kube:
                kube_backend = KubeBackend(kube)
                await kube_backend.prepare()
                yield kube_backend


@pytest.fixture
async def store(backend: Backend) -> Store:
    return await backend.stores.open(backend.kind())


@pytest.fixture(params=["memory", "kube"])
async def manifests(request: pytest.FixtureRequest) -> AsyncIterator[ManifestBackend]:
    if request.param == "memory":
        yield MemoryClusterBackend()
        return
    async with cluster(request.getfixturevalue("kube_server")) as kube:
        kube_backend = KubeBackend(kube)
        await kube_backend.prepare()
        yield kube_backend
