"""External clients and connecters, written as classes or as functions."""

from typing import Any

import pytest

from natsctl.managed import (
    AnnotationNames,
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
    controller_name,
)
from natsctl.managed.external import connect_disconnecter
from natsctl.model.store import Stored
from tests.support.controllers.disk_reconciler import DISKS, clock


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

    client = ExternalClientFns[Any](
        observe_fn=recording("observe"),
        create_fn=recording("create"),
        update_fn=recording("update"),
        delete_fn=recording("delete"),
    )
    assert isinstance(client, ExternalClient)
    assert await client.observe(managed) == Observation(exists=True)
    await client.create(managed)
    await client.update(managed)
    await client.delete(managed)
    assert called == ["observe", "create", "update", "delete"]


async def test_the_nop_client_observes_nothing_and_does_nothing(managed: Managed[Any]) -> None:
    client = await NopConnecter().connect(managed)
    assert isinstance(client, NopClient)
    assert await client.observe(managed) == Observation(
        exists=False, up_to_date=False, late_initialized=False, diff=""
    )
    await client.create(managed)
    await client.update(managed)
    await client.delete(managed)
    assert managed.changed_annotations == {}


async def test_a_plain_function_is_a_connecter(managed: Managed[Any]) -> None:
    client = NopClient()

    async def connect(_managed: Managed[Any]) -> NopClient:
        return client

    connecter = connect_disconnecter(connect)
    assert await connecter.connect(managed) is client
    await connecter.disconnect()


async def test_a_connecter_gets_a_nop_disconnecter(managed: Managed[Any]) -> None:
    connecter = connect_disconnecter(NopConnecter())
    assert isinstance(connecter, NopDisconnecter)
    assert isinstance(await connecter.connect(managed), NopClient)
    await connecter.disconnect()


def test_an_object_that_connects_and_disconnects_is_used_unchanged() -> None:
    async def connect(_managed: Managed[Any]) -> NopClient:
        return NopClient()

    connecter = ExternalConnectDisconnecterFns(connect_fn=connect)
    assert connect_disconnecter(connecter) is connecter
    assert isinstance(connecter, ExternalConnecter)
    assert isinstance(connecter, ExternalDisconnecter)
    assert isinstance(connecter, ExternalConnectDisconnecter)


def test_a_controller_is_named_after_its_kind() -> None:
    assert controller_name("Disk.storage.example.org") == "managed/disk.storage.example.org"
    assert controller_name(DISKS) == "managed/disk.disks"
