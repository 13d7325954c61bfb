"""One namespace of a real cluster, read and written without natsctl."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.servers.kube_cluster import KubeCluster

MERGE_PATCH = "application/merge-patch+json"
KINDS = ("configmaps", "deployments", "services")
DEFAULT_CONFIG_MAP = "kube-root-ca.crt"  # in every namespace of a cluster


class Namespace:
    """Reads and writes the objects of a namespace as a user does by hand."""

    def __init__(self, server: KubeCluster, name: str) -> None:
        self.server = server
        self.name = name

    def path(self, kind: str, name: str = "") -> str:
        root = "/apis/apps/v1" if kind == "deployments" else "/api/v1"
        return f"{root}/namespaces/{self.name}/{kind}" + (f"/{name}" if name else "")

    async def names(self, kind: str) -> list[str]:
        response = await self.server.call("GET", self.path(kind))
        return sorted(
            {item["metadata"]["name"] for item in response["items"]} - {DEFAULT_CONFIG_MAP}
        )

    async def has(self, *names: str) -> bool:
        """Raise AssertionError unless each kind has exactly these names."""
        for kind in KINDS:
            assert await self.names(kind) == sorted(names), kind
        return True

    async def read(self, kind: str, name: str) -> dict[str, Any]:
        return await self.server.call("GET", self.path(kind, name))

    async def create(self, kind: str, name: str, **fields: object) -> None:
        await self.server.call("POST", self.path(kind), {"metadata": {"name": name}, **fields})

    async def delete(self, kind: str, name: str) -> None:
        await self.server.call("DELETE", self.path(kind, name))

    async def edit(self, kind: str, name: str, **fields: object) -> None:
        await self.server.call("PATCH", self.path(kind, name), fields, content_type=MERGE_PATCH)

    async def runs(self, name: str, *, ready: int) -> None:
        """Set the status of a Deployment, because no Deployment controller runs."""
        generation = (await self.read("deployments", name))["metadata"]["generation"]
        # the server refuses more ready replicas than replicas
        status = {"observedGeneration": generation, "readyReplicas": ready, "replicas": ready}
        path = self.path("deployments", f"{name}/status")
        await self.server.call("PATCH", path, {"status": status}, content_type=MERGE_PATCH)

    async def events(self, reason: str) -> set[tuple[str, str]]:
        """Return the kind and name of each object that has an event with this reason."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"
        events = (await self.server.call("GET", path))["items"]
        regarding = [event["regarding"] for event in events if event["reason"] == reason]
        return {(reference["kind"], reference["name"]) for reference in regarding}

    def app(self, **spec: object) -> str:
        """Return the value of a WebApp object for this namespace."""
        return json.dumps({"spec": {"image": "web:1", "namespace": self.name, **spec}})


def without(
    rules: Iterable[Mapping[str, Any]], verb: str, *, resource: str
) -> list[Mapping[str, Any]]:
    """Return the rules without one verb in the rules that have this resource."""
    return [
        {**rule, "verbs": [allowed for allowed in rule["verbs"] if allowed != verb]}
        if resource in rule["resources"]
        else rule
        for rule in rules
    ]
