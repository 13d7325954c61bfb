"""Everything that a plan must not change: streams, messages, consumers, objects of a cluster."""

from typing import Any

from tests.support.clients.plain_client import plain_jetstream
from tests.support.servers.kube_cluster import KubeCluster

KINDS = (
    "/api/v1/configmaps",
    "/api/v1/services",
    "/api/v1/secrets",
    "/api/v1/events",
    "/apis/apps/v1/deployments",
    "/apis/events.k8s.io/v1/events",
    "/apis/coordination.k8s.io/v1/leases",
)


async def nats_contents(url: str) -> dict[str, Any]:
    """Return the state, the configuration and the consumers of every stream, by name."""
    async with plain_jetstream(url) as jetstream:
        return {
            info.config.name or "": (info.config, info.state, info.state.consumer_count)
            for info in await jetstream.streams_info()
        }


async def kube_contents(server: KubeCluster, namespace: str) -> dict[str, str]:
    """Return the resourceVersion of every object of a namespace, by path."""
    versions = {}
    for path in KINDS:
        root, _, plural = path.rpartition("/")
        listed = await server.call("GET", f"{root}/namespaces/{namespace}/{plural}")
        for item in listed["items"]:
            metadata = item["metadata"]
            versions[f"{path}/{metadata['name']}"] = metadata["resourceVersion"]
    return versions
