"""A sync reads no state that is older than the last write of the same key."""

import asyncio

from natsctl import ControllerRuntime, Operation
from natsctl.testing import Harness, running
from tests.support.controllers.app_controller import (
    APPS,
    PARTS,
    Apps,
    Part,
    PartSpec,
    SlowStores,
    app_client,
    edit,
    running_apps,
)


class Counting(Apps):
    """Increments a counter in a part and one in the status, from the values that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        app = self.apps.get(key)
        if app is None:
            return None
        part = self.parts.get(key)
        counted = 0 if part is None else int(part.spec.text)
        reported = app.status.get("syncs", 0)
        assert isinstance(reported, int)
        self.seen.append((counted, reported))
        await self.parts.apply(key, Part(spec=PartSpec(str(counted + 1))))
        await self.apps.update_status(key, {"syncs": reported + 1})
        return None


async def test_a_handler_sees_its_own_writes_if_the_watches_lag() -> None:
    controller, stores = Counting(), SlowStores()
    stores.store(APPS).lag_s = stores.store(PARTS).lag_s = 3.0
    async with running_apps(controller, stores=stores) as client:
        await client.app("shop")
        for _ in range(20):
            await asyncio.sleep(0.5)
            client.runtime.enqueue_key("shop", Operation.MANUAL)
        await client.idle()

    assert len(controller.seen) > 3
    assert controller.seen == [(number, number) for number in range(len(controller.seen))]


async def test_a_handler_sees_its_own_writes_if_their_answers_are_lost() -> None:
    controller, stores = Counting(), SlowStores()
    async with running(controller, stores=stores) as harness:
        await app_client(harness).app("shop")
        await harness.run_until_idle()
        with stores.store(PARTS).held_up(), stores.store(APPS).held_up():
            for kind in (PARTS, APPS):
                stores.store(kind).answers_lost = 1
                harness.runtime.enqueue_key("shop", Operation.MANUAL)
                await asyncio.sleep(60)
        await harness.run_until_idle()

    assert controller.seen[:5] == [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3)]


async def test_a_barrier_timeout_reads_newer_writes_of_others_from_the_store() -> None:
    controller, stores = Counting(), SlowStores()
    async with running_apps(controller, stores=stores) as client:
        with stores.store(PARTS).held_up():
            await client.app("shop")
            await asyncio.sleep(1)
            await edit(client.parts, "shop", "spec", "text", to="100")
            client.runtime.enqueue_key("shop", Operation.MANUAL)
            await asyncio.sleep(30)
            assert controller.seen == [(0, 0), (100, 1)]


async def test_a_key_that_waits_for_its_writes_does_not_block_other_keys() -> None:
    class Single(Counting):
        workers = 2

    controller, stores = Single(), SlowStores()
    async with running_apps(controller, "shop", stores=stores) as client:
        with stores.store(PARTS).held_up():
            for _ in range(2):
                client.runtime.enqueue_key("shop", Operation.MANUAL)
                await asyncio.sleep(0.1)
            controller.syncs.clear()
            await client.app("bar")
            await asyncio.sleep(1)
            assert controller.syncs == ["bar"]


async def test_a_sync_does_not_see_writes_of_another_key_before_the_cache() -> None:
    class OtherKeyReader(Apps):
        seen_reads: object = "nothing yet"

        async def sync_handler(self, key: str) -> float | None:
            if key == "writer":
                await self.parts.apply("it", Part(spec=PartSpec("it")))
            else:
                self.seen_reads = self.parts.get("it")
            return None

    controller, stores = OtherKeyReader(), SlowStores()
    async with running_apps(controller, stores=stores) as client:
        with stores.store(PARTS).held_up():
            await client.app("writer")
            await asyncio.sleep(1)
            await client.app("reader")
            await asyncio.sleep(1)
            assert controller.seen_reads is None


async def test_barrier_timeout_s_limits_the_wait_for_own_writes() -> None:
    controller, stores = Counting(), SlowStores()
    runtime = ControllerRuntime(controller, nats=stores, barrier_timeout_s=2.0)
    task = asyncio.create_task(runtime.run())
    await runtime.synced.wait()
    client = app_client(Harness(runtime, stores, task))
    await client.app("shop")
    await asyncio.sleep(1)
    with stores.store(PARTS).held_up():
        runtime.enqueue_key("shop", Operation.MANUAL)
        await asyncio.sleep(1)
        runtime.enqueue_key("shop", Operation.MANUAL)
        await asyncio.sleep(1.9)
        assert len(controller.seen) == 2
        await asyncio.sleep(0.2)
        assert len(controller.seen) == 3
    runtime.stop()
    await task


async def test_a_write_that_a_list_does_not_show_syncs_its_owner_again() -> None:
    controller, stores = Counting(), SlowStores()
    async with running(controller, stores=stores) as harness:
        parts = stores.store(PARTS)
        with parts.held_up():
            await app_client(harness).app("shop")
            await asyncio.sleep(1)
            parts.vanish("shop")
            parts.forget()
            parts.cut()
        await asyncio.sleep(30)  # far less than until the next resync
        await harness.run_until_idle()
        assert parts.keys() == ["shop"]
