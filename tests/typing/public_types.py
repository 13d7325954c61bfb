"""The types of the public names, as a user's type checker sees them.

`make lint` checks this module with mypy and with pyright. Nothing here is executed: `assert_type`
fails if a type is another one, and an ignore comment fails if the line has no error.
"""

from collections.abc import Collection
from typing import Any, assert_type

import msgspec

import natsctl
from natsctl import (
    Change,
    Controller,
    ControllerRuntime,
    Kind,
    Managed,
    ManagedReconciler,
    Manifest,
    Object,
    Observation,
    PermanentError,
    Primary,
    Resource,
    RetryAfter,
    Secondary,
    Tertiary,
    kube,
    kv,
    primary,
    secondary,
    tertiary,
)
from natsctl.testing import Harness, MemoryStores, RecordedEvent, in_virtual_time, running


class SiteSpec(msgspec.Struct, frozen=True):
    domain: str


class Site(Object, frozen=True):
    spec: SiteSpec


class Limits(msgspec.Struct, frozen=True):
    most: int


class SiteV1(Object, frozen=True):
    spec: Limits


def upgraded(old: SiteV1) -> Site:
    return Site(spec=SiteSpec(str(old.spec.most)))


def misdirected(old: Limits) -> Limits:
    return old


SITES = kv(Site, bucket="sites", older=[(SiteV1, upgraded)], columns={"DOMAIN": "spec.domain"})
LIMITS = kv(Limits, bucket="limits")
CONFIGS = kube("v1", "ConfigMap")


class Sites(Controller):
    sites = primary(SITES, indexes={"domain": lambda site: [site.spec.domain]})
    copies = secondary(SITES)
    limits = tertiary(LIMITS)
    workers = 2

    async def sync_handler(self, key: str) -> float | None:
        site = self.sites.get(key)
        assert_type(site, Site | None)
        if site is None:
            raise PermanentError("there is no site")
        assert_type(site.spec.domain, str)
        assert_type(self.sites, Primary[Site])
        assert_type(self.copies, Secondary[Site])
        assert_type(self.limits, Tertiary[Limits])
        assert_type(self.limits.get("all"), Limits | None)
        assert_type(self.sites.items(), dict[str, Site])
        assert_type(self.sites.keys(), Collection[str])
        assert_type(await self.reads.get(LIMITS, "all"), Limits | None)
        assert_type(self.runtime, ControllerRuntime)
        raise RetryAfter(60)

    def handle_secondary(self, change: Change[Any]) -> list[str]:
        return [change.key]


class Returning(Controller):
    sites = primary(SITES)

    async def sync_handler(self, key: str) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return key


def check_kinds() -> None:
    assert_type(SITES.decode(b"{}"), Site)
    assert_type(LIMITS.decode(b"{}"), Limits)
    kinds: list[Kind[Any]] = [SITES, LIMITS, CONFIGS]
    assert_type(kinds, list[Kind[Any]])
    kv(Site)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kv(Site, bucket="sites", storage="tape")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kv(Site, bucket="sites", older=[(Limits, misdirected)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    primary(CONFIGS)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def check_writes(sites: Primary[Site]) -> None:
    sites.put("shop", Limits(1))  # type: ignore[arg-type,unused-coroutine]  # pyright: ignore[reportArgumentType,reportUnusedCoroutine]


async def check_connections() -> None:
    async with natsctl.connect("nats://localhost") as nats, natsctl.connect_kube() as cluster:
        ControllerRuntime(Sites(), nats=nats, kube=cluster)
        ControllerRuntime(Sites(), nats=cluster)


async def check_resources(stores: MemoryStores) -> None:
    async with Resource(SITES, stores) as resource:
        assert_type(resource, Resource[Site])
        async with resource.events() as events:
            async for event in events:
                assert_type(event.key, natsctl.Key)
                assert_type(event.object, Site)


async def check_managed(sites: Primary[Site]) -> None:
    async def connect(managed: Managed[Site]) -> "Client":
        assert_type(managed.key, str)
        return Client()

    reconciler = ManagedReconciler(sites, connecter=connect)
    assert_type(reconciler, ManagedReconciler[Site])
    assert_type(await reconciler.reconcile("shop"), float | None)


class Client:
    async def observe(self, managed: Managed[Site]) -> Observation:
        return Observation(exists=managed.is_going)

    async def create(self, managed: Managed[Site]) -> None:
        managed.external_name = managed.key

    async def update(self, managed: Managed[Site]) -> None: ...

    async def delete(self, managed: Managed[Site]) -> None: ...


def check_manifests() -> None:
    manifest: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shop"}}
    assert manifest


async def check_testing(memory_stores: MemoryStores) -> None:
    async with running(Sites(), stores=memory_stores) as harness:
        assert_type(harness, Harness)
        await harness.run_until_idle(limit_s=60)
        await harness.run_for(60)
        await harness.run_until(lambda: memory_stores.store(SITES).keys())
    assert_type(memory_stores.store(SITES).keys(), list[str])
    assert_type(memory_stores.events.events, list[RecordedEvent])
    assert_type(await memory_stores.api("STREAM.NAMES"), dict[str, Any])


@in_virtual_time
async def check_decorated(number: int) -> None:
    assert_type(number, int)


def check_decorator() -> None:
    assert_type(check_decorated(1), None)
    check_decorated("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def check_blocking(controller: Sites) -> None:
    assert_type(await controller.blocking(len, "text"), int)
