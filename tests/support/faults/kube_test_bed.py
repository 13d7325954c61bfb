"""A running controller with a real nats-server and a real kube-apiserver."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import natsctl
from natsctl import (
    Controller,
    ControllerRuntime,
    GarbageLimits,
    KubeOptions,
    Object,
    kube,
    kv,
    primary,
    secondary,
)
from tests.support.clients.nats_admin import FAILURES, Admin
from tests.support.eventually import eventually
from tests.support.faults.invariants import living, text_of
from tests.support.servers.kube_apiserver import KubeServer

SITES = "sites"
NAMESPACE = "maps"
KEYS = tuple(f"k{number}" for number in range(12))
GC_CYCLES = 5  # in which every orphan is collected
EAGER = GarbageLimits(interval_s=0.3, grace_s=0.6, count_max=100_000, share_max=1.0)
PAUSE_S = 0.03  # between two random changes
TEXTS = itertools.count(1)  # no text is ever used again


class SiteSpec(msgspec.Struct, frozen=True):
    text: str


class Site(Object, frozen=True):
    spec: SiteSpec


class Maps(Controller):
    """Applies each site `shop` as the ConfigMap `shop`, with force."""

    sites = primary(kv(Site, bucket=SITES))
    maps = secondary(kube("v1", "ConfigMap", namespace=NAMESPACE))
    garbage = EAGER
    workers = 10

    def __init__(self) -> None:
        self.syncs = 0
        self.cycles = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def sync_handler(self, key: str) -> float | None:
        self.syncs += 1
        await self.go_on.wait()
        site = self.sites.get(key)
        if site is None:
            return None
        manifest = {"metadata": {"name": key}, "data": {"text": site.spec.text}}
        await self.maps.apply(manifest, force=True)
        await self.sites.update_status(key, {"said": site.spec.text})
        return None

    async def garbage_secondaries(self) -> None:
        await super().garbage_secondaries()
        self.cycles += 1

    async def collects(self, cycles: int = GC_CYCLES) -> None:
        """Wait for this many GC cycles that begin from now on."""
        goal = self.cycles + cycles + 1
        await eventually(lambda: self.cycles >= goal)

    async def progress(self, syncs: int = 30) -> None:
        """Wait until this many more syncs have begun."""
        goal = self.syncs + syncs
        await eventually(lambda: self.syncs >= goal)


class KubeTestBed(NamedTuple):
    """The controller and the clients of a test, which write without natsctl."""

    admin: Admin
    cluster: KubeServer
    controller: Maps

    @property
    def runtime(self) -> ControllerRuntime:
        return self.controller.runtime

    async def put(self, *keys: str) -> None:
        """Give each site a new text."""
        for key in keys:
            text = f"{key} {next(TEXTS)}"
            await self.admin.put(SITES, key, {"spec": {"text": text}})

    async def delete(self, *keys: str) -> None:
        for key in keys:
            await self.admin.delete(SITES, key)

    async def sites(self) -> dict[str, str]:
        """Return the text of each site in the bucket."""
        entries = living(await self.admin.entries(SITES))
        return {key: text_of(entry.value) for key, entry in entries.items()}

    async def maps(self) -> dict[str, str]:
        """Return the text of each ConfigMap in the cluster."""
        documents = await self.documents()
        return {
            name: document.get("data", {}).get("text", "") for name, document in documents.items()
        }

    async def documents(self) -> dict[str, dict[str, Any]]:
        """Return the ConfigMaps of the sites by name."""
        listed = await self.cluster.call("GET", self._path("?labelSelector=natsctl.io/owner-kind"))
        return {item["metadata"]["name"]: item for item in listed["items"]}

    async def uids(self) -> dict[str, str]:
        """Return the uid of each ConfigMap by name."""
        return {name: item["metadata"]["uid"] for name, item in (await self.documents()).items()}

    async def equal(self) -> bool:
        """Assert that the cluster matches the bucket. Returns False if a server is down."""
        with suppress(*FAILURES, HTTPException):
            sites, maps = await self.sites(), await self.maps()
            differing = {key: (sites.get(key), maps.get(key)) for key in sites.keys() | maps.keys()}
            assert not {key: values for key, values in differing.items() if values[0] != values[1]}
            return True
        return False

    async def settled(self) -> None:
        """Wait until the cluster matches the bucket and the controller is idle."""
        await eventually(self.equal, within_s=120)
        await eventually(lambda: self.runtime.idle)
        assert await self.equal()

    async def edit(self, name: str, patch: dict[str, Any]) -> None:
        """Change a ConfigMap by hand."""
        merge = "application/merge-patch+json"
        await self.cluster.call("PATCH", self._path(f"/{name}"), patch, content_type=merge)

    async def remove(self, name: str) -> None:
        """Delete a ConfigMap by hand."""
        await self.cluster.call("DELETE", self._path(f"/{name}"))

    async def plant(self, name: str, owner: str) -> str:
        """Create a ConfigMap with the owner labels of *owner*, and return its uid."""
        assert self.runtime.installation is not None
        owner_labels = {"natsctl.io/owner-kind": "Site.sites", "natsctl.io/owner-key": owner}
        annotations = {**owner_labels, "natsctl.io/installation": self.runtime.installation.id}
        metadata = {"name": name, "labels": owner_labels, "annotations": annotations}
        created = await self.cluster.call(
            "POST", self._path(""), {"metadata": metadata, "data": {}}
        )
        return str(created["metadata"]["uid"])

    def deleted(self, since: int) -> set[str]:
        """Return the names of all ConfigMaps that were deleted since *since*."""
        writes = self.cluster.writes(since, namespace=NAMESPACE)
        deletions = (w for w in writes if (w.verb, w.resource) == ("delete", "configmaps"))
        return {write.name for write in deletions if write.status < 300}

    def _path(self, suffix: str) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/configmaps{suffix}"


async def empty_namespace(cluster: KubeServer) -> None:
    """Create the namespace of the ConfigMaps, or delete the ConfigMaps of an earlier test."""
    with suppress(AssertionError):  # it may exist
        await cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await cluster.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps")


@asynccontextmanager
async def kube_test_bed(
    nats_url: str,
    cluster: KubeServer,
    *,
    through: Path | None = None,
    nats_through: str | None = None,
    keys: Sequence[str] = KEYS,
    controller: Maps | None = None,
    watch_timeout_s: float = 60.0,
) -> AsyncIterator[KubeTestBed]:
    """Run the controller with these sites, all of them synced.

    *through* is the kubeconfig and *nats_through* the URL of the controller, for example of a
    proxy. The test's own clients connect directly.
    """
    await empty_namespace(cluster)
    async with Admin(nats_url) as admin:
        bed = KubeTestBed(admin, cluster, controller or Maps())
        kubeconfig = through or cluster.kubeconfig()
        async with running(bed.controller, nats_through or nats_url, kubeconfig, watch_timeout_s):
            await bed.put(*keys)
            await bed.settled()
            yield bed


@asynccontextmanager
async def running(
    controller: Controller, nats_url: str, kubeconfig: Path, watch_timeout_s: float = 60.0
) -> AsyncIterator[ControllerRuntime]:
    """Run the controller during the context. An error of the controller fails the test."""
    options = KubeOptions(kubeconfig=str(kubeconfig))
    async with (
        natsctl.connect(nats_url, wait=True) as nats,
        natsctl.connect_kube(options, wait=True, watch_timeout_s=watch_timeout_s) as kube,
        asyncio.TaskGroup() as group,
    ):
        runtime = ControllerRuntime(controller, nats=nats, kube=kube)
        task = group.create_task(runtime.run(), name="runtime")
        await runtime.synced.wait()
        try:
            yield runtime
        except BaseException:
            task.cancel()
            raise
        runtime.stop()


@asynccontextmanager
async def meddling(bed: KubeTestBed, *, seed: int) -> AsyncIterator[None]:
    """Write sites and change their ConfigMaps at random during the context; ignore failures."""
    chance = random.Random(seed)
    stopped = asyncio.Event()

    async def act() -> None:
        key = chance.choice(KEYS)
        match chance.randrange(6):
            case 0:
                await bed.remove(key)
            case 1:
                await bed.edit(key, {"data": {"text": "spoilt"}})
            case 2:
                await bed.edit(key, {"metadata": {"labels": {"natsctl.io/owner-key": None}}})
            case 3 if KEYS.index(key) % 2:
                await bed.delete(key)
            case _:
                await bed.put(key)

    async def work() -> None:
        while not stopped.is_set():
            with suppress(*FAILURES, AssertionError, HTTPException):
                await act()
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        try:
            yield
        finally:
            stopped.set()
