"""One namespace of a real cluster, as people see it who know nothing of natsctl."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.servers.kube_cluster import KubeCluster

MERGE_PATCH = "application/merge-patch+json"
KINDS = ("configmaps", "deployments", "services")
ITS_OWN = "kube-root-ca.crt"  # which a cluster puts into every namespace


class Namespace:
    """What is there of each kind, and what somebody does to it by hand."""

    def __init__(self, server: KubeCluster, name: str) -> None:
        self.server = server
        self.name = name

    def path(self, kind: str, name: str = "") -> str:
        root = "/apis/apps/v1" if kind == "deployments" else "/api/v1"
        return f"{root}/namespaces/{self.name}/{kind}" + (f"/{name}" if name else "")

    async def names(self, kind: str) -> list[str]:
        found = await self.server.call("GET", self.path(kind))
        return sorted({each["metadata"]["name"] for each in found["items"]} - {ITS_OWN})

    async def has(self, *names: str) -> bool:
        """Fail unless these are the names of the objects of each kind."""
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
        """Report what runs of a Deployment's newest state, where no controller does."""
        generation = (await self.read("deployments", name))["metadata"]["generation"]
        # the server takes no more ready replicas than there are
        status = {"observedGeneration": generation, "readyReplicas": ready, "replicas": ready}
        path = self.path("deployments", f"{name}/status")
        await self.server.call("PATCH", path, {"status": status}, content_type=MERGE_PATCH)

    async def events(self, reason: str) -> set[tuple[str, str]]:
        """Return the kinds and names of the objects that events with this reason are about."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"
        found = (await self.server.call("GET", path))["items"]
        about = [each["regarding"] for each in found if each["reason"] == reason]
        return {(each["kind"], each["name"]) for each in about}

    def app(self, **spec: object) -> str:
        """Return a web app of this namespace, as it is put."""
        return json.dumps({"spec": {"image": "web:1", "namespace": self.name, **spec}})


def unreachable(folder: Path) -> Path:
    """Return a kubeconfig of a cluster that is not there."""
    file = folder / "unreachable.yaml"
    file.write_text(
        """
clusters: [{name: it, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: it, context: {cluster: it}}]
current-context: it
"""
    )
    return file


def without(
    rules: Iterable[Mapping[str, Any]], verb: str, *, resource: str
) -> list[Mapping[str, Any]]:
    """Return the rules less one verb on what is allowed together with this resource."""
    return [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb]}
        if resource in rule["resources"]
        else rule
        for rule in rules
    ]
