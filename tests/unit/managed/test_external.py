"""Clients and connecters, as objects and as functions."""

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

    def note(name: str) -> Any:
        async def call(_managed: Managed[Any]) -> Observation:
            called.append(name)
            return Observation(exists=True)

        return call

    client = ExternalClientFns[Any](
        observe_fn=note("observe"),
        create_fn=note("create"),
        update_fn=note("update"),
        delete_fn=note("delete"),
    )
    assert isinstance(client, ExternalClient)
    assert await client.observe(managed) == Observation(exists=True)
    await client.create(managed)
    await client.update(managed)
    await client.delete(managed)
    assert called == ["observe", "create", "update", "delete"]


async def test_a_client_of_nothing_observes_nothing_and_does_nothing(managed: Managed[Any]) -> None:
    client = await NopConnecter().connect(managed)
    assert isinstance(client, NopClient)
    assert await client.observe(managed) == Observation(
        exists=False, up_to_date=False, late_initialized=False, diff=""
    )
    await client.create(managed)
    await client.update(managed)
    await client.delete(managed)
    assert managed.changed_annotations == {}


async def test_a_plain_function_connects(managed: Managed[Any]) -> None:
    client = NopClient()

    async def connect(_managed: Managed[Any]) -> NopClient:
        return client

    both = connect_disconnecter(connect)
    assert await both.connect(managed) is client
    await both.disconnect()


async def test_a_connecter_has_nothing_to_disconnect(managed: Managed[Any]) -> None:
    both = connect_disconnecter(NopConnecter())
    assert isinstance(both, NopDisconnecter)
    assert isinstance(await both.connect(managed), NopClient)
    await both.disconnect()


def test_what_connects_and_disconnects_is_taken_as_it_is() -> None:
    async def connect(_managed: Managed[Any]) -> NopClient:
        return NopClient()

    both = ExternalConnectDisconnecterFns(connect_fn=connect)
    assert connect_disconnecter(both) is both
    assert isinstance(both, ExternalConnecter)
    assert isinstance(both, ExternalDisconnecter)
    assert isinstance(both, ExternalConnectDisconnecter)


def test_a_controller_is_named_after_its_kind() -> None:
    assert controller_name("Disk.storage.example.org") == "managed/disk.storage.example.org"
    assert controller_name(DISKS) == "managed/disk.disks"
