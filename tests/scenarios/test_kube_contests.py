"""A controller and other writers change the same Kubernetes objects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsctl import (
    EventType,
    ImmutableFieldError,
    PermissionDeniedError,
    StoreError,
    UsageError,
    kube,
    secondary,
)
from natsctl.testing import Harness, MemoryManifestStore, MemoryStores, running
from tests.support.controllers.kube_sites import (
    CONFIGS,
    MAIN,
    Sites,
    config,
    configs,
    data,
    force,
    made,
    site,
)
from tests.support.stores import documents
from tests.support.stores.documents import Document


class Recreating(Sites):
    name = "sites"
    configs = secondary(CONFIGS, on_immutable="recreate")


class Slim(Sites):
    name = "sites"
    configs = secondary(kube("v1", "ConfigMap", namespace="default", metadata_only=True))


def uid(store: MemoryManifestStore) -> str:
    return str(documents.metadata_of(store.document(MAIN))["uid"])


@asynccontextmanager
async def other_manager(store: MemoryManifestStore) -> AsyncIterator[None]:
    """Run another manager that forces its text after each change."""

    async def keep_forcing() -> None:
        async with store.watch() as events:
            async for _ in events:
                if MAIN in store.keys() and data(store)["text"] != "theirs":  # noqa: SIM118 - a method's list
                    await force(store, "theirs", "gitops")

    task = asyncio.create_task(keep_forcing())
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def contested(controller: Sites) -> AsyncIterator[Harness]:
    """Run the controller against the other manager."""
    async with made(controller, site("ours")) as harness, other_manager(configs(harness)):
        await force(configs(harness), "theirs", "gitops")
        yield harness


class TestTwoWritersOfAField:
    @pytest.mark.parametrize("controller", [Sites, Slim])
    async def test_a_contested_field_is_applied_with_backoff(self, controller: type[Sites]) -> None:
        async with contested(controller()) as harness:
            await asyncio.sleep(60)
            applies = configs(harness).applies
            assert applies < 50  # of both; without backoff there are hundreds a second
            await asyncio.sleep(600)
            assert configs(harness).applies - applies <= 8

    async def test_an_event_status_explain_and_measures_show_the_field_and_the_other_manager(
        self,
    ) -> None:
        async with contested(controller := Sites()) as harness:
            await asyncio.sleep(60)
            runtime = harness.runtime
            assert '"gitops" changed .data.text back' in runtime.status().contested["shop"]
            assert runtime.status().failing == {}
            [text] = runtime.explain("shop").contested
            assert '"gitops" changed .data.text back' in text
            upkeep = runtime.measures().upkeep
            assert upkeep is not None
            assert upkeep.contested == 1
            assert upkeep.undone == 14  # the waits between them double
            events = harness.stores.events.events
            contests = {
                (event.type, event.message) for event in events if event.reason == "FieldsContested"
            }
            [(event_type, message)] = contests  # equal messages are one counted event
            assert event_type is EventType.WARNING
            assert (
                'ConfigMap default/shop-main: "gitops" changes .data.text back again and again'
                in message
            )
            applies = configs(harness).applies
            await controller.sites.put("shop", site("newer"))
            await asyncio.sleep(0.004)
            assert configs(harness).applies > applies  # a changed manifest is applied at once

    async def test_the_contest_ends_once_the_other_writer_stops(self) -> None:
        async with made(controller := Sites(), site("ours")) as harness:
            store = configs(harness)
            async with other_manager(store):
                await force(store, "theirs", "gitops")
                await asyncio.sleep(5)
            await asyncio.sleep(20)
            assert data(store) == {"text": "ours"}
            await asyncio.sleep(700)
            assert controller.runtime.status().contested == {}


class TestOneWriter:
    async def test_a_repeatedly_deleted_object_is_created_at_once_each_time(self) -> None:
        async with made(controller := Sites(), site("ours")) as harness:
            store = configs(harness)
            for _ in range(50):
                await store.delete(MAIN)
                await asyncio.sleep(0.01)
                assert MAIN in store.keys()  # noqa: SIM118 - a method's list
            assert controller.runtime.status().contested == {}
            upkeep = harness.runtime.measures().upkeep
            assert upkeep is not None
            assert upkeep.undone == 0
            assert {event.reason for event in harness.stores.events.events} == {"Synced"}

    async def test_a_single_edit_is_reverted_at_once_and_is_not_a_contest(self) -> None:
        async with made(Sites(), site("ours")) as harness:
            await documents.edit(configs(harness), MAIN, data={"text": "edited"})
            await asyncio.sleep(0.1)
            assert data(configs(harness)) == {"text": "ours"}
            assert harness.runtime.status().contested == {}


class TestImmutableFields:
    async def test_a_change_of_an_immutable_field_fails_by_default(self) -> None:
        async with made(controller := Sites(), site("one", immutable=True)) as harness:
            await controller.sites.put("shop", site("two", immutable=True))
            await asyncio.sleep(1)
            assert ImmutableFieldError.__name__ in harness.runtime.status().failing["shop"]
            assert data(configs(harness)) == {"text": "one"}

    async def test_on_immutable_recreate_recreates_the_object(self) -> None:
        async with made(controller := Recreating(), site("one", immutable=True)) as harness:
            before = uid(configs(harness))
            await controller.sites.put("shop", site("two", immutable=True))
            await harness.run_until_idle()
            assert data(configs(harness)) == {"text": "two"}
            assert uid(configs(harness)) != before
            events = harness.stores.events.events
            (message,) = {event.message for event in events if event.reason == "Recreated"}
            assert "deleted and created again to change data" in message

    async def test_nothing_is_deleted_if_the_server_refuses_the_new_object(self) -> None:
        def refuse(document: Document) -> Document:
            if document.get("data") == {"text": "two"}:
                raise PermissionDeniedError("a webhook denied the request")
            return document

        async with made(controller := Recreating(), site("one", immutable=True)) as harness:
            store, before = configs(harness), uid(configs(harness))
            store.mutate(refuse)
            await controller.sites.put("shop", site("two", immutable=True))
            await asyncio.sleep(60)
            failing = harness.runtime.status().failing["shop"]
            assert "refuses the new object: a webhook denied the request" in failing
            assert (uid(store), data(store)) == (before, {"text": "one"})
            store.mutate(None)
            await harness.run_until_idle()
            assert data(store) == {"text": "two"}
            assert store.keys() == [MAIN]  # nothing of the check is stored

    async def test_an_object_with_finalizers_is_recreated_once_they_are_removed(self) -> None:
        async with made(controller := Recreating(), site("one", immutable=True)) as harness:
            store = configs(harness)
            await documents.edit(store, MAIN, metadata={"finalizers": ["example.com/hold"]})
            await controller.sites.put("shop", site("two", immutable=True))
            await asyncio.sleep(35)  # a deletion may take 30
            failing = harness.runtime.status().failing["shop"]
            assert StoreError.__name__ in failing
            assert "is to be created again, but the deleted one is still there" in failing
            assert "example.com/hold" in failing
            await documents.edit(store, MAIN, metadata={"finalizers": None})
            await harness.run_until_idle()
            assert data(store) == {"text": "two"}

    async def test_an_object_without_our_owner_is_never_recreated(self) -> None:
        class Adopting(Recreating):
            async def sync_handler(self, key: str) -> float | None:
                if self.sites.get(key) is not None:
                    await self.configs.apply(config(f"{key}-main", "ours"), adopt=True)
                return None

        stores = MemoryStores()
        store = stores.kube.store(CONFIGS)
        theirs = {"immutable": True, "data": {"text": "theirs"}}
        await store.create(MAIN, documents.render(theirs))
        before = uid(store)
        async with running(controller := Adopting(), stores=stores) as harness:
            await controller.sites.put("shop", site("ours"))
            await asyncio.sleep(10)
            assert ImmutableFieldError.__name__ in harness.runtime.status().failing["shop"]
        assert uid(store) == before

    def test_an_unknown_value_of_on_immutable_is_refused(self) -> None:
        with pytest.raises(UsageError, match="fail or recreate"):
            secondary(CONFIGS, on_immutable="replace")  # type: ignore[call-overload]
