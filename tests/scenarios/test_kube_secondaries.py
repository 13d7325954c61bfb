"""Kubernetes secondaries of NATS primaries are created, kept and deleted."""

import asyncio
from typing import Any

import pytest

from natsctl import (
    KUMORI,
    ConflictError,
    Controller,
    ControllerRuntime,
    ExistsError,
    FieldConflictError,
    InvalidObjectError,
    Manifest,
    StoreError,
    UsageError,
    kube,
    primary,
    secondary,
)
from natsctl.model.store import Stored
from natsctl.testing import Harness, MemoryManifestStore, MemoryStores, running
from tests.support.controllers.kube_sites import (
    CONFIGS,
    MAIN,
    SITES,
    Sites,
    config,
    configs,
    data,
    force,
    made,
    site,
)
from tests.support.stores import documents


def texts(harness: Harness) -> dict[str, str]:
    store = configs(harness)
    return {key: data(store, key)["text"] for key in store.keys()}  # noqa: SIM118 - a method's list


async def test_a_primary_becomes_objects_labelled_with_their_owner_and_deleted_with_it() -> None:
    async with running(controller := Sites()) as harness:
        await configs(harness).create("default/theirs", documents.render({"data": {"text": "x"}}))
        await controller.sites.put("bar", site("hi"))
        await controller.sites.put("shop", site("hi", "a", "b"))
        await harness.run_until_idle()

        others = {"default/bar-main": "hi", "default/theirs": "x"}
        assert texts(harness) == {"default/shop-a": "hi", "default/shop-b": "hi", **others}
        metadata = documents.metadata_of(configs(harness).document("default/shop-a"))
        owner = {"natsctl.io/owner-kind": "Site.sites", "natsctl.io/owner-key": "shop"}
        assert metadata["labels"] == owner
        annotations = metadata["annotations"]
        assert isinstance(annotations, dict)
        assert annotations.items() >= owner.items()
        assert metadata.get("ownerReferences") is None
        status = controller.sites.get("shop")
        assert status is not None
        assert status.status["configs"] == 2
        await controller.sites.delete("shop")
        await harness.run_until_idle()
        assert texts(harness) == others


@pytest.mark.parametrize("key", ["a/b=c", "k" * 200, "h.looks-hashed", "with.dots-and_all"])
async def test_the_owner_is_found_for_long_and_unusual_keys(key: str) -> None:
    async with running(controller := Sites()) as harness:
        await controller.sites.put(key, site("hi"))
        await harness.run_until_idle()
        (config_key,) = configs(harness).keys()
        document = configs(harness).document(config_key)
        assert controller.runtime.decompose_secondary(document) == (document, key)
        await configs(harness).delete(config_key)
        await harness.run_until_idle()
        assert texts(harness) == {config_key: "hi"}
        await controller.sites.delete(key)
        await harness.run_until_idle()
        assert texts(harness) == {}


async def test_the_annotation_identifies_the_owner_if_label_hashes_collide() -> None:
    async with running(controller := Sites()) as harness:
        await controller.sites.put("k" * 100, site("hi"))
        await harness.run_until_idle()
        (config_key,) = configs(harness).keys()
        same_label = documents.metadata_of(configs(harness).document(config_key))["labels"]
        other_owner = {"natsctl.io/owner-kind": "Site.sites", "natsctl.io/owner-key": "x" * 100}
        metadata = {"name": "other", "labels": same_label, "annotations": other_owner}
        store = configs(harness)
        await controller.sites.put("x" * 100, site("hi"))
        await harness.run_until_idle()
        await store.create("default/other", documents.render({"metadata": metadata, "data": {}}))
        await harness.run_until_idle()
        await controller.sites.delete("k" * 100)
        await harness.run_until_idle()
        assert config_key not in store.keys()  # noqa: SIM118 - a method's list
        assert any(key.startswith("default/x") for key in store.keys())  # noqa: SIM118 - a method's list


async def test_an_object_without_an_owner_is_refused_unless_adopted() -> None:
    stores = MemoryStores()
    store = stores.kube.store(CONFIGS)
    theirs = documents.render({"data": {"text": "theirs"}})
    await store.create(MAIN, theirs)
    async with running(controller := Sites(), stores=stores) as harness:
        await controller.sites.put("shop", site("hi"))
        await asyncio.sleep(1)
        assert texts(harness) == {MAIN: "theirs"}
        message = f'Resource "{MAIN}" already exists and is not managed by this controller'
        failing = harness.runtime.status().failing["shop"]
        assert message in failing
        assert any(event.reason == "ErrResourceExists" for event in stores.events.events)
    async with running(adopting := Sites(adopt=True), stores=stores) as harness:
        await harness.run_until_idle()
        assert texts(harness) == {MAIN: "hi"}
        assert adopting.configs.owned("shop").keys() == {MAIN}


@pytest.mark.parametrize("named", [True, False], ids=["", "by a server that names no fields"])
async def test_a_conflict_without_force_names_the_other_manager(
    named: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply = MemoryManifestStore.apply

    async def without_fields(*args: Any, **options: Any) -> Stored:
        try:
            return await apply(*args, **options)
        except FieldConflictError as error:
            error.fields = error.fields if named else ()
            raise

    monkeypatch.setattr(MemoryManifestStore, "apply", without_fields)
    async with made(controller := Sites(force=False)) as harness:
        await force(configs(harness), "theirs")
        await asyncio.sleep(1)
        assert "kubectl" in harness.runtime.status().failing["shop"]
        assert texts(harness) == {MAIN: "theirs"}
        controller.force = True
        controller.runtime.resync()
        await harness.run_until_idle()
        assert texts(harness) == {MAIN: "hi"}


async def test_a_creation_of_an_object_that_exists_is_refused() -> None:
    refused: list[tuple[str, type[Exception]]] = []

    class Creating(Sites):
        name = "sites"

        async def sync_handler(self, key: str) -> None:
            try:
                await self.configs.create(config("shared", key))
            except ConflictError as error:
                refused.append((key, type(error)))

    async with running(controller := Creating()) as harness:
        for key in ("first", "second"):
            await controller.sites.put(key, site("hi"))
            await harness.run_until_idle()
        controller.runtime.resync("first")
        await harness.run_until_idle()
        assert texts(harness) == {"default/shared": "first"}
        assert refused == [("second", ExistsError), ("first", ConflictError)]


async def test_an_object_without_its_key_label_is_deleted_with_its_owner() -> None:
    class Slow(Sites):
        go_on = asyncio.Event()

        async def sync_handler(self, key: str) -> float | None:
            await self.go_on.wait()
            return await super().sync_handler(key)

    controller = Slow()
    controller.go_on.set()
    async with made(controller) as harness:
        controller.go_on.clear()
        taken = {"labels": {"natsctl.io/owner-key": None}}
        await documents.edit(configs(harness), MAIN, metadata=taken)
        await controller.sites.delete("shop")
        await asyncio.sleep(1)
        controller.go_on.set()
        await harness.run_until_idle()
        assert texts(harness) == {}


async def test_an_object_held_by_finalizers_is_deleted_once() -> None:
    async with made(controller := Sites()) as harness:
        store = configs(harness)
        await documents.edit(store, MAIN, metadata={"finalizers": ["example.com/hold"]})
        await harness.run_until_idle()
        await controller.sites.delete("shop")
        await harness.run_until_idle()
        writes = store.writes
        await asyncio.sleep(300)
        assert store.writes == writes
        assert documents.metadata_of(store.document(MAIN))["deletionTimestamp"]
        await documents.edit(store, MAIN, metadata={"finalizers": None})
        assert store.keys() == []


async def test_string_data_of_a_secret_is_kept_as_data() -> None:
    class Secrets(Controller):
        sites = primary(SITES)
        secrets = secondary(kube("v1", "Secret", namespace="default"))

        async def sync_handler(self, key: str) -> float | None:
            current = self.sites.get(key)
            if current is not None:
                text = {"password": current.spec.text}
                manifest = {"metadata": {"name": key}, "stringData": text}
                await self.secrets.apply(manifest)
            return None

    async with running(controller := Secrets()) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
        store = harness.stores.kube.store(kube("v1", "Secret"))
        assert data(store, "default/shop") == {"password": "aGk="}
        await documents.edit(store, "default/shop", data={"password": "eA=="})
        await harness.run_until_idle()
        assert data(store, "default/shop") == {"password": "aGk="}


async def test_objects_of_other_namespaces_and_kinds_are_refused() -> None:
    failures: list[str] = []

    class Wrong(Sites):
        async def sync_handler(self, key: str) -> float | None:
            manifests: list[Manifest] = [
                {"metadata": {"name": "a", "namespace": "other"}},
                {"kind": "Secret", "metadata": {"name": "a"}},
                {"metadata": {}},
                {"metadata": {"name": "eu/a"}},
            ]
            for manifest in manifests:
                with pytest.raises(InvalidObjectError) as raised:
                    await self.configs.apply(manifest)
                failures.append(str(raised.value))
            return None

    async with running(controller := Wrong()) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
    assert failures == [
        "ConfigMap a is in namespace other, not default",
        "ConfigMap has kind ConfigMap, not Secret",
        "a manifest of ConfigMap has no metadata.name",
        (
            "'eu/a' can't be the name of a ConfigMap: a key may hold slashes, "
            "a name in Kubernetes may not"
        ),
    ]


async def test_the_event_of_a_sync_refers_to_the_objects_that_it_changed() -> None:
    async with made(controller := Sites(), site("hi", "a", "b")) as harness:
        await controller.sites.put("shop", site("hi", "b", "c"))
        await harness.run_until_idle()
        synced = [event for event in harness.stores.events.events if event.reason == "Synced"]
        names = [
            [reference.name for reference in event.regarding] for event in synced if event.regarding
        ]
        assert names[::2] == [
            ["shop-a", "shop-b"],
            ["shop-c", "shop-a"],
        ]  # the events of one of two recorders
        assert {reference.kind for reference in synced[-1].regarding} == {"ConfigMap"}


@pytest.mark.parametrize("selector", ["app=shop", "app in (shop, pub),!old", {"app": "shop"}])
async def test_a_manifest_that_its_own_slot_does_not_select_is_refused(selector: Any) -> None:
    class Labelled(Controller):
        sites = primary(SITES)
        configs = secondary(kube("v1", "ConfigMap", namespace="default", labels=selector))

        async def sync_handler(self, key: str) -> float | None:
            site = self.sites.get(key)
            if site is not None:
                labels = {"app": site.spec.text, "natsctl.io/owner-kind": "mine"}
                manifest = {"metadata": {"name": key, "labels": labels}, "data": {}}
                write = self.configs.create if "new" in site.spec.names else self.configs.apply
                await write(manifest)
            return None

    async with running(controller := Labelled()) as harness:
        await controller.sites.put("shop", site("shop"))
        await controller.sites.put("farm", site("farm"))
        await controller.sites.put("barn", site("barn", "new"))
        await asyncio.sleep(5)
        failing = harness.runtime.status().failing
        assert failing.keys() == {"farm", "barn"}
        for name, text in failing.items():
            assert InvalidObjectError.__name__ in text
            assert f'{name} is not selected by its own slot, which has labels="app' in text
            assert "owner-kind" not in text
        assert harness.stores.kube.store(CONFIGS).keys() == ["default/shop"]


async def test_a_primary_in_a_cluster_and_a_missing_cluster_are_refused() -> None:
    with pytest.raises(UsageError, match="primaries are kept in NATS"):
        primary(CONFIGS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Sites\.configs is stored in Kubernetes.*connect_kube"):
        ControllerRuntime(Sites(), nats=MemoryStores())


async def test_the_owner_label_names_can_be_configured() -> None:
    stores = MemoryStores()
    controller = Sites()
    runtime = ControllerRuntime(controller, nats=stores, kube=stores.kube, owner_names=KUMORI)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(runtime.run())
        await runtime.synced.wait()
        await controller.sites.put("shop", site("hi"))
        await Harness(runtime, stores, run).run_until_idle()
        runtime.stop()
    document = stores.kube.store(CONFIGS).document(MAIN)
    labels = documents.metadata_of(document)["labels"]
    assert labels == {"kumori/ownerkind": "Site.sites", "kumori/ownerkey": "shop"}


async def test_lists_of_a_cluster_in_trouble_are_repeated_twice_a_minute_at_most() -> None:
    async with made(Sites()) as harness:
        store = configs(harness)
        store.fail(StoreError("500 Internal Server Error"))
        await asyncio.sleep(120)
        before = harness.runtime.status().watch_restarts
        await asyncio.sleep(600)
        assert 18 <= harness.runtime.status().watch_restarts - before <= 41  # every 15 to 30 s
        assert "500" in harness.runtime.status().failure
        store.fail(None)
        await asyncio.sleep(31)
        assert harness.runtime.status().failure == ""


async def test_explain_and_tree_name_the_finalizers_that_hold_a_secondary() -> None:
    async with made(controller := Sites(), site("hi", "a", "b")) as harness:
        store, runtime = configs(harness), harness.runtime
        await documents.edit(
            store, "default/shop-a", metadata={"finalizers": ["example.com/hold", "b.c/d"]}
        )
        await harness.run_until_idle()
        assert runtime.explain("shop").held == []
        await controller.sites.put("shop", site("hi", "b"))
        await harness.run_until_idle()
        assert runtime.explain("shop").held == [
            "ConfigMap/default/shop-a is being deleted, held by example.com/hold, b.c/d"
        ]
        held, other = runtime.tree("shop").branches
        assert held.created
        assert (held.ready, held.reason) == ("Deleting", "held by example.com/hold, b.c/d")
        assert other.ready != "Deleting"
        await controller.sites.delete("shop")
        await harness.run_until_idle()
        [text] = runtime.explain("shop").held
        assert "shop-a" in text
        await documents.edit(store, "default/shop-a", metadata={"finalizers": None})
        await harness.run_until_idle()
        assert runtime.explain("shop").held == []


async def test_an_edit_is_reverted_if_only_metadata_is_watched() -> None:
    class Slim(Sites):
        configs = secondary(kube("v1", "ConfigMap", namespace="default", metadata_only=True))

    async with made(controller := Slim()) as harness:
        cached = controller.configs.get(MAIN)
        assert cached is not None
        assert "data" not in cached
        await documents.edit(configs(harness), MAIN, data={"text": "edited"})
        await harness.run_until_idle()
        assert texts(harness) == {MAIN: "hi"}
        writes = configs(harness).writes
        await asyncio.sleep(controller.resync_s + 1)
        assert configs(harness).writes == writes
