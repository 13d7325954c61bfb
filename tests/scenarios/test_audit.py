"""The audit controller writes one entry for every change, including changes that it missed."""

import asyncio
from typing import Any

import pytest

from controllers.audit import TRAIL, Audit
from natsctl import StoreTimeoutError, kube, kv
from natsctl.model.store import Stored
from natsctl.testing import MemoryCluster, MemoryRecorder, MemoryStore, MemoryStores
from tests.support.controllers.app_controller import edit
from tests.support.controllers.recording_watcher import running, site
from tests.support.stores.documents import put

GREETINGS = kv(bytes, bucket="greetings")
CONFIGS = kube("v1", "ConfigMap")


@pytest.fixture
def greetings(stores: MemoryStores) -> MemoryStore:
    return stores.store(GREETINGS)


async def trail(stores: MemoryStores, key: str) -> list[tuple[Any, ...]]:
    """Return action, old revision, new revision and changed fields of the entries of a key."""
    states = await stores.store(TRAIL).history(key)
    entries = [TRAIL.decode(state.value) for state in states if isinstance(state, Stored)]
    return [
        (entry.action, entry.old_revision, entry.new_revision, entry.changed) for entry in entries
    ]


async def test_every_change_is_an_entry_with_its_revisions_and_fields(
    stores: MemoryStores, greetings: MemoryStore
) -> None:
    async with running(Audit(), stores):
        await put(greetings, "shop", site("one"))
        await edit(greetings, "shop", "spec", "text", to="two")
        await edit(greetings, "shop", "metadata", "labels", to={"a": "b"})
        await greetings.delete("shop")
        await put(greetings, "shop", b"no JSON")
        await asyncio.sleep(1)
    assert await trail(stores, "greetings.shop") == [
        ("created", None, 1, ("metadata", "spec")),
        ("updated", 1, 2, ("spec.text",)),
        ("updated", 2, 3, ("metadata.labels",)),
        ("deleted", 3, None, None),
        ("created", None, 5, (".",)),
    ]


async def test_no_entry_contains_the_value_of_a_field(
    stores: MemoryStores, greetings: MemoryStore
) -> None:
    async with running(Audit(), stores):
        await put(greetings, "shop", site("a secret"))
        await edit(greetings, "shop", "spec", "text", to="another secret")
        await asyncio.sleep(1)
    entries = await stores.store(TRAIL).history("greetings.shop")
    assert len(entries) == 2
    assert b"secret" not in b"".join(entry.value for entry in entries if isinstance(entry, Stored))


async def test_a_restart_adds_entries_only_for_missed_changes(
    stores: MemoryStores, greetings: MemoryStore
) -> None:
    async with running(Audit(), stores):
        for key in ("shop", "same", "gone"):
            await put(greetings, key, site("one"))
        await asyncio.sleep(1)
    await put(greetings, "shop", site("two"))
    await put(greetings, "shop", site("three"))
    await greetings.delete("gone")
    for _ in range(2):
        async with running(Audit(), stores):
            await asyncio.sleep(1)
    assert await trail(stores, "greetings.shop") == [
        ("created", None, 1, ("metadata", "spec")),
        ("updated", 1, 5, None),
    ]
    assert len(await trail(stores, "greetings.same")) == 1
    assert await trail(stores, "greetings.gone") == [
        ("created", None, 3, ("metadata", "spec")),
        ("deleted", 3, None, None),
    ]


async def test_entries_are_written_once_a_failing_trail_recovers(
    stores: MemoryStores, greetings: MemoryStore
) -> None:
    async with running(Audit(), stores):
        entries = stores.store(TRAIL)
        entries.fail(StoreTimeoutError("no answer"))
        await put(greetings, "shop", site("one"))
        await asyncio.sleep(3600)
        await greetings.delete("shop")
        await put(greetings, "fair", site("one"))
        await asyncio.sleep(3600)
        entries.fail(None)
        await asyncio.sleep(3600)
    assert [entry[0] for entry in await trail(stores, "greetings.fair")] == ["created"]
    assert await trail(stores, "greetings.shop") == [("deleted", 1, None, None)]


async def test_kubernetes_objects_are_audited(stores: MemoryStores) -> None:
    cluster = MemoryCluster(MemoryRecorder())
    configs = cluster.store(CONFIGS)
    async with running(Audit(CONFIGS), stores, cluster):
        await put(configs, "default/web:a~b", site("one"))
        await edit(configs, "default/web:a~b", "spec", "text", to="two")
        await configs.delete("default/web:a~b")
        await asyncio.sleep(1)
    assert [entry[::3] for entry in await trail(stores, "ConfigMap.default/web=3Aa=7Eb")] == [
        ("created", ("apiVersion", "kind", "metadata", "spec")),
        ("updated", ("spec.text",)),
        ("deleted", None),
    ]


async def test_audit_buckets_sets_the_audited_buckets(
    stores: MemoryStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIT_BUCKETS", "routes, sites")
    async with running(Audit(), stores):
        for bucket in ("routes", "sites", "greetings"):
            await put(stores.store(kv(bytes, bucket=bucket)), "a", b"{}")
        await asyncio.sleep(1)
    assert stores.store(TRAIL).keys() == ["routes.a", "sites.a"]
