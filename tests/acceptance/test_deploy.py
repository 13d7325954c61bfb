"""A cluster accepts the manifests in docs/deploy, and they match the rest of natsctl."""

import re
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientError, ClientSession

from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.daemon.signals import MORE_S
from tests.support.cli.natsctl_command import ROOT, Natsctl, Running
from tests.support.eventually import eventually
from tests.support.servers.deployed import missing, path, served
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

DEPLOY = ROOT / "docs" / "deploy"
FILES = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
MANIFESTS = [entry for name in FILES for entry in yaml.safe_load_all((DEPLOY / name).read_text())]
FOUND = {manifest["kind"]: manifest for manifest in MANIFESTS}
SYNCING = "primaries listed, syncing"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
async def test_a_cluster_accepts_the_manifest_and_drops_no_field(
    kube_server: KubeCluster, kube_namespace: str, manifest: dict[str, Any]
) -> None:
    metadata = manifest["metadata"]
    if "namespace" in metadata:
        manifest = {**manifest, "metadata": {**metadata, "namespace": kube_namespace}}
    manifest = {**manifest, "apiVersion": await served(kube_server, manifest["apiVersion"])}
    response = await kube_server.call("POST", f"{path(manifest)}?dryRun=All", manifest)
    assert missing(manifest, response) == []


async def test_the_permissions_equal_the_output_of_natsctl_rbac(folder: Path) -> None:
    account = ("--service-account", "natsctl", "--namespace", "natsctl")
    words = ("rbac", "--no-kube", "--controller", "controllers.webapps:WebApps", *account)
    assert await Natsctl(folder).done(*words) == (DEPLOY / "rbac.yaml").read_text()


def test_the_manifests_use_one_service_account_in_one_namespace() -> None:
    namespace = FOUND["Namespace"]["metadata"]["name"]
    account = {"name": FOUND["ServiceAccount"]["metadata"]["name"], "namespace": namespace}
    (subject,) = FOUND["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", **account}
    assert pod()["serviceAccountName"] == account["name"]
    namespaces = [
        entry["metadata"].get("namespace", namespace) for entry in [*MANIFESTS, monitor()]
    ]
    assert set(namespaces) == {namespace}


def test_the_grace_period_is_longer_than_the_stop_timeout() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    graces = [service.get("stop_grace_period") for service in compose["services"].values()]
    waits = [pod()["terminationGracePeriodSeconds"], *(int(s[:-1]) for s in graces if s)]
    assert len(waits) > 2
    assert min(waits) > ControllerSettings().stop_timeout_s + MORE_S


def test_pods_and_containers_run_as_the_user_of_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    security = pod()["securityContext"]
    assert (str(security["runAsUser"]), str(security["runAsGroup"])) == user
    assert f"chown {user[0]} /kube/config" in (ROOT / "docker-compose.yml").read_text()


def test_the_shards_are_three_pods_without_a_leader() -> None:
    overlay = yaml.safe_load((DEPLOY / "shards" / "kustomization.yaml").read_text())
    assert [(DEPLOY / "shards" / name).resolve() for name in overlay["resources"]] == [DEPLOY]
    (patch,) = overlay["patches"]
    target = patch["target"]
    assert target == {"kind": "Deployment", "name": FOUND["Deployment"]["metadata"]["name"]}
    changes = {entry["path"]: entry["value"] for entry in yaml.safe_load(patch["patch"])}
    assert changes.pop("/spec/replicas") == 3
    ((place, value),) = changes.items()
    before = container()["args"][int(place.removeprefix("/spec/template/spec/containers/0/args/"))]
    assert (before, value) == ("--leader-elect", "--shard")


async def test_two_replicas_of_the_deployment_are_ready_and_one_leads(
    folder: Path, nats_server: NatsServer, kube_server: KubeCluster
) -> None:
    natsctl = Natsctl(folder, nats_server.url, kubeconfig=kube_server.kubeconfig())
    replicas = FOUND["Deployment"]["spec"]["replicas"]
    assert replicas == 2
    listen = f"--listen=:{ports()['http']}"
    free_ports = [free_port() for _ in range(replicas)]
    async with AsyncExitStack() as stack:
        running: list[Running] = []
        for port in free_ports:
            for leader in running:  # the first one leads before another one starts
                await leader.logged(SYNCING)
            words = [
                f"--listen=:{port}" if word == listen else word for word in container()["args"]
            ]
            assert words != container()["args"]
            running.append(await stack.enter_async_context(natsctl.running(*words)))
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                await passes(port, container()[probe])
        leader, standby = running
        assert SYNCING not in standby.log
        assert await leader.ends(signal.SIGTERM) == 0
        await standby.logged(SYNCING)
        assert await standby.ends(signal.SIGTERM) == 0


def test_every_probe_uses_the_port_on_which_natsctl_listens() -> None:
    probes = [container()[name]["httpGet"] for name in container() if name.endswith("Probe")]
    assert len(probes) == 3
    assert {probe["port"] for probe in probes} == set(ports())
    assert f"--listen=:{ports()['http']}" in container()["args"]


def test_the_pod_meets_the_restricted_pod_security_standard() -> None:
    labels = FOUND["Namespace"]["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod())
    assert all(set(volume) & {"secret", "emptyDir"} for volume in pod()["volumes"])


def test_the_disruption_budget_keeps_at_least_one_pod_but_not_all() -> None:
    budget = FOUND["PodDisruptionBudget"]["spec"]
    assert budget["selector"]["matchLabels"] == labels()
    assert 0 < budget["minAvailable"] < FOUND["Deployment"]["spec"]["replicas"]


def test_prometheus_scrapes_the_pods_with_the_job_name_of_the_rules() -> None:
    scraped = yaml.safe_load((ROOT / "docs" / "prometheus" / "prometheus.yml").read_text())
    (job,) = [entry["job_name"] for entry in scraped["scrape_configs"]]
    spec = monitor()["spec"]
    assert spec["selector"]["matchLabels"].items() <= labels().items()
    assert labels()[spec["jobLabel"]] == job
    (endpoint,) = spec["podMetricsEndpoints"]
    annotations = FOUND["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(ports()[endpoint["port"]]),
        "prometheus.io/path": endpoint["path"],
    }


def pod() -> dict[str, Any]:
    return dict(FOUND["Deployment"]["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    (spec,) = pod()["containers"]
    return dict(spec)


def labels() -> dict[str, str]:
    """Return the labels of the Deployment's pods."""
    spec = FOUND["Deployment"]["spec"]
    pod_labels: dict[str, str] = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == pod_labels
    return pod_labels


def ports() -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container()["ports"]}


def monitor() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "podmonitor.yaml").read_text()))


async def passes(port: int, probe: Mapping[str, Any]) -> None:
    """Wait until a kubelet would count the probe as passed."""
    url = f"http://127.0.0.1:{port}{probe['httpGet']['path']}"

    async def has_passed() -> bool:
        try:
            async with ClientSession() as session, session.get(url) as response:
                return response.status == 200
        except ClientError:
            return False

    await eventually(has_passed)
