"""A managed object, its clients, and its critical annotations."""

import asyncio
import json
from typing import Any

import pytest

from natsctl import Object, kv
from natsctl.errors import ConflictError, StoreError
from natsctl.managed import (
    AnnotationNames,
    Condition,
    ExternalClient,
    ExternalClientFns,
    ExternalConnectDisconnecter,
    ExternalConnectDisconnecterFns,
    ExternalConnecter,
    ExternalDisconnecter,
    Managed,
    NopClient,
    NopConnecter,
    NopDisconnecter,
    Observation,
    RetryingCriticalAnnotationUpdater,
    controller_name,
)
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
from tests.support.controllers.disk_reconciler import DISKS, EPOCH, NAMES, Play, clock


class Nested(Object, frozen=True):
    spec: dict[str, Any]


NESTED = kv(Nested, bucket="nested")


def managed_of(document: dict[str, Any]) -> Managed[Nested]:
    return Managed(NESTED, Stored("a", 7, json.dumps(document).encode()), names=NAMES, clock=clock)


def test_fields_and_map_keys_may_be_added() -> None:
    managed = managed_of({"spec": {"tags": {"x": "1"}, "unset": None}})
    managed.spec["tags"]["y"] = "2"
    managed.spec["unset"] = 3
    managed.spec["new"] = {"deep": True}
    assert managed.additions() == {"tags": {"y": "2"}, "unset": 3, "new": {"deep": True}}


def test_the_external_name_is_an_annotation() -> None:
    managed = managed_of({"spec": {}})
    assert managed.external_name == ""
    managed.external_name = "disk-1"
    assert managed.changed_annotations == {"natsctl.io/external-name": "disk-1"}


async def test_conditions_get_the_time_of_the_clock() -> None:
    managed = managed_of({"spec": {}})
    managed.set_conditions(Condition.available())
    available = managed.condition("Ready")
    assert available is not None
    expected = EPOCH.isoformat(timespec="seconds").replace("+00:00", "Z")
    assert available.last_transition_time == expected
    assert managed.condition("Other") is None


@pytest.fixture
def managed() -> Managed[Any]:
    stored = Stored("a", 1, b'{"spec": {"size": 1}}')
    return Managed(DISKS, stored, names=AnnotationNames(), clock=clock)


async def test_functions_make_a_client(managed: Managed[Any]) -> None:
    called: list[str] = []

    def recording(name: str) -> Any:
        async def call(_managed: Managed[Any]) -> Observation:
            called.append(name)
            return Observation(exists=True)

        return call

    names = ("observe", "create", "update", "delete")
    client = ExternalClientFns[Any](**{f"{name}_fn": recording(name) for name in names})
    assert isinstance(client, ExternalClient)
    for name in names:
        assert await getattr(client, name)(managed) in (Observation(exists=True), None)
    assert called == list(names)


async def test_the_nop_client_observes_nothing_and_does_nothing(managed: Managed[Any]) -> None:
    connecter = NopDisconnecter(NopConnecter())
    client = await connecter.connect(managed)
    assert isinstance(client, NopClient)
    observed = await client.observe(managed)
    assert observed == Observation(exists=False, up_to_date=False, late_initialized=False, diff="")
    for call in (client.create, client.update, client.delete):
        await call(managed)
    await connecter.disconnect()
    assert managed.changed_annotations == {}


async def test_a_plain_function_is_a_connecter() -> None:
    connected: list[str] = []

    async def connect(managed: Managed[Any]) -> NopClient:
        connected.append(managed.key)
        return NopClient()

    play = Play(connecter=connect)
    await play.put()
    await play.reconcile()
    assert connected == ["a"]


def test_functions_connect_and_disconnect() -> None:
    async def connect(_managed: Managed[Any]) -> NopClient:
        return NopClient()

    connecter = ExternalConnectDisconnecterFns(connect_fn=connect)
    assert isinstance(connecter, ExternalConnecter)
    assert isinstance(connecter, ExternalDisconnecter)
    assert isinstance(connecter, ExternalConnectDisconnecter)


def test_a_controller_is_named_after_its_kind() -> None:
    assert controller_name("Disk.storage.example.org") == "managed/disk.storage.example.org"
    assert controller_name(DISKS) == "managed/disk.disks"


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
