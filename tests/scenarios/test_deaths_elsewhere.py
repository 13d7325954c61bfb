"""A death of a process on another machine counts for the keys that it held for long."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from natsctl.core.pausing.held_file import state_directory
from natsctl.core.pausing.held_records import HeldRecord, held_record
from natsctl.core.pausing.pausing import PAUSES
from natsctl.core.pausing.quarantine import Deaths
from natsctl.testing.harness import running
from natsctl.testing.memory import MemoryStores
from tests.support.controllers.app_controller import Apps, app_client
from tests.support.controllers.quarantined_apps import Stuck, deaths, prepared, syncs_of


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> Iterator[Path]:
    token = state_directory.set(tmp_path)
    yield tmp_path
    state_directory.reset(token)


async def held(stores: MemoryStores) -> list[HeldRecord]:
    """Return the records of the keys that processes have held for long."""
    records = stores.store(PAUSES)
    names = [key for key in list(records.keys()) if ".held." in key]
    return [msgspec.json.decode((await records.get(name)).value, type=HeldRecord) for name in names]


async def die_elsewhere(stores: MemoryStores, process: str) -> None:
    """Leave the record of a process on another machine that died while it held the key shop."""
    value = msgspec.json.encode(HeldRecord((("apps", "shop"),)))
    await stores.store(PAUSES).create(held_record("apps", process), value)


class Slow(Apps):
    """A controller whose syncs take three seconds."""

    name = "apps"

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.sleep(3)
        return await super().sync_handler(key)


async def test_a_key_that_is_held_for_long_is_recorded_until_its_sync_ends() -> None:
    stores = MemoryStores()
    async with running(Slow(), stores=stores) as harness:
        await app_client(harness).app("shop")
        await harness.run_for(2)
        assert await held(stores) == [HeldRecord((("apps", "shop"),))]
        await harness.run_until_idle()
        assert await held(stores) == [HeldRecord()]
    assert await held(stores) == []


async def test_a_short_sync_writes_no_record_of_its_key() -> None:
    stores = await prepared()
    writes = stores.store(PAUSES).writes
    async with running(Apps(), stores=stores) as harness:
        await harness.run_for(5)
        assert stores.store(PAUSES).writes == writes


async def test_a_cancelled_sync_leaves_no_record_of_its_key() -> None:
    stores = await prepared()
    controller = Stuck()
    async with running(controller, stores=stores) as harness:
        await harness.run_for(2)
        assert len((await held(stores))[0].keys) == 2
    assert await held(stores) == []


async def test_a_death_on_another_machine_counts_once() -> None:
    stores = await prepared()
    await die_elsewhere(stores, "7-a")
    for _ in range(2):
        async with running(Stuck(), stores=stores) as harness:
            await harness.run_for(0.5)
    (name,) = await deaths(stores)
    record = msgspec.json.decode((await stores.store(PAUSES).get(name)).value, type=Deaths)
    assert (record.count, record.processes) == (1, ("7-a",))
    assert await held(stores) == []


async def test_three_deaths_on_other_machines_quarantine_the_key() -> None:
    stores = await prepared()
    for number in range(2):
        await die_elsewhere(stores, f"{number}-a")
        async with running(Stuck(), stores=stores) as harness:
            await harness.run_for(0.5)
    await die_elsewhere(stores, "2-a")
    async with running(Apps(), stores=stores) as harness:
        await harness.run_until_idle()
        assert syncs_of(harness) == ["market"]
        assert list(harness.runtime.status().quarantined) == ["shop"]
