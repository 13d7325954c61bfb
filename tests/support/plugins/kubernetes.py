"""Fixtures for tests that need Kubernetes: a real kube-apiserver, or one skip message."""

import inspect
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.plugins.server_location import KUBE, in_container
from tests.support.servers.docker import engine_answers
from tests.support.servers.k3s import K3s
from tests.support.servers.kube_apiserver import KubeServer, assets
from tests.support.servers.kube_cluster import KubeCluster

ABSENT = (
    "NO KUBERNETES: set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver, "
    "such as `setup-envtest use -p path` prints; most of these tests can do with Docker too"
)


@pytest.fixture(scope="session")
def kube_assets() -> Path:
    """Return the folder with etcd and kube-apiserver, for servers that a test starts itself."""
    folder = assets()
    if folder is None:
        pytest.skip(ABSENT)
    return folder


@pytest.fixture(scope="session")
def kube_server(
    tmp_path_factory: pytest.TempPathFactory, until_group_ends: ExitStack
) -> KubeCluster:
    """Run one server for all tests of this process. Tests must not stop or pause it."""
    folder = tmp_path_factory.mktemp("kube")
    if assets() is not None and not in_container(KUBE):
        return until_group_ends.enter_context(KubeServer(folder))
    if engine_answers():
        return until_group_ends.enter_context(K3s(folder))
    pytest.skip(ABSENT)


@pytest.fixture
def kube_namespace(kube_server: KubeCluster) -> str:
    """Create a namespace of `kube_server` for this test only."""
    return kube_server.new_namespace()


@pytest.fixture(scope="session")
def restartable_kube_server(
    kube_assets: Path, tmp_path_factory: pytest.TempPathFactory, until_group_ends: ExitStack
) -> KubeServer:
    """Run one server for the tests that kill, stop or pause it, one test after the other."""
    return until_group_ends.enter_context(KubeServer(tmp_path_factory.mktemp("own-kube")))


@pytest.fixture
async def own_kube_server(restartable_kube_server: KubeServer) -> AsyncIterator[KubeServer]:
    """Return a running server that this test may kill, stop or pause.

    The server has the objects of earlier tests: a test creates a namespace, or empties one.
    """
    await restartable_kube_server.start()
    try:
        yield restartable_kube_server
    finally:
        restartable_kube_server.resume()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report all tests skipped without Kubernetes in one line, as skipped in this module."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and ABSENT in report.longrepr[2]:
        _, line = inspect.getsourcelines(kube_assets)
        report.longrepr = (__file__, line, f"Skipped: {ABSENT}")
    return report
