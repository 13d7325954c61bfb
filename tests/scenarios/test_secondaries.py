"""Secondaries keep the desired state of their primaries after any change by others."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from natsctl import Change, Controller, NotFoundError, kv, primary, secondary, tertiary
from natsctl.testing import running
from tests.support.controllers.app_controller import (
    PARTS,
    Apps,
    Part,
    PartSpec,
    SlowStores,
    document,
    edit,
    running_apps,
)
from tests.support.stores.documents import put

A_SECOND = 1.0
OWNER_KEY = "natsctl.io/owner-key"


async def test_a_primary_gets_its_secondaries_a_status_and_an_event() -> None:
    async with running_apps(Apps()) as client:
        await client.app("shop", "hello", ("a", "b"))
        await client.idle()

        assert await client.texts() == {"shop.a": "hello", "shop.b": "hello"}
        metadata = (await document(client.parts, "shop.a"))["metadata"]
        owner = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "shop"}
        assert (metadata["labels"], metadata["annotations"]) == (owner, owner)
        assert metadata["generation"] == 1
        assert metadata["uid"]
        assert (await document(client.apps, "shop"))["status"] == {"parts": 2}
        assert client.events("shop") == [("Synced", '"shop" synced successfully (created)')]


async def test_deleting_a_primary_deletes_only_its_secondaries() -> None:
    async with running_apps(Apps()) as client:
        await client.app("shop", parts=("a", "b"))
        await client.app("bar")
        await put(client.parts, "shop.theirs", {"spec": {"text": "not ours"}})
        await client.idle()
        await client.apps.delete("shop")
        await client.idle()

        assert client.parts.keys() == ["bar.main", "shop.theirs"]
        assert client.events("shop")[-1] == ("Synced", '"shop" synced successfully (deleted)')


async def test_secondaries_of_a_deleted_primary_are_kept_with_the_orphan_policy() -> None:
    class Lenient(Apps):
        deletion_policy = "orphan"

    async with running_apps(Lenient(), "shop") as client:
        await client.apps.delete("shop")
        await asyncio.sleep(3600)

        assert client.parts.keys() == ["shop.main"]
        plan = await client.runtime.garbage_plan()
        assert plan.orphans == ()
        assert "policy" in plan.refused


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"spec": {"text": "tampered"}}, id="an object without metadata"),
        pytest.param({"spec": {"text": 7}}, id="an object of another shape"),
        pytest.param({"spec": {"text": "hi"}}, id="the right content without an owner"),
        pytest.param(b"oops", id="no JSON"),
        pytest.param(b"\xff\x00", id="no text"),
        pytest.param(b"", id="empty"),
        pytest.param(b"[" * 100_000, id="too deep for the parser"),
    ],
)
async def test_an_overwritten_secondary_is_restored_within_a_second(
    value: bytes | dict[str, Any],
) -> None:
    async with running_apps(Apps(), "shop") as client:
        await put(client.parts, "shop.main", value)
        await asyncio.sleep(A_SECOND)

        part = await document(client.parts, "shop.main")
        assert part["spec"] == {"text": "hi"}
        assert part["metadata"]["labels"]["natsctl.io/owner-key"] == "shop"


async def test_an_object_put_in_place_of_a_deleted_secondary_is_not_adopted() -> None:
    async with running_apps(Apps(), "shop") as client:
        pass
    await client.parts.delete("shop.main")
    await put(client.parts, "shop.main", {"spec": {"text": "theirs"}})
    async with running(Apps(), stores=client.stores):
        await asyncio.sleep(A_SECOND)

        assert await client.texts() == {"shop.main": "theirs"}
        assert "ErrResourceExists" in client.reasons("shop")


async def test_a_changed_owner_label_syncs_the_old_and_the_new_owner() -> None:
    controller = Apps()
    async with running_apps(controller, "old", "new") as client:
        controller.syncs.clear()
        part = await document(client.parts, "old.main")
        for names in ("labels", "annotations"):
            part["metadata"][names][OWNER_KEY] = "new"
        await put(client.parts, "old.main", part)
        await asyncio.sleep(A_SECOND)

        assert set(controller.syncs) == {"old", "new"}
        # the new owner deletes the undesired part, and the old owner creates it again
        assert await client.texts() == {"old.main": "hi", "new.main": "hi"}
        assert (await document(client.parts, "old.main"))["metadata"]["labels"][OWNER_KEY] == "old"


async def test_a_secondary_that_got_another_owner_unseen_is_not_overwritten() -> None:
    stores = SlowStores()
    async with running_apps(Apps(), stores=stores) as client:
        await client.app("shop", "old")
        await client.app("bar")
        await client.idle()
        with stores.store(PARTS).held_up():
            for names in ("labels", "annotations"):
                await edit(client.parts, "shop.main", "metadata", names, OWNER_KEY, to="bar")
            await client.app("shop", "new")
            await asyncio.sleep(A_SECOND)
            assert (await client.texts())["shop.main"] == "old"
            assert "shop" in client.runtime.status().failing


async def test_a_secondary_that_changed_unseen_is_deleted_at_once() -> None:
    stores = SlowStores()
    async with running_apps(Apps(), "shop", stores=stores) as client:
        with stores.store(PARTS).held_up():
            await edit(client.parts, "shop.main", "spec", "text", to="edited")
            await client.app("shop", parts=())
            await asyncio.sleep(A_SECOND)
            assert client.part_keys == []


async def test_an_object_without_an_owner_is_not_adopted() -> None:
    async with running_apps(Apps()) as client:
        await put(client.parts, "shop.main", {"spec": {"text": "theirs"}})
        await client.app("shop")
        await asyncio.sleep(A_SECOND)

        assert await client.texts() == {"shop.main": "theirs"}
        reason, message = client.events("shop")[0]
        assert reason == "ErrResourceExists"
        assert (
            'Resource "shop.main" already exists and is not managed by this controller' in message
        )
        assert "shop" in client.runtime.status().failing


async def test_adopt_takes_over_an_object_without_an_owner() -> None:
    class Adopting(Apps):
        async def sync_handler(self, key: str) -> float | None:
            if self.apps.get(key) is not None:
                await self.parts.apply(f"{key}.main", Part(spec=PartSpec("hi")), adopt=True)
            return None

    async with running_apps(Adopting()) as client:
        await put(client.parts, "shop.main", {"spec": {"text": "theirs"}, "more": 1})
        await client.app("shop")
        await client.idle()

        part = await document(client.parts, "shop.main")
        assert (part["spec"], part["more"]) == ({"text": "hi"}, 1)
        assert part["metadata"]["labels"]["natsctl.io/owner-key"] == "shop"


async def test_an_owner_whose_secondary_is_adopted_by_another_is_synced() -> None:
    class Greedy(Apps):
        async def sync_handler(self, key: str) -> float | None:
            self.syncs.append(key)
            app = self.apps.get(key)
            if app is not None and (key == "greedy" or self.parts.get("it") is None):
                await self.parts.apply("it", Part(spec=PartSpec(key)), adopt=True)
            return None

    controller = Greedy()
    async with running_apps(controller, "modest") as client:
        controller.syncs.clear()
        await client.app("greedy")
        await client.idle()

        assert await client.texts() == {"it": "greedy"}
        assert controller.syncs == ["greedy", "modest"]


async def test_handle_secondary_sets_the_keys_that_a_secondary_enqueues() -> None:
    class Watchful(Apps):
        def handle_secondary(self, change: Change[Any]) -> Iterable[str]:
            return ("watchtower", change.key)

    controller = Watchful()
    async with running_apps(controller, "shop") as client:
        assert set(controller.syncs) == {"shop", "watchtower", "shop.main"}
        controller.syncs.clear()
        await edit(client.parts, "shop.main", "spec", "text", to="tampered")
        await client.idle()

        assert set(controller.syncs) == {"watchtower", "shop.main"}


async def test_the_owner_is_enqueued_if_handle_secondary_fails() -> None:
    class Broken(Apps):
        def handle_secondary(self, change: Change[Any]) -> Iterable[str]:
            yield "watchtower"
            raise ValueError(change.key)

    controller = Broken()
    async with running_apps(controller, "shop") as client:
        await edit(client.parts, "shop.main", "spec", "text", to="tampered")
        await client.idle()

        assert await client.texts() == {"shop.main": "hi"}


async def test_decompose_secondary_returns_the_owner_key() -> None:
    controller = Apps()
    async with running_apps(controller, "shop") as client:
        part = controller.parts.get("shop.main")
        assert client.runtime.decompose_secondary(part) == (part, "shop")
        with pytest.raises(NotFoundError, match=r"no owner of kind App\.apps"):
            client.runtime.decompose_secondary(Part(spec=PartSpec("hi")))


async def test_a_tertiary_can_be_read_and_enqueues_no_key() -> None:
    defaults = kv(dict[str, str], bucket="defaults")

    class Reading(Controller):
        apps = primary(kv(dict[str, str], bucket="plain"))
        defaults_by_key = tertiary(defaults)

        def __init__(self) -> None:
            self.seen: list[dict[str, str] | None] = []

        async def sync_handler(self, key: str) -> float | None:
            self.seen.append(self.defaults_by_key.get("all"))
            return None

    controller = Reading()
    async with running(controller) as harness:
        await controller.apps.put("a", {"x": "1"})
        await harness.run_until_idle()
        await put(harness.stores.store(defaults), "all", {"text": "hello"})
        await harness.run_until_idle()
        assert controller.seen == [None]
        await controller.apps.put("a", {"x": "2"})
        await harness.run_until_idle()
        assert controller.seen == [None, {"text": "hello"}]


async def test_secondaries_of_two_kinds_can_have_the_same_key() -> None:
    class Pairs(Apps):
        others = secondary(kv(Part, bucket="others"))

        async def sync_handler(self, key: str) -> float | None:
            app = self.apps.get(key)
            if app is not None:
                await self.parts.apply(key, Part(spec=PartSpec("part")))
                await self.others.apply(key, Part(spec=PartSpec("other")))
            return None

    controller = Pairs()
    async with running_apps(controller) as client:
        other_parts = client.stores.store(Pairs.others.kind)
        await client.app("shop")
        await client.idle()
        await other_parts.delete("shop")
        await client.idle()

        assert controller.others.get("shop") == controller.others.owned("shop")["shop"]
        assert (await document(other_parts, "shop"))["spec"] == {"text": "other"}
        assert await client.texts() == {"shop": "part"}
        await client.apps.delete("shop")
        await client.idle()
        assert (other_parts.keys(), client.parts.keys()) == ([], [])
