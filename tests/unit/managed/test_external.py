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
from natsctl.model.store import Stored
from tests.support.controllers.disk_reconciler import DISKS, Play, clock


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
    assert await client.observe(managed) == Observation(exists=True)
    await client.create(managed)
    await client.update(managed)
    await client.delete(managed)
    assert called == list(names)


async def test_the_nop_client_observes_nothing_and_does_nothing(managed: Managed[Any]) -> None:
    connecter = NopDisconnecter(NopConnecter())
    client = await connecter.connect(managed)
    assert isinstance(client, NopClient)
    assert await client.observe(managed) == Observation(
        exists=False, up_to_date=False, late_initialized=False, diff=""
    )
    await client.create(managed)
    await client.update(managed)
    await client.delete(managed)
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
