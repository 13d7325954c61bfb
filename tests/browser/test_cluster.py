"""The tree of a key shows objects of a real cluster: whether they're ready, and their manifests."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import console
from tests.support.cli.kube_namespace import MERGE_PATCH, Namespace
from tests.support.cli.natsctl_command import Natsctl
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.usefixtures("kube_assets")  # only this controller reports the state of pods
async def test_an_object_of_a_cluster_shows_its_health_and_its_manifest(
    chromium: Browser, tmp_path: Path, kube_server: KubeCluster, kube_namespace: str
) -> None:
    namespace = Namespace(kube_server, kube_namespace)
    async with NatsServer(tmp_path / "nats") as nats:
        natsctl = Natsctl(tmp_path, nats.url, kubeconfig=kube_server.kubeconfig())
        async with (
            natsctl.running("run", "-c", "controllers.webapps:WebApps") as daemon,
            console(natsctl) as running,
            Visitor.of(chromium, running) as visitor,
        ):
            await daemon.logged("primaries listed, syncing")
            app = namespace.app(replicas=1, env={"API_TOKEN": "s3cret-s3cret"})
            await natsctl.done("put", "webapps", "shop", app)
            await visitor.open("/key/webapps/shop")
            tree = visitor.page.get_by_role("tree")
            deployment = tree.get_by_role("treeitem", name=f"Deployment.apps/{kube_namespace}/shop")
            await expect(deployment).to_be_visible()
            for available, badge in (("False", "not ready"), ("True", "ready")):
                condition = {"type": "Available", "status": available, "reason": "Pods"}
                status = {"status": {"conditions": [condition]}}
                path = namespace.path("deployments", "shop/status")
                await kube_server.call("PATCH", path, status, content_type=MERGE_PATCH)
                await expect(deployment.locator(".badge")).to_have_text(badge)
            name = f"Manifest of ConfigMap/{kube_namespace}/shop"
            await tree.get_by_role("button", name=name).click()
            manifest = tree.get_by_role("region", name=name)
            await expect(manifest).to_contain_text('"PORT": "8080"')
            await expect(manifest).to_contain_text('"API_TOKEN": "***"')
            visitor.check()
