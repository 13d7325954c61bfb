"""Updates of critical annotations are retried and never overwrite another creation."""

import asyncio
import json
from typing import Any

import pytest

from natsctl.errors import ConflictError, StoreError
from natsctl.managed import AnnotationNames, Managed, RetryingCriticalAnnotationUpdater
from natsctl.testing import MemoryStore
from tests.support.controllers.disk_reconciler import DISKS, clock

NAMES = AnnotationNames()


async def managed_in(store: MemoryStore) -> Managed[Any]:
    value = {"spec": {"size": 1}, "metadata": {"annotations": {"old": "1", "gone": "1"}}}
    stored = await store.create("a", json.dumps(value).encode())
    managed = Managed(DISKS, stored, names=NAMES, clock=clock)
    managed.annotations["new"] = "2"
    del managed.annotations["gone"]
    return managed


async def annotations(store: MemoryStore) -> dict[str, str]:
    document = json.loads((await store.get("a")).value)
    stored_annotations: dict[str, str] = document["metadata"]["annotations"]
    return stored_annotations


async def edit(store: MemoryStore, **annotations: str) -> None:
    stored = await store.get("a")
    document = json.loads(stored.value)
    document["metadata"]["annotations"].update(annotations)
    await store.update("a", json.dumps(document).encode(), revision=stored.revision)


async def test_a_store_error_is_retried() -> None:
    store = MemoryStore(DISKS)
    managed = await managed_in(store)
    store.fail(StoreError("away"))
    updater = RetryingCriticalAnnotationUpdater(store)
    work = asyncio.create_task(updater.update_critical_annotations(managed))
    await asyncio.sleep(5)
    store.fail(None)
    await work
    assert (await annotations(store))["new"] == "2"


async def test_retries_end_after_the_time_limit() -> None:
    store = MemoryStore(DISKS)
    managed = await managed_in(store)
    store.fail(StoreError("away"))
    updater = RetryingCriticalAnnotationUpdater(store, within_s=7.0)
    with pytest.raises(StoreError, match="away"):
        await updater.update_critical_annotations(managed)
    assert asyncio.get_running_loop().time() == pytest.approx(7.0)
    assert managed.annotations["new"] == "2"


async def test_another_creation_is_not_overwritten() -> None:
    store = MemoryStore(DISKS)
    managed = await managed_in(store)
    await edit(store, **{NAMES.create_pending: "2030-01-01T00:00:00Z revision 3"})
    with pytest.raises(ConflictError, match="another creation"):
        await RetryingCriticalAnnotationUpdater(store).update_critical_annotations(managed)
    assert "new" not in await annotations(store)
