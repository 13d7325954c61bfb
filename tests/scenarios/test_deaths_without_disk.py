"""Without a writable disk, a record in NATS shows which keys a process was syncing when it died."""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from natsctl.core.coordination.term import SHARES, Leadership
from natsctl.testing import MemoryStores, running
from tests.support.controllers.app_controller import APPS, Apps, app_client, edit
from tests.support.controllers.quarantined_apps import (
    PAUSES,
    Stuck,
    deaths,
    on_machine,
    prepared,
    syncs_of,
)

NO_DISK = Path("/dev/null/state")


@pytest.fixture(autouse=True)
def no_disk() -> Iterator[None]:
    with on_machine(NO_DISK):
        yield


async def records(stores: MemoryStores) -> list[dict[str, Any]]:
    """Return the records of the keys that processes sync."""
    store = stores.store(PAUSES)
    names = [key for key in list(store.keys()) if ".held." in key]
    return [json.loads((await store.get(name)).value) for name in names]


async def written(stores: MemoryStores) -> list[int]:
    """Return the revisions of these records, which change with every write."""
    store = stores.store(PAUSES)
    return [(await store.get(key)).revision for key in list(store.keys()) if ".held." in key]


async def die(stores: MemoryStores, process: str, *keys: str, alone: bool = False) -> None:
    """Leave the record of a process that died while it synced these keys."""
    record = {"keys": keys, "host": "", "alone": alone}
    name = f"controllers.apps.held.0.{process}"
    await stores.store(PAUSES).create(name, json.dumps(record, separators=(",", ":")).encode())


class Slow(Apps):
    """A controller whose syncs take three seconds."""

    name = "apps"
    workers = 2
    running = 0

    async def sync_handler(self, key: str) -> float | None:
        self.running += 1
        await asyncio.sleep(3)
        self.running -= 1
        return await super().sync_handler(key)


async def test_after_a_death_each_key_is_recorded_until_all_were_synced() -> None:
    stores = await prepared()
    await die(stores, "7-a")
    async with running(Slow(), stores=stores) as harness:
        await harness.run_for(2)
        (record,) = await records(stores)
        assert sorted(record["keys"]) == ["market", "shop"]
        assert not record["alone"]
        await harness.run_until_idle()
        assert [record["keys"] for record in await records(stores)] == [[]]
        revisions = await written(stores)
        await app_client(harness).app("later")
        await harness.run_until_idle()
        assert await written(stores) == revisions
    assert await records(stores) == []


async def test_suspects_of_a_record_are_recorded_alone() -> None:
    stores = await prepared()
    await die(stores, "7-a", "shop", "market")
    controller = Slow()
    async with running(controller, stores=stores) as harness:
        for ended in range(2):
            await harness.run_until(lambda: controller.running and len(controller.syncs) == ended)  # noqa: B023 - called at once
            (record,) = await records(stores)
            assert (len(record["keys"]), record["alone"]) == (1, True)
        await harness.run_until(lambda: len(syncs_of(harness)) == 2)
        await harness.run_for(1)
        assert sorted(syncs_of(harness)) == ["market", "shop"]
        assert await deaths(stores) == []
        assert [record["keys"] for record in await records(stores)] == [[]]


async def test_only_a_key_that_was_alone_counts_a_death_and_only_once() -> None:
    stores = await prepared()
    await die(stores, "7-a", "shop", alone=True)
    await die(stores, "8-b", "market")
    for _ in range(2):
        async with running(Stuck(), stores=stores) as harness:
            await harness.run_for(0.5)
    (name,) = await deaths(stores)
    record = json.loads((await stores.store(PAUSES).get(name)).value)
    assert (name, record["count"], record["processes"]) == (
        "controllers.apps.deaths.apps.shop",
        1,
        ["7-a"],
    )
    assert await records(stores) == []


async def test_three_deaths_alone_quarantine_the_key() -> None:
    stores = await prepared()
    for number in range(2):
        await die(stores, f"{number}-a", "shop", alone=True)
        async with running(Stuck(), stores=stores) as harness:
            await harness.run_for(0.5)
    await die(stores, "2-a", "shop", alone=True)
    async with running(Apps(), stores=stores) as harness:
        await harness.run_until_idle()
        assert syncs_of(harness) == ["market"]
        assert list(harness.runtime.status().quarantined) == ["shop"]


async def test_keys_that_wait_for_a_suspect_are_not_recorded_beside_it() -> None:
    stores, controller = await prepared("shop"), Slow()
    await die(stores, "7-a", "shop", alone=True)
    async with running(controller, stores=stores) as harness:
        await harness.run_until(lambda: controller.running)
        await app_client(harness).app("market")
        await harness.run_for(1)
        (record,) = await records(stores)
        assert (record["keys"], record["alone"]) == (["shop"], True)
        await harness.run_until_idle()
        assert controller.syncs == ["shop", "market"]
        assert [record["keys"] for record in await records(stores)] == [[]]


async def test_a_suspect_that_is_paused_while_it_waits_to_be_alone_leaves_the_record() -> None:
    stores = await prepared()
    await die(stores, "7-a", "shop", alone=True)
    async with running(Slow(), stores=stores) as harness:
        await harness.run_for(2)  # the suspect waits for market
        annotations = ("metadata", "annotations")
        await edit(stores.store(APPS), "shop", *annotations, "natsctl.io/paused", to="true")
        await harness.run_for(10)
        assert syncs_of(harness) == ["market"]
        assert [record["keys"] for record in await records(stores)] == [[]]


async def test_a_sync_that_is_cancelled_at_the_end_of_a_term_leaves_the_record() -> None:
    stores, controller = await prepared("shop"), Slow()
    await die(stores, "7-a", "shop", alone=True)
    leadership = Leadership("apps", asyncio.get_running_loop().time)
    leadership.begin(1, until=math.inf)
    with on_machine(NO_DISK, leadership=leadership):
        async with running(controller, stores=stores) as harness:
            await harness.run_until(lambda: controller.running)
            (record,) = await records(stores)
            assert (record["keys"], record["alone"]) == (["shop"], True)
            leadership.step_down()
            await leadership.quiet()
            await harness.run_for(1)
            (record,) = await records(stores)
            assert (record["keys"], record["alone"]) == ([], False)


async def test_a_suspect_of_a_share_that_left_delays_nothing_here() -> None:
    stores, controller = await prepared("shop", "market", "later"), Slow()
    await die(stores, "7-a", "shop", "market")
    leadership = Leadership("apps", asyncio.get_running_loop().time, SHARES)
    leadership.begin(1, until=math.inf, mask=(1 << SHARES) - 1)
    with on_machine(NO_DISK, leadership=leadership):
        async with running(controller, stores=stores) as harness:
            await harness.run_until(lambda: controller.running and len(controller.syncs) == 1)
            (record,) = await records(stores)
            (other,) = {"shop", "market"}.difference(record["keys"])
            leadership.move(leadership.mask & ~(1 << leadership.share_of(other)))
            await harness.run_until(lambda: len(controller.syncs) == 2)
            await harness.run_for(1)
            revisions = await written(stores)
            await app_client(harness).app("later", "new")
            await harness.run_for(5)
            assert (len(controller.syncs), other in controller.syncs) == (3, False)
            assert await written(stores) == revisions
