"""`finalized` cleans up external resources exactly once for every deleted primary."""

import asyncio
from typing import Any

import pytest

from natsctl import StoreMissingError, UsageError, finalized, kv, primary
from natsctl.testing import Harness, running
from tests.support.controllers.app_controller import (
    App,
    AppClient,
    Apps,
    Part,
    PartSpec,
    app_client,
    document,
    edit,
    put,
)

OURS, THEIRS = "example.com/world", "example.com/theirs"


class ExternalSystem:
    """An external system without watches, which outlives every runtime."""

    def __init__(self) -> None:
        self.things: dict[str, str] = {}
        self.applied: list[tuple[str, bool]] = []  # the key, and whether the finalizer was stored
        self.cleaned: list[tuple[str, str]] = []
        self.failure: Exception | None = None


class Builders(Apps):
    """A controller that creates an external thing for each app."""

    def __init__(self, world: ExternalSystem, client: AppClient | None = None) -> None:
        super().__init__()
        self.world = world

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        return await finalized(self.apps, key, OURS, apply=self.build, cleanup=self.tear_down)

    async def build(self, key: str, app: App) -> float | None:
        stored = await self.apps.read(key)
        held = stored is not None and OURS in stored.metadata.finalizers
        self.world.applied.append((key, held))
        self.world.things[key] = app.spec.text
        await self.parts.apply(f"{key}.main", Part(spec=PartSpec(app.spec.text)))
        return None

    async def tear_down(self, key: str, app: App) -> float | None:
        if self.world.failure is not None:
            raise self.world.failure
        self.world.cleaned.append((key, app.spec.text))
        self.world.things.pop(key, None)
        return None


async def built(harness: Harness, *keys: str) -> AppClient:
    client = app_client(harness)
    for key in keys:
        await client.app(key)
    await harness.run_until_idle()
    return client


async def finalizers(client: AppClient, key: str) -> list[str]:
    names: list[str] = (await document(client.apps, key))["metadata"]["finalizers"]
    return names


async def test_the_finalizer_is_stored_before_apply_is_called() -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop")

        assert world.applied == [("shop", True)]
        assert await finalizers(client, "shop") == [OURS]


async def test_a_deleted_object_is_marked_then_cleaned_up_then_removed() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running(controller) as harness:
        client = await built(harness, "shop")
        await controller.apps.delete("shop")
        marked = await document(client.apps, "shop")
        assert marked["metadata"]["deletionTimestamp"]
        assert world.things == {"shop": "hi"}
        await harness.run_until_idle()

        assert (world.cleaned, world.things) == ([("shop", "hi")], {})
        assert (client.apps.keys(), client.parts.keys()) == ([], [])


async def test_apply_is_not_called_for_an_object_being_deleted() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running(controller) as harness:
        client = app_client(harness)
        await put(
            client.apps,
            "shop",
            {
                "metadata": {"finalizers": [THEIRS], "deletionTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {},
            },
        )
        await harness.run_until_idle()

        assert (world.applied, world.cleaned) == ([], [])
        assert await finalizers(client, "shop") == [THEIRS]


async def test_finalizers_of_others_are_kept_and_delay_the_removal() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running(controller) as harness:
        client = app_client(harness)
        await put(client.apps, "shop", {"metadata": {"finalizers": [THEIRS]}, "spec": {}})
        await harness.run_until_idle()
        assert await finalizers(client, "shop") == [THEIRS, OURS]
        await controller.apps.delete("shop")
        await harness.run_until_idle()
        assert await finalizers(client, "shop") == [THEIRS]
        assert world.cleaned == [("shop", "hi")]
        assert client.parts.keys() == ["shop.main"]  # the app still exists

        await controller.apps.remove_finalizer("shop", THEIRS)
        await harness.run_until_idle()
        assert (client.apps.keys(), client.parts.keys()) == ([], [])
        assert world.cleaned == [("shop", "hi")]


async def test_an_object_is_removed_if_its_last_finalizer_is_removed_by_hand() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running(controller) as harness:
        client = app_client(harness)
        await put(client.apps, "shop", {"metadata": {"finalizers": [THEIRS]}, "spec": {}})
        await harness.run_until_idle()
        await controller.apps.delete("shop")
        await harness.run_until_idle()
        await edit(client.apps, "shop", "metadata", "finalizers", to=[])
        await harness.run_until_idle()

        assert (client.apps.keys(), client.parts.keys()) == ([], [])
        assert world.cleaned == [("shop", "hi")]


async def test_an_object_is_kept_while_its_cleanup_fails() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running(controller) as harness:
        client = await built(harness, "shop")
        world.failure = RuntimeError("the external system does not respond")
        await controller.apps.delete("shop")
        await asyncio.sleep(60)
        assert client.apps.keys() == ["shop"]
        assert await finalizers(client, "shop") == [OURS]
        assert client.parts.keys() == ["shop.main"]
        assert "does not respond" in harness.runtime.status().failing["shop"]

        world.failure = None
        await harness.run_until_idle()
        assert (client.apps.keys(), world.cleaned) == ([], [("shop", "hi")])


async def test_a_change_of_an_object_being_deleted_is_not_applied() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running(controller) as harness:
        client = await built(harness, "shop")
        world.failure = RuntimeError("not yet")
        await controller.apps.delete("shop")
        await asyncio.sleep(1)
        await edit(client.apps, "shop", "spec", "text", to="bye")
        await asyncio.sleep(1)
        world.failure = None
        await harness.run_until_idle()

        assert world.applied == [("shop", True)]
        assert world.cleaned == [("shop", "bye")]


@pytest.mark.parametrize("purge", [False, True], ids=["deleted", "purged"])
async def test_an_object_deleted_despite_its_finalizer_is_cleaned_up_with_its_last_state(
    *, purge: bool
) -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop", "bar")
        await client.apps.delete("shop", purge=purge)
        await harness.run_until_idle()

        assert world.cleaned == [("shop", "hi")]
        assert world.things == {"bar": "hi"}
        assert client.parts.keys() == ["bar.main"]


async def test_the_last_state_of_a_deleted_object_is_kept_until_it_is_cleaned_up() -> None:
    world = ExternalSystem()
    world.failure = RuntimeError("no")
    controller = Builders(world)
    async with running(controller) as harness:
        client = await built(harness, "shop")
        await client.apps.delete("shop")
        await asyncio.sleep(1)
        noted = controller.apps.queue.noted("shop")
        assert noted is not None
        assert noted.last is not None
        world.failure = None
        await harness.run_until_idle()
        assert controller.apps.queue.noted("shop") is None


async def test_an_object_deleted_while_no_process_ran_is_cleaned_up_once() -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop", "bar")
    await client.apps.delete("shop")
    for _ in range(3):
        async with running(Builders(world), stores=client.stores) as harness:
            await harness.run_until_idle()

    assert world.cleaned == [("shop", "hi")]
    assert client.parts.keys() == ["bar.main"]


async def test_a_cleaned_up_object_is_not_cleaned_up_again_after_a_restart() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running(controller) as harness:
        client = await built(harness, "shop")
        await controller.apps.delete("shop")
        await harness.run_until_idle()
    for _ in range(2):
        async with running(Builders(world), stores=client.stores) as harness:
            await harness.run_until_idle()

    assert world.cleaned == [("shop", "hi")]


async def test_an_object_marked_while_no_process_ran_is_cleaned_up_at_the_next_start() -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop")
    await edit(client.apps, "shop", "metadata", "deletionTimestamp", to="2026-01-01T00:00:00Z")
    async with running(Builders(world), stores=client.stores) as harness:
        await harness.run_until_idle()

    assert (world.cleaned, client.apps.keys(), client.parts.keys()) == ([("shop", "hi")], [], [])


async def test_a_failed_cleanup_is_repeated_by_the_next_runtime() -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop")
        world.failure = RuntimeError("not yet")
        await client.apps.delete("shop")
        await asyncio.sleep(1)
    world.failure = None
    async with running(Builders(world), stores=client.stores) as harness:
        await harness.run_until_idle()

    assert world.cleaned == [("shop", "hi")]
    assert client.parts.keys() == []


async def test_an_object_without_secondaries_is_cleaned_up_at_the_next_start() -> None:
    class Outside(Builders):
        async def build(self, key: str, app: App) -> float | None:
            self.world.things[key] = app.spec.text
            return None

    world = ExternalSystem()
    async with running(Outside(world)) as harness:
        client = await built(harness, "shop")
    await client.apps.delete("shop")
    async with running(Outside(world), stores=client.stores) as harness:
        await harness.run_until_idle()

    assert (world.cleaned, world.things) == ([("shop", "hi")], {})


async def test_an_object_deleted_during_apply_is_cleaned_up_without_a_history() -> None:
    class Slow(Builders):
        apps = primary(kv(App, bucket="brief", history=1))

        async def build(self, key: str, app: App) -> float | None:
            await super().build(key, app)
            await asyncio.sleep(10)
            return None

        async def tear_down(self, key: str, app: App) -> float | None:
            assert list(self.parts.owned()) == ["shop.main"]  # parts are deleted after the cleanup
            return await super().tear_down(key, app)

    world = ExternalSystem()
    async with running(Slow(world)) as harness:
        brief = harness.stores.store(Slow.apps.kind)
        await put(brief, "shop", {"spec": {}})
        await asyncio.sleep(5)
        await brief.delete("shop")
        await harness.run_until_idle()

        assert (world.cleaned, world.things) == ([("shop", "hi")], {})
        assert app_client(harness).part_keys == []


async def test_a_cleanup_gets_the_last_valid_state() -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop")
    await put(client.apps, "shop", b"oops")
    await client.apps.delete("shop")
    async with running(Builders(world), stores=client.stores) as harness:
        await harness.run_until_idle()

    assert world.cleaned == [("shop", "hi")]


async def test_an_object_without_our_finalizer_is_not_cleaned_up() -> None:
    world = ExternalSystem()
    client = None
    async with running(Apps()) as harness:
        client = await built(harness, "shop")
    await client.apps.delete("shop")
    builders = Builders(world)
    builders.name = Apps.name  # the same controller, in a later version
    async with running(builders, stores=client.stores) as harness:
        await harness.run_until_idle()

    assert world.cleaned == []
    assert client.parts.keys() == []


async def test_a_recreated_object_gets_the_finalizer() -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop")
        await client.apps.delete("shop")
        await harness.run_until_idle()
        await client.app("shop", "again")
        await harness.run_until_idle()

        assert world.things == {"shop": "again"}
        assert await finalizers(client, "shop") == [OURS]


async def test_an_object_that_lost_its_finalizer_gets_it_again() -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop")
        await client.app("shop", "bye")
        await harness.run_until_idle()

        assert world.things == {"shop": "bye"}
        assert await finalizers(client, "shop") == [OURS]


@pytest.mark.parametrize("loss", ["recreated", "purged by an administrator", "missing"])
async def test_an_object_lost_without_a_delete_marker_is_not_cleaned_up(loss: str) -> None:
    world = ExternalSystem()
    async with running(Builders(world)) as harness:
        client = await built(harness, "shop")
        if loss == "recreated":
            client.apps.recreate()
        elif loss == "missing":
            client.apps.fail(StoreMissingError("no such bucket"))
        else:
            client.apps.vanish("shop")
            client.apps.break_watches()
        await asyncio.sleep(30)

        assert (world.cleaned, world.things) == ([], {"shop": "hi"})


async def test_a_delay_returned_by_apply_calls_it_again() -> None:
    class Patient(Builders):
        async def build(self, key: str, app: App) -> float | None:
            await super().build(key, app)
            return 20.0

    world = ExternalSystem()
    async with running(Patient(world)) as harness:
        await app_client(harness).app("shop")
        await asyncio.sleep(70)
        assert world.applied == [("shop", True)] * 4


async def test_a_status_write_during_cleanup_does_not_recreate_the_object() -> None:
    class Talkative(Builders):
        async def tear_down(self, key: str, app: App) -> float | None:
            await self.apps.update_status(key, {"phase": "going"})
            return await super().tear_down(key, app)

    world = ExternalSystem()
    controller = Talkative(world)
    async with running(controller) as harness:
        client = await built(harness, "shop")
        await controller.apps.delete("shop")
        await harness.run_until_idle()

        assert (client.apps.keys(), world.cleaned) == ([], [("shop", "hi")])


def test_a_plain_kind_has_no_finalizers() -> None:
    kind: Any = kv(dict, bucket="plain")
    with pytest.raises(UsageError, match="finalizers"):
        kind.require_metadata()
