"""A TCP proxy before a kube-apiserver: an outage of the network needs no restart of the server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.tcp_proxy import CutProxy


@asynccontextmanager
async def through_proxy(cluster: KubeCluster) -> AsyncIterator[tuple[CutProxy, Path]]:
    """Yield a proxy to the cluster that can be cut, and a kubeconfig for it."""
    async with CutProxy(cluster.url) as proxy:
        kubeconfig = cluster.kubeconfig()
        proxy_url = proxy.url.replace("nats://", "https://")
        kubeconfig.write_text(kubeconfig.read_text().replace(cluster.url, proxy_url))
        yield proxy, kubeconfig
