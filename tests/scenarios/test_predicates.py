"""A slot decides which changes of its secondaries enqueue their owner."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from natsctl import (
    Change,
    Controller,
    KubeKind,
    Manifest,
    Object,
    UsageError,
    kube,
    kv,
    primary,
    secondary,
)
from natsctl.testing import Harness, running


class AppSpec(msgspec.Struct, frozen=True):
    port: int


class App(Object, frozen=True):
    spec: AppSpec


APPS = kv(App, bucket="apps")
SERVICES: KubeKind[Manifest] = kube("v1", "Service", namespace="default")
KEY = "default/shop"


@asynccontextmanager
async def synced(
    wake_on: Any = "any", predicate: Any = None
) -> AsyncIterator[tuple[Harness, list[str]]]:
    """Run a controller that has made a service, and yield its further syncs."""

    class Apps(Controller):
        apps = primary(APPS)
        services = secondary(SERVICES, wake_on=wake_on, predicate=predicate)

        async def sync_handler(self, key: str) -> float | None:
            syncs.append(key)
            app = self.apps.get(key)
            if app is not None:
                spec = {"ports": [{"port": app.spec.port}]}
                await self.services.apply({"metadata": {"name": key}, "spec": spec}, force=True)
            return None

    syncs: list[str] = []
    async with running(controller := Apps()) as harness:
        await controller.apps.put("shop", App(spec=AppSpec(80)))
        await harness.run_until_idle()
        syncs.clear()
        yield harness, syncs


async def change_status(harness: Harness) -> None:
    await harness.stores.kube.store(SERVICES).patch_status(KEY, {"ready": True})
    await harness.run_until_idle()


async def change_spec(harness: Harness) -> None:
    store = harness.stores.kube.store(SERVICES)
    stored = await store.get(KEY)
    edited = {**store.document(KEY), "spec": {"ports": []}}
    await store.update(KEY, msgspec.json.encode(edited), revision=stored.revision)
    await harness.run_until_idle()


@pytest.mark.parametrize(("wake_on", "count"), [("any", 1), ("spec", 0)])
async def test_a_status_change_enqueues_the_owner_unless_wake_on_is_spec(
    wake_on: str, count: int
) -> None:
    async with synced(wake_on) as (harness, syncs):
        await change_status(harness)
        assert syncs == ["shop"] * count


async def test_a_predicate_decides_which_changes_enqueue_the_owner() -> None:
    async with synced(predicate=lambda change: not change.after) as (harness, syncs):
        await change_spec(harness)
        assert syncs == []
        await harness.stores.kube.store(SERVICES).delete(KEY)
        await harness.run_until_idle()
        assert syncs == ["shop"]


async def test_a_predicate_that_raises_enqueues_the_owner(caplog: pytest.LogCaptureFixture) -> None:
    def fail(change: Change[Any]) -> bool:
        raise LookupError(change.key)

    async with synced(predicate=fail) as (harness, syncs):
        await change_status(harness)
        assert syncs == ["shop"]
        assert f"a predicate failed; enqueuing the owner kind=Service key={KEY}" in caplog.text


async def test_a_change_must_pass_wake_on_and_the_predicate() -> None:
    checked: list[str] = []

    def never(change: Change[Any]) -> bool:
        checked.append(change.key)
        return False

    async with synced("spec", never) as (harness, _):
        checked.clear()
        await change_status(harness)
        assert checked == []
        await change_spec(harness)
        assert checked == [KEY]


@pytest.mark.parametrize("wake_on", ["status", "", None])
def test_an_unknown_wake_on_is_refused(wake_on: Any) -> None:
    with pytest.raises(UsageError, match="give 'any' or 'spec'"):
        secondary(SERVICES, wake_on=wake_on)


def test_a_predicate_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(UsageError, match="predicate='x': give a function"):
        secondary(SERVICES, predicate="x")  # type: ignore[call-overload]
