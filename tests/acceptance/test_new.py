"""`natsctl new` writes a controller, a test and a manifest that work without changes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import ROOT, Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer

SYNCING = "primaries listed, syncing"


def passed(folder: Path, file: str) -> str:
    """Run the generated test with pytest only, and return its output."""
    words = ("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio")
    done = subprocess.run(
        [sys.executable, *words, file],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


async def server_of(running: Running) -> str:
    """Return the URL of the server that a daemon started."""
    await running.logged(SYNCING)
    match = re.search(r"private nats-server listens  url=(nats://[\d.:]+)", running.log)
    assert match is not None, running.log
    return match[1]


async def test_a_generated_controller_passes_its_tests_and_syncs_its_manifest(
    folder: Path,
) -> None:
    natsctl = Natsctl(folder)
    await natsctl.done("new", "edge-site")
    assert "3 passed" in passed(folder, "test_edge_sites.py")
    async with natsctl.running("run", "--embedded", "-c", "edge_sites:EdgeSites") as running:
        user = Natsctl(folder, await server_of(running))
        assert await user.done("apply", "-f", "edge-site.yaml") == (
            "edge-sites/first created at revision 1\n"
        )
        assert await eventually(lambda: note(user)) == "hello"
        await eventually(lambda: ready(user))
        await user.done("delete", "edge-sites", "first")
        await eventually(lambda: none_left(user))
        assert await running.ends(signal.SIGTERM) == 0


async def note(user: Natsctl) -> str:
    result = await user("get", "edge-site-notes", "first", "-o", "json")
    assert result.status == 0, result
    return str(result.json["spec"]["text"])


async def ready(user: Natsctl) -> bool:
    (row,) = (await user("get", "edge-sites")).rows
    return row[3] == "True"


async def none_left(user: Natsctl) -> bool:
    return await user.done("get", "edge-site-notes", "-o", "name") == ""


async def test_a_generated_kubernetes_controller_creates_its_object(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster
) -> None:
    namespace = Namespace(kube_server, "default")
    natsctl = Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig("guest"))
    await natsctl.done("new", "site", "--kube")
    assert "3 passed" in passed(folder, "test_sites.py")
    for role in yaml.safe_load_all(await natsctl.done("rbac", "-c", "sites:Sites")):
        kube_server.allow("guest", role["rules"], namespace=role["metadata"]["namespace"])
    async with natsctl.running("run", "-c", "sites:Sites") as running:
        await running.logged(SYNCING)
        await natsctl.done("apply", "-f", "site.yaml")
        await eventually(lambda: exists(namespace, "first"))
        assert (await namespace.read("configmaps", "first"))["data"] == {"text": "hello"}
        await natsctl.done("delete", "sites", "first")
        await eventually(lambda: is_deleted(namespace, "first"))
        assert await running.ends(signal.SIGTERM) == 0
        assert "may not" not in running.log


async def exists(namespace: Namespace, name: str) -> bool:
    """Return whether the ConfigMap exists. The namespace is shared with other tests."""
    return name in await namespace.names("configmaps")


async def is_deleted(namespace: Namespace, name: str) -> bool:
    return not await exists(namespace, name)
