"""Helpers for tests of Kubernetes stores: custom resources, a counting wire, watch counts."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from natsctl import KubeOptions, connect_kube
from natsctl.errors import ConflictError, StoreMissingError, StoreTimeoutError
from natsctl.kubernetes.cluster import Kube
from natsctl.kubernetes.transport import Reply, Transport
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@asynccontextmanager
async def cluster(
    server: KubeServer, *, user: str = "admin", **settings: Any
) -> AsyncIterator[Kube]:
    """Connect to a kube-apiserver as one of its users."""
    options = KubeOptions(kubeconfig=str(server.kubeconfig(user)))
    async with connect_kube(options, **settings) as kube:
        yield kube


class WatchedWire(Transport):
    """A wire that records its requests and can drop responses."""

    def __init__(self, wire: Transport) -> None:
        self.requests: list[tuple[str, str]] = []
        self.pages = 0
        self.listings = 0  # paged lists, and watches that begin with a list
        self.streams = 0
        self.lose: set[str] = set()  # methods whose next response is dropped
        self._wire = wire

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, **options: Any
    ) -> Reply:
        self.requests.append((method, path))
        is_page = method == "GET" and query is not None and query.get("limit", "1") != "1"
        self.pages += is_page
        reply = await self._wire.call(method, path, query=query, **options)
        self.listings += is_page and "continue" not in (query or ())
        if method in self.lose:
            self.lose.remove(method)
            raise StoreTimeoutError("the response was lost")
        return reply

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], **options: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.streams += 1
        self.listings += "sendInitialEvents" in query
        async with self._wire.stream(path, query=query, **options) as lines:
            yield lines


async def define(
    transport: Transport,
    group: str,
    kind: str,
    *,
    plural: str = "",
    scope: str = "Cluster",
    status: bool = True,
) -> None:
    """Define a custom resource with any spec and status, and wait until it is served."""
    plural = plural or f"{kind.lower()}s"
    any_object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": any_object, "status": any_object}}
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
        return  # already defined

    async def served() -> bool:
        try:
            discovery = await transport.call("GET", f"/apis/{group}/v1")
            await transport.call("GET", f"/apis/{group}/v1/{plural}")
        except StoreMissingError:
            return False
        return f'"{kind}"'.encode() in discovery.body

    await eventually(served)


async def watches(transport: Transport, resource: str) -> int:
    reply = await transport.call("GET", "/metrics", accept="text/plain")
    gauge = rf'^apiserver_longrunning_\w+{{.*resource="{resource}".*verb="WATCH".*}} (\d+)$'
    return sum(map(int, re.findall(gauge, reply.body.decode(), re.MULTILINE)))
