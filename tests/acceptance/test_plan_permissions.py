"""The documented permissions of a plan suffice on real servers."""

import re
from pathlib import Path

import yaml

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import ROOT, Natsctl
from tests.support.servers.kube_cluster import KubeCluster, cluster_role
from tests.support.servers.nats_server import NatsServer

PAGE = (ROOT / "docs" / "plan.md").read_text()
GREETINGS = "controllers.greetings:Greetings"


def block(language: str) -> str:
    matched = re.search(rf"```{language}\n(publish|rules)(.*?)```", PAGE, re.DOTALL)
    assert matched
    return matched[1] + matched[2]


async def test_a_read_only_user_of_nats_can_plan(folder: Path) -> None:
    config = f"""
        authorization: {{ users: [
          {{ user: admin, password: a }},
          {{ user: planner, password: p, permissions: {{ {block("conf")} }} }}
        ] }}
    """
    async with NatsServer(folder / "nats", config=config) as server:
        address = server.url.removeprefix("nats://")
        admin = Natsctl(folder, f"nats://admin:a@{address}")
        planner = Natsctl(folder, f"nats://planner:p@{address}")
        await admin.done("put", "greetings", "shop", "spec: {text: hi}", "--create-bucket")
        async with admin.running("run", "-c", GREETINGS) as daemon:
            await daemon.logged("primaries listed, syncing")
        await admin.done("put", "greetings", "market", "spec: {text: hi}")
        planned = await planner.done("plan", "-c", GREETINGS)
        assert "  + Route.routes/market\n" in planned
        refused = await planner("put", "greetings", "shop", "spec: {text: ho}")
        assert refused.status != 0


async def test_the_documented_role_can_plan(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster, namespace: Namespace
) -> None:
    name = f"planner-{namespace.name}"
    rules = yaml.safe_load(block("yaml"))
    role = {"kind": "ClusterRole", "metadata": {"name": name}, **rules}
    binding = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": "guest", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    async with cluster_role(kube_server, role, binding):
        kubeconfig = kube_server.kubeconfig(user="guest")
        natsctl = Natsctl(folder, nats_server.url, kubeconfig=kubeconfig)
        await natsctl.done("put", "webapps", "shop", namespace.app(), "--create-bucket")
        result = await natsctl("plan", "-c", "controllers.webapps:WebApps", "-o", "json")
        assert (result.status, result.json["summary"]["create"]) == (0, 3), result
