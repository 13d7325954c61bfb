"""The web app controller creates Kubernetes objects for each app and reports their status."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.webapps import WebApps, name_of
from natsctl.testing import Harness, MemoryManifestStore, running
from tests.support.controllers.app_controller import document
from tests.support.stores import documents
from tests.support.stores.documents import put

APPS, DEFAULTS = WebApps.apps.kind, WebApps.defaults.kind
SLOTS = (WebApps.configs, WebApps.deployments, WebApps.services)
WEB = "example.com/web:1"


class Cluster:
    """A running `WebApps` controller, with its NATS and Kubernetes objects."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        kinds = [slot.kind for slot in SLOTS]
        self.configs, self.deployments, self.services = map(harness.stores.kube.store, kinds)  # type: ignore[arg-type]

    async def app(self, key: str, **spec: object) -> None:
        await put(self.harness.stores.store(APPS), key, {"spec": {"image": WEB, **spec}})
        await self.harness.run_until_idle()

    async def defaults(self, key: str, **spec: object) -> None:
        await put(self.harness.stores.store(DEFAULTS), key, {"spec": spec})
        await self.harness.run_until_idle()

    async def status(self, key: str) -> dict[str, Any]:
        current: dict[str, Any] = (await document(self.harness.stores.store(APPS), key))["status"]
        return current

    async def condition(self, key: str, condition_type: str) -> dict[str, str] | None:
        conditions = (await self.status(key))["conditions"]
        return next(
            (candidate for candidate in conditions if candidate["type"] == condition_type), None
        )

    async def edit(self, store: MemoryManifestStore, key: str, **changes: object) -> None:
        await documents.edit(store, key, **changes)
        await self.harness.run_until_idle()

    async def runs(self, key: str, *, ready: int) -> None:
        """Write the status of a Deployment, as a cluster does."""
        metadata = documents.metadata_of(self.deployments.document(key))
        status = {"observedGeneration": metadata["generation"], "readyReplicas": ready}
        await self.deployments.patch_status(key, status)
        await self.harness.run_until_idle()

    def keys(self) -> list[list[str]]:
        """Return the keys of the ConfigMaps, the Deployments and the Services."""
        return [store.keys() for store in (self.configs, self.deployments, self.services)]

    def deployment(self, key: str) -> dict[str, Any]:
        current: dict[str, Any] = self.deployments.document(key)["spec"]  # type: ignore[assignment]
        return current


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    async with running(WebApps()) as harness:
        yield Cluster(harness)


async def test_an_app_gets_a_config_map_a_deployment_and_a_service() -> None:
    async with cluster() as shown:
        await shown.app("shop", port=3000, replicas=2, env={"MODE": "demo"})

        assert shown.keys() == [["default/shop"]] * 3
        assert shown.configs.document("default/shop")["data"] == {"PORT": "3000", "MODE": "demo"}
        spec = shown.deployment("default/shop")
        (container,) = spec["template"]["spec"]["containers"]
        assert (spec["replicas"], container["image"]) == (2, WEB)
        assert container["envFrom"] == [{"configMapRef": {"name": "shop"}}]
        service: Any = shown.services.document("default/shop")["spec"]
        assert service["selector"] == spec["selector"]["matchLabels"]
        assert service["selector"] == spec["template"]["metadata"]["labels"]
        (served,), (listening,) = service["ports"], container["ports"]
        assert served["targetPort"] == listening["name"]
        assert listening["containerPort"] == 3000


async def test_an_app_is_ready_once_its_deployment_is_observed_and_ready() -> None:
    async with cluster() as shown:
        await shown.app("shop", replicas=2)
        assert (await shown.status("shop"))["ready"] is False
        await shown.runs("default/shop", ready=1)
        waiting = await shown.status("shop")
        assert (waiting["ready"], waiting["readyReplicas"]) == (False, 1)
        await shown.runs("default/shop", ready=2)
        status = await shown.status("shop")
        assert (status["ready"], status["readyReplicas"], status["replicas"]) == (True, 2, 2)
        assert status["at"] == "default/shop"
        available = await shown.condition("shop", "Available")
        assert available == {
            "type": "Available",
            "status": "True",
            "reason": "ReplicasReady",
            "message": "2 of 2 replicas are ready",
        }
        await shown.app("shop", replicas=2, image="example.com/web:2")
        assert (await shown.status("shop"))["ready"] is False


async def test_unset_fields_default_to_those_of_the_namespace_or_of_all() -> None:
    async with cluster() as shown:
        await shown.defaults("all", replicas=2, env={"TEAM": "all", "LOG": "info"})
        await shown.defaults("shops", replicas=3, env={"TEAM": "shops"})
        await shown.app("pier", env={"LOG": "debug"})
        await shown.app("market", namespace="shops")
        await shown.app("fair", namespace="shops", replicas=0)

        environ = {"PORT": "8080", "TEAM": "all", "LOG": "debug"}
        assert shown.configs.document("default/pier")["data"] == environ
        assert shown.configs.document("shops/market")["data"] == {"PORT": "8080", "TEAM": "shops"}
        keys = ("default/pier", "shops/market", "shops/fair")
        assert [shown.deployment(key)["replicas"] for key in keys] == [2, 3, 0]


async def test_an_invalid_default_is_ignored() -> None:
    async with cluster() as shown:
        await shown.defaults("all", replicas=3)
        await shown.defaults("all", replicas=-1)
        await shown.app("shop")
        assert shown.deployment("default/shop")["replicas"] == 3
        await shown.defaults("all", env={"a b": "x"})
        await shown.app("pier")
        assert shown.configs.document("default/pier")["data"] == {"PORT": "8080"}


async def test_an_app_that_changes_its_namespace_leaves_no_objects_in_the_old_one() -> None:
    async with cluster() as shown:
        await shown.app("shop")
        await shown.app("shop", namespace="shops")
        assert shown.keys() == [["shops/shop"]] * 3
        assert (await shown.status("shop"))["at"] == "shops/shop"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"image": " "}, "image is empty"),
        ({"port": 0}, "port 0 is not between 1 and 65535"),
        ({"port": 65536}, "port 65536 is not between 1 and 65535"),
        ({"replicas": -1}, "replicas -1 is below 0"),
        ({"env": {"a b": "x"}}, "env has invalid names of variables: 'a b'"),
        ({"namespace": "a/b"}, "namespace 'a/b' is not a valid name"),
        ({"image": "", "port": -1}, "image is empty; port -1 is not between 1 and 65535"),
    ],
)
async def test_an_invalid_spec_is_a_condition_and_changes_no_object(
    spec: dict[str, object], message: str
) -> None:
    async with cluster() as shown:
        await shown.app("shop")
        await shown.app("shop", **spec)
        status = await shown.status("shop")
        assert status["ready"] is False
        accepted = await shown.condition("shop", "Accepted")
        assert accepted == {
            "type": "Accepted",
            "status": "False",
            "reason": "InvalidSpec",
            "message": message,
        }
        assert shown.keys() == [["default/shop"]] * 3
        assert shown.deployment("default/shop")["template"]["spec"]["containers"][0]["image"] == WEB
        await shown.app("shop", image="example.com/web:2")
        accepted = await shown.condition("shop", "Accepted")
        assert accepted is not None
        assert accepted["status"] == "True"


def test_a_key_that_is_a_legal_service_name_is_the_name() -> None:
    assert [name_of(key) for key in ("shop", "a", "team-a", "x" * 63)] == [
        "shop",
        "a",
        "team-a",
        "x" * 63,
    ]


@given(st.text(alphabet="abAB01-_=./", min_size=1, max_size=250))
def test_every_name_is_legal_for_a_service_and_unique(key: str) -> None:
    name = name_of(key)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)
    assert (
        name == key or name_of(name) != name
    )  # a generated name is not the name of the key with the same text
