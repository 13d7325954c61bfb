"""An owner that somebody edits, or labels that somebody drops, change nobody's ownership."""

import asyncio
from typing import Any

import pytest

from natsctl.model import documents
from natsctl.testing.harness import running
from natsctl.testing.memory import MemoryStores
from tests.scenarios.test_evidence import stopped_after_a_sweep
from tests.scenarios.test_garbage import LONG, OVER, converged
from tests.scenarios.test_installations import configs
from tests.scenarios.test_kube_secondaries import Sites, site
from tests.scenarios.test_kube_secondaries import edit as edit_config
from tests.support.controllers.app_controller import Apps, Stage, document, edit, put

OWNER_KEY = "natsctl.io/owner-key"


async def name_owner(play: Stage, key: str, owner: str, *places: str) -> None:
    """Have the part name another owner, as an editor does."""
    for place in places:
        await edit(play.parts, key, "metadata", place, OWNER_KEY, to=owner)


async def owner_of(play: Stage, key: str) -> set[str]:
    metadata = (await document(play.parts, key))["metadata"]
    return {metadata[place][OWNER_KEY] for place in ("labels", "annotations")}


EDITS = [("annotations",), ("labels",), ("labels", "annotations")]


@pytest.mark.parametrize("places", EDITS)
async def test_an_owner_edited_by_hand_is_put_right(places: tuple[str, ...]) -> None:
    async with running(Apps()) as harness:
        play = await converged(harness, "shop", "bar")
        uid = (await document(play.parts, "shop.main"))["metadata"]["uid"]
        await name_owner(play, "shop.main", "nobody", *places)
        await asyncio.sleep(OVER)
        assert await owner_of(play, "shop.main") == {"shop"}
        assert (await document(play.parts, "shop.main"))["metadata"]["uid"] == uid


@pytest.mark.parametrize("places", EDITS)
async def test_an_owner_edited_while_no_daemon_ran_is_put_right(places: tuple[str, ...]) -> None:
    play = await stopped_after_a_sweep("shop", "bar")
    await name_owner(play, "shop.main", "nobody", *places)
    uid = (await document(play.parts, "shop.main"))["metadata"]["uid"]
    async with running(Apps(), stores=play.stores):
        await asyncio.sleep(OVER)
        assert await owner_of(play, "shop.main") == {"shop"}
        assert (await document(play.parts, "shop.main"))["metadata"]["uid"] == uid


@pytest.mark.parametrize("named", ["bar", "deleted"])
async def test_an_edited_annotation_gives_the_object_to_no_other_owner(named: str) -> None:
    async with running(Apps()) as harness:
        play = await converged(harness, "shop", "bar", "deleted")
        await play.apps.delete("deleted")
        await harness.run_until_idle()
        uid = (await document(play.parts, "shop.main"))["metadata"]["uid"]
        await name_owner(play, "shop.main", named, "annotations")
        await asyncio.sleep(OVER)
        assert await owner_of(play, "shop.main") == {"shop"}
        assert (await document(play.parts, "shop.main"))["metadata"]["uid"] == uid


async def test_while_the_owner_cannot_be_synced_an_edited_object_is_kept_and_named() -> None:
    class Failing(Apps):
        async def sync_handler(self, key: str) -> float | None:
            if key == "shop" and len(self.syncs) > 4:
                raise RuntimeError("not now")
            return await super().sync_handler(key)

    async with running(controller := Failing()) as harness:
        play = await converged(harness, "shop", "bar")
        controller.syncs += ["more"] * 5
        await name_owner(play, "shop.main", "nobody", "labels", "annotations")
        await asyncio.sleep(LONG)
        assert play.part_keys == ["bar.main", "shop.main"]
        (orphan,) = (await harness.runtime.garbage_plan()).orphans
        assert orphan.held == "it belongs to shop, whose next sync restores its labels"


@pytest.mark.parametrize("places", EDITS)
async def test_an_owner_edited_in_a_cluster_is_put_right(places: tuple[str, ...]) -> None:
    stores = MemoryStores()
    change: dict[str, Any] = {place: {OWNER_KEY: "nobody"} for place in places}
    async with running(controller := Sites(), stores=stores) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
        uid = documents.metadata_of(configs(stores).document("default/shop-main"))["uid"]
        await edit_config(configs(stores), "default/shop-main", metadata=change)
        await asyncio.sleep(OVER)
        metadata = documents.metadata_of(configs(stores).document("default/shop-main"))
        assert [metadata[each][OWNER_KEY] for each in ("labels", "annotations")] == ["shop"] * 2  # type: ignore[index]
        assert metadata["uid"] == uid


# ---- labels that were dropped


OVERWRITTEN = [b"oops", {"spec": {"text": "overwritten"}}]


@pytest.mark.parametrize("value", OVERWRITTEN)
async def test_what_lost_its_labels_goes_if_its_owner_was_deleted_while_no_daemon_ran(
    value: Any,
) -> None:
    play = await stopped_after_a_sweep("shop", "bar")
    await put(play.parts, "shop.main", value)
    await play.apps.delete("shop")
    async with running(Apps(), stores=play.stores) as harness:
        await asyncio.sleep(OVER)
        assert play.part_keys == ["bar.main"]
        assert (await harness.runtime.garbage_plan()).orphans == ()


@pytest.mark.parametrize("value", OVERWRITTEN)
async def test_what_lost_its_labels_stays_if_its_owner_lives(value: Any) -> None:
    play = await stopped_after_a_sweep("shop", "bar")
    await put(play.parts, "shop.main", value)
    async with running(Apps(), stores=play.stores):
        await asyncio.sleep(OVER)
        assert await play.texts() == {"shop.main": "hi", "bar.main": "hi"}


async def test_what_never_had_labels_stays() -> None:
    play = await stopped_after_a_sweep("shop", "bar")
    await put(play.parts, "theirs", {"spec": {"text": "theirs"}})
    await play.apps.delete("shop")
    async with running(Apps(), stores=play.stores):
        await asyncio.sleep(LONG)
        assert play.part_keys == ["bar.main", "theirs"]


async def test_what_was_made_again_after_its_deletion_is_nobodys() -> None:
    play = await stopped_after_a_sweep("shop", "bar")
    await play.parts.delete("shop.main")
    await put(play.parts, "shop.main", {"spec": {"text": "theirs"}})
    await play.apps.delete("shop")
    async with running(Apps(), stores=play.stores):
        await asyncio.sleep(LONG)
        assert play.part_keys == ["bar.main", "shop.main"]
