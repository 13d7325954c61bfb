"""`natsctl new` writes a controller, a test and a manifest that work without changes.

A page of the documentation does the same without a cluster: docs/first-controller.md.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import ROOT, Natsctl
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer

SYNCING = "primaries listed, syncing"


def passed(folder: Path, *files: str) -> str:
    """Run generated tests with pytest only, and return the output."""
    words = ("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio")
    done = subprocess.run(
        [sys.executable, *words, *files],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


async def test_a_generated_kubernetes_controller_creates_its_object(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster
) -> None:
    namespace = Namespace(kube_server, "default")
    natsctl = Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig("guest"))
    await natsctl.done("new", "edge-site", "--kube")
    await natsctl.done("new", "shop")
    assert "6 passed" in passed(folder, "test_edge_sites.py", "test_shops.py")
    for role in yaml.safe_load_all(await natsctl.done("rbac", "-c", "edge_sites:EdgeSites")):
        kube_server.allow("guest", role["rules"], namespace=role["metadata"]["namespace"])
    async with natsctl.running("run", "-c", "edge_sites:EdgeSites") as running:
        await running.logged(SYNCING)
        await natsctl.done("apply", "-f", "edge-site.yaml")
        await eventually(lambda: exists(namespace, "first"))
        assert (await namespace.read("configmaps", "first"))["data"] == {"text": "hello"}
        await natsctl.done("delete", "edge-sites", "first")
        await eventually(lambda: is_deleted(namespace, "first"))
        assert await running.ends(signal.SIGTERM) == 0
        assert "may not" not in running.log


async def exists(namespace: Namespace, name: str) -> bool:
    """Return whether the ConfigMap exists. The namespace is shared with other tests."""
    return name in await namespace.names("configmaps")


async def is_deleted(namespace: Namespace, name: str) -> bool:
    return not await exists(namespace, name)
