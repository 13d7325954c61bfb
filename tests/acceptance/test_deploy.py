"""The manifests in docs/deploy: a cluster takes them, and they say what natsctl says."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from acceptance.commands import ROOT, Natsctl
from kube_clusters import KubeCluster

from natsctl.daemon.settings import ControllerSettings

DEPLOY = ROOT / "docs" / "deploy"
FILES = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
MANIFESTS = [each for name in FILES for each in yaml.safe_load_all((DEPLOY / name).read_text())]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
async def test_a_cluster_takes_the_manifest_and_drops_nothing_of_it(
    kube_server: KubeCluster, kube_namespace: str, manifest: dict[str, Any]
) -> None:
    metadata = manifest["metadata"]
    if "namespace" in metadata:
        manifest = {**manifest, "metadata": {**metadata, "namespace": kube_namespace}}
    answer = await kube_server.call("POST", f"{path(manifest)}?dryRun=All", manifest)
    assert missing(manifest, answer) == []


async def test_the_permissions_are_those_that_natsctl_prints(folder: Path) -> None:
    account = ("--service-account", "natsctl", "--namespace", "natsctl")
    words = ("rbac", "--no-kube", "--controller", "controllers.webapps:WebApps", *account)
    assert await Natsctl(folder).done(*words) == (DEPLOY / "rbac.yaml").read_text()


def test_all_is_of_one_account_in_one_namespace() -> None:
    found = {manifest["kind"]: manifest for manifest in MANIFESTS}
    namespace = found["Namespace"]["metadata"]["name"]
    account = {"name": found["ServiceAccount"]["metadata"]["name"], "namespace": namespace}
    (subject,) = found["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", **account}
    assert pod()["serviceAccountName"] == account["name"]
    placed = [each["metadata"].get("namespace", namespace) for each in MANIFESTS]
    assert set(placed) == {namespace}


def test_who_stops_it_waits_longer_than_syncs_have() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    graces = [service.get("stop_grace_period") for service in compose["services"].values()]
    waits = [pod()["terminationGracePeriodSeconds"], *(int(s[:-1]) for s in graces if s)]
    assert len(waits) > 2
    assert min(waits) > ControllerSettings().stop_timeout_s


def test_it_runs_as_the_image_s_own_user_wherever_it_runs() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    security = pod()["securityContext"]
    assert (str(security["runAsUser"]), str(security["runAsGroup"])) == user
    assert f"chown {user[0]} /kube/config" in (ROOT / "docker-compose.yml").read_text()


def pod() -> dict[str, Any]:
    (deployment,) = [each for each in MANIFESTS if each["kind"] == "Deployment"]
    return dict(deployment["spec"]["template"]["spec"])


def path(manifest: Mapping[str, Any]) -> str:
    """Return where a cluster takes manifests of this kind."""
    version = manifest["apiVersion"]
    within = manifest["metadata"].get("namespace")
    at = f"/namespaces/{within}" if within else ""
    plural = f"{manifest['kind'].lower()}s"
    return f"/{'apis' if '/' in version else 'api'}/{version}{at}/{plural}"


def missing(sent: object, answered: object, at: str = "") -> list[str]:
    """Return where what was answered lacks what was sent."""
    if isinstance(sent, Mapping) and isinstance(answered, Mapping):
        pairs = [(sent[name], answered.get(name), f"{at}.{name}") for name in sent]
    elif isinstance(sent, list) and isinstance(answered, Sequence) and len(sent) == len(answered):
        pairs = [(sent[i], answered[i], f"{at}[{i}]") for i in range(len(sent))]
    else:
        return [] if sent == answered else [at]
    return [lack for pair in pairs for lack in missing(*pair)]
