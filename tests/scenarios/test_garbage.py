"""Garbage collection deletes orphans after a grace period, and never other objects."""

import asyncio
from typing import Any

import pytest

from natsctl import GarbageLimits, GarbagePlan, StoreMissingError, StoreTimeoutError, UsageError, kv
from natsctl.testing import Harness, MemoryStores, running
from tests.support.controllers.app_controller import (
    APPS,
    PARTS,
    AppClient,
    Apps,
    RunningApps,
    SlowStores,
    document,
    edit,
    running_apps,
)
from tests.support.stores.documents import put

MEMORY = kv(bytes, bucket="natsctl")  # has the record of what garbage collection saw
GRACE_S, GC_INTERVAL_S = 60.0, 30.0
OVER = 2 * GRACE_S + 2 * GC_INTERVAL_S  # after this time every orphan is collected
LONG = 2 * 3600.0


def owned_by(key: str, kind: str = "App.apps", **more_metadata: Any) -> dict[str, Any]:
    """Return a part with an owner of this kind and key."""
    names = {"natsctl.io/owner-kind": kind, "natsctl.io/owner-key": key}
    metadata = {"labels": names, "annotations": names, "uid": "1", **more_metadata}
    return {"metadata": metadata, "spec": {"text": "left"}}


async def plan(running: Harness | RunningApps) -> GarbagePlan:
    return await running.runtime.garbage_plan()


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "gc plan" in record.message]


def counted(client: RunningApps) -> tuple[int, bool]:
    """Return what the metrics show: the orphans, and whether their collection is refused."""
    upkeep = client.runtime.measures().upkeep
    assert upkeep is not None
    return upkeep.orphans, upkeep.refused


class Reluctant(Apps):
    """Fails the sync of every deleted app while it is `broken`."""

    broken = True

    async def sync_handler(self, key: str) -> float | None:
        await super().sync_handler(key)
        if self.broken and self.apps.get(key) is None:
            raise RuntimeError("on purpose")
        return None


class Busy(Apps):
    """Has one worker, and keeps it busy with the app `busy` until that is released."""

    workers = 1
    resync_s = 10 * LONG
    sync_timeout_s = LONG

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()

    async def sync_handler(self, key: str) -> float | None:
        if key == "busy":
            await self.released.wait()
        return await super().sync_handler(key)


async def enqueue(client: RunningApps, owner: str) -> None:
    """Let a GC cycle enqueue the owner of an orphan while the only worker is busy."""
    await put(client.parts, f"{owner}.main", owned_by(owner))
    await asyncio.sleep(GRACE_S - 5)
    await client.app("busy")
    await asyncio.sleep(3 * GC_INTERVAL_S)


# ---- orphans


async def test_a_secondary_of_an_unknown_owner_is_collected_after_the_grace_period() -> None:
    async with running_apps(Apps(), "shop") as client:
        await put(client.parts, "lost", owned_by("nobody"))
        await asyncio.sleep(1)

        (orphan,) = (await plan(client)).orphans
        assert (orphan.kind, orphan.key, orphan.owner) == ("Part.parts", "lost", "nobody")
        assert "does not exist" in orphan.reason
        assert (orphan.proven, orphan.due) == (False, False)

        await asyncio.sleep(GRACE_S - 2)
        assert client.parts.keys() == ["lost", "shop.main"]
        assert counted(client) == (1, False)
        await asyncio.sleep(GC_INTERVAL_S + 2)
        assert client.parts.keys() == ["shop.main"]
        assert (await plan(client)).orphans == ()
        await asyncio.sleep(GC_INTERVAL_S)
        assert counted(client) == (0, False)


async def test_the_grace_period_restarts_with_every_start() -> None:
    async with running_apps(Apps(), "shop") as client:
        await put(client.parts, "lost", owned_by("nobody"))
        await asyncio.sleep(GRACE_S - 10)
    async with running(Apps(), stores=client.stores):
        await asyncio.sleep(GRACE_S - 10)
        assert client.parts.keys() == ["lost", "shop.main"]
        await asyncio.sleep(GC_INTERVAL_S + 11)
        assert client.parts.keys() == ["shop.main"]


async def test_an_orphan_whose_owner_appears_within_the_grace_period_is_kept() -> None:
    async with running_apps(Apps(), "shop") as client:
        await put(client.parts, "late.main", owned_by("late"))
        await asyncio.sleep(GRACE_S - 1)
        await client.app("late")
        await asyncio.sleep(OVER)

        assert await client.texts() == {"shop.main": "hi", "late.main": "hi"}


async def test_secondaries_that_a_failing_handler_left_are_collected_once_it_recovers() -> None:
    controller = Reluctant()
    async with running_apps(controller, "shop", "bar") as client:
        await client.apps.delete("shop")
        await asyncio.sleep(OVER)
        assert client.parts.keys() == ["bar.main", "shop.main"]
        (orphan,) = (await plan(client)).orphans
        assert (orphan.proven, "was deleted at revision" in orphan.reason) == (True, True)
        controller.broken = False
        await asyncio.sleep(OVER)
        assert client.parts.keys() == ["bar.main"]


# ---- objects that are not orphans


async def test_a_stale_cache_of_primaries_collects_nothing() -> None:
    stores = SlowStores()
    async with running_apps(Apps(), "shop", stores=stores) as client:
        with stores.store(APPS).held_up():
            await client.app("unseen")
            await put(client.parts, "unseen.main", owned_by("unseen"))
            await asyncio.sleep(LONG)
            assert client.parts.keys() == ["shop.main", "unseen.main"]
            assert (await plan(client)).orphans == ()


async def test_an_owner_created_before_the_collecting_sync_keeps_its_secondaries() -> None:
    async with running_apps(controller := Busy(), "shop") as client:
        await enqueue(client, "back")
        await client.app("back")
        controller.released.set()
        await client.idle()

        assert await client.texts() == {"shop.main": "hi", "busy.main": "hi", "back.main": "hi"}


async def test_a_gc_request_collects_nothing_after_owners_vanished() -> None:
    async with running_apps(controller := Busy(), "a", "b", "c") as client:
        await enqueue(client, "gone")
        client.apps.vanish("a", "b", "c")
        client.apps.break_watches()
        await asyncio.sleep(2 * GC_INTERVAL_S)  # a GC cycle notices it
        controller.released.set()
        await asyncio.sleep(2000)

        assert "gone.main" in client.part_keys
        assert "3 of 4 owners vanished" in (await plan(client)).refused


async def test_an_outdated_gc_request_collects_nothing_in_a_recreated_bucket() -> None:
    async with running_apps(controller := Reluctant(), "shop") as client:
        await put(client.parts, "back.main", owned_by("back"))
        await asyncio.sleep(OVER)  # `back` is enqueued, but its syncs fail
        await client.app("back")
        await client.idle()
        controller.broken = False
        client.apps.recreate()
        await asyncio.sleep(LONG)

        assert client.parts.keys() == ["back.main", "shop.main"]


async def test_the_grace_period_of_an_orphan_restarts_if_the_bucket_is_recreated() -> None:
    async with running_apps(controller := Busy(), "shop") as client:
        await enqueue(client, "lost")
        client.apps.recreate()
        for key in ("shop", "busy"):
            await client.app(key)
        await asyncio.sleep(5)
        await client.runtime.garbage_accept()
        controller.released.set()
        await client.harness.run_until(lambda: "lost" in controller.syncs)
        await asyncio.sleep(5)
        assert "lost.main" in client.part_keys
        await asyncio.sleep(OVER)
        assert "lost.main" not in client.part_keys


async def test_a_recreated_bucket_collects_nothing_and_plan_and_log_state_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_apps(Apps(), "shop", "bar", "baz") as client:
        client.apps.recreate()
        await client.app("bar", "again")
        await asyncio.sleep(LONG)

        assert client.parts.keys() == ["bar.main", "baz.main", "shop.main"]
        planned = await plan(client)
        assert "was recreated since it was last seen" in planned.refused
        assert {orphan.key for orphan in planned.orphans} == {"baz.main", "shop.main"}
        assert counted(client) == (2, True)
        (line,) = refusals(caplog)  # once, not at every GC cycle
        assert "orphans=2" in line
        assert "recreated" in line


async def test_a_bucket_recreated_before_its_watch_breaks_is_no_restored_copy() -> None:
    async with running_apps(Apps(), "shop", "bar") as client:
        await asyncio.sleep(GC_INTERVAL_S)
        client.apps.recreate()  # and the plan asks the bucket before the controller lists it again
        assert "was recreated or restored since it was last seen" in (await plan(client)).refused
        await asyncio.sleep(LONG)
        assert client.parts.keys() == ["bar.main", "shop.main"]
        assert "was recreated or restored since it was last seen" in (await plan(client)).refused


async def test_a_secondary_that_got_another_owner_is_not_deleted_with_the_first() -> None:
    stores = SlowStores()
    async with running_apps(Apps(), "shop", "bar", stores=stores) as client:
        with stores.store(PARTS).held_up():
            await put(client.parts, "shop.main", owned_by("bar"))
            await client.apps.delete("shop")
            await asyncio.sleep(GC_INTERVAL_S)
            assert client.part_keys == ["bar.main", "shop.main"]


async def test_a_bucket_recreated_while_no_process_ran_collects_nothing() -> None:
    async with running_apps(Apps(), "shop", "bar") as client:
        pass

    client.apps.recreate()
    await client.app("bar")
    for _ in range(2):
        async with running(Apps(), stores=client.stores) as harness:
            await asyncio.sleep(LONG)
            assert client.parts.keys() == ["bar.main", "shop.main"]
            assert "was recreated since it was last seen" in (await plan(harness)).refused


async def test_an_empty_bucket_without_a_gc_record_collects_nothing() -> None:
    stores = MemoryStores()
    client = AppClient(stores)
    await put(client.parts, "shop.main", owned_by("shop"))
    async with running(Apps(), stores=stores) as harness:
        await asyncio.sleep(LONG)
        assert client.parts.keys() == ["shop.main"]
        assert "nothing is remembered about the bucket" in (await plan(harness)).refused


async def test_a_bucket_recreated_during_a_gc_cycle_collects_nothing() -> None:
    stores = SlowStores()
    async with running_apps(Reluctant(), "alive", "deleted", stores=stores) as client:
        await client.apps.delete("deleted")
        await asyncio.sleep(1)
        stores.store(APPS).answers_after_s = 5.0
        cycle = asyncio.create_task(plan(client))
        await asyncio.sleep(1)  # the cycle has read the deleted owner, and no other
        stores.store(APPS).answers_after_s = 0.0
        client.apps.recreate()
        assert [orphan.proven for orphan in (await cycle).orphans] == [True]
        await asyncio.sleep(LONG)

        assert client.part_keys.count("alive.main") == 1
        assert "was recreated" in (await plan(client)).refused


async def test_owners_that_vanish_during_a_gc_cycle_keep_their_secondaries() -> None:
    stores = SlowStores()
    async with running_apps(Apps(), "shop", "bar", stores=stores) as client:
        await asyncio.sleep(GC_INTERVAL_S)
        stores.store(MEMORY).answers_after_s = 5.0
        cycle = asyncio.create_task(plan(client))
        await asyncio.sleep(1)  # the cycle has found no orphan, and reads the remembered state
        stores.store(MEMORY).answers_after_s = 0.0
        client.apps.vanish("shop", "bar")
        client.apps.break_watches()
        assert (await cycle).orphans == ()
        await asyncio.sleep(LONG)

        assert client.parts.keys() == ["bar.main", "shop.main"]
        assert "is empty, although owners were seen in it" in (await plan(client)).refused


async def test_a_large_bucket_recreated_during_its_listing_collects_nothing() -> None:
    controller = Apps()
    async with running_apps(controller, "shop") as client:
        cycles: list[asyncio.Task[GarbagePlan]] = []
        client.apps.recreate()
        for number in range(3000):
            await client.app(f"app-{number}", parts=())
        async with controller.apps.informer.subscribe(
            lambda _: cycles or cycles.append(asyncio.create_task(plan(client)))  # type: ignore[func-returns-value]
        ):
            cycles.clear()
            await asyncio.sleep(20)
        assert cycles
        await asyncio.sleep(OVER)

        assert client.parts.keys() == ["shop.main"]
        assert "was recreated" in (await plan(client)).refused


async def test_an_unreadable_bucket_collects_nothing_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_apps(Apps(), "shop") as client:
        await put(client.parts, "lost", owned_by("nobody"))
        await asyncio.sleep(1)
        for error in (StoreTimeoutError("no answer"), StoreMissingError("apps is missing")):
            client.apps.fail(error)
            await asyncio.sleep(LONG)
            assert client.parts.keys() == ["lost", "shop.main"]
            assert str(error) in (await plan(client)).refused
        lines = [it.message for it in caplog.records if "collecting no garbage" in it.message]
        assert ["apps is missing" in line for line in lines] == [False, True]  # each once
        assert refusals(caplog) == []
        client.apps.fail(None)
        await client.app("shop", "bye")
        await asyncio.sleep(OVER)
        assert await client.texts() == {"shop.main": "bye"}


async def test_secondaries_of_another_owner_kind_are_never_collected() -> None:
    async with running_apps(Apps(), "shop") as client:
        await put(client.parts, "a", owned_by("nobody", kind="Other.apps"))
        await put(client.parts, "b", owned_by("nobody", kind="App.others"))
        await put(client.parts, "c", {"spec": {"text": "nobody's"}})
        await put(client.parts, "d", b"oops")
        await asyncio.sleep(LONG)

        assert client.parts.keys() == ["a", "b", "c", "d", "shop.main"]
        assert (await plan(client)).orphans == ()


async def test_an_overwritten_orphan_is_not_collected() -> None:
    async with running_apps(Apps(), "shop") as client:
        await put(client.parts, "lost-1", owned_by("nobody"))
        await put(client.parts, "lost-2", owned_by("nobody"))
        await asyncio.sleep(1)
        await put(client.parts, "lost-1", b"oops")
        await put(client.parts, "lost-2", {"spec": {"text": "mine now"}})
        await asyncio.sleep(LONG)

        assert client.parts.keys() == ["lost-1", "lost-2", "shop.main"]
        assert [orphan.owner for orphan in (await plan(client)).orphans] == [""]  # only listed


# ---- limits


async def lost(client: AppClient, count: int) -> None:
    for number in range(count):
        await put(client.parts, f"lost-{number}", owned_by(f"nobody-{number}"))


async def test_more_orphans_than_share_max_need_a_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = (f"app-{number}" for number in range(20))
    async with running_apps(Apps(), *keys) as client:
        await lost(client, 11)
        await asyncio.sleep(LONG)

        assert len(client.parts.keys()) == 31
        planned = await plan(client)
        assert "11 of 31 objects would go, more than 30%" in planned.refused
        assert len(refusals(caplog)) == 1
        assert len((await client.runtime.garbage_apply(planned)).orphans) == 11
        assert len(client.parts.keys()) == 20


async def test_up_to_share_from_orphans_are_collected_whatever_their_share() -> None:
    async with running_apps(Apps(), "shop") as client:
        await lost(client, GarbageLimits().share_from)
        await asyncio.sleep(OVER)
        assert client.parts.keys() == ["shop.main"]


async def test_exactly_share_max_of_orphans_are_collected_and_invalid_ones_are_none() -> None:
    keys = (f"app-{number}" for number in range(28))
    async with running_apps(Apps(), *keys) as client:
        await lost(client, 12)
        await put(client.parts, "broken", owned_by("nobody") | {"spec": {"text": "left"}})
        await put(client.parts, "broken", b"no JSON")
        await asyncio.sleep(1)
        assert len((await plan(client)).orphans) == 12
        await asyncio.sleep(OVER)

        assert len(client.parts.keys()) == 29
        assert "broken" in client.parts.keys()  # noqa: SIM118 - a method's list


async def test_more_orphans_than_count_max_need_a_user() -> None:
    class Careful(Apps):
        garbage = GarbageLimits(count_max=3, share_max=1.0)

    async with running_apps(Careful(), "shop") as client:
        await lost(client, 4)
        await asyncio.sleep(LONG)
        assert len(client.parts.keys()) == 5
        assert "4 objects would go, more than 3 at once" in (await plan(client)).refused

        await client.parts.delete("lost-0")
        await asyncio.sleep(OVER)
        assert client.parts.keys() == ["shop.main"]


# ---- commands of a user


async def test_an_applied_plan_deletes_only_its_unchanged_orphans_and_gc_cycles_resume() -> None:
    async with running_apps(Apps(), "shop", "bar", "baz", "qux") as client:
        client.apps.recreate()
        await client.app("bar")
        await asyncio.sleep(30)
        planned = await plan(client)
        assert {orphan.key for orphan in planned.orphans} == {"shop.main", "baz.main", "qux.main"}
        await edit(client.parts, "shop.main", "spec", "text", to="changed since")
        await client.app("baz")
        removed = await client.runtime.garbage_apply(planned)

        assert [orphan.key for orphan in removed.orphans] == ["qux.main"]
        reasons = {kept.orphan.key: kept.reason for kept in removed.kept}
        assert reasons["baz.main"] == "its owner baz exists"
        assert reasons["shop.main"].startswith("it changed: ")
        await client.idle()
        assert client.parts.keys() == ["bar.main", "baz.main", "shop.main"]
        await client.runtime.garbage_apply(await plan(client))
        assert client.parts.keys() == ["bar.main", "baz.main"]
        await put(client.parts, "lost", owned_by("nobody"))
        await asyncio.sleep(OVER)
        assert client.parts.keys() == ["bar.main", "baz.main"]
        assert (await plan(client)).refused == ""


async def test_an_owner_created_while_a_plan_is_applied_gets_its_secondaries_back() -> None:
    stores = SlowStores()
    async with running_apps(Apps(), "shop", "bar", stores=stores) as client:
        part = await document(client.parts, "shop.main")
        client.apps.recreate()
        await client.app("bar")
        await asyncio.sleep(30)
        planned = await plan(client)
        stores.store(APPS).answers_after_s = 5.0
        applying = asyncio.create_task(client.runtime.garbage_apply(planned))
        await asyncio.sleep(1)  # the command has read the owner, which did not exist
        stores.store(APPS).answers_after_s = 0.0
        await client.app("shop")
        await asyncio.sleep(1)
        assert await document(client.parts, "shop.main") == part
        assert [orphan.key for orphan in (await applying).orphans] == ["shop.main"]
        await client.idle()

        assert await client.texts() == {"shop.main": "hi", "bar.main": "hi"}


async def test_a_plan_of_a_recreated_store_deletes_nothing() -> None:
    async with running_apps(Apps()) as client:
        await put(client.parts, "lost", owned_by("nobody"))
        await asyncio.sleep(1)
        planned = await plan(client)
        client.parts.recreate()
        await put(client.parts, "lost", owned_by("nobody"))  # the same key at the same revision
        await asyncio.sleep(30)

        with pytest.raises(UsageError, match="was recreated since the plan was made"):
            await client.runtime.garbage_apply(planned)
        assert client.parts.keys() == ["lost"]


async def test_a_controller_can_override_garbage_secondaries() -> None:
    cycle_times: list[float] = []

    class Own(Apps):
        garbage = GarbageLimits(interval_s=100.0)

        async def garbage_secondaries(self) -> None:
            cycle_times.append(asyncio.get_running_loop().time())
            if len(cycle_times) == 2:
                raise RuntimeError("on purpose")

    async with running_apps(Own(), "shop") as client:
        await put(client.parts, "lost", owned_by("nobody"))
        await asyncio.sleep(350)
        assert [round(time) for time in cycle_times] == [0, 100, 200, 300]
        assert client.parts.keys() == ["lost", "shop.main"]
