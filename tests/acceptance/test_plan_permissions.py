"""The documented permissions of a plan in a cluster suffice; those in NATS: planner.md."""

import re
from pathlib import Path

import yaml

from tests.support.cli.kube_namespace import Namespace
from tests.support.cli.natsctl_command import ROOT, Natsctl
from tests.support.servers.kube_cluster import KubeCluster, cluster_role
from tests.support.servers.nats_server import NatsServer

PAGE = (ROOT / "docs" / "plan.md").read_text()


async def test_the_documented_role_can_plan(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster, namespace: Namespace
) -> None:
    name = f"planner-{namespace.name}"
    matched = re.search(r"```yaml\n(rules.*?)```", PAGE, re.DOTALL)
    assert matched
    rules = yaml.safe_load(matched[1])
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
