"""A key whose sync kills processes is quarantined, and the history of syncs survives a restart."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from natsctl.core.pausing.held_file import state_directory
from natsctl.testing.harness import Harness, running
from natsctl.testing.memory import MemoryStores
from tests.support.controllers.app_controller import APPS, Apps, app_client, edit
from tests.support.controllers.quarantined_apps import Stuck, deaths, prepared, syncs_of

DYING = """
import os, sys
from pathlib import Path
from natsctl.core.pausing.held_file import held_file, state_directory
state_directory.set(Path(sys.argv[1]))
with held_file("apps.0", 1) as held:
    held.slot(0).hold("shop")
    os._exit(9)
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> Iterator[Path]:
    token = state_directory.set(tmp_path)
    yield tmp_path
    state_directory.reset(token)


def die(directory: Path) -> None:
    """Run a process that dies while it holds the key shop."""
    subprocess.run([sys.executable, "-c", DYING, str(directory)], check=False)


async def died(directory: Path, stores: MemoryStores, times: int) -> None:
    for _ in range(times):
        die(directory)
        async with running(Stuck(), stores=stores) as harness:
            await harness.run_for(1)


@asynccontextmanager
async def after_deaths(directory: Path, times: int) -> AsyncIterator[Harness]:
    """Run the controller until it is idle, after processes died while they held the key shop."""
    stores = await prepared()
    await died(directory, stores, times - 1)
    die(directory)
    async with running(Apps(), stores=stores) as harness:
        await harness.run_until_idle()
        yield harness


async def test_a_key_is_quarantined_after_three_deaths_and_others_are_synced(
    directory: Path,
) -> None:
    async with after_deaths(directory, 3) as harness:
        assert syncs_of(harness) == ["market"]
        assert list(harness.runtime.status().quarantined) == ["shop"]
        assert harness.runtime.explain("shop").quarantined.startswith("3 processes died")
        assert app_client(harness).reasons("shop")[-1] == "Quarantined"
        assert len(harness.runtime.measures().health.quarantined) == 1


async def test_a_quarantine_survives_a_restart(directory: Path) -> None:
    stores = await prepared()
    await died(directory, stores, 2)
    die(directory)
    for _ in range(2):
        async with running(Apps(), stores=stores) as harness:
            await harness.run_until_idle()
            assert syncs_of(harness) == ["market"]


async def test_a_changed_key_is_synced_and_its_deaths_are_forgotten(directory: Path) -> None:
    async with after_deaths(directory, 3) as harness:
        await edit(harness.stores.store(APPS), "shop", "spec", "text", to="new")
        await harness.run_until_idle()
        assert syncs_of(harness) == ["market", "shop"]
        await harness.run_for(1)
        assert await deaths(harness.stores) == []


async def test_a_key_that_changed_while_no_process_ran_is_synced(directory: Path) -> None:
    stores = await prepared()
    await died(directory, stores, 3)
    await edit(stores.store(APPS), "shop", "spec", "text", to="new")
    async with running(Apps(), stores=stores) as harness:
        await harness.run_until_idle()
        assert sorted(syncs_of(harness)) == ["market", "shop"]


async def test_a_person_can_request_the_sync_of_a_quarantined_key(directory: Path) -> None:
    async with after_deaths(directory, 3) as harness:
        harness.runtime.resync("shop")
        await harness.run_until_idle()
        assert syncs_of(harness) == ["market", "shop"]
        assert harness.runtime.status().quarantined == {}


async def test_a_sync_that_ends_forgets_two_deaths(directory: Path) -> None:
    async with after_deaths(directory, 2) as harness:
        await harness.run_for(1)
        assert await deaths(harness.stores) == []


async def test_a_failing_key_keeps_its_count_of_failures_after_a_restart() -> None:
    class Failing(Apps):
        async def sync_handler(self, key: str) -> float | None:
            await super().sync_handler(key)
            raise RuntimeError("broken")

    stores = MemoryStores()
    async with running(Failing(), stores=stores) as harness:
        await app_client(harness).app("shop")
        await harness.run_until(lambda: harness.runtime.explain("shop").failures == 12)
    async with running(Failing(), stores=stores) as harness:
        await harness.run_for(1)
        explanation = harness.runtime.explain("shop")
        assert explanation.failures == 13
        assert explanation.queued is not None
        assert explanation.queued.s > 15  # 5 ms doubled twelve times, less the second


async def test_a_key_that_recovered_starts_to_count_again() -> None:
    class Recovering(Apps):
        broken = True

        async def sync_handler(self, key: str) -> float | None:
            self.syncs.append(key)
            if self.broken:
                raise RuntimeError("broken")
            return None

    stores, controller = MemoryStores(), Recovering()
    async with running(controller, stores=stores) as harness:
        client = app_client(harness)
        await client.app("shop")
        await harness.run_until(lambda: harness.runtime.explain("shop").failures == 5)
        controller.broken = False
        await harness.run_until_idle()
        assert client.events("shop")[-1] == (
            *("Synced", '"shop" synced successfully (after failures)'),
        )
    async with running(Recovering(), stores=stores) as harness:
        await harness.run_until(lambda: harness.runtime.explain("shop").failures == 1)
