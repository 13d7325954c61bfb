"""Edited or removed owner labels and annotations do not change the owner of an object."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from natsctl.testing import MemoryStore, MemoryStores, running
from tests.scenarios.test_evidence import stopped_after_a_gc_cycle
from tests.scenarios.test_garbage import LONG, OVER
from tests.scenarios.test_installations import configs
from tests.support.controllers.app_controller import AppClient, Apps, document, edit, running_apps
from tests.support.controllers.kube_sites import Sites, site
from tests.support.stores import documents
from tests.support.stores.documents import put

OWNER_KEY = "natsctl.io/owner-key"


async def name_owner(client: AppClient, key: str, owner: str, *places: str) -> None:
    """Set another owner key in the given metadata fields of a part."""
    for place in places:
        await edit(client.parts, key, "metadata", place, OWNER_KEY, to=owner)


EDITS = [("annotations",), ("labels",), ("labels", "annotations")]


@pytest.mark.parametrize(
    ("places", "named"),
    [*((places, "nobody") for places in EDITS), (EDITS[0], "bar"), (EDITS[0], "deleted")],
)
async def test_an_edited_owner_is_restored(places: tuple[str, ...], named: str) -> None:
    async with running_apps(Apps(), "shop", "bar", "deleted") as client:
        await client.apps.delete("deleted")
        await client.idle()
        uid = (await document(client.parts, "shop.main"))["metadata"]["uid"]
        await name_owner(client, "shop.main", named, *places)
        await asyncio.sleep(OVER)
        metadata = (await document(client.parts, "shop.main"))["metadata"]
        assert [metadata[field][OWNER_KEY] for field in ("labels", "annotations")] == ["shop"] * 2
        assert metadata["uid"] == uid


async def test_an_edited_object_whose_owner_fails_is_kept_and_is_in_the_gc_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing(Apps):
        async def sync_handler(self, key: str) -> float | None:
            if key == "shop" and len(self.syncs) > 4:
                raise RuntimeError("not now")
            return await super().sync_handler(key)

    history, read = MemoryStore.history, list[str]()

    def counted(store: MemoryStore, key: str) -> Awaitable[Any]:
        read.append(key)
        return history(store, key)

    monkeypatch.setattr(MemoryStore, "history", counted)
    async with running_apps(controller := Failing(), "shop", "bar") as client:
        controller.syncs += ["more"] * 5
        await name_owner(client, "shop.main", "nobody", "labels", "annotations")
        await asyncio.sleep(LONG)
        assert client.part_keys == ["bar.main", "shop.main"]
        (orphan,) = (await client.runtime.garbage_plan()).orphans
        assert orphan.held == "its owner was shop before an edit"
        assert read == ["nobody", "shop.main"]  # by the sync of "nobody", and not in each cycle


@pytest.mark.parametrize(
    "change",
    [
        {"labels": None},
        *({place: {OWNER_KEY: "nobody"} for place in places} for places in EDITS),
    ],
)
async def test_an_edited_owner_of_a_kubernetes_object_is_restored(change: dict[str, Any]) -> None:
    stores = MemoryStores()
    async with running(controller := Sites(), stores=stores) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
        before: Any = configs(stores).document("default/shop-main")
        await documents.edit(configs(stores), "default/shop-main", metadata=change)
        await asyncio.sleep(OVER)
        after: Any = configs(stores).document("default/shop-main")
        metadata = after["metadata"]
        assert [metadata[field][OWNER_KEY] for field in ("labels", "annotations")] == ["shop"] * 2
        assert metadata["uid"] == before["metadata"]["uid"]


# ---- labels that were dropped


OVERWRITTEN = [b"oops", {"spec": {"text": "overwritten"}}]


@pytest.mark.parametrize("value", OVERWRITTEN)
async def test_an_object_without_labels_is_kept_and_listed_if_its_owner_was_deleted_offline(
    value: Any,
) -> None:
    client = await stopped_after_a_gc_cycle("shop", "bar")
    await put(client.parts, "shop.main", value)
    await client.apps.delete("shop")
    async with running(Apps(), stores=client.stores) as harness:
        await asyncio.sleep(LONG)
        assert client.part_keys == ["bar.main", "shop.main"]
        plan = await harness.runtime.garbage_plan()
        (orphan,) = plan.orphans
        assert orphan.held == "it names no owner; it was made for App.apps shop"
        (kept,) = (await harness.runtime.garbage_apply(plan)).kept
        assert (kept.orphan, client.part_keys) == (orphan, ["bar.main", "shop.main"])


@pytest.mark.parametrize("made_for", [None, "Other.apps"])
async def test_an_object_that_was_not_made_for_this_kind_is_no_orphan(made_for: str | None) -> None:
    client = await stopped_after_a_gc_cycle("shop", "bar")
    theirs: dict[str, Any] = {"spec": {"text": "theirs"}}
    if made_for is not None:
        labels = {OWNER_KEY: "shop", "natsctl.io/owner-kind": made_for}
        await put(client.parts, "theirs", theirs | {"metadata": {"labels": labels}})
    await put(client.parts, "theirs", theirs)
    await client.apps.delete("shop")
    async with running(Apps(), stores=client.stores) as harness:
        await asyncio.sleep(LONG)
        assert client.part_keys == ["bar.main", "theirs"]
        assert (await harness.runtime.garbage_plan()).orphans == ()
