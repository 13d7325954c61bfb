"""Small things for tests of Kubernetes stores: custom kinds, and what a cluster says of itself."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from natsctl.errors import ConflictError, StoreMissingError, StoreTimeoutError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.cluster import Kube, connect_kube
from natsctl.kubernetes.http.transport import Transport
from natsctl.kubernetes.http.wire import Reply, Wire
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@asynccontextmanager
async def cluster(server: KubeServer, *, user: str = "admin", **how: Any) -> AsyncIterator[Kube]:
    """Connect to a server as one of its users."""
    options = KubeOptions(kubeconfig=str(server.kubeconfig(user)))
    async with connect_kube(options, **how) as kube:
        yield kube


class WatchedWire:
    """A wire that remembers what was asked, and can lose answers on purpose."""

    def __init__(self, wire: Wire) -> None:
        self.asked: list[tuple[str, str]] = []
        self.pages = 0
        self.listings = 0  # answered in pages, or begun within a watch
        self.streams = 0
        self.lose: set[str] = set()  # methods of which the next answer is lost
        self._wire = wire

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, **how: Any
    ) -> Reply:
        self.asked.append((method, path))
        is_page = method == "GET" and query is not None and query.get("limit", "1") != "1"
        self.pages += is_page
        reply = await self._wire.call(method, path, query=query, **how)
        self.listings += is_page and "continue" not in (query or ())
        if method in self.lose:
            self.lose.remove(method)
            raise StoreTimeoutError("the answer was lost")
        return reply

    def stream(
        self, path: str, *, query: Mapping[str, str], **how: Any
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        self.streams += 1
        self.listings += "sendInitialEvents" in query
        return self._wire.stream(path, query=query, **how)


async def define(
    transport: Transport,
    group: str,
    kind: str,
    *,
    plural: str = "",
    scope: str = "Cluster",
    status: bool = True,
) -> None:
    """Have the server know a custom kind, with any spec and status, version v1; wait until so."""
    plural = plural or f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        **({"subresources": {"status": {}}} if status else {}),
    }
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": scope, "names": names, "versions": [version]},
    }
    try:
        await transport.call("POST", DEFINITIONS, body=msgspec.json.encode(definition))
    except ConflictError:
        return  # it is there

    async def served() -> bool:
        try:
            await transport.call("GET", f"/apis/{group}/v1/{plural}")
        except StoreMissingError:
            return False
        return True

    await eventually(served)


async def watches(transport: Transport, resource: str) -> int:
    """Count the watches of a resource that the server serves."""
    reply = await transport.call("GET", "/metrics", accept="text/plain")
    gauge = rf'^apiserver_longrunning_\w+{{.*resource="{resource}".*verb="WATCH".*}} (\d+)$'
    return sum(map(int, re.findall(gauge, reply.body.decode(), re.MULTILINE)))
