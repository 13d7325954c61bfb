"""`finalized` cleans up external resources exactly once for every deleted primary."""

import asyncio
from typing import Any

import pytest

from natsctl import StoreMissingError, UsageError, finalized, kv
from natsctl.testing import running
from tests.support.controllers.app_controller import (
    App,
    AppClient,
    Apps,
    Part,
    PartSpec,
    app_client,
    document,
    running_apps,
)
from tests.support.stores.documents import put

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


async def finalizers(client: AppClient, key: str) -> list[str]:
    names: list[str] = (await document(client.apps, key))["metadata"]["finalizers"]
    return names


async def test_a_deleted_object_is_marked_then_cleaned_up_then_removed() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running_apps(controller, "shop") as client:
        assert world.applied == [("shop", True)]  # the finalizer is stored before
        assert await finalizers(client, "shop") == [OURS]
        await controller.apps.delete("shop")
        marked = await document(client.apps, "shop")
        assert marked["metadata"]["deletionTimestamp"]
        assert world.things == {"shop": "hi"}
        await client.idle()

        assert (world.cleaned, world.things) == ([("shop", "hi")], {})
        assert (client.apps.keys(), client.parts.keys()) == ([], [])


async def test_apply_is_not_called_for_an_object_being_deleted() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running(controller) as harness:
        client = app_client(harness)
        marked = {"finalizers": [THEIRS], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        await put(client.apps, "shop", {"metadata": marked, "spec": {}})
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


async def test_an_object_is_kept_while_its_cleanup_fails() -> None:
    world = ExternalSystem()
    controller = Builders(world)
    async with running_apps(controller, "shop") as client:
        world.failure = RuntimeError("the external system does not respond")
        await controller.apps.delete("shop")
        await asyncio.sleep(60)
        assert client.apps.keys() == ["shop"]
        assert await finalizers(client, "shop") == [OURS]
        assert client.parts.keys() == ["shop.main"]
        assert "does not respond" in client.runtime.status().failing["shop"]

        world.failure = None
        await client.idle()
        assert (client.apps.keys(), world.cleaned) == ([], [("shop", "hi")])


@pytest.mark.parametrize("purge", [False, True], ids=["deleted", "purged"])
async def test_an_object_deleted_despite_its_finalizer_is_cleaned_up_with_its_last_state(
    *, purge: bool
) -> None:
    world = ExternalSystem()
    async with running_apps(Builders(world), "shop", "bar") as client:
        await client.apps.delete("shop", purge=purge)
        await client.idle()

        assert world.cleaned == [("shop", "hi")]
        assert world.things == {"bar": "hi"}
        assert client.parts.keys() == ["bar.main"]


async def test_an_object_deleted_while_no_process_ran_is_cleaned_up_once() -> None:
    world = ExternalSystem()
    async with running_apps(Builders(world), "shop", "bar") as client:
        pass

    await client.apps.delete("shop")
    world.failure = RuntimeError("not yet")
    async with running(Builders(world), stores=client.stores):
        await asyncio.sleep(1)
    world.failure = None
    for _ in range(3):
        async with running(Builders(world), stores=client.stores) as harness:
            await harness.run_until_idle()

    assert world.cleaned == [("shop", "hi")]
    assert client.parts.keys() == ["bar.main"]


async def test_an_object_without_our_finalizer_is_not_cleaned_up() -> None:
    world = ExternalSystem()
    async with running_apps(Apps(), "shop") as client:
        pass

    await client.apps.delete("shop")
    builders = Builders(world)
    builders.name = Apps.name  # the same controller, in a later version
    async with running(builders, stores=client.stores) as harness:
        await harness.run_until_idle()

    assert world.cleaned == []
    assert client.parts.keys() == []


@pytest.mark.parametrize("loss", ["recreated", "purged by an administrator", "missing"])
async def test_an_object_lost_without_a_delete_marker_is_not_cleaned_up(loss: str) -> None:
    world = ExternalSystem()
    async with running_apps(Builders(world), "shop") as client:
        if loss == "recreated":
            client.apps.recreate()
        elif loss == "missing":
            client.apps.fail(StoreMissingError("no such bucket"))
        else:
            client.apps.vanish("shop")
            client.apps.break_watches()
        await asyncio.sleep(30)

        assert (world.cleaned, world.things) == ([], {"shop": "hi"})


def test_a_plain_kind_has_no_finalizers() -> None:
    kind: Any = kv(dict, bucket="plain")
    with pytest.raises(UsageError, match="finalizers"):
        kind.require_metadata()
