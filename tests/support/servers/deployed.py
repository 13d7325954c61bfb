"""What a cluster makes of the manifests that natsctl ships."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.servers.kube_cluster import KubeCluster

OLDER = {"policy/v1": "policy/v1beta1"}  # for clusters older than 1.21


async def served(cluster: KubeCluster, version: str) -> str:
    """Return the API version, or the older one if the cluster does not serve the newer."""
    if "/" not in version:
        return version
    group, _, _ = version.partition("/")
    known = (await cluster.call("GET", f"/apis/{group}"))["versions"]
    return version if version in {entry["groupVersion"] for entry in known} else OLDER[version]


def path(manifest: Mapping[str, Any]) -> str:
    version = manifest["apiVersion"]
    within = manifest["metadata"].get("namespace")
    prefix = f"/namespaces/{within}" if within else ""
    plural = f"{manifest['kind'].lower()}s"
    return f"/{'apis' if '/' in version else 'api'}/{version}{prefix}/{plural}"


def missing(sent: object, received: object, prefix: str = "") -> list[str]:
    """Return the paths at which the response lacks a field that was sent."""
    if isinstance(sent, Mapping) and isinstance(received, Mapping):
        pairs = [(sent[name], received.get(name), f"{prefix}.{name}") for name in sent]
    elif isinstance(sent, list) and isinstance(received, Sequence) and len(sent) == len(received):
        pairs = [(sent[i], received[i], f"{prefix}[{i}]") for i in range(len(sent))]
    else:
        return [] if sent == received else [prefix]
    return [lack for pair in pairs for lack in missing(*pair)]
