"""The Helm chart installs, upgrades and goes in a real cluster."""

import asyncio
import re
from typing import Any

import pytest
import yaml
from helm_python import Chart, Config, HelmError, lint

from tests.support.cli.natsctl_command import ROOT, Natsctl
from tests.support.servers.deployed import missing, path
from tests.support.servers.kube_cluster import KubeCluster

CHART = ROOT / "charts" / "natsctl"
SERVER = {"nats": {"server": "nats://nats.nats:4222"}}
CREDS = {"nats": {"server": "nats://nats.nats:4222", "credsSecret": "natsctl-creds"}}


def rendered(values: dict[str, Any], name: str = "natsctl") -> dict[str, dict[str, Any]]:
    """Return the manifests that Helm makes of the chart, by kind."""
    with Chart.load(CHART) as chart:
        files = chart.render(values, name=name, namespace="natsctl")
    texts = [text for file, text in files.items() if file.endswith(".yaml")]
    documents = [entry for text in texts for entry in yaml.safe_load_all(text) if entry]
    return {document["kind"]: document for document in documents}


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    report = lint(CHART, SERVER, strict=True, kube_version="v1.20.0")
    problems = [entry for entry in report["messages"] if "icon" not in entry["error"]]
    assert (problems, report["errors"]) == ([], [])


def test_its_pods_are_those_of_the_manifests() -> None:
    text = (ROOT / "docs" / "deploy" / "natsctl.yaml").read_text()
    (kept,) = (doc for doc in yaml.safe_load_all(text) if doc["kind"] == "Deployment")
    made = rendered(CREDS)["Deployment"]
    assert made["spec"]["strategy"] == kept["spec"]["strategy"]
    pods = [deployment["spec"]["template"]["spec"] for deployment in (made, kept)]
    for pod in pods:  # where NATS is and how it's told differs
        (container,) = pod["containers"]
        container["args"] = [arg for arg in container["args"] if "--stop-timeout" not in arg]
        container.pop("env", None)
        container.pop("envFrom", None)
        pod["volumes"][0]["secret"].pop("optional", None)
        for constraint in pod["topologySpreadConstraints"]:
            constraint["labelSelector"]["matchLabels"].pop("app.kubernetes.io/instance", None)
    assert pods[0] == pods[1]


def test_a_pod_has_longer_than_its_stop() -> None:
    pod = rendered(SERVER | {"stopTimeoutSeconds": 60})["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 75
    assert "--stop-timeout=60" in pod["containers"][0]["args"]


def test_credentials_come_from_a_secret() -> None:
    values = {"nats": {"secret": "hub", "credsSecret": "hub-creds"}}
    pod = rendered(values)["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert {"name": "NATSCTL_CREDS", "value": "/creds/nats.creds"} in container["env"]
    assert pod["volumes"][0]["secret"]["secretName"] == "hub-creds"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "where is your NATS?"),
        (SERVER | {"mode": "several"}, "must be one of 'leader-elect', 'shard', 'alone'"),
        (SERVER | {"mode": "alone"}, "mode alone takes one replica"),
        (SERVER | {"controlers": []}, "additional properties 'controlers' not allowed"),
        (SERVER | {"rbac": "kind: Role"}, "natsctl rbac --service-account natsctl --namespace"),
    ],
)
def test_a_wrong_value_is_refused_with_its_reason(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(HelmError, match=re.escape(reason)):
        rendered(values)


async def test_a_cluster_takes_it_and_its_upgrade_to_shards(
    kube_server: KubeCluster, kube_namespace: str, folder: Any
) -> None:
    account = ("--service-account", "sites", "--namespace", kube_namespace)
    words = ("rbac", "--no-kube", "--controller", "controllers.webapps:WebApps", *account)
    values = CREDS | {"rbac": await Natsctl(folder).done(*words)}

    def installed() -> list[dict[str, Any]]:
        with config() as helm:
            release = helm.install(CHART, "sites", values, namespace=kube_namespace)
        return [entry for entry in yaml.safe_load_all(release["manifest"]) if entry]

    def upgraded() -> None:
        with config() as helm:
            more = values | {"mode": "shard", "replicas": 3}
            helm.upgrade(CHART, "sites", more, namespace=kube_namespace)

    def uninstalled() -> None:
        with config() as helm:
            helm.uninstall("sites")

    def config() -> Config:
        kubeconfig = kube_server.kubeconfig()
        return Config(kubeconfig_path=kubeconfig, namespace=kube_namespace)

    manifests = await asyncio.to_thread(installed)
    kinds = {manifest["kind"] for manifest in manifests}
    assert kinds > {"Deployment", "ServiceAccount", "PodDisruptionBudget", "ClusterRoleBinding"}
    for manifest in manifests:
        stored = await kube_server.call("GET", f"{path(manifest)}/{manifest['metadata']['name']}")
        assert missing(manifest, stored) == []
    (deployment,) = (entry for entry in manifests if entry["kind"] == "Deployment")
    place = f"{path(deployment)}/{deployment['metadata']['name']}"
    await asyncio.to_thread(upgraded)
    spec = (await kube_server.call("GET", place))["spec"]
    assert spec["replicas"] == 3
    assert "--shard" in spec["template"]["spec"]["containers"][0]["args"]
    await asyncio.to_thread(uninstalled)
    left = (await kube_server.call("GET", path(deployment)))["items"]
    assert [entry for entry in left if "deletionTimestamp" not in entry["metadata"]] == []
